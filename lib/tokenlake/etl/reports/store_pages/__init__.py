"""The pages of a store: index, lineage as a graph, and a browser of decoded rows.

All functions are pure: the same :class:`StoreContents` give the same pages.
``query/store_pages.py`` reads a store and writes the pages.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
