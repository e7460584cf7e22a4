"""Mixing: several sources as one stream, with exact weights that may change.

``schedule`` states the weights at a step, ``counts`` the number of rows of each source
before a position, ``deal`` the lane that each row goes to, ``mixture`` the row at a
position, ``order`` the order inside a source, and ``streams`` the stored row. All of
them are functions: nothing is drawn, stored or replayed.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
