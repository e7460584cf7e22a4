"""The names of `tokenlake.runtime.trainer`, under the path of docs/trainer.md."""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "train")  # pyright: ignore[reportUnsupportedDunderAll]
