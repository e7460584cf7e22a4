"""Cleaning before tokenization: duplicates, evaluation sets and poor text are left
out; see docs/cleaning.md.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
