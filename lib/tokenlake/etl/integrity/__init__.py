"""Verification and repair of committed versions.

Verification compares every byte with the manifest. Repair finds or makes good bytes for
damaged files.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
