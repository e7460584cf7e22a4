"""The catalog: store -> datasets -> versions and tags; manifests, ledgers and claims by name."""

from tokenlake.catalog.catalog import Catalog, VersionInfo, read_record
from tokenlake.catalog.claims import Claim, ClaimResult, Status
from tokenlake.catalog.tags import Tag, TagChange

__all__ = ["Catalog", "Claim", "ClaimResult", "Status", "Tag", "TagChange", "VersionInfo", "read_record"]
