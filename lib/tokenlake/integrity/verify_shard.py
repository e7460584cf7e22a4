"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value.

Of all that a packed shard holds, columns whose rows have one length are nearly everything, and nothing needs to be
known of them but their logical hash. So their pages are read as the loader reads them, and hashed page by page while
they are in the processor's cache; the other columns are decoded by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.integrity.findings import Problem
from tokenlake.integrity.verify_rows import RowCheck, RowRules
from tokenlake.reading.footer import ColumnChunk, Footer
from tokenlake.reading.page_headers import check_unfolded
from tokenlake.reading.pages import SeenLevels, Unfamiliar, pages_of
from tokenlake.reading.shard_file import ShardFile
from tokenlake.schema import LogicalHasher
from tokenlake.store.entries import ShardEntry

# What Arrow raises for damaged Parquet: its own errors, OSError for pages, ValueError for metadata.
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
_BITS: Final = {0: 1, 1: 32}  # of a value, by Parquet's number of its type: booleans and 32-bit integers
_TOGETHER: Final = 1 << 22  # bytes that Arrow decodes in one call, which costs as much as 20,000 ids
_MOST: Final = 64  # row groups in one call


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
    rules: RowRules,
    seen: SeenLevels,
    *,
    deep: bool,
    on_decoded: Callable[[int], None],
) -> ShardResult:
    """Check a shard whose bytes are those of the manifest.

    Args:
        stream: the file, seekable.
        entry: what the manifest says of it.
        rules: what the manifest says of all rows.
        seen: levels of the version's other shards; any number of threads.
        deep: decode all pages (checksums verified), count, and compare the logical hash.
        on_decoded: called with the rows of row groups that were decoded; what it raises ends the check.
    """
    try:
        file = ShardFile(stream)
        wrong = _check_footer(file, entry, rules.schema)
    except _DAMAGE as error:
        return ShardResult(0, 0, (Problem(entry.path, "footer", "a readable Parquet footer", str(error)),))
    if wrong or not deep:
        return ShardResult(0, 0, tuple(wrong))
    schema: Any = file.schema_arrow
    fixed = [each.name for each in schema if pa.types.is_fixed_size_list(each.type)]
    if rules.seq_length and fixed:
        try:
            pages = _FixedColumns(stream, file.footer, fixed, rules.seq_length, seen)
            return _Decoding(file, entry, rules, on_decoded, pages).run()
        except Unfamiliar:
            pass  # written by another writer: all over again, through Arrow
    return _Decoding(file, entry, rules, on_decoded, None).run()


def _check_footer(file: pq.ParquetFile, entry: ShardEntry, wanted: Any) -> list[Problem]:
    metadata: pq.FileMetaData = file.metadata
    schema: Any = file.schema_arrow
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    facts: list[tuple[str, Any, Any]] = [
        ("rows", entry.rows, metadata.num_rows),
        ("row groups", list(entry.row_groups), list(accumulate(sizes, initial=0))[:-1]),
        ("row groups", metadata.num_rows, sum(sizes)),
        ("columns", sorted(entry.logical), sorted(schema.names)),
    ]
    for name in wanted.names:
        got = schema.field(name).type if name in schema.names else None
        facts.append((f"type of {name}", wanted.field(name).type, got))
    return _unequal(entry, facts)


@final
class _FixedColumns:
    """The columns of a shard whose rows all have one length, hashed as their pages are decoded.

    Args:
        stream: the shard.
        names: of the columns; those that are laid out in a way that is not ours raise Unfamiliar.
        length: values of a row.
        seen: levels of other shards with rows of this length.
    """

    def __init__(
        self, stream: BinaryIO, footer: Footer, names: list[str], length: int, seen: SeenLevels
    ) -> None:
        if any(
            name not in footer.lists or not np.isin(footer.lists[name][:, -1], list(_BITS)).all()
            for name in names
        ):
            raise Unfamiliar("a column is stored in another way")
        self._stream, self._footer, self.names = stream, footer, names
        self._length, self._seen = length, seen

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in these columns, at least."""
        kinds = (int(self._footer.lists[name][0, -1]) for name in self.names if len(self._footer.rows))
        return sum(_BITS[kind] * self._length // 8 for kind in kinds)

    def hash(self, group: int, hasher: LogicalHasher) -> int:
        """Hash the values of a row group, each page checked against its checksum, and return its rows.

        Raises:
            Unfamiliar: pages are laid out in another way.
            ValueError, OSError: they are damaged, or do not hold as many values as their rows have.
        """
        rows = int(self._footer.rows[group])
        for name in self.names:
            chunk = self._footer.chunk(group, name)
            if chunk.values != rows * self._length:
                raise ValueError(f"{chunk.values} values of {name}; expected {rows * self._length}")
            # A page is decompressed whole, and may say that it is 2 GB of zeros.
            check_unfolded(_BITS[chunk.kind] * chunk.values // 8, chunk.size)
            self._hash(name, chunk, hasher)
        return rows

    def _hash(self, name: str, chunk: ColumnChunk, hasher: LogicalHasher) -> None:
        data = memoryview(self._read(chunk))
        at, bits = 0, _BITS[chunk.kind]
        for page in pages_of(data, chunk.values, bits):
            self._seen.check(at % self._length, page)
            if bits == 1:
                packed = np.frombuffer(page.data, np.uint8)
                values = np.unpackbits(packed, count=page.values, bitorder="little")
            else:
                values = np.frombuffer(page.data, "<i4")
            hasher.update_list(name, values)
            at += page.values

    def _read(self, chunk: ColumnChunk) -> bytes:
        self._stream.seek(chunk.begin)
        data = self._stream.read(chunk.size)
        if len(data) != chunk.size:
            raise ValueError(f"the file ends {chunk.size - len(data)} bytes before its pages do")
        return data


@final
class _Decoding:
    """Decodes a shard, some row groups at a time; `pages` hashes some of its columns, if any."""

    def __init__(
        self,
        file: Any,
        entry: ShardEntry,
        rules: RowRules,
        on_decoded: Callable[[int], None],
        pages: _FixedColumns | None,
    ) -> None:
        self._file, self._entry, self._rules, self._pages = file, entry, rules, pages
        self._on_decoded, self._check = on_decoded, RowCheck(rules)
        apart = [] if pages is None else pages.names
        self._columns = [name for name in file.schema_arrow.names if name not in apart]

    def run(self) -> ShardResult:
        damaged = [problem for groups in self._batches() for problem in self._add(groups)]
        # Counts and hashes of the rest would only repeat what is damaged.
        problems = damaged or self._problems()
        return ShardResult(self._check.rows, self._check.tokens, tuple(problems))

    def _batches(self) -> Iterator[list[int]]:
        """Yield the row groups, so many at a time that what Arrow decodes of them is little."""
        held, size = list[int](), 0
        for index in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(index)
            apart = 0 if self._pages is None else self._pages.row_bytes * group.num_rows
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
            for group in groups:
                self._hash(group, self._check.hasher)
            self._check.add(table)
        except _DAMAGE as error:
            found = [problem for group in groups if (problem := self._damage(group)) is not None]
            return found or [self._undecodable(groups[0], error)]
        if self._pages is None:
            self._on_decoded(table.num_rows)
        return []

    def _damage(self, group: int) -> Problem | None:
        try:
            RowCheck(self._rules).add(self._read([group]))
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
        if self._pages is not None:
            self._on_decoded(self._pages.hash(group, hasher))

    def _problems(self) -> list[Problem]:
        entry, check = self._entry, self._check
        facts: list[tuple[str, Any, Any]] = [
            ("rows", entry.rows, check.rows),
            ("tokens", entry.tokens, check.tokens),
            ("documents", entry.documents, check.documents),
        ]
        digest = check.hasher.digest()
        for name, want in sorted(entry.logical.items()) if check.rows else ():
            facts.append((f"logical hash of {name}", want, digest.get(name)))
        return [Problem(entry.path, *fault) for fault in check.faults.values()] + _unequal(entry, facts)


def _unequal(entry: ShardEntry, facts: list[tuple[str, Any, Any]]) -> list[Problem]:
    """Return a problem for each fact (what, expected, got) that is not as expected."""
    return [
        Problem(entry.path, what, _short(expected), _short(got))
        for what, expected, got in facts
        if expected != got
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
