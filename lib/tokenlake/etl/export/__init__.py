"""Flat directories: rows as files that any tool reads.

The rows are those of a committed version, or of any caller that brings rows.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
