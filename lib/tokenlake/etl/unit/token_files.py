"""Files of packed rows, and files of one document per row."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, FlatRows, Int32, Int64, Level, Ragged, offsets_of
from tokenlake.base.arrays import values as plain_values
from tokenlake.base.columns import ColumnType
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.packer import join_documents, open_packer
from tokenlake.etl.packing.segments import LOSS, Packed, learned, plain
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding, RowsFile, row_of
from tokenlake.etl.unit.text_documents import taken
from tokenlake.runtime.column_types import arrow_type
from tokenlake.runtime.schema import ROW_GROUP_TOKENS, described, packed_schema, tokens_schema
from tokenlake.runtime.store.ledger import ShardEntry

_HELD_TOKENS: Final = 1 << 24  # in row groups in the making, of all files of a split together: 64 MiB
_LEAST_TOKENS: Final = 1 << 14  # of a row group


def group_tokens(files: int | None) -> int:
    """Return how many ids a full row group has, where a unit writes so many files (None: one after the other)."""
    return max(_LEAST_TOKENS, min(ROW_GROUP_TOKENS, _HELD_TOKENS // (files or 1)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocuments:
    """n documents, or pieces of documents, as ids.

    Attributes:
        ids: int32[total]; in a build with a loss mask they are marked, see :mod:`tokenlake.etl.packing.segments`.
        offsets: int64[n + 1] into `ids`.
        file, position: int64[n], where each comes from.
        bos, eos: how many of the ids were put around the documents.
        eos_existing: how many of the documents ended with an EOS already.
        again: bool[n], True for a further piece of the document before; None where all are whole.
        kept: n rows of the fields kept beside the ids; None where none are.
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
        """Return the documents `rows` (int64[m]); sums over all are left out."""
        found = Ragged.taken(self.ids, self.offsets[rows], self.offsets[rows + 1])
        return TokenDocuments(
            ids=found.ids,
            offsets=found.offsets,
            file=self.file[rows],
            position=self.position[rows],
            again=None if self.again is None else self.again[rows],
            kept=taken(self.kept, rows),
        )


def _lists(kind: Any, lengths: Int64, values: Any) -> Any:
    offsets: Any = pa.array(offsets_of(lengths).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values), type=kind)


@final
class TokensFile:
    """One row per document, exactly what the tokenizer's post-processor gives.

    Args:
        writer: its schema's columns that are not ids, masks or provenance are kept fields.
        prefix, suffix: what is put around every document.
        full: ids of a full row group.
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
        self._schema, self._padding = writer.schema, padding
        self._masked = "loss_mask" in writer.schema.names
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray([token | LOSS if self._masked else token for token in suffix], np.int32)
        masks = {"attention_mask", "loss_mask"}
        self._given = pa.schema([field for field in writer.schema if field.name not in masks])
        self._rows = RowsFile(writer, padding, full, self._finished, kept)
        self.finish, self.discard = self._rows.finish, self._rows.discard

    def add(self, documents: TokenDocuments) -> None:
        """Append documents; none is empty."""
        ids, offsets, kept = documents.ids, documents.offsets, documents.kept
        stream, lengths = ids[offsets[0] : offsets[-1]], np.diff(offsets)
        if affixes := len(self._prefix) + len(self._suffix):
            stream, lengths = join_documents(ids, offsets, self._prefix, self._suffix), lengths + affixes
        columns = {} if kept is None else dict(zip(kept.schema.names, kept.columns, strict=True))
        columns["input_ids"] = _lists(self._given.field("input_ids").type, lengths, stream)
        columns |= {"file": pa.array(documents.file), "position": pa.array(documents.position)}
        self._rows.add(row_of(self._given, columns, len(lengths)), lengths)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Append one document whose ids come in windows."""
        ids = np.concatenate(list(windows))
        at, where = np.array([file]), np.array([position])
        self.add(TokenDocuments(ids=ids, offsets=np.array([0, len(ids)]), file=at, position=where))

    def _finished(self, rows: pa.RecordBatch, lengths: Int64) -> pa.RecordBatch:
        """Pad a row group and put its masks beside the ids."""
        columns: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
        sizes = self._padding.sizes(lengths)
        ids, mask = self._padding.apply(plain_values(columns["input_ids"].flatten()), lengths, sizes)
        self.counts["pad"] += len(ids) - int(lengths.sum())
        values: dict[str, Any] = {"input_ids": plain(ids) if self._masked else ids, "attention_mask": mask}
        if self._masked:
            values["loss_mask"] = learned(ids)
        names = [name for name in values if name in self._schema.names]
        columns |= {name: _lists(self._schema.field(name).type, sizes, values[name]) for name in names}
        return row_of(self._schema, columns, len(lengths))


@final
class PackedFile:
    """Rows of one length, into which documents are packed.

    Args:
        writer: with a column ``loss_mask`` in its schema the ids given are marked.
        pack: how documents become rows.
        prefix, suffix: ids put around every document.
        pad_id: fills the ends of rows.
        full: ids of a full row group.
        shuffle_key: by which whole rows are shuffled inside a window, or None.
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
        masked = "loss_mask" in writer.schema.names
        self._prefix = prefix
        self._suffix = tuple(token | LOSS for token in suffix) if masked else suffix
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
        given = (documents.ids, documents.offsets, documents.file, documents.position)
        self._write(self._packer.add(*given, documents.again))

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Append one document whose ids come in windows."""
        self._write(self._packer.add_long(windows, file, position))

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        self._write(self._packer.finish())
        return self._writer.finish()

    def _write(self, rows: Iterator[Packed]) -> None:
        for packed in rows:
            packed.check_boundaries(self._prefix, self._suffix)
            self.counts.update(pad=packed.pad, sequences=packed.rows, slots=len(packed.input_ids))
            for group in packed.groups(self._packer.group_rows):
                self._writer.write(
                    flat_rows(group, self._writer.schema),
                    tokens=int(group.segment_lengths.sum(dtype=np.int64)),
                    documents=int((group.start == 0).sum()),
                )


def flat_rows(packed: Packed, schema: pa.Schema) -> FlatRows:
    """Return packed rows, none of their ids copied; with a column ``loss_mask`` in their schema the ids are marked."""
    count, pieces = packed.rows, len(packed.segment_lengths)
    cells: dict[str, Any] = {"input_ids": packed.input_ids}
    if "loss_mask" in schema.names:
        cells = {"input_ids": plain(packed.input_ids), "loss_mask": learned(packed.input_ids)}
    if "segment_ids" in schema.names:
        cells["segment_ids"] = packed.segment_ids
    levels: dict[str, list[Level]] = {
        name: [(count, None, None), (len(values), values, None)] for name, values in cells.items()
    }
    lists: Level = count, np.diff(packed.row_offsets).astype(np.int32), None
    places = [(pieces, values, None) for values in (packed.file, packed.position, packed.start)]
    levels["segment_lengths"] = [lists, (pieces, packed.segment_lengths, None)]
    levels["documents"] = [lists, (pieces, None, None), *places]
    return FlatRows(count, {name: levels[name] for name in schema.names})


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
        tokenizer: sha256 (hex) of the ``tokenizer.json`` that made the ids, which the files name; None: they name none.
    """
    if pack is None:
        fields = [(name, arrow_type(kind)) for name, kind in kept]
        rows = tokens_schema(loss_mask=loss_mask, attention_mask=attention_mask, kept=fields)
        return described(rows, tokenizer)
    return described_packed(pack.width, tokenizer, pieces=pack.store_segment_ids, loss_mask=loss_mask)


@functools.cache
def described_packed(
    width: int, tokenizer: str | None, *, pieces: bool = False, loss_mask: bool = False
) -> pa.Schema:
    """Return the schema of packed rows, made once for all units; `pieces`: whether segment ids are stored."""
    return described(packed_schema(width, store_segment_ids=pieces, loss_mask=loss_mask), tokenizer)
