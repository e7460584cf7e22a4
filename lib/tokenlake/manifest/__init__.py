"""Manifests and ledger records: what a version consists of, as sealed JSON."""

from tokenlake.account import Account
from tokenlake.manifest.files import FileEntry, QuarantineEntry, ShardEntry, Totals
from tokenlake.manifest.inputs import InputEntry, InputFileEntry, Lineage, Parent, inputs_fingerprint
from tokenlake.manifest.manifest import Kind, Manifest
from tokenlake.manifest.mixture import Level, MixedSource, MixtureOrder, MixtureRecord
from tokenlake.manifest.record import MIXED, UnitRecord
from tokenlake.sealed import FORMAT_VERSION

__all__ = [
    "FORMAT_VERSION",
    "MIXED",
    "Account",
    "FileEntry",
    "InputEntry",
    "InputFileEntry",
    "Kind",
    "Level",
    "Lineage",
    "Manifest",
    "MixedSource",
    "MixtureOrder",
    "MixtureRecord",
    "Parent",
    "QuarantineEntry",
    "ShardEntry",
    "Totals",
    "UnitRecord",
    "inputs_fingerprint",
]
