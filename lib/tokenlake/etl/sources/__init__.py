"""Raw input, from a pattern in a configuration to columns of text.

Like a mail room: :func:`list_inputs` lists and seals what has arrived (path, size,
sha256), :func:`split_file` cuts big parcels into pieces anyone may open independently,
and :func:`read_range` opens one piece and hands over its texts in Arrow batches, each
with the place it came from, setting damaged letters aside with the reason written on
them.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
