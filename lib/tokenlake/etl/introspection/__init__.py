"""Inspection of a source, and a configuration that builds from it, without reading all
of the source.

:class:`~tokenlake.etl.introspection.introspector.DatasetIntrospector` opens a few of
the files and reads their first records;
:class:`~tokenlake.etl.introspection.mapping.ColumnMapper` finds columns by their usual
names.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
