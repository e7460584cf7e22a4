"""Parquet as shards of packed rows use it.

The modules read and write Thrift structs, headers of pages, the dictionary of ids, and
whole files.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
