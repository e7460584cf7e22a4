"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value.

Columns of rows of one length, hashed as they are decoded, page by page.

Of all that a packed shard holds these are nearly everything, and nothing needs to be known of them but their logical
hash. So their pages are read without a detour, as the loader reads them, and none of them is kept: a page is hashed
while it is in the processor's cache.

What must hold in the rows of a shard, row group by row group.

A stream as the readers of footers and pages want it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, BinaryIO, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import values
from tokenlake.integrity.findings import Problem
from tokenlake.preference_columns import IGNORED, Method, Part, Trainer, TrainerColumn, columns_for
from tokenlake.reading.footer import ColumnChunk, Footer
from tokenlake.reading.page_headers import check_unfolded
from tokenlake.reading.pages import SeenLevels, Unfamiliar, pages_of
from tokenlake.reading.shard_file import ShardFile
from tokenlake.reading.version import stored_schema
from tokenlake.schema import LogicalHasher
from tokenlake.store.entries import ShardEntry
from tokenlake.store.manifest import Manifest

Int64s = npt.NDArray[np.int64]
Fault = tuple[str, str, str]  # problem, expected, got

_LAWS: Final = {
    "ids": "the ids of the prompt, then the answer's",
    "mask": "a 1 for each id",
    "labels": f"{IGNORED} for each id of the prompt, then the answer's ids",
}


@final
@dataclass(frozen=True, slots=True)
class Expected:
    """What a manifest says of the rows of all its shards.

    Attributes:
        seq_length: L of a packed dataset, None for tokens.
        kept: names of the kept fields, the only columns that may hold nulls.
        preference: method and trainer of preferences, None for the other kinds.
        schema: the columns that every shard has.
    """

    seq_length: int | None
    kept: frozenset[str]
    preference: tuple[Method, Trainer] | None
    schema: pa.Schema

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Read it off a manifest."""
        kept = frozenset(name for name, _ in manifest.config.get("build", {}).get("kept", ()))
        return cls(manifest.seq_length, kept, manifest.preference, stored_schema(manifest))

    @property
    def columns(self) -> tuple[TrainerColumn, ...]:
        """What a preference trainer reads; empty for the other kinds."""
        return () if self.preference is None else columns_for(*self.preference)


@final
@dataclass(slots=True)
class RowCheck:
    """Counts and checks rows as they come; one for each shard.

    Args:
        expected: what the manifest says of the rows.
        file_ids: ascending ids of the manifest's input table, int64.
    """

    expected: Expected
    file_ids: Int64s
    rows: int = 0
    tokens: int = 0
    documents: int = 0
    hasher: LogicalHasher = field(default_factory=LogicalHasher)
    faults: dict[str, Fault] = field(default_factory=dict[str, Fault])

    def add(self, table: pa.Table) -> None:
        """Check the next rows, columns as stored; the first fault of each kind is kept.

        Columns of packed rows that have one length, nothing follows from: they may be left out, and hashed apart.
        """
        free = self.expected.kept
        columns = zip(table.schema.names, table.columns, strict=True)
        nulls = [name for name, column in columns if name not in free and _nulls(column)]
        if nulls:
            self._fault("nulls", "no nulls in any column", f"some in {', '.join(nulls)}")
        else:
            self.hasher.update(table)
            self._by_kind(table)
        self.rows += table.num_rows

    def _by_kind(self, table: pa.Table) -> None:
        if self.expected.preference is not None:
            self._judged(table)
        elif self.expected.seq_length is None:
            self._ragged(table)
        else:
            self._packed(table)

    def _packed(self, table: pa.Table) -> None:
        length = self.expected.seq_length or 0
        lengths, pieces = _list(table, "segment_lengths")
        documents, provenance = _list(table, "documents")
        limits = np.concatenate(([0], np.cumsum(lengths)))
        ends = np.concatenate(([0], np.cumsum(pieces, dtype=np.int64)))[limits]
        used = np.diff(ends)
        self._rows("segment lengths", "at least one piece in every row", lengths < 1)
        self._rows("segment lengths", f"at most {length} ids in a row", used > length)
        self._rows("segment lengths", "pieces of at least one id", np.diff(_marked(pieces < 1)[limits]) > 0)
        self._rows("provenance", "a document for every segment", lengths != documents)
        start = _numbers(provenance.field("start"))
        self._provenance(_numbers(provenance.field("file")), _numbers(provenance.field("position")))
        self._values("provenance", "start >= 0", start < 0)
        self.tokens += int(used.sum())
        self.documents += int(np.count_nonzero(start == 0))

    def _ragged(self, table: pa.Table) -> None:
        lengths, _ = _list(table, "input_ids")
        self._rows("input_ids", "at least one id in every row", lengths < 1)
        self._provenance(*(_numbers(table[name].combine_chunks()) for name in ("file", "position")))
        if "loss_mask" in table.schema.names:
            self._rows("loss_mask", "a bit for every id", _list_lengths(table, "loss_mask") != lengths)
        self.tokens += self._unpadded(table, lengths)
        self.documents += table.num_rows

    def _unpadded(self, table: pa.Table, lengths: Int64s) -> int:
        """Check the mask and return how many ids are not padding."""
        if "attention_mask" not in table.schema.names:
            return int(lengths.sum())
        sizes, mask = _list(table, "attention_mask")
        self._rows("attention_mask", "a value for every id", sizes != lengths)
        if (sizes != lengths).any():
            return 0
        self._values("attention_mask", "1 or 0", (mask != 0) & (mask != 1))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        ones = np.diff(np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))[offsets])
        self._rows("attention_mask", "at least one id that is not padding", ones < 1)
        # Padding is on one side: of the places where the mask changes none, or one, lies inside a row.
        changes = np.concatenate(([0], np.cumsum(np.diff(mask, prepend=mask[:1]) != 0)))
        inside = changes[offsets[1:]] - changes[np.minimum(offsets[:-1] + 1, offsets[1:])]
        self._rows("attention_mask", "padding at one end of the row", inside > 1)
        return int(mask.sum())

    def _judged(self, table: pa.Table) -> None:
        """Preferences: each part counts once, by the column that holds it last; the other columns follow the ids."""
        columns = self.expected.columns
        ids = {column.parts: _list(table, column.name) for column in columns if column.holds == "ids"}
        for parts, (size, _) in ids.items():
            own = size - ids[parts[:-1]][0] if len(parts) > 1 else size
            self._rows("ids", f"at least one id of the {''.join(parts[-1:])}", own < 1)
            self.tokens += int(own.sum())
        for column in columns:
            if column.holds in ("ids", "mask", "labels"):
                wrong = _unlike(column, ids, *_list(table, column.name))
                self._rows(column.name, _LAWS[column.holds], wrong)
        self._provenance(*(_numbers(table[name].combine_chunks()) for name in ("file", "position")))
        self.documents += table.num_rows

    def _provenance(self, file: Int64s, position: Int64s) -> None:
        self._values("provenance", "files of the manifest's inputs", ~np.isin(file, self.file_ids))
        self._values("provenance", "position >= 0", position < 0)

    def _rows(self, problem: str, expected: str, wrong: npt.NDArray[np.bool_]) -> None:
        if wrong.any():
            first = self.rows + int(np.argmax(wrong))
            self._fault(problem, expected, f"{np.count_nonzero(wrong)} rows, the first of them row {first}")

    def _values(self, problem: str, expected: str, wrong: npt.NDArray[np.bool_]) -> None:
        if wrong.any():
            got = f"{np.count_nonzero(wrong)} of {len(wrong)} pieces, from row {self.rows} on"
            self._fault(problem, expected, got)

    def _fault(self, problem: str, expected: str, got: str) -> None:
        self.faults.setdefault(f"{problem}: {expected}", (problem, expected, got))


def _unlike(
    column: TrainerColumn, ids: dict[tuple[Part, ...], tuple[Int64s, Int64s]], size: Int64s, values: Int64s
) -> npt.NDArray[np.bool_]:
    """Return the rows (bool[n]) where a column is not what the ids of its parts say."""
    lengths, whole = ids[column.parts]
    if (size != lengths).any():
        return size != lengths
    begins, before = ids.get(column.parts[:-1], (np.zeros(len(size), np.int64), whole[:0]))
    offsets = np.cumsum(size) - size
    is_before = np.arange(len(values)) - np.repeat(offsets, size) < np.repeat(begins, size)
    if column.holds == "mask":
        wrong = values != 1
    elif column.holds == "labels":
        wrong = values != np.where(is_before, IGNORED, whole)
    else:
        wrong = is_before.copy()
        wrong[is_before] = values[is_before] != before if int(is_before.sum()) == len(before) else True
    return np.diff(_marked(wrong)[np.concatenate((offsets, [len(values)]))]) > 0


def _list_lengths(table: pa.Table, name: str) -> Int64s:
    column: Any = table[name].combine_chunks()
    return np.diff(values(column.offsets)).astype(np.int64)


def _list(table: pa.Table, name: str) -> tuple[Int64s, Any]:
    """Return the lengths of a list column's rows, and its flattened values (numbers, or a struct array)."""
    column: Any = table[name].combine_chunks()
    lengths = np.diff(values(column.offsets)).astype(np.int64)
    flat = column.flatten()
    return lengths, flat if pa.types.is_struct(flat.type) else _numbers(flat)


def _numbers(array: Any) -> Int64s:
    return values(array)


def _marked(wrong: npt.NDArray[np.bool_]) -> Int64s:
    return np.concatenate(([0], np.cumsum(wrong, dtype=np.int64)))


def _nulls(column: Any) -> bool:
    """Say whether an array or anything nested in it holds a null."""
    chunks: list[Any] = getattr(column, "chunks", [column])
    return any(chunk.null_count > 0 or any(_nulls(child) for child in _children(chunk)) for chunk in chunks)


def _children(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [array.flatten()]
    return []


@final
class StreamSource:
    """A file, one thread at a time.

    Attributes:
        size: its bytes.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, io.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        self._stream.seek(offset)
        data = self._stream.read(size)
        if len(data) != size:
            raise ValueError(f"the file ends {size - len(data)} bytes before byte {offset + size}")
        return data


_BITS: Final = {0: 1, 1: 32}  # of a value, by Parquet's number of its type: booleans and 32-bit integers


@final
class FixedColumns:
    """The columns of a shard whose rows all have one length.

    Args:
        source: the shard.
        footer: of it.
        names: of the columns; those that are laid out in a way that is not ours raise Unfamiliar.
        length: values of a row.
        seen: levels of other shards with rows of this length.
    """

    def __init__(
        self, source: StreamSource, footer: Footer, names: list[str], length: int, seen: SeenLevels
    ) -> None:
        if any(
            name not in footer.lists or not np.isin(footer.lists[name][:, -1], list(_BITS)).all()
            for name in names
        ):
            raise Unfamiliar("a column is stored in another way")
        self._source, self._footer, self._names, self._length = source, footer, names, length
        self._seen = seen

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in these columns, at least."""
        kinds = (int(self._footer.lists[name][0, -1]) for name in self._names if len(self._footer.rows))
        return sum(_BITS[kind] * self._length // 8 for kind in kinds)

    def hash(self, group: int, hasher: LogicalHasher) -> int:
        """Decode the columns of a row group, each page against its checksum, and hash their values.

        Returns:
            Its rows.

        Raises:
            Unfamiliar: pages are laid out in another way.
            ValueError, OSError: they are damaged, or do not hold as many values as their rows have.
        """
        for name in self._names:
            chunk, expected = self._footer.chunk(group, name), int(self._footer.rows[group]) * self._length
            if chunk.values != expected:
                raise ValueError(f"{chunk.values} values of {name}; expected {expected}")
            # A page is decompressed whole, and may say that it is 2 GB of zeros.
            check_unfolded(_BITS[chunk.kind] * chunk.values // 8, chunk.size)
            self._hash(name, chunk, hasher)
        return int(self._footer.rows[group])

    def _hash(self, name: str, chunk: ColumnChunk, hasher: LogicalHasher) -> None:
        data = memoryview(self._source.read(chunk.begin, chunk.size))
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
