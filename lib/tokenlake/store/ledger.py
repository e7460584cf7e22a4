"""The ledger record: one finished unit of work, ``ledger/00017.json``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, final

import msgspec
from msgspec import Meta

from tokenlake.store.account import Account
from tokenlake.store.entries import InputEntry, QuarantineEntry, ShardEntry, check_entries
from tokenlake.store.layout import MAX_UNIT, quarantine_path
from tokenlake.store.sealed import Sealed, SealedDocument, Sha256

#: The source of a unit that holds rows of several.
MIXED: Final = "*"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRecord(Sealed):
    """What a unit read and wrote; published after its parts, so that its existence proves theirs.

    Attributes:
        unit: index in the plan.
        fingerprint: of the unit's work (ranges, config, tokenizer, format); what reuse looks for.
        source: the configured source it reads, or :data:`MIXED`.
        inputs: ranges read.
        parts: shards written, possibly none.
        account: rows and tokens of this unit.
        shares: of a unit that is :data:`MIXED`, what of the account is each source's: all but the rows that hold
            documents of several (`sequences`, `slots` and `pad`). Empty for the others.
        quarantine: the unit's bad records, if any.
        engine: which tokenizer engine encoded it.
        produced_by: names and versions of what wrote it; not identity.
    """

    unit: Annotated[int, Meta(ge=0, le=MAX_UNIT)]
    fingerprint: Sha256
    source: str
    inputs: tuple[InputEntry, ...]
    parts: tuple[ShardEntry, ...]
    account: Account
    quarantine: QuarantineEntry | None
    engine: str
    produced_by: dict[str, str]
    shares: dict[str, Account] = field(default_factory=dict[str, Account])

    def by_source(self) -> dict[str, Account]:
        """Return source -> account; of a mixed unit the shares, in which no source has sequences."""
        return self.shares if self.source == MIXED else {self.source: self.account}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; not sealed."""
        return msgspec.to_builtins(self._members())

    def _check(self, document: SealedDocument) -> None:
        check_entries(document, "parts", self.parts)
        check_entries(document, "inputs", self.inputs)
        paths = [part.path for part in self.parts]
        if any(part.unit != self.unit for part in self.parts) or len(set(paths)) != len(paths):
            document.fail("parts", f"each shard of unit {self.unit} once", paths)
        if any(entry.source != self.source for entry in self.inputs):
            document.fail(
                "inputs", f"files of source {self.source!r} only", [entry.source for entry in self.inputs]
            )
        if ("shares" in document) != (self.source == MIXED) or (self.source == MIXED and not self.shares):
            document.fail("shares", f"what is each source's, in units of source {MIXED!r} only", self.source)
        for source, account in self.shares.items():
            if account != _of_source(account):
                document.fail(
                    f"shares.{source}", "no sequences, slots or pad: rows are of no one source", account
                )
        whole = _of_source(Account.total([self.account]))
        if self.shares and Account.total(self.shares.values()) != whole:
            document.fail("account", "the sum of the shares, and sequences, slots and pad", self.account)
        if self.quarantine is not None and self.quarantine.path != quarantine_path(self.unit):
            document.fail("quarantine.path", quarantine_path(self.unit), self.quarantine.path)


def _of_source(account: Account) -> Account:
    return replace(account, sequences=0, slots=0, pad=0)
