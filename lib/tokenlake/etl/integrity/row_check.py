"""Checks of the rows of a shard: nulls, ids, segment lengths, masks and provenance.

They also count tokens and documents, and hash the columns. Checks are vectorised over
the rows of a table: a list column is an array of all values and the lengths of its
rows, and sums over rows are differences of running sums at the rows' ends.

Example: rows of lengths 2 and 3 have the offsets 0, 2 and 5. The sum of a row's values
is ``S[end] - S[begin]``, where ``S[k]`` is the sum of the first ``k`` values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64s, offsets_of, values
from tokenlake.base.columns import (
    IGNORED,
    Method,
    Part,
    Trainer,
    TrainerColumn,
    columns_for,
)
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.reading.version import id_columns, id_limit, stored_schema
from tokenlake.runtime.store.manifest import Manifest

Fault: TypeAlias = tuple[str, str, str]
"""Problem, expected and got, as of
:class:`tokenlake.etl.integrity.findings.Problem`.
"""

_Bools: TypeAlias = npt.NDArray[np.bool_]

_PartIds: TypeAlias = dict[tuple[Part, ...], tuple[Int64s, Int64s]]
"""Parts of a preference -> lengths of the rows of the column with their ids, and these
ids.
"""

# Content of a column of preferences -> its relation to the ids.
_LAWS: Final = {
    "ids": "the ids of the prompt, then the answer's",
    "mask": "a 1 for each id",
    "labels": f"{IGNORED} for each id of the prompt, then the answer's ids",
}


@final
@dataclass(frozen=True, slots=True)
class RowRules:
    """Statements of a manifest about the rows of all its shards.

    Attributes:
        width: Ids of a row of a packed dataset; 0 for other datasets.
        kept: Names of the kept fields, the only columns that may hold nulls.
        preference: Method and trainer of preferences; None for the other kinds.
        schema: Columns that every shard has.
        file_ids: Ids of the input files, ascending, int64.
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
        """Return the rules that a manifest states."""
        kept_fields = manifest.config.get("build", {}).get("kept", ())
        input_ids = [entry.file_id for entry in manifest.inputs]
        file_ids = np.array(input_ids, dtype=np.int64)
        return cls(
            width=manifest.width,
            kept=frozenset(name for name, _ in kept_fields),
            preference=manifest.preference,
            schema=stored_schema(manifest),
            file_ids=np.sort(file_ids),
            id_columns=id_columns(manifest),
            id_limit=id_limit(manifest),
        )

    @property
    def columns(self) -> tuple[TrainerColumn, ...]:
        """Columns that a preference trainer reads; empty for the other kinds."""
        if self.preference is None:
            return ()
        return columns_for(*self.preference)


@final
@dataclass(slots=True)
class RowCheck:
    """Counts and checks rows as they come; one for each shard.

    Attributes:
        rules: Rules of the manifest.
        rows: Number of rows so far.
        tokens: Number of tokens so far.
        documents: Number of documents so far.
        hasher: Logical hashes of the columns so far.
        faults: First fault of each kind.
    """

    rules: RowRules
    rows: int = 0
    tokens: int = 0
    documents: int = 0
    hasher: LogicalHasher = field(default_factory=LogicalHasher)
    faults: dict[str, Fault] = field(default_factory=dict[str, Fault])

    def add(self, table: pa.Table) -> None:
        """Check the next rows.

        Args:
            table: Rows, columns as stored. Columns of packed rows that have one length
                may be left out, and hashed apart: nothing follows from them.
        """
        # Only kept fields may be null. Other checks read values without a mask, so that
        # they are left out for a table with nulls.
        columns_with_nulls: list[str] = []
        for column_name, column in zip(table.schema.names, table.columns, strict=True):
            if column_name not in self.rules.kept and _has_nulls(column):
                columns_with_nulls.append(column_name)
        if columns_with_nulls:
            self._add_fault(
                "nulls",
                "no nulls in any column",
                f"some in {', '.join(columns_with_nulls)}",
            )
        else:
            self.hasher.update(table)
            self._check_ids(table)
            if self.rules.preference is not None:
                self._check_preferences(table)
            elif self.rules.width:
                self._check_packed(table)
            else:
                self._check_documents(table)
        self.rows += table.num_rows

    def _check_ids(self, table: pa.Table) -> None:
        """Check that ids are those of the tokenizer."""
        limit = self.rules.id_limit
        for column_name in self.rules.id_columns:
            if column_name in table.schema.names:
                # The loader gives ids to a model, where one that is too large reads
                # past the embedding, or fails there.
                ids = values(cast("Any", table[column_name].combine_chunks()).flatten())
                is_unknown = (ids < 0) | (ids >= limit)
                self._require_values(
                    column_name, f"ids 0 to {limit - 1} of the tokenizer", is_unknown
                )

    def _check_packed(self, table: pa.Table) -> None:
        """Check packed rows: their segments, and the documents of these."""
        width = self.rules.width
        segment_counts, segment_lengths = _list_column(table, "segment_lengths")
        document_counts, documents = _list_column(table, "documents")
        # 1. Segments: each row has some, none of them is empty, and together they fit
        #    into the row.
        row_offsets = offsets_of(segment_counts)
        row_tokens = np.diff(offsets_of(segment_lengths)[row_offsets])
        empty_segments = np.diff(offsets_of(segment_lengths < 1)[row_offsets])
        self._require_rows(
            "segment lengths", "at least one piece in every row", segment_counts < 1
        )
        self._require_rows(
            "segment lengths", f"at most {width} ids in a row", row_tokens > width
        )
        self._require_rows(
            "segment lengths", "pieces of at least one id", empty_segments > 0
        )
        # 2. Provenance: one document for each segment. A document counts where its
        #    first segment is, which begins at its token 0.
        has_other_count = segment_counts != document_counts
        self._require_rows(
            "provenance", "a document for every segment", has_other_count
        )
        start = values(documents.field("start"))
        file = values(documents.field("file"))
        position = values(documents.field("position"))
        self._check_provenance(file, position)
        self._require_values("provenance", "start >= 0", start < 0)
        self.tokens += int(row_tokens.sum())
        self.documents += int(np.count_nonzero(start == 0))

    def _check_documents(self, table: pa.Table) -> None:
        """Check rows of one document each: their ids and masks."""
        lengths, _ = _list_column(table, "input_ids")
        self._require_rows("input_ids", "at least one id in every row", lengths < 1)
        self._check_provenance_columns(table)
        if "loss_mask" in table.schema.names:
            loss_lengths, _ = _list_column(table, "loss_mask")
            self._require_rows(
                "loss_mask", "a bit for every id", loss_lengths != lengths
            )
        # Rows with padding have a mask, which says how many of their ids are tokens.
        self.documents += table.num_rows
        if "attention_mask" in table.schema.names:
            self._check_attention_mask(table, lengths)
        else:
            self.tokens += int(lengths.sum())

    def _check_attention_mask(self, table: pa.Table, lengths: Int64s) -> None:
        """Check that masks are 1 for ids and 0 for padding, at one end of the row.

        Args:
            table: Rows.
            lengths: Ids of each row, padding included, int64[n].
        """
        mask_lengths, mask = _list_column(table, "attention_mask")
        has_other_length = mask_lengths != lengths
        self._require_rows("attention_mask", "a value for every id", has_other_length)
        if has_other_length.any():
            return
        self.tokens += int(mask.sum())
        self._require_values("attention_mask", "1 or 0", (mask != 0) & (mask != 1))
        offsets = offsets_of(lengths)
        tokens = np.diff(offsets_of(mask)[offsets])
        self._require_rows(
            "attention_mask", "at least one id that is not padding", tokens < 1
        )
        # Padding is at one end if the mask changes at most once inside the row, after
        # its first value.
        changes_before = offsets_of(np.diff(mask, prepend=mask[:1]) != 0)
        second_values = np.minimum(offsets[:-1] + 1, offsets[1:])
        changes = changes_before[offsets[1:]] - changes_before[second_values]
        self._require_rows(
            "attention_mask", "padding at one end of the row", changes > 1
        )

    def _check_preferences(self, table: pa.Table) -> None:
        """Check preferences: ids of prompt and answers, and the columns made of them.

        Each part counts once, in the column that holds it last.
        """
        # 1. The columns with ids, by their parts.
        columns = self.rules.columns
        ids: _PartIds = {}
        for column in columns:
            if column.holds == "ids":
                ids[column.parts] = _list_column(table, column.name)
        # 2. The ids of each part. A column of a prompt and an answer begins with the
        # ids of the prompt, which are subtracted.
        for parts, (lengths, _) in ids.items():
            own_lengths = lengths
            if len(parts) > 1:  # the column begins with the ids of the parts before
                own_lengths = lengths - ids[parts[:-1]][0]
            last_part = "".join(parts[-1:])
            self._require_rows(
                "ids", f"at least one id of the {last_part}", own_lengths < 1
            )
            self.tokens += int(own_lengths.sum())
        # 3. Masks and labels follow from the ids.
        for column in columns:
            if column.holds in _LAWS:
                lengths, column_values = _list_column(table, column.name)
                is_wrong = _differs_from_ids(column, ids, lengths, column_values)
                self._require_rows(column.name, _LAWS[column.holds], is_wrong)
        self._check_provenance_columns(table)
        self.documents += table.num_rows

    def _check_provenance_columns(self, table: pa.Table) -> None:
        """Check the provenance of rows that are one document each."""
        file = values(table["file"].combine_chunks())
        position = values(table["position"].combine_chunks())
        self._check_provenance(file, position)

    def _check_provenance(self, file: Int64s, position: Int64s) -> None:
        """Check that files are inputs of the manifest, and that positions can be."""
        is_unknown = ~np.isin(file, self.rules.file_ids)
        self._require_values("provenance", "files of the manifest's inputs", is_unknown)
        self._require_values("provenance", "position >= 0", position < 0)

    def _require_rows(self, problem: str, expected: str, is_wrong: _Bools) -> None:
        """Add a fault if a row is wrong, bool[n]; it names the first one."""
        if is_wrong.any():
            first_row = self.rows + int(np.argmax(is_wrong))
            wrong_rows = np.count_nonzero(is_wrong)
            got = f"{wrong_rows} rows, the first of them row {first_row}"
            self._add_fault(problem, expected, got)

    def _require_values(self, problem: str, expected: str, is_wrong: _Bools) -> None:
        """Add a fault if a value is wrong, bool[values]."""
        if is_wrong.any():
            wrong_values = np.count_nonzero(is_wrong)
            got = f"{wrong_values} of {len(is_wrong)} pieces, from row {self.rows} on"
            self._add_fault(problem, expected, got)

    def _add_fault(self, problem: str, expected: str, got: str) -> None:
        """Add a fault, unless there is one of its kind: a shard may have millions."""
        self.faults.setdefault(f"{problem}: {expected}", (problem, expected, got))


def _differs_from_ids(
    column: TrainerColumn, ids: _PartIds, lengths: Int64s, column_values: Int64s
) -> _Bools:
    """Return True for the rows that do not follow from the ids of their parts, bool[n].

    Args:
        column: Column.
        ids: Ids of all parts.
        lengths: Lengths of the column's rows, int64[n].
        column_values: Values of all rows.
    """
    # Rows of another length than their ids are wrong as a whole.
    id_lengths, column_ids = ids[column.parts]
    if (lengths != id_lengths).any():
        return lengths != id_lengths
    # 1. Values that belong to the parts before the last one, and the ids of these
    #    parts. A column of one part has none.
    no_parts = (np.zeros(len(lengths), np.int64), column_ids[:0])
    lengths_before, ids_before = ids.get(column.parts[:-1], no_parts)
    row_begins = np.cumsum(lengths) - lengths
    value_indices = np.arange(len(column_values))
    place_in_row = value_indices - np.repeat(row_begins, lengths)
    is_before = place_in_row < np.repeat(lengths_before, lengths)
    # 2. Wrong values. The ids of an answer are compared with nothing: they are the
    #    source of the other columns.
    if column.holds == "mask":
        is_wrong = column_values != 1
    elif column.holds == "labels":
        is_wrong = column_values != np.where(is_before, IGNORED, column_ids)
    else:
        is_wrong = is_before.copy()
        if int(is_before.sum()) == len(ids_before):
            is_wrong[is_before] = column_values[is_before] != ids_before
    # 3. Rows with wrong values.
    row_offsets = np.concatenate((row_begins, [len(column_values)]))
    return np.diff(offsets_of(is_wrong)[row_offsets]) > 0


def _list_column(table: pa.Table, name: str) -> tuple[Int64s, Any]:
    """Return the lengths of a list column's rows, int64[n], and its values.

    The values are numbers, or a struct array.
    """
    column: Any = table[name].combine_chunks()
    lengths = np.diff(values(column.offsets)).astype(np.int64)
    flat_values = column.flatten()
    if pa.types.is_struct(flat_values.type):
        return lengths, flat_values
    return lengths, values(flat_values)


def _has_nulls(column: Any) -> bool:
    """Return True if an array, or anything nested in it, holds a null."""
    # A table has chunked columns, a struct has arrays.
    for chunk in getattr(column, "chunks", [column]):
        if chunk.null_count > 0:
            return True
        children: list[Any] = []
        if pa.types.is_struct(chunk.type):
            for index in range(chunk.type.num_fields):
                children.append(chunk.field(index))
        elif is_list(chunk.type):
            children.append(chunk.flatten())
        if any(_has_nulls(child) for child in children):
            return True
    return False
