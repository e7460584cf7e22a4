"""Entries of units and versions, and the ledger record of a unit.

The entries are files, inputs, parents and totals.

A value of these classes equals its JSON object. Decoding checks each field by its type;
``problem`` of an entry checks the relations between its fields. A ledger record
(``ledger/00017.json``) is one finished unit of work.

The audit (``account``) says where every row and every token went. Each unit keeps one;
they are summed per source and for the version, and must balance at commit::

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
from typing import Annotated, Any, Final, NoReturn, Self, final

import msgspec
from msgspec import Meta

from tokenlake.base.fingerprint import file_id, fingerprint
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.layout import (
    MAX_PART,
    MAX_UNIT,
    quarantine_path,
    shard_path,
)
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
# Different lists of row groups that are kept in memory, for all versions together.
_SHARED: Final = 256

Problem = tuple[str, str, object]
"""A wrong field of an entry: its name, the expected value in words, and the value."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One Parquet file of the dataset.

    Attributes:
        path: Path relative to the version, such as ``data/train-00017-00.parquet``.
        split: Split, as in the path.
        unit: Number of the unit, as in the path.
        part: Number of the part, as in the path.
        bytes: Size of the file.
        sha256: Hash of the file.
        rows: Rows of the file (packed: sequences; tokens: documents).
        tokens: Ids that are not padding (content, BOS and EOS): the sum of
            ``segment_lengths``.
        documents: Documents whose first piece (``start == 0``) lies in the file.
        row_groups: First row of each row group, ascending from 0.
        logical: For each column the hash of its values, independent of encoding and of
            row groups.
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
        # Most shards of a version have equal row groups, and a version may have ten
        # thousand shards. They share one tuple.
        object.__setattr__(self, "row_groups", _shared(self.row_groups))

    def problem(self) -> Problem | None:
        """Return the first wrong field; None if all are right."""
        # The path repeats the split and the two numbers.
        expected = shard_path(self.split, self.unit, self.part)
        if self.path != expected:
            return "path", f"{expected}, by its split, unit and part", self.path
        # Row groups begin at row 0, and none of them is empty. A file without rows has
        # none.
        first_rows = self.row_groups
        is_ascending = first_rows[:1] == (0,) and _is_ascending(first_rows)
        if is_ascending and first_rows[-1] < self.rows:
            return None
        if not first_rows and not self.rows:
            return None
        return (
            "row_groups",
            f"ascending first rows from 0, below the {self.rows} rows",
            list(first_rows),
        )

    def hash_problem(self) -> Problem | None:
        """Return the first hash that is none; None if all are right."""
        if len(self.sha256) != 64 or not _are_hex([self.sha256]):
            return "sha256", "64 digits of lower-case hex", self.sha256
        # A column of several levels (a list has its lengths and its values) has a hash
        # of 32 digits for each of them, joined.
        for column, column_hash in self.logical.items():
            is_sized = column_hash and len(column_hash) % 32 == 0
            if not is_sized or not _are_hex([column_hash]):
                return (
                    f"logical.{column}",
                    "32 digits of lower-case hex, or a multiple of 32",
                    column_hash,
                )
        return None


def _are_hex(digests: Iterable[str]) -> bool:
    """Return whether texts are digits of lower-case hex.

    All of them are checked at once: a pattern for each takes ten times as long.
    """
    return not "".join(digests).encode().translate(None, _HEX)


@functools.lru_cache(_SHARED)
def _shared(row_groups: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first tuple that was equal to this one."""
    return row_groups


@functools.lru_cache(_SHARED)
def _is_ascending(first_rows: tuple[int, ...]) -> bool:
    """Return whether numbers ascend strictly; equal tuples are checked once."""
    return all(row < next_row for row, next_row in pairwise(first_rows))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and hash of a file that is not a shard.

    Attributes:
        bytes: Size of the file.
        sha256: Hash of the file, hex.
    """

    bytes: Count
    sha256: Sha256

    @classmethod
    def of(cls, data: builtins.bytes) -> Self:
        """Return the entry of a file with this content."""
        return cls(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """The file of the bad records of one unit.

    Attributes:
        path: Path relative to the version, such as ``quarantine/00017.parquet``.
        bytes: Size of the file.
        sha256: Hash of the file, hex.
        rows: Number of bad records.
    """

    path: str
    bytes: Positive
    sha256: Sha256
    rows: Positive


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the shards of a version, or of one split of it.

    Attributes:
        files: Number of shards.
        bytes: Sum of their sizes.
        rows: Sum of their rows.
        tokens: Sum of their tokens.
        documents: Sum of their documents.
    """

    files: int
    bytes: int
    rows: int
    tokens: int
    documents: int

    @classmethod
    def of(cls, shards: Iterable[ShardEntry]) -> Self:
        """Add up shards."""
        # C functions do the sums, because a version may have ten thousand shards.
        shard_entries = list(shards)
        return cls(
            files=len(shard_entries),
            bytes=sum(map(attrgetter("bytes"), shard_entries)),
            rows=sum(map(attrgetter("rows"), shard_entries)),
            tokens=sum(map(attrgetter("tokens"), shard_entries)),
            documents=sum(map(attrgetter("documents"), shard_entries)),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputFileEntry:
    """An input file, with the values that identity depends on.

    Attributes:
        source: Name of the configured source.
        path: POSIX path, relative to the root of the listing.
        size: Size in bytes.
        token: Version token; ``sha256:<hex>`` for local files.
        file_id: Result of :func:`tokenlake.base.fingerprint.file_id` for source and
            path, as in provenance columns.
    """

    source: str
    path: str
    size: Count
    token: str
    file_id: Signed

    def problem(self) -> Problem | None:
        """Return the first wrong field; None if all are right."""
        # The id is derived from the other fields, which finds a swapped entry.
        expected = file_id(self.source, self.path)
        if self.file_id == expected:
            return None
        return (
            "file_id",
            f"{expected}, the id of {self.source!r} and {self.path!r}",
            self.file_id,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """The range of an input file that one unit read.

    Attributes:
        source: Name of the configured source.
        path: POSIX path, relative to the root of the listing.
        size: Size in bytes.
        token: Version token.
        file_id: Identity of the file, as in :class:`InputFileEntry`.
        start: Begin of the range, in bytes for line formats, in row groups for Parquet.
        stop: End of the range, not included.
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
        # Without the range: the same file may be read by several units.
        """The file without the range, as the manifest lists it."""
        return InputFileEntry(
            source=self.source,
            path=self.path,
            size=self.size,
            token=self.token,
            file_id=self.file_id,
        )

    def problem(self) -> Problem | None:
        """Return the first wrong field; None if all are right."""
        if self.stop < self.start:
            return "stop", f"an integer >= {self.start}", self.stop
        return self.file.problem()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A version that another one was made from.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        sha256: Seal of its manifest.
    """

    dataset: DatasetName
    version: Positive
    sha256: Sha256


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The origin of a version.

    Attributes:
        parents: Versions that it was made from.
        inputs_fingerprint: Hash over all input files.
    """

    parents: tuple[Parent, ...]
    inputs_fingerprint: Sha256


def inputs_fingerprint(inputs: Iterable[InputFileEntry]) -> str:
    """Return the hash of all input files, in any order of theirs.

    It covers source, path, size and token of each file.
    """
    identities: list[list[str | int]] = []
    for entry in inputs:
        identities.append([entry.source, entry.path, entry.size, entry.token])
    return fingerprint(sorted(identities))


def check_entries(
    document: SealedDocument,
    key: str,
    entries: Sequence[ShardEntry] | Sequence[InputFileEntry] | Sequence[InputEntry],
) -> None:
    """Check the relations inside each entry of a list.

    Args:
        document: Document of the list.
        key: Key of the list.
        entries: The decoded entries.

    Raises:
        IntegrityError: An entry is wrong; the message names the first one.
    """
    # Hashes are checked all at once. Only if one of them is wrong, a second pass finds
    # it for the message.
    shards = [entry for entry in entries if isinstance(entry, ShardEntry)]
    if not _have_only_hashes(shards):
        for index, shard in enumerate(shards):
            problem = shard.hash_problem()
            if problem is not None:
                _fail_entry(document, f"{key}[{index}]", problem)
    for index, entry in enumerate(entries):
        problem = entry.problem()
        if problem is not None:
            _fail_entry(document, f"{key}[{index}]", problem)


def _fail_entry(document: SealedDocument, key: str, problem: Problem) -> NoReturn:
    """Raise the IntegrityError for a wrong field of an entry."""
    field_name, expected, got = problem
    document.fail(f"{key}.{field_name}", expected, got)


def _have_only_hashes(shards: Sequence[ShardEntry]) -> bool:
    """Return whether all hashes of all shards are hashes.

    They are checked at once, because a version may have ten thousand shards.
    """
    file_hashes = [shard.sha256 for shard in shards]
    column_hashes = list(
        chain.from_iterable(shard.logical.values() for shard in shards)
    )
    # Lengths of the hashes: 64 digits for a file, 32 for each level of a column.
    column_sizes = set(map(len, column_hashes))
    if not set(map(len, file_hashes)) <= {64}:
        return False
    if 0 in column_sizes or any(size % 32 for size in column_sizes):
        return False
    return _are_hex(file_hashes + column_hashes)


MIXED: Final = "*"
"""Source of a unit that holds rows of several sources."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRecord(Sealed):
    """Inputs and outputs of a finished unit.

    It is published after its parts, so that its existence proves theirs.

    Attributes:
        unit: Number of the unit in the plan.
        fingerprint: Fingerprint of the unit's work (ranges, config, tokenizer, format),
            by which reuse finds it.
        source: Configured source that it reads, or :data:`MIXED`.
        inputs: Ranges of input files that it read.
        parts: Shards that it wrote, possibly none.
        account: Audit of this unit.
        shares: For a :data:`MIXED` unit the audit of each source: all but the rows that
            hold documents of several sources (`sequences`, `slots` and `pad`). Empty
            for the other units.
        quarantine: File of the unit's bad records; None if it had none.
        engine: Tokenizer backend that encoded it.
        produced_by: Names and versions of the software that wrote it; not part of
            identity.
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
        """Return the audit of each source.

        In the audits of a mixed unit no source has sequences.
        """
        if self.source == MIXED:
            return self.shares
        return {self.source: self.account}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; not sealed."""
        return msgspec.to_builtins(self._members())

    def _check(self, document: SealedDocument) -> None:
        # Each entry on its own.
        check_entries(document, "parts", self.parts)
        check_entries(document, "inputs", self.inputs)
        # A unit lists its own shards, each once.
        paths = [part.path for part in self.parts]
        has_foreign_part = any(part.unit != self.unit for part in self.parts)
        if has_foreign_part or len(set(paths)) != len(paths):
            document.fail("parts", f"each shard of unit {self.unit} once", paths)
        # A unit reads one source; the rows of a mixed unit come from versions, not from
        # files.
        if any(entry.source != self.source for entry in self.inputs):
            sources = [entry.source for entry in self.inputs]
            document.fail("inputs", f"files of source {self.source!r} only", sources)
        self._check_shares(document)
        if self.quarantine is not None:
            expected_path = quarantine_path(self.unit)
            if self.quarantine.path != expected_path:
                document.fail("quarantine.path", expected_path, self.quarantine.path)

    def _check_shares(self, document: SealedDocument) -> None:
        """Check the shares, which only mixed units have, and their sum."""
        is_mixed = self.source == MIXED
        if ("shares" in document) != is_mixed or (is_mixed and not self.shares):
            document.fail(
                "shares",
                f"the audit of each source, in units of source {MIXED!r} only",
                self.source,
            )
        # A row of a mixed unit may hold documents of several sources, so that counts of
        # rows belong to none of them.
        for source, account in self.shares.items():
            if account != _without_rows(account):
                document.fail(
                    f"shares.{source}",
                    "no sequences, slots or pad: rows belong to no single source",
                    account,
                )
        # Without the counts of rows, the shares add up to the audit of the unit.
        total = _without_rows(Account.total([self.account]))
        if self.shares and Account.total(self.shares.values()) != total:
            document.fail(
                "account",
                "the sum of the shares, and sequences, slots and pad",
                self.account,
            )


def _without_rows(account: Account) -> Account:
    """Return an audit without the counts of packed rows.

    A packed row may hold documents of several sources.
    """
    return replace(account, sequences=0, slots=0, pad=0)
