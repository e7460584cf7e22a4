"""The ground floor: modules that any part of the library may use. They import nothing of it but errors."""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
