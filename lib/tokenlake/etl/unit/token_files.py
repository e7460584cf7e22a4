"""Files of packed rows, and files of one document per row."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import (
    Bools,
    FlatRows,
    Int32,
    Int64,
    Level,
    Ragged,
    offsets_of,
)
from tokenlake.base.arrays import values as plain_values
from tokenlake.base.columns import ColumnType
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.document_join import join_documents
from tokenlake.etl.packing.loss_marks import LOSS, learned, plain
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.packing.packer import open_packer
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding, RowsFile, row_of
from tokenlake.etl.unit.text_documents import taken
from tokenlake.runtime.column_types import arrow_type
from tokenlake.runtime.schema import (
    ROW_GROUP_TOKENS,
    described,
    packed_schema,
    tokens_schema,
)
from tokenlake.runtime.store.ledger import ShardEntry

_HELD_TOKENS: Final = 1 << 24
"""Tokens in unfinished row groups of all files of a split together: 64 MiB."""

_LEAST_TOKENS: Final = 1 << 14
"""Smallest number of tokens of a full row group."""


def group_tokens(files: int | None) -> int:
    """Return the number of ids of a full row group.

    Args:
        files: Number of files that a unit writes at a time; None: one after the other.
    """
    shared_tokens = _HELD_TOKENS // (files or 1)
    return max(_LEAST_TOKENS, min(ROW_GROUP_TOKENS, shared_tokens))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocuments:
    """Documents, or parts of documents, as ids; n of them.

    Attributes:
        ids: Ids of all documents; in a build with a loss mask they are marked, see
            :mod:`tokenlake.etl.packing.loss_marks`, int32[total].
        offsets: Beginnings of the documents in `ids`, and the end of the last one,
            int64[n + 1].
        file: Id of each document's file, int64[n].
        position: Position of each document in its file, int64[n].
        bos: Number of ids that were put before documents.
        eos: Number of ids that were put after documents.
        eos_existing: Number of documents that ended with an EOS already.
        again: True for a further part of the document before, bool[n]; None if all are
            whole.
        kept: Fields kept beside the ids, n rows; None if none are.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    bos: int = 0
    eos: int = 0
    eos_existing: int = 0
    again: Bools | None = None
    kept: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.position)

    def take(self, rows: Int64) -> TokenDocuments:
        """Return the documents `rows` (int64[m]), without the numbers of all documents."""
        documents = Ragged.taken(self.ids, self.offsets[rows], self.offsets[rows + 1])
        return TokenDocuments(
            ids=documents.ids,
            offsets=documents.offsets,
            file=self.file[rows],
            position=self.position[rows],
            again=None if self.again is None else self.again[rows],
            kept=taken(self.kept, rows),
        )


@final
class TokensFile:
    """Rows of one document each, exactly as the tokenizer's post-processor returns it.

    Args:
        writer: Writer of the parts. Columns of its schema that are not ids, masks or
            provenance are kept fields.
        prefix: Ids put before every document.
        suffix: Ids put after every document.
        padding: Padding of the rows.
        full: Ids of a full row group.
        kept: Names of kept fields that end a row group when they have many bytes.
    """

    def __init__(
        self,
        writer: PartWriter,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        padding: Padding,
        full: int,
        kept: Sequence[str] = (),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._schema = writer.schema
        self._padding = padding
        self._has_loss_mask = "loss_mask" in writer.schema.names
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray(suffix, np.int32)
        # The ids of the suffix count toward the loss, as a plain text does.
        if self._has_loss_mask:
            self._suffix |= np.int32(LOSS)
        # Masks are added when a row group is complete and its padding known.
        mask_names = ("attention_mask", "loss_mask")
        unpadded_fields: list[Any] = []
        for field in writer.schema:
            if field.name not in mask_names:
                unpadded_fields.append(field)
        self._unpadded_schema = pa.schema(unpadded_fields)
        self._rows = RowsFile(writer, padding, full, self._finished, kept)
        self.finish = self._rows.finish
        self.discard = self._rows.discard

    def add(self, documents: TokenDocuments) -> None:
        """Append documents; none is empty."""
        # 1. The ids, with prefix and suffix around each document.
        offsets = documents.offsets
        lengths = np.diff(offsets)
        affixes = len(self._prefix) + len(self._suffix)
        if affixes:
            row_ids = join_documents(documents.ids, offsets, self._prefix, self._suffix)
            lengths += affixes
        else:
            row_ids = documents.ids[offsets[0] : offsets[-1]]
        # 2. The columns. Ids override a kept field of their name.
        columns: dict[str, Any] = {}
        if documents.kept is not None:
            columns.update(
                zip(documents.kept.schema.names, documents.kept.columns, strict=True)
            )
        ids_type = self._unpadded_schema.field("input_ids").type
        columns["input_ids"] = _lists(ids_type, lengths, row_ids)
        columns["file"] = pa.array(documents.file)
        columns["position"] = pa.array(documents.position)
        self._rows.add(row_of(self._unpadded_schema, columns, len(lengths)), lengths)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Append one document that comes in pieces.

        It is one row, and is put together here.
        """
        document_ids = np.concatenate(list(windows))
        document = TokenDocuments(
            ids=document_ids,
            offsets=np.array([0, len(document_ids)]),
            file=np.array([file]),
            position=np.array([position]),
        )
        self.add(document)

    def _finished(self, rows: pa.RecordBatch, lengths: Int64) -> pa.RecordBatch:
        """Return a row group padded, with its masks beside the ids."""
        columns: dict[str, Any] = dict(
            zip(rows.schema.names, rows.columns, strict=True)
        )
        row_sizes = self._padding.sizes(lengths)
        unpadded_ids = plain_values(columns["input_ids"].flatten())
        padded_ids, attention_mask = self._padding.apply(
            unpadded_ids, lengths, row_sizes
        )
        self.counts["pad"] += len(padded_ids) - int(lengths.sum())
        # Marks of ids become a mask of their own. Padding has no mark.
        values: dict[str, Any] = {
            "input_ids": padded_ids,
            "attention_mask": attention_mask,
        }
        if self._has_loss_mask:
            values["input_ids"] = plain(padded_ids)
            values["loss_mask"] = learned(padded_ids)
        for column_name, column_values in values.items():
            if column_name in self._schema.names:
                list_type = self._schema.field(column_name).type
                columns[column_name] = _lists(list_type, row_sizes, column_values)
        return row_of(self._schema, columns, len(lengths))


def _lists(list_type: Any, lengths: Int64, values: Any) -> Any:
    """Return a list column whose rows have the given lengths (int64[n])."""
    offsets: Any = pa.array(offsets_of(lengths).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values), type=list_type)


@final
class PackedFile:
    """Rows of one length, into which documents are packed.

    Args:
        writer: Writer of the parts. If its schema has a column ``loss_mask``, the ids
            of documents are marked.
        pack: Width of rows and strategy.
        prefix: Ids put before every document.
        suffix: Ids put after every document.
        pad_id: Id that fills the ends of rows.
        full: Ids of a full row group.
        shuffle_key: Key by which whole rows are shuffled inside a window; None: they
            are not.
    """

    def __init__(
        self,
        writer: PartWriter,
        pack: ResolvedPack,
        *,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        pad_id: int,
        full: int,
        shuffle_key: int | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._writer = writer
        self._prefix = prefix
        self._suffix = suffix
        # The suffix of a plain text counts toward the loss.
        if "loss_mask" in writer.schema.names:
            self._suffix = tuple([token_id | LOSS for token_id in suffix])
        self._packer = open_packer(
            pack,
            group_tokens=full,
            prefix=self._prefix,
            suffix=self._suffix,
            pad_id=pad_id,
            shuffle_key=shuffle_key,
        )
        self.discard = writer.discard

    def add(self, documents: TokenDocuments) -> None:
        """Append documents; none is empty."""
        rows = self._packer.add(
            documents.ids,
            documents.offsets,
            documents.file,
            documents.position,
            documents.again,
        )
        self._write(rows)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Append one document that comes in pieces."""
        self._write(self._packer.add_long(windows, file, position))

    def finish(self) -> list[ShardEntry]:
        """Write and publish the rest; return the parts."""
        self._write(self._packer.finish())
        return self._writer.finish()

    def _write(self, rows: Iterator[Packed]) -> None:
        for packed in rows:
            # A row that cuts a prefix or a suffix in two would be a bug of a packer.
            packed.check_boundaries(self._prefix, self._suffix)
            self.counts.update(
                pad=packed.pad, sequences=packed.rows, slots=len(packed.input_ids)
            )
            for row_group in packed.groups(self._packer.group_rows):
                self._writer.write(
                    flat_rows(row_group, self._writer.schema),
                    tokens=int(row_group.segment_lengths.sum(dtype=np.int64)),
                    documents=int((row_group.start == 0).sum()),
                )


def flat_rows(packed: Packed, schema: pa.Schema) -> FlatRows:
    """Return packed rows with the columns of a schema; none of their ids are copied.

    Args:
        packed: Rows. If the schema has a column ``loss_mask``, their ids are marked.
        schema: Schema of the file.
    """
    # Every level of a column's nesting has its number of values, and the lengths of the
    # lists or the values in it.
    row_count = packed.rows
    levels: dict[str, list[Level]] = {}

    def add_tokens(name: str, values: Any) -> None:
        levels[name] = [(row_count, None, None), (len(values), values, None)]

    # 1. Columns with one value per token.
    add_tokens("input_ids", packed.input_ids)
    if "loss_mask" in schema.names:
        add_tokens("input_ids", plain(packed.input_ids))
        add_tokens("loss_mask", learned(packed.input_ids))
    if "segment_ids" in schema.names:
        add_tokens("segment_ids", packed.segment_ids)
    # 2. Columns with one value per piece.
    piece_count = len(packed.segment_lengths)
    pieces_per_row = np.diff(packed.row_offsets).astype(np.int32)
    lists: Level = (row_count, pieces_per_row, None)
    levels["segment_lengths"] = [lists, (piece_count, packed.segment_lengths, None)]
    levels["documents"] = [
        lists,
        (piece_count, None, None),
        (piece_count, packed.file, None),
        (piece_count, packed.position, None),
        (piece_count, packed.start, None),
    ]
    return FlatRows(row_count, {name: levels[name] for name in schema.names})


def rows_schema(
    pack: ResolvedPack | None,
    tokenizer: str | None,
    *,
    loss_mask: bool,
    attention_mask: bool = False,
    kept: Sequence[tuple[str, ColumnType]] = (),
) -> pa.Schema:
    """Return the schema of the rows that documents become.

    Args:
        pack: Width of packed rows; None: rows have one document each.
        tokenizer: sha256 (hex) of the ``tokenizer.json`` that made the ids, which the
            files name; None: they name none.
        loss_mask: True for a column ``loss_mask``.
        attention_mask: True for a column ``attention_mask``, if rows are not packed.
        kept: Names and types of kept fields, if rows are not packed.
    """
    if pack is not None:
        return described_packed(
            pack.width, tokenizer, pieces=pack.store_segment_ids, loss_mask=loss_mask
        )
    kept_fields = [(name, arrow_type(kind)) for name, kind in kept]
    schema = tokens_schema(
        loss_mask=loss_mask, attention_mask=attention_mask, kept=kept_fields
    )
    return described(schema, tokenizer)


@functools.cache
def described_packed(
    width: int, tokenizer: str | None, *, pieces: bool = False, loss_mask: bool = False
) -> pa.Schema:
    """Return the schema of packed rows, made once for all units.

    Args:
        width: Tokens of a row.
        tokenizer: sha256 (hex) of the ``tokenizer.json`` that made the ids; None: files
            name none.
        pieces: True for a column ``segment_ids``.
        loss_mask: True for a column ``loss_mask``.
    """
    schema = packed_schema(width, store_segment_ids=pieces, loss_mask=loss_mask)
    return described(schema, tokenizer)
