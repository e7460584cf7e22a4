"""Signed statements of the data that a checkpoint was trained on.

They are recomputed from the integers of a loader's state.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "prove")  # pyright: ignore[reportUnsupportedDunderAll]
