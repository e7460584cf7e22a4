"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value.

Of all that a packed shard holds, columns whose rows have one length are nearly everything, and nothing needs to be
known of them but their logical hash. So their pages are read as the loader reads them, and hashed page by page while
they are in the processor's cache; the other columns are decoded by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, BinaryIO, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import Int64s, values
from tokenlake.integrity.findings import Problem
from tokenlake.preference_columns import IGNORED, Method, Part, Trainer, TrainerColumn, columns_for
from tokenlake.ragged import offsets_of
from tokenlake.reading.pages import VALUE_BITS, SeenLevels, Unfamiliar, check_unfolded, pages_of
from tokenlake.reading.shard_file import ColumnChunk, ShardBytes, ShardFile
from tokenlake.reading.version import DAMAGE, stored_schema
from tokenlake.schema import LogicalHasher
from tokenlake.store.entries import ShardEntry
from tokenlake.store.manifest import Manifest

Fault = tuple[str, str, str]  # problem, expected, got

_LAWS: Final = {
    "ids": "the ids of the prompt, then the answer's",
    "mask": "a 1 for each id",
    "labels": f"{IGNORED} for each id of the prompt, then the answer's ids",
}


@final
@dataclass(frozen=True, slots=True)
class RowRules:
    """What a manifest says of the rows of all its shards.

    Attributes:
        width: ids of a row of a packed dataset, 0 for tokens.
        kept: names of the kept fields, the only columns that may hold nulls.
        preference: method and trainer of preferences, None for the other kinds.
        schema: the columns that every shard has.
        file_ids: of the input files, ascending (int64).
    """

    width: int
    kept: frozenset[str]
    preference: tuple[Method, Trainer] | None
    schema: pa.Schema
    file_ids: Int64s

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Read it off a manifest."""
        kept = frozenset(name for name, _ in manifest.config.get("build", {}).get("kept", ()))
        file_ids = np.sort(np.array([entry.file_id for entry in manifest.inputs], dtype=np.int64))
        return cls(manifest.width, kept, manifest.preference, stored_schema(manifest), file_ids)

    @property
    def columns(self) -> tuple[TrainerColumn, ...]:
        """What a preference trainer reads; empty for the other kinds."""
        return () if self.preference is None else columns_for(*self.preference)


@final
@dataclass(slots=True)
class RowCheck:
    """Counts and checks rows as they come; one for each shard."""

    rules: RowRules
    rows: int = 0
    tokens: int = 0
    documents: int = 0
    hasher: LogicalHasher = field(default_factory=LogicalHasher)
    faults: dict[str, Fault] = field(default_factory=dict[str, Fault])

    def add(self, table: pa.Table) -> None:
        """Check the next rows, columns as stored; the first fault of each kind is kept.

        Columns of packed rows that have one length, nothing follows from: they may be left out, and hashed apart.
        """
        free = self.rules.kept
        columns = zip(table.schema.names, table.columns, strict=True)
        nulls = [name for name, column in columns if name not in free and _nulls(column)]
        if nulls:
            self._fault("nulls", "no nulls in any column", f"some in {', '.join(nulls)}")
        else:
            self.hasher.update(table)
            self._by_kind(table)
        self.rows += table.num_rows

    def _by_kind(self, table: pa.Table) -> None:
        if self.rules.preference is not None:
            self._judged(table)
        elif not self.rules.width:
            self._ragged(table)
        else:
            self._packed(table)

    def _packed(self, table: pa.Table) -> None:
        length = self.rules.width
        lengths, pieces = _list(table, "segment_lengths")
        documents, provenance = _list(table, "documents")
        limits = offsets_of(lengths)
        ends = offsets_of(pieces)[limits]
        used = np.diff(ends)
        self._rows("segment lengths", "at least one piece in every row", lengths < 1)
        self._rows("segment lengths", f"at most {length} ids in a row", used > length)
        self._rows(
            "segment lengths", "pieces of at least one id", np.diff(offsets_of(pieces < 1)[limits]) > 0
        )
        self._rows("provenance", "a document for every segment", lengths != documents)
        start = values(provenance.field("start"))
        self._provenance(values(provenance.field("file")), values(provenance.field("position")))
        self._values("provenance", "start >= 0", start < 0)
        self.tokens += int(used.sum())
        self.documents += int(np.count_nonzero(start == 0))

    def _ragged(self, table: pa.Table) -> None:
        lengths, _ = _list(table, "input_ids")
        self._rows("input_ids", "at least one id in every row", lengths < 1)
        self._provenance(*(values(table[name].combine_chunks()) for name in ("file", "position")))
        if "loss_mask" in table.schema.names:
            self._rows("loss_mask", "a bit for every id", _list(table, "loss_mask")[0] != lengths)
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
        offsets = offsets_of(lengths)
        ones = np.diff(offsets_of(mask)[offsets])
        self._rows("attention_mask", "at least one id that is not padding", ones < 1)
        # Padding is on one side: of the places where the mask changes none, or one, lies inside a row.
        changes = offsets_of(np.diff(mask, prepend=mask[:1]) != 0)
        inside = changes[offsets[1:]] - changes[np.minimum(offsets[:-1] + 1, offsets[1:])]
        self._rows("attention_mask", "padding at one end of the row", inside > 1)
        return int(mask.sum())

    def _judged(self, table: pa.Table) -> None:
        """Preferences: each part counts once, by the column that holds it last; the other columns follow the ids."""
        columns = self.rules.columns
        ids = {column.parts: _list(table, column.name) for column in columns if column.holds == "ids"}
        for parts, (size, _) in ids.items():
            own = size - ids[parts[:-1]][0] if len(parts) > 1 else size
            self._rows("ids", f"at least one id of the {''.join(parts[-1:])}", own < 1)
            self.tokens += int(own.sum())
        for column in columns:
            if column.holds in ("ids", "mask", "labels"):
                wrong = _unlike(column, ids, *_list(table, column.name))
                self._rows(column.name, _LAWS[column.holds], wrong)
        self._provenance(*(values(table[name].combine_chunks()) for name in ("file", "position")))
        self.documents += table.num_rows

    def _provenance(self, file: Int64s, position: Int64s) -> None:
        self._values("provenance", "files of the manifest's inputs", ~np.isin(file, self.rules.file_ids))
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
    column: TrainerColumn, ids: dict[tuple[Part, ...], tuple[Int64s, Int64s]], size: Int64s, found: Int64s
) -> npt.NDArray[np.bool_]:
    """Return the rows (bool[n]) where a column is not what the ids of its parts say."""
    lengths, whole = ids[column.parts]
    if (size != lengths).any():
        return size != lengths
    begins, before = ids.get(column.parts[:-1], (np.zeros(len(size), np.int64), whole[:0]))
    offsets = np.cumsum(size) - size
    is_before = np.arange(len(found)) - np.repeat(offsets, size) < np.repeat(begins, size)
    if column.holds == "mask":
        wrong = found != 1
    elif column.holds == "labels":
        wrong = found != np.where(is_before, IGNORED, whole)
    else:
        wrong = is_before.copy()
        wrong[is_before] = found[is_before] != before if int(is_before.sum()) == len(before) else True
    return np.diff(offsets_of(wrong)[np.concatenate((offsets, [len(found)]))]) > 0


def _list(table: pa.Table, name: str) -> tuple[Int64s, Any]:
    """Return the lengths of a list column's rows, and its flattened values (numbers, or a struct array)."""
    column: Any = table[name].combine_chunks()
    lengths = np.diff(values(column.offsets)).astype(np.int64)
    flat = column.flatten()
    return lengths, flat if pa.types.is_struct(flat.type) else values(flat)


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
        file = ShardBytes(stream).parquet()
        wrong = _check_footer(file, entry, rules.schema)
    except DAMAGE as error:
        return ShardResult(0, 0, (Problem(entry.path, "footer", "a readable Parquet footer", str(error)),))
    if wrong or not deep:
        return ShardResult(0, 0, tuple(wrong))
    schema: Any = file.schema_arrow
    fixed = [each.name for each in schema if pa.types.is_fixed_size_list(each.type)]
    if rules.width and fixed:
        try:
            pages = _FixedColumns(file.source, fixed, rules.width, seen)
            return _Decoding(file, entry, rules, on_decoded, pages).run()
        except Unfamiliar:
            pass  # written by another writer: all over again, through Arrow
    return _Decoding(file, entry, rules, on_decoded, None).run()


def _check_footer(file: ShardFile, entry: ShardEntry, wanted: Any) -> list[Problem]:
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
        source: the shard.
        names: of the columns; those that are laid out in a way that is not ours raise Unfamiliar.
        length: values of a row.
        seen: levels of other shards with rows of this length.
    """

    def __init__(self, source: ShardBytes, names: list[str], length: int, seen: SeenLevels) -> None:
        lists = source.footer.lists
        if any(
            name not in lists or not np.isin(lists[name][:, -1], list(VALUE_BITS)).all() for name in names
        ):
            raise Unfamiliar("a column is stored in another way")
        self._source, self._footer, self.names = source, source.footer, names
        self._length, self._seen = length, seen

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in these columns, at least."""
        kinds = (int(self._footer.lists[name][0, -1]) for name in self.names if len(self._footer.rows))
        return sum(VALUE_BITS[kind] * self._length // 8 for kind in kinds)

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
            check_unfolded(VALUE_BITS[chunk.kind] * chunk.values // 8, chunk.size)
            self._hash(name, chunk, hasher)
        return rows

    def _hash(self, name: str, chunk: ColumnChunk, hasher: LogicalHasher) -> None:
        data = memoryview(self._source.read(chunk.begin, chunk.size))
        at, bits = 0, VALUE_BITS[chunk.kind]
        for page in pages_of(data, chunk.values, bits):
            self._seen.check(at % self._length, page)
            if bits == 1:
                packed = np.frombuffer(page.data, np.uint8)
                values = np.unpackbits(packed, count=page.values, bitorder="little")
            else:
                values = page.numbers.astype("<i4", copy=False)
            hasher.update_list(name, values)
            at += page.values


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
        except DAMAGE as error:
            found = [problem for group in groups if (problem := self._damage(group)) is not None]
            return found or [self._undecodable(groups[0], error)]
        if self._pages is None:
            self._on_decoded(table.num_rows)
        return []

    def _damage(self, group: int) -> Problem | None:
        try:
            RowCheck(self._rules).add(self._read([group]))
            self._hash(group, LogicalHasher())
        except DAMAGE as error:
            return self._undecodable(group, error)
        return None

    def _undecodable(self, group: int, error: Exception) -> Problem:
        return Problem(self._entry.path, "decode", f"row group {group} decodes", str(error))

    def _read(self, groups: list[int]) -> pa.Table:
        table = self._file.read_row_groups(groups, self._columns)
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
