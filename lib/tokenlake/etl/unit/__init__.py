"""Units of work, and the files they become.

A unit is texts that are tokenized, or stored rows that are mixed or packed again.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
