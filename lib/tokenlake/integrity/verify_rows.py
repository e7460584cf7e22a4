"""What must hold in the rows of a shard, row group by row group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import values
from tokenlake.preference_columns import IGNORED, Method, Part, Trainer, TrainerColumn, columns_for
from tokenlake.reading.version import stored_schema
from tokenlake.schema import LogicalHasher
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
class RowRules:
    """What a manifest says of the rows of all its shards.

    Attributes:
        seq_length: L of a packed dataset, None for tokens.
        kept: names of the kept fields, the only columns that may hold nulls.
        preference: method and trainer of preferences, None for the other kinds.
        schema: the columns that every shard has.
        file_ids: of the input files, ascending (int64).
    """

    seq_length: int | None
    kept: frozenset[str]
    preference: tuple[Method, Trainer] | None
    schema: pa.Schema
    file_ids: Int64s

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Read it off a manifest."""
        kept = frozenset(name for name, _ in manifest.config.get("build", {}).get("kept", ()))
        file_ids = np.sort(np.array([entry.file_id for entry in manifest.inputs], dtype=np.int64))
        return cls(manifest.seq_length, kept, manifest.preference, stored_schema(manifest), file_ids)

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
        elif self.rules.seq_length is None:
            self._ragged(table)
        else:
            self._packed(table)

    def _packed(self, table: pa.Table) -> None:
        length = self.rules.seq_length or 0
        lengths, pieces = _list(table, "segment_lengths")
        documents, provenance = _list(table, "documents")
        limits = np.concatenate(([0], np.cumsum(lengths)))
        ends = np.concatenate(([0], np.cumsum(pieces, dtype=np.int64)))[limits]
        used = np.diff(ends)
        self._rows("segment lengths", "at least one piece in every row", lengths < 1)
        self._rows("segment lengths", f"at most {length} ids in a row", used > length)
        self._rows("segment lengths", "pieces of at least one id", np.diff(_marked(pieces < 1)[limits]) > 0)
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
    return np.diff(_marked(wrong)[np.concatenate((offsets, [len(found)]))]) > 0


def _list(table: pa.Table, name: str) -> tuple[Int64s, Any]:
    """Return the lengths of a list column's rows, and its flattened values (numbers, or a struct array)."""
    column: Any = table[name].combine_chunks()
    lengths = np.diff(values(column.offsets)).astype(np.int64)
    flat = column.flatten()
    return lengths, flat if pa.types.is_struct(flat.type) else values(flat)


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
