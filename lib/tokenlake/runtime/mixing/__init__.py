"""Mixing: several sources as one stream, with exact weights that may change along the way.

``schedule`` says which weights hold at a step, ``counts`` how many rows of each source come before a position,
``mixture`` which row is at a position, and ``stream`` where that row is stored. All are functions: nothing is drawn,
stored or replayed.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
