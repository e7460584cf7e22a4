"""The catalog: store -> datasets -> versions; manifests, ledgers and claims by name."""

from tokenlake.catalog.catalog import Catalog, VersionInfo, read_record
from tokenlake.catalog.claims import Claim, ClaimResult, Status

__all__ = ["Catalog", "Claim", "ClaimResult", "Status", "VersionInfo", "read_record"]
