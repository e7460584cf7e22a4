"""The names of `tokenlake.runtime.trainer`, under the path that docs/trainer.md
gives.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "train")  # pyright: ignore[reportUnsupportedDunderAll]
