"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value.

Of all that a packed shard holds, columns whose rows have one length are nearly everything, and nothing needs to be
known of them but their logical hash. So their pages are read as the loader reads them, and hashed page by page while
they are in the processor's cache; the other columns are decoded by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, BinaryIO, Final, Self, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Int64s, offsets_of, values
from tokenlake.base.columns import IGNORED, Method, Part, Trainer, TrainerColumn, columns_for
from tokenlake.etl.integrity.findings import Problem
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.reading.levels import SeenLevels, Unfamiliar
from tokenlake.runtime.reading.packed import IDS
from tokenlake.runtime.reading.pages import VALUE_BITS, pages_of
from tokenlake.runtime.reading.shard_file import ShardBytes
from tokenlake.runtime.reading.stored_columns import id_columns, id_limit, stored_schema
from tokenlake.runtime.reading.unfolding import check_unfolded
from tokenlake.runtime.reading.version import DAMAGE
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

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
        id_columns: Names of the columns that hold ids.
        id_limit: One more than the largest id.
    """

    width: int
    kept: frozenset[str]
    preference: tuple[Method, Trainer] | None
    schema: pa.Schema
    file_ids: Int64s
    id_columns: tuple[str, ...]
    id_limit: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Read it off a manifest."""
        kept = frozenset(name for name, _ in manifest.config.get("build", {}).get("kept", ()))
        file_ids = np.sort(np.array([entry.file_id for entry in manifest.inputs], dtype=np.int64))
        return cls(
            manifest.width,
            kept,
            manifest.preference,
            stored_schema(manifest),
            file_ids,
            id_columns(manifest),
            id_limit(manifest),
        )

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
            self._ids(table)
            if self.rules.preference is not None:
                self._judged(table)
            elif self.rules.width:
                self._packed(table)
            else:
                self._ragged(table)
        self.rows += table.num_rows

    def _ids(self, table: pa.Table) -> None:
        limit = self.rules.id_limit
        for name in self.rules.id_columns:
            if name in table.schema.names:
                ids = values(cast("Any", table[name].combine_chunks()).flatten())
                self._values(name, f"ids 0 to {limit - 1} of the tokenizer", (ids < 0) | (ids >= limit))

    def _packed(self, table: pa.Table) -> None:
        length = self.rules.width
        lengths, pieces = _list(table, "segment_lengths")
        documents, provenance = _list(table, "documents")
        limits = offsets_of(lengths)
        ends = offsets_of(pieces)[limits]
        used = np.diff(ends)
        self._rows("segment lengths", "at least one piece in every row", lengths < 1)
        self._rows("segment lengths", f"at most {length} ids in a row", used > length)
        empty = np.diff(offsets_of(pieces < 1)[limits]) > 0
        self._rows("segment lengths", "pieces of at least one id", empty)
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
        self.documents += table.num_rows
        if "attention_mask" not in table.schema.names:
            self.tokens += int(lengths.sum())
            return
        sizes, mask = _list(table, "attention_mask")
        self._rows("attention_mask", "a value for every id", sizes != lengths)
        if (sizes != lengths).any():
            return
        self.tokens += int(mask.sum())  # ids that are not padding
        self._values("attention_mask", "1 or 0", (mask != 0) & (mask != 1))
        offsets = offsets_of(lengths)
        ones = np.diff(offsets_of(mask)[offsets])
        self._rows("attention_mask", "at least one id that is not padding", ones < 1)
        # Padding is on one side: of the places where the mask changes none, or one, lies inside a row.
        changes = offsets_of(np.diff(mask, prepend=mask[:1]) != 0)
        inside = changes[offsets[1:]] - changes[np.minimum(offsets[:-1] + 1, offsets[1:])]
        self._rows("attention_mask", "padding at one end of the row", inside > 1)

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
    for chunk in getattr(column, "chunks", [column]):
        kind, children = chunk.type, list[Any]()
        if pa.types.is_struct(kind):
            children = [chunk.field(index) for index in range(kind.num_fields)]
        elif is_list(kind):
            children = [chunk.flatten()]
        if chunk.null_count > 0 or any(map(_nulls, children)):
            return True
    return False


_TOGETHER: Final = 1 << 22  # bytes that Arrow decodes in one call, which costs as much as 20,000 ids
_MOST: Final = 64  # row groups in one call
_COUNTED: Final = ("rows", "tokens", "documents")


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
        metadata: pq.FileMetaData = file.metadata
        schema: Any = file.schema_arrow
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        facts: list[tuple[str, Any, Any]] = [
            ("rows", entry.rows, metadata.num_rows),
            ("row groups", list(entry.row_groups), list(accumulate(sizes, initial=0))[:-1]),
            ("row groups", metadata.num_rows, sum(sizes)),
            ("columns", sorted(entry.logical), sorted(schema.names)),
        ]
        for name in rules.schema.names:
            got = schema.field(name).type if name in schema.names else None
            facts.append((f"type of {name}", rules.schema.field(name).type, got))
        wrong = _unequal(entry, facts)
    except DAMAGE as error:
        return ShardResult(0, 0, (Problem(entry.path, "footer", "a readable Parquet footer", str(error)),))
    if wrong or not deep:
        return ShardResult(0, 0, tuple(wrong))
    fixed = [each.name for each in schema if pa.types.is_fixed_size_list(each.type)]
    if rules.width and fixed:
        try:
            pages = _FixedColumns(file.source, fixed, rules.width, seen, rules.id_limit)
            return _decoded(file, entry, rules, on_decoded, pages)
        except Unfamiliar:
            pass  # written by another writer: all over again, through Arrow
    return _decoded(file, entry, rules, on_decoded, None)


@final
class _FixedColumns:
    """The columns of a shard whose rows all have one length, hashed as their pages are decoded.

    Args:
        source: the shard.
        names: of the columns; those that are laid out in a way that is not ours raise Unfamiliar.
        length: values of a row.
        seen: levels of other shards with rows of this length.
        id_limit: One more than the largest id.
    """

    def __init__(
        self, source: ShardBytes, names: list[str], length: int, seen: SeenLevels, id_limit: int
    ) -> None:
        lists = source.footer.lists
        if any(
            name not in lists or not np.isin(lists[name][:, -1], list(VALUE_BITS)).all() for name in names
        ):
            raise Unfamiliar("a column is stored in another way")
        self._source, self._footer, self.names = source, source.footer, names
        self._length, self._seen = length, seen
        self._id_limit = id_limit

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
            data = memoryview(self._source.read(chunk.begin, chunk.size))
            at, bits = 0, VALUE_BITS[chunk.kind]
            limit = self._id_limit if name == IDS else None
            for page in pages_of(data, chunk.values, bits, limit):
                self._seen.check(at % self._length, page)
                if bits == 1:
                    packed = np.frombuffer(page.data, np.uint8)
                    found = np.unpackbits(packed, count=page.values, bitorder="little")
                else:
                    found = page.numbers.astype("<i4", copy=False)
                hasher.update_list(name, found)
                at += page.values
        return rows


def _decoded(
    file: Any,
    entry: ShardEntry,
    rules: RowRules,
    on_decoded: Callable[[int], None],
    pages: _FixedColumns | None,
) -> ShardResult:
    """Decode a shard, some row groups at a time; `pages` hashes some of its columns, if any."""
    apart = [] if pages is None else pages.names
    columns = [name for name in file.schema_arrow.names if name not in apart]

    def add(groups: list[int], check: RowCheck) -> None:
        table = file.read_row_groups(groups, columns)
        table.validate(full=True)
        if pages is not None:
            for group in groups:
                on_decoded(pages.hash(group, check.hasher))
        check.add(table)

    check, problems = RowCheck(rules), list[Problem]()
    for groups in _batches(file.metadata, 0 if pages is None else pages.row_bytes):
        before = check.rows
        try:
            add(groups, check)
        except DAMAGE as error:
            found: dict[int, Exception] = {}
            for group in groups:  # one by one
                try:
                    add([group], RowCheck(rules))
                except DAMAGE as why:
                    found[group] = why
            for group, why in (found or {groups[0]: error}).items():
                problems.append(Problem(entry.path, "decode", f"row group {group} decodes", str(why)))
            continue
        if pages is None:
            on_decoded(check.rows - before)
    if not problems:  # counts and hashes of the rest would only repeat what is damaged
        facts = [(name, getattr(entry, name), getattr(check, name)) for name in _COUNTED]
        digest = check.hasher.digest()
        for name, want in sorted(entry.logical.items()) if check.rows else ():
            facts.append((f"logical hash of {name}", want, digest.get(name)))
        problems = [Problem(entry.path, *fault) for fault in check.faults.values()]
        problems += _unequal(entry, facts)
    return ShardResult(check.rows, check.tokens, tuple(problems))


def _batches(metadata: Any, row_bytes: int) -> Iterator[list[int]]:
    """Yield the row groups, so many at a time that what Arrow decodes of them is little.

    Args:
        row_bytes: of a row, which Arrow does not decode.
    """
    held, size = list[int](), 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        held.append(index)
        size += max(0, group.total_byte_size - row_bytes * group.num_rows)
        if size >= _TOGETHER or len(held) == _MOST:
            yield held
            held, size = [], 0
    if held:
        yield held


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
