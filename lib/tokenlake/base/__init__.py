"""The ground floor: modules that any part of the library may use.

They import nothing of the library but its errors. The library imports the modules
themselves. The stub beside this file lists the names that tests use: laws of the floor,
such as sizes, canonical JSON and the removal of secrets.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
