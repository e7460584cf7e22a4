"""Stores: where versions live. Objects are created once, verified when written, never half visible."""

from tokenlake.storage.base import ObjectInfo, Outcome, Store
from tokenlake.storage.keys import check_dataset_name, check_key
from tokenlake.storage.layout import Layout
from tokenlake.storage.local import LocalStore
from tokenlake.storage.opening import open_store
from tokenlake.storage.writing import HashingFile

__all__ = [
    "HashingFile",
    "Layout",
    "LocalStore",
    "ObjectInfo",
    "Outcome",
    "Store",
    "check_dataset_name",
    "check_key",
    "open_store",
]
