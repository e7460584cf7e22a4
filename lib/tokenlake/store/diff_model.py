"""The difference of two versions, as data. The first is called `a`, the second `b`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.store.entries import InputFileEntry, ShardEntry

Side: TypeAlias = Literal["both", "a", "b"]
Kinship: TypeAlias = Literal["same_bytes", "same_tokens", "different", "only_a", "only_b"]

#: From alike to unlike.
KINSHIPS: Final[tuple[Kinship, ...]] = ("same_bytes", "same_tokens", "different", "only_a", "only_b")


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A value that is another one in `b`, or is in one of them alone.

    Attributes:
        key: dotted, such as ``build.pack.seq_length``.
        a, b: the values; None also where there is none.
        there: which of them has the key.
    """

    key: str
    a: Any
    b: Any
    there: Side = "both"


@final
@dataclass(frozen=True, slots=True)
class Count:
    """A figure of both versions."""

    name: str
    a: int
    b: int

    @property
    def more(self) -> int:
        """How much more `b` has."""
        return self.b - self.a


@final
@dataclass(frozen=True, slots=True)
class InputPair:
    """An input file that is not the same in both: other bytes, or in one of them alone (the other is None)."""

    a: InputFileEntry | None
    b: InputFileEntry | None

    @property
    def change(self) -> Literal["added", "removed", "changed"]:
        return "added" if self.a is None else "removed" if self.b is None else "changed"

    @property
    def file(self) -> InputFileEntry:
        """The file as it is in `b`, or was in `a`."""
        found = self.b or self.a
        assert found is not None
        return found

    def to_json(self) -> dict[str, Any]:
        sides = {side: entry and {"size": entry.size, "token": entry.token} for side, entry in self._sides()}
        return {"change": self.change, "source": self.file.source, "path": self.file.path, **sides}

    def _sides(self) -> Iterable[tuple[str, InputFileEntry | None]]:
        return ("a", self.a), ("b", self.b)


@final
@dataclass(frozen=True, slots=True)
class FilePair:
    """A shard of `a` and what it is in `b`; a file of equal bytes or tokens under another name is the same file.

    Attributes:
        kinship: ``same_bytes`` (sha256), ``same_tokens`` (logical hashes of the ids), ``different``, ``only_a`` or
            ``only_b``.
        columns: of a pair that is not ``same_bytes``, the columns whose logical hashes differ; none where the same
            values are only written otherwise.
    """

    kinship: Kinship
    a: ShardEntry | None
    b: ShardEntry | None
    columns: tuple[str, ...] = ()

    @property
    def renamed(self) -> bool:
        return self.a is not None and self.b is not None and self.a.path != self.b.path

    def to_json(self) -> dict[str, Any]:
        sides = {side: entry and _shard(entry) for side, entry in (("a", self.a), ("b", self.b))}
        return {"kinship": self.kinship, **sides, "columns": list(self.columns)}


def _shard(entry: ShardEntry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "unit": entry.unit,
        "bytes": entry.bytes,
        "rows": entry.rows,
        "tokens": entry.tokens,
        "sha256": entry.sha256,
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two versions; what is equal is left out, but for figures.

    Attributes:
        a, b: references, ``code@v1``.
        identity: kind, sequence length and the hashes that say what was to be built.
        config, tokenizer: of the build; keys of the tokenizer begin with the source.
        inputs: files that are not the same; `inputs_same` counts the others.
        files: shards in the order of `a`, then those of `b` alone; also the same ones.
        units: how many units are of which kinship: that of their least alike file.
        others: files that are no shards; the card, the ledger and other records of the build itself are left out.
        totals: rows, tokens, documents, bytes and files.
        account: figures of the account that are not 0 in both.
        mixture: of mixed versions: weights, order, and what became of each source.
        parents, produced_by: what they were made from, and by which releases.
    """

    a: str
    b: str
    identity: tuple[Change, ...]
    config: tuple[Change, ...]
    tokenizer: tuple[Change, ...]
    inputs: tuple[InputPair, ...]
    inputs_same: int
    files: tuple[FilePair, ...]
    units: dict[Kinship, int]
    others: tuple[Change, ...]
    totals: tuple[Count, ...]
    account: tuple[Count, ...]
    mixture: tuple[Change, ...]
    parents: tuple[Change, ...]
    produced_by: tuple[Change, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts in which they differ; none where one could stand for the other."""
        figures = [count for count in (*self.totals, *self.account) if count.more]
        found: dict[str, object] = {
            "identity": self.identity,
            "config": self.config,
            "tokenizer": self.tokenizer,
            "inputs": self.inputs,
            "files": [pair for pair in self.files if pair.kinship != "same_bytes" or pair.renamed],
            "others": self.others,
            "figures": figures,
            "mixture": self.mixture,
            "parents": self.parents,
            "produced_by": self.produced_by,
        }
        return tuple(name for name, changes in found.items() if changes)

    @property
    def equal(self) -> bool:
        """Whether nothing differs but names, numbers and the records of the builds."""
        return not self.parts

    @property
    def kinships(self) -> dict[Kinship, int]:
        """How many shards are of which kinship."""
        found = Counter(pair.kinship for pair in self.files)
        return {kinship: found[kinship] for kinship in KINSHIPS if found[kinship]}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; of shards that are the same only their number."""
        unlike = [pair.to_json() for pair in self.files if pair.kinship != "same_bytes" or pair.renamed]
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "parts": list(self.parts),
            **{name: _changes(getattr(self, name)) for name in ("identity", "config", "tokenizer")},
            "inputs": {"same": self.inputs_same, "changes": [pair.to_json() for pair in self.inputs]},
            "files": {"count": self.kinships, "units": self.units, "changes": unlike},
            "others": _changes(self.others),
            **{name: _counts(getattr(self, name)) for name in ("totals", "account")},
            **{name: _changes(getattr(self, name)) for name in ("mixture", "parents", "produced_by")},
        }


def _changes(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]


def _counts(counts: Iterable[Count]) -> list[dict[str, Any]]:
    return [{**asdict(count), "more": count.more} for count in counts]
