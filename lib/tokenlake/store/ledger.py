"""The ledger record: one finished unit of work, ``ledger/00017.json``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, final

from tokenlake.store.account import Account
from tokenlake.store.entries import QuarantineEntry, ShardEntry
from tokenlake.store.inputs import InputEntry
from tokenlake.store.layout import MAX_UNIT, quarantine_path
from tokenlake.store.sealed import FORMAT_VERSION, SHA256, Fields, seal, unseal

#: The source of a unit that holds rows of several.
MIXED: Final = "*"


def _no_shares() -> dict[str, Account]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRecord:
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

    unit: int
    fingerprint: str
    source: str
    inputs: tuple[InputEntry, ...]
    parts: tuple[ShardEntry, ...]
    account: Account
    quarantine: QuarantineEntry | None
    engine: str
    produced_by: dict[str, str]
    shares: dict[str, Account] = field(default_factory=_no_shares)

    def by_source(self) -> dict[str, Account]:
        """Return source -> account; of a mixed unit the shares, in which no source has sequences."""
        return self.shares if self.source == MIXED else {self.source: self.account}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form (as sent between processes; not sealed)."""
        return {
            "format_version": FORMAT_VERSION,
            "unit": self.unit,
            "fingerprint": self.fingerprint,
            "source": self.source,
            "inputs": [entry.to_json() for entry in self.inputs],
            "parts": [part.to_json() for part in self.parts],
            "account": self.account.to_json(),
            # Left out where there are none: records of other units stay, byte for byte, what they were.
            **({"shares": {k: v.to_json() for k, v in self.shares.items()}} if self.shares else {}),
            "quarantine": self.quarantine and self.quarantine.to_json(),
            "engine": self.engine,
            "produced_by": self.produced_by,
        }

    @classmethod
    def from_json(cls, value: object, where: str = "unit record") -> Self:
        """Read :meth:`to_json`'s form; IntegrityError names ``where`` and the key."""
        fields = Fields(value, where)
        fields.count("format_version", low=FORMAT_VERSION, high=FORMAT_VERSION)
        return cls._read(fields)

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "ledger record") -> Self:
        """Read a ledger file; any change after it was written is an IntegrityError."""
        return cls._read(unseal(data, where))

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        quarantine = fields.optional_child("quarantine")
        shares = fields.named_children("shares") if "shares" in fields.value else {}
        found = cls(
            unit=fields.count("unit", high=MAX_UNIT),
            fingerprint=fields.text("fingerprint", SHA256),
            source=fields.text("source"),
            inputs=tuple(InputEntry.read(entry) for entry in fields.children("inputs")),
            parts=tuple(ShardEntry.read(entry) for entry in fields.children("parts")),
            account=Account.read(fields.child("account")),
            quarantine=None if quarantine is None else QuarantineEntry.read(quarantine),
            engine=fields.text("engine"),
            produced_by=fields.texts("produced_by"),
            shares={source: Account.read(item) for source, item in shares.items()},
        )
        fields.end()
        found._check(fields)
        return found

    def _check(self, fields: Fields) -> None:
        paths = [part.path for part in self.parts]
        if any(part.unit != self.unit for part in self.parts) or len(set(paths)) != len(paths):
            fields.fail("parts", f"each shard of unit {self.unit} once", paths)
        if any(entry.source != self.source for entry in self.inputs):
            fields.fail(
                "inputs", f"files of source {self.source!r} only", [entry.source for entry in self.inputs]
            )
        self._check_shares(fields)
        if self.quarantine is not None and self.quarantine.path != quarantine_path(self.unit):
            fields.fail("quarantine.path", quarantine_path(self.unit), self.quarantine.path)

    def _check_shares(self, fields: Fields) -> None:
        if ("shares" in fields.value) != (self.source == MIXED) or (self.source == MIXED and not self.shares):
            fields.fail("shares", f"what is each source's, in units of source {MIXED!r} only", self.source)
        if not self.shares:
            return
        for source, account in self.shares.items():
            if account != _of_source(account):
                fields.fail(
                    f"shares.{source}", "no sequences, slots or pad: rows are of no one source", account
                )
        if Account.total([*self.shares.values(), Account.zero()]) != _of_source(
            self.account + Account.zero()
        ):
            fields.fail("account", "the sum of the shares, and sequences, slots and pad", self.account)


def _of_source(account: Account) -> Account:
    return replace(account, sequences=0, slots=0, pad=0)
