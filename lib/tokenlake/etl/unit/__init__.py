"""Units of work: texts that are tokenized, stored rows that are mixed or packed
again, and the files they become.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
