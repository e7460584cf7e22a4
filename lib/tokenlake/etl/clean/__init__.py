"""Cleaning before tokenization; see docs/cleaning.md.

Duplicates, evaluation sets and poor text are left out.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
