"""Packages that a trainer installs.

They are stores, shards, mixtures, the order of rows and loaders; also the trainer and
proofs.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
