"""Claims: which fingerprint builds which version, ``claim.json``, create-only and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, final

from tokenlake.sealed import FORMAT_VERSION, SHA256, seal, unseal
from tokenlake.storage.keys import DATASET_NAME
from tokenlake.storage.layout import CLAIM

Status = Literal["new", "resumed", "committed"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who builds a version. ``meta`` is free (name, release, start); only the fingerprint decides."""

    dataset: str
    version: int
    fingerprint: str
    meta: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal(
            {
                "format_version": FORMAT_VERSION,
                "dataset": self.dataset,
                "version": self.version,
                "fingerprint": self.fingerprint,
                "meta": self.meta,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, where: str = CLAIM) -> Self:
        """Read a claim; any change after it was written is an IntegrityError."""
        fields = unseal(data, where)
        found = cls(
            dataset=fields.text("dataset", DATASET_NAME),
            version=fields.count("version", low=1),
            fingerprint=fields.text("fingerprint", SHA256),
            meta=fields.json_object("meta"),
        )
        fields.end()
        return found


@final
@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The version to build, and whether it is new, half built by an equal build, or there."""

    version: int
    status: Status
