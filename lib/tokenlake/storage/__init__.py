"""Stores: where versions live. Objects are created once, verified when written, never half visible.

:func:`open_store` gives a store to write, in a folder or a bucket; :func:`open_read_store` one to read, wherever it is.
"""

from tokenlake.storage.address import StoreAddress
from tokenlake.storage.base import Digest, Leftover, ObjectInfo, Outcome, ReadStore, Store
from tokenlake.storage.keys import check_dataset_name, check_key
from tokenlake.storage.layout import Layout
from tokenlake.storage.local import LocalStore
from tokenlake.storage.opening import open_read_store, open_store
from tokenlake.storage.writing import HashingFile

__all__ = [
    "Digest",
    "HashingFile",
    "Layout",
    "Leftover",
    "LocalStore",
    "ObjectInfo",
    "Outcome",
    "ReadStore",
    "Store",
    "StoreAddress",
    "check_dataset_name",
    "check_key",
    "open_read_store",
    "open_store",
]
