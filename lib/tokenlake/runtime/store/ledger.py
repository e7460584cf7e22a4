"""What units and versions consist of, in numbers: entries of files, accounts, and the ledger record of a unit.

A value of these classes is what its JSON object says. Decoding checks each field by its type; what must hold between
the fields of an entry is said by its ``problem``. A ledger record (``ledger/00017.json``) is one finished unit of work.

The account says where every row and every token went. Each unit keeps one, they are summed per source and for the
version, and they must close at commit::

    rows_read = kept + sum(filtered) + sum(quarantined)
    documents = kept + expanded
    tokens    = content_packed + sum(dropped)
    slots     = sequences * L = content_packed + bos + eos + pad          (packed datasets)
"""

from __future__ import annotations

import builtins
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import attrgetter
from typing import Annotated, Any, Final, Self, final

import msgspec
from msgspec import Meta

from tokenlake.base.fingerprint import file_id, fingerprint
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.layout import MAX_PART, MAX_UNIT, quarantine_path, shard_path
from tokenlake.runtime.store.sealed import (
    Count,
    DatasetName,
    Positive,
    Sealed,
    SealedDocument,
    Sha256,
    Signed,
    SplitName,
)

_HEX: Final = b"0123456789abcdef"
_SHARED: Final = 256  # lists of row groups

Problem = tuple[str, str, object]
"""Of an entry: the field, what was expected, what is there."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Parquet file of the dataset.

    Attributes:
        path: ``data/train-00017-00.parquet``, relative to the version.
        split, unit, part: what the path says.
        bytes, sha256: of the file.
        rows: rows of the file (packed: sequences; tokens: documents).
        tokens: ids that are not padding (content, BOS and EOS): the sum of ``segment_lengths``.
        documents: documents whose first piece (``start == 0``) lies in the file.
        row_groups: first row of each row group, ascending from 0.
        logical: column -> hash of its values, independent of encoding and of row groups.
    """

    path: str
    split: SplitName
    unit: Annotated[int, Meta(ge=0, le=MAX_UNIT)]
    part: Annotated[int, Meta(ge=0, le=MAX_PART)]
    bytes: Positive
    sha256: str
    rows: Count
    tokens: Count
    documents: Count
    row_groups: tuple[Count, ...]
    logical: dict[str, str]

    def __post_init__(self) -> None:
        # Most shards of a version have equal row groups, and a version may have ten thousand shards.
        object.__setattr__(self, "row_groups", _shared(self.row_groups))

    def problem(self) -> Problem | None:
        """Return what no writer of ours would write; None if there is nothing."""
        expected = shard_path(self.split, self.unit, self.part)
        if self.path != expected:
            return "path", f"{expected}, by its split, unit and part", self.path
        starts = self.row_groups
        if starts[:1] == (0,) and starts[-1] < self.rows and _ascend(starts):
            return None
        if not starts and not self.rows:
            return None
        return "row_groups", f"ascending first rows from 0, below the {self.rows} rows", list(starts)

    def hash_problem(self) -> Problem | None:
        """Return what is no hash."""
        if len(self.sha256) != 64 or not _are_hex([self.sha256]):
            return "sha256", "64 digits of lower-case hex", self.sha256
        for column, text in self.logical.items():
            if not text or len(text) % 32 or not _are_hex([text]):
                return f"logical.{column}", "32 digits of lower-case hex, or several times so many", text
        return None


def _are_hex(texts: Iterable[str]) -> bool:
    """Say whether texts are digits of lower-case hex, all at once: a pattern for each takes ten times as long."""
    return not "".join(texts).encode().translate(None, _HEX)


@functools.lru_cache(_SHARED)
def _shared(row_groups: tuple[int, ...]) -> tuple[int, ...]:
    return row_groups


@functools.lru_cache(_SHARED)
def _ascend(starts: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(starts))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Number and sha256 (hex) of the bytes of a file, as a manifest lists those that are no shards, or as just read."""

    bytes: Count
    sha256: Sha256

    @classmethod
    def of(cls, data: builtins.bytes) -> Self:
        return cls(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """The bad records of one unit: ``quarantine/00017.parquet``."""

    path: str
    bytes: Positive
    sha256: Sha256
    rows: Positive


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over shards: of a version, or of one split of it."""

    files: int
    bytes: int
    rows: int
    tokens: int
    documents: int

    @classmethod
    def of(cls, shards: Iterable[ShardEntry]) -> Self:
        found = list(shards)
        sums = {name: sum(map(attrgetter(name), found)) for name in ("bytes", "rows", "tokens", "documents")}
        return cls(files=len(found), **sums)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputFileEntry:
    """An input file as identity knows it.

    Attributes:
        source: the configured source's name.
        path: POSIX, relative to the listing's root.
        size: bytes.
        token: version token, ``sha256:<hex>`` for local files.
        file_id: :func:`tokenlake.base.fingerprint.file_id` of source and path; what provenance columns hold.
    """

    source: str
    path: str
    size: Count
    token: str
    file_id: Signed

    def problem(self) -> Problem | None:
        """Return what no writer of ours would write; None if there is nothing."""
        expected = file_id(self.source, self.path)
        if self.file_id == expected:
            return None
        return "file_id", f"{expected}, the id of {self.source!r} and {self.path!r}", self.file_id


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """The range of an input file that one unit read: identity as in :class:`InputFileEntry`, and

    Attributes:
        start, stop: half open, in bytes for line formats, in row groups for Parquet.
    """

    source: str
    path: str
    size: Count
    token: str
    file_id: Signed
    start: Count
    stop: Count

    @property
    def file(self) -> InputFileEntry:
        """The file without the range: the row of the manifest's table."""
        return InputFileEntry(
            source=self.source, path=self.path, size=self.size, token=self.token, file_id=self.file_id
        )

    def problem(self) -> Problem | None:
        """Return what no writer of ours would write; None if there is nothing."""
        if self.stop < self.start:
            return "stop", f"an integer >= {self.start}", self.stop
        return self.file.problem()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A version that this one was made from."""

    dataset: DatasetName
    version: Positive
    sha256: Sha256


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a version comes from: parent versions, and one hash over all input files."""

    parents: tuple[Parent, ...]
    inputs_fingerprint: Sha256


def inputs_fingerprint(inputs: Iterable[InputFileEntry]) -> str:
    """Return the hash of source, path, size and token of all input files, in any order."""
    return fingerprint(sorted([entry.source, entry.path, entry.size, entry.token] for entry in inputs))


def check_entries(
    document: SealedDocument,
    key: str,
    entries: Sequence[ShardEntry] | Sequence[InputFileEntry] | Sequence[InputEntry],
) -> None:
    """Check what must hold inside each entry of a list; IntegrityError names the first that is wrong."""
    shards = [entry for entry in entries if isinstance(entry, ShardEntry)]
    files = [shard.sha256 for shard in shards]
    columns = list(chain.from_iterable(shard.logical.values() for shard in shards))
    sizes = set(map(len, columns))
    sound = {*map(len, files)} <= {64} and 0 not in sizes and not any(size % 32 for size in sizes)
    hashes = () if sound and _are_hex(files + columns) else map(ShardEntry.hash_problem, shards)
    for problems in (hashes, (entry.problem() for entry in entries)):
        for index, problem in enumerate(problems):
            if problem is not None:
                field, expected, got = problem
                document.fail(f"{key}[{index}].{field}", expected, got)


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
