"""Inspection of a source without reading all of it, and a configuration for it.

:class:`~tokenlake.etl.introspection.introspector.DatasetIntrospector` opens a few of
the files and reads their first records;
:class:`~tokenlake.etl.introspection.mapping.ColumnMapper` finds columns by their usual
names.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
