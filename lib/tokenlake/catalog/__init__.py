"""The catalog: store -> datasets -> versions and tags; manifests, ledgers and claims by name."""

from tokenlake.catalog.catalog import Catalog, lists_ledger, read_record
from tokenlake.catalog.claims import Claim, ClaimResult, State, Status
from tokenlake.catalog.states import VersionInfo
from tokenlake.catalog.tags import Tag, TagChange

__all__ = [
    "Catalog",
    "Claim",
    "ClaimResult",
    "State",
    "Status",
    "Tag",
    "TagChange",
    "VersionInfo",
    "lists_ledger",
    "read_record",
]
