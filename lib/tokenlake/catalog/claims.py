"""Claims: which fingerprint builds which version, ``claim.json``, and what became of it.

A claim is created once, and changes twice at most, each time by compare-and-swap, so that of two that change it one
fails and learns of the other::

    building ──commit──> committing ──the manifest──> (a version)
        └────────gc────────┴─> swept: the number stays taken, and never becomes a version

A build that commits turns its claim from ``building`` into ``committing`` and then creates the manifest. ``gc`` turns
a ``building`` claim that nobody works on into ``swept`` and then deletes. A claim that already is ``committing`` has
one step left, which no swap of the claim can stop; there ``gc`` first takes the place of the manifest itself (see
:mod:`tokenlake.catalog.closing`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, cast, final

from tokenlake.sealed import FORMAT_VERSION, SHA256, seal, unseal
from tokenlake.storage.keys import DATASET_NAME
from tokenlake.storage.layout import CLAIM

Status = Literal["new", "resumed", "committed"]
State = Literal["building", "committing", "swept"]
_WRITTEN: Final = re.compile("committing|swept")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who builds a version. ``meta`` is free (name, release, start); only the fingerprint decides.

    Attributes:
        state: ``building`` (not written), ``committing`` or ``swept``.
    """

    dataset: str
    version: int
    fingerprint: str
    meta: dict[str, Any]
    state: State = "building"

    def turned(self, state: State) -> Self:
        """Return the same claim in another state."""
        return replace(self, state=state)

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal(
            {
                "format_version": FORMAT_VERSION,
                "dataset": self.dataset,
                "version": self.version,
                "fingerprint": self.fingerprint,
                "meta": self.meta,
                **({} if self.state == "building" else {"state": self.state}),
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
            state=cast("State", fields.text("state", _WRITTEN)) if "state" in fields.value else "building",
        )
        fields.end()
        return found


@final
@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The version to build, and whether it is new, half built by an equal build, or there."""

    version: int
    status: Status
