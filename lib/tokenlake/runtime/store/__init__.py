"""Stores of versioned datasets.

- Storages: local folders, buckets, and file systems that are only read
  (:mod:`~tokenlake.runtime.store.address` opens them).
- Documents of a version: manifest, ledger records, claim and tags
  (:mod:`~tokenlake.runtime.store.sealed` explains how they are protected).
- Work on stores: finding and claiming versions, comparing and removing them, garbage
  collection, and copies of remote shards.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
