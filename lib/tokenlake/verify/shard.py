"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.manifest import ShardEntry
from tokenlake.reading.pages import SeenLevels, Unfamiliar
from tokenlake.reading.shardfile import ShardFile
from tokenlake.schema import LogicalHasher
from tokenlake.verify.fixed import FixedColumns
from tokenlake.verify.report import Problem
from tokenlake.verify.rows import Expected, Int64s, RowCheck
from tokenlake.verify.source import StreamSource

# What Arrow raises for damaged Parquet: its own errors, OSError for pages, ValueError for metadata.
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
_TOGETHER: Final = (
    1 << 22
)  # bytes of row groups that Arrow decodes at once: a call costs as much as 20,000 ids
_MOST: Final = 64  # row groups


@final
@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard gave: rows and tokens decoded, and what is wrong."""

    rows: int
    tokens: int
    problems: tuple[Problem, ...]


def check_shard(
    stream: BinaryIO,
    entry: ShardEntry,
    expected: Expected,
    file_ids: Int64s,
    seen: SeenLevels,
    *,
    deep: bool,
    on_decoded: Callable[[int], None],
) -> ShardResult:
    """Check a shard whose bytes are those of the manifest.

    Args:
        stream: the file, seekable.
        entry: what the manifest says of it.
        expected: what the manifest says of all rows.
        file_ids: ascending ids of the manifest's input table.
        seen: levels of the version's other shards; any number of threads.
        deep: decode all pages (checksums verified), count, and compare the logical hash.
        on_decoded: called with the rows of row groups that were decoded; what it raises ends the check.
    """
    try:
        file = ShardFile(stream)
        wrong = _footer(file, entry, expected)
    except _DAMAGE as error:
        return ShardResult(0, 0, (Problem(entry.path, "footer", "a readable Parquet footer", str(error)),))
    if wrong or not deep:
        return ShardResult(0, 0, tuple(wrong))
    fixed = [name for name, kind in _types(file) if pa.types.is_fixed_size_list(kind)]
    if expected.seq_length and fixed:
        check = RowCheck(expected, file_ids)
        try:
            apart = FixedColumns(StreamSource(stream), file.footer, fixed, expected.seq_length, seen)
            return _Decoding(file, entry, check, on_decoded, apart, fixed).run()
        except Unfamiliar:
            pass  # written by another writer: all over again, through Arrow
    return _Decoding(file, entry, RowCheck(expected, file_ids), on_decoded).run()


def _types(file: Any) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in file.schema_arrow]


def _footer(file: pq.ParquetFile, entry: ShardEntry, expected: Expected) -> list[Problem]:
    metadata: pq.FileMetaData = file.metadata
    schema: Any = file.schema_arrow
    wanted: Any = expected.schema
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    found = [
        _differs(entry, "rows", entry.rows, metadata.num_rows),
        _differs(entry, "row groups", list(entry.row_groups), list(accumulate(sizes, initial=0))[:-1]),
        _differs(entry, "row groups", metadata.num_rows, sum(sizes)),
        _differs(entry, "columns", sorted(entry.logical), sorted(schema.names)),
    ]
    for name in wanted.names:
        got = schema.field(name).type if name in schema.names else None
        found.append(_differs(entry, f"type of {name}", wanted.field(name).type, got))
    return [problem for problem in found if problem is not None]


@final
class _Decoding:
    """Decodes a shard, some row groups at a time.

    Args:
        apart, names: what hashes some columns apart from the others, and how those are called.
    """

    def __init__(
        self,
        file: Any,
        entry: ShardEntry,
        check: RowCheck,
        on_decoded: Callable[[int], None],
        apart: FixedColumns | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._file, self._entry, self._check, self._apart = file, entry, check, apart
        self._on_decoded = on_decoded
        self._columns = [name for name, _ in _types(file) if name not in names]

    def run(self) -> ShardResult:
        damaged = [problem for groups in self._batches() for problem in self._add(groups)]
        if damaged:  # counts and hashes of the rest would only repeat it
            return ShardResult(self._check.rows, self._check.tokens, tuple(damaged))
        return self._result()

    def _batches(self) -> Iterator[list[int]]:
        """Yield the row groups, so many at a time that what Arrow decodes of them is little."""
        held, size = list[int](), 0
        for index in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(index)
            apart = 0 if self._apart is None else self._apart.row_bytes * group.num_rows
            held.append(index)
            size += max(0, group.total_byte_size - apart)
            if size >= _TOGETHER or len(held) == _MOST:
                yield held
                held, size = [], 0
        if held:
            yield held

    def _add(self, groups: list[int]) -> list[Problem]:
        """Check some row groups; say which of them are damaged."""
        try:
            table = self._read(groups)
            for group in groups if self._apart is not None else ():
                self._hash(group, self._check.hasher)
            self._check.add(table)
        except _DAMAGE as error:
            found = [problem for group in groups if (problem := self._damage(group)) is not None]
            return found or [self._undecodable(groups[0], error)]
        if self._apart is None:
            self._on_decoded(table.num_rows)
        return []

    def _damage(self, group: int) -> Problem | None:
        try:
            RowCheck(self._check.expected, self._check.file_ids).add(self._read([group]))
            self._hash(group, LogicalHasher())
        except _DAMAGE as error:
            return self._undecodable(group, error)
        return None

    def _undecodable(self, group: int, error: Exception) -> Problem:
        return Problem(self._entry.path, "decode", f"row group {group} decodes", str(error))

    def _read(self, groups: list[int]) -> pa.Table:
        table = self._file.read_row_groups(groups, columns=self._columns, use_threads=False)
        table.validate(full=True)
        return table

    def _hash(self, group: int, hasher: LogicalHasher) -> None:
        if self._apart is not None:
            self._on_decoded(self._apart.hash(group, hasher))

    def _result(self) -> ShardResult:
        entry, check = self._entry, self._check
        found = [
            _differs(entry, "rows", entry.rows, check.rows),
            _differs(entry, "tokens", entry.tokens, check.tokens),
            _differs(entry, "documents", entry.documents, check.documents),
        ]
        digest = check.hasher.digest()
        for name, want in sorted(entry.logical.items()) if check.rows else ():
            found.append(_differs(entry, f"logical hash of {name}", want, digest.get(name)))
        faults = [Problem(entry.path, *fault) for fault in check.faults.values()]
        whole = tuple(faults + [problem for problem in found if problem is not None])
        return ShardResult(check.rows, check.tokens, whole)


def _differs(entry: ShardEntry, problem: str, expected: Any, got: Any) -> Problem | None:
    return None if expected == got else Problem(entry.path, problem, _short(expected), _short(got))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
