"""Rows of one output file in the making: of one document each, or of one length, into which documents are packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Bools, FlatRows, Int32, Int64, Level
from tokenlake.arrays import values as plain_values
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.unit.documents import taken
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.packing.loss_mask import LOSS, learned, plain
from tokenlake.packing.packer import join_documents, open_packer
from tokenlake.packing.segments import Packed
from tokenlake.ragged import Ragged, offsets_of, places
from tokenlake.store.entries import ShardEntry

_ARROW: Final[Any] = pa

_KEPT_BYTES: Final = 64 << 20  # of kept fields after which a row group ends, however few tokens it has


@final
@dataclass(frozen=True, slots=True)
class AddedIds:
    """How many of the ids given to a sink are BOS and EOS put there already, and how many documents had an EOS."""

    bos: int = 0
    eos: int = 0
    eos_existing: int = 0


NOTHING_ADDED: Final = AddedIds()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocuments:
    """n documents, or pieces of documents, as ids.

    Attributes:
        ids: int32[total]; in a build with a loss mask they are marked, see :mod:`tokenlake.packing.loss_mask`.
        offsets: int64[n + 1] into `ids`.
        file, position: int64[n], where each comes from.
        around: what of the ids was put around the documents.
        again: bool[n], True for a further piece of the document before; None where all are whole.
        kept: n rows of the fields kept beside the ids; None where none are.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    around: AddedIds = NOTHING_ADDED
    again: Bools | None = None
    kept: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def further(self) -> int:
        """Pieces that are not their document's first."""
        return 0 if self.again is None else int(self.again.sum())

    def take(self, rows: Int64) -> TokenDocuments:
        """Return the documents `rows` (int64[m]); `around`, a sum over all, is left out."""
        found = Ragged.taken(self.ids, self.offsets[rows], self.offsets[rows + 1])
        return TokenDocuments(
            ids=found.ids,
            offsets=found.offsets,
            file=self.file[rows],
            position=self.position[rows],
            again=None if self.again is None else self.again[rows],
            kept=taken(self.kept, rows),
        )


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """How documents are padded.

    Attributes:
        kind: ``none``; ``max_length``: to `length`, longer ones stay as they are; ``longest``: to the longest of
            their row group.
        length: tokens of a row, for ``max_length``.
        side: where the padding goes.
        pad_id: what it is made of.
    """

    kind: Literal["none", "max_length", "longest"]
    length: int = 0
    side: Literal["left", "right"] = "right"
    pad_id: int = 0

    def sizes(self, lengths: Int64) -> Int64:
        """Return how many ids each of the n rows of a row group has, its documents having `lengths` (int64[n])."""
        if self.kind == "none" or not len(lengths):
            return lengths
        return np.maximum(lengths, self.length if self.kind == "max_length" else lengths.max())

    def apply(self, ids: Int32, lengths: Int64, sizes: Int64) -> tuple[Int32, Int32]:
        """Lay documents (ids int32[sum of lengths]) into rows of `sizes`; return ids and mask, int32[sum of sizes]."""
        if self.kind == "none":
            return ids, np.ones(len(ids), np.int32)
        starts = np.cumsum(sizes) - sizes
        begin = starts if self.side == "right" else starts + sizes - lengths
        at = places(begin, lengths)
        out = np.full(int(sizes.sum()), self.pad_id, np.int32)
        mask = np.zeros(len(out), np.int32)
        out[at], mask[at] = ids, 1
        return out, mask


@final
class RowGroups:
    """Where row groups of documents end: each has at most about `tokens` ids, padding included.

    Args:
        tokens: of a full row group; one document alone may have more.
    """

    def __init__(self, padding: Padding, tokens: int) -> None:
        self._padding, self._tokens = padding, tokens
        self._held = self._longest = self._count = 0

    def take(self, lengths: Int64) -> tuple[int, bool]:
        """Return how many of the next documents (int64[n], n > 0) go into the open group, and whether it is full."""
        if self._padding.kind == "longest":
            return self._take_longest(lengths)
        ends = np.cumsum(self._padding.sizes(lengths))
        # Without padding a document goes into the open group that it comes to, fits or not: released bytes are so.
        least = int(self._padding.kind == "none" or not self._held)
        taken = max(least, int(np.searchsorted(ends, self._tokens - self._held, side="right")))
        if not taken:
            return 0, True
        self._held += int(ends[taken - 1])
        return taken, self._held >= self._tokens or taken < len(lengths)

    def _take_longest(self, lengths: Int64) -> tuple[int, bool]:
        widths = np.maximum.accumulate(np.maximum(lengths[: self._tokens], self._longest))
        areas: Any = widths * np.arange(self._count + 1, self._count + 1 + len(widths))
        taken = int(np.searchsorted(areas, self._tokens, side="right"))
        if not taken and self._count:
            return 0, True
        taken = max(1, taken)
        self._count, self._longest = self._count + taken, int(widths[taken - 1])
        return taken, taken < len(lengths) or int(areas[taken - 1]) >= self._tokens

    def clear(self) -> None:
        """Begin a new group."""
        self._held = self._longest = self._count = 0


Finished = Callable[[pa.RecordBatch, Int64], pa.RecordBatch]
"""From the rows of a row group, and how many ids each has (int64[n]), to what is written."""


@final
class RowsFile:
    """Rows of one document each on their way to row groups, whose borders do not depend on how rows arrive.

    Args:
        padding: what a row group counts beside the ids.
        full: ids of a full row group.
        kept: columns that end a row group where they have many bytes.
    """

    def __init__(
        self, writer: PartWriter, padding: Padding, full: int, finished: Finished, kept: Sequence[str] = ()
    ) -> None:
        self._writer, self._finished, self._kept = writer, finished, kept
        self._groups = RowGroups(padding, full)
        self._waiting: list[tuple[pa.RecordBatch, Int64]] = []
        self._kept_bytes = 0

    def add(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Append n rows of so many ids, padding not counted (int64[n])."""
        first = 0
        while first < len(lengths):
            count, full = self._groups.take(lengths[first:])
            if count:
                some = rows.slice(first, count)
                self._waiting.append((some, lengths[first : first + count]))
                self._kept_bytes += sum(some.column(name).nbytes for name in self._kept)
            if full or self._kept_bytes >= _KEPT_BYTES:
                self._flush()
            first += count

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()

    def _flush(self) -> None:
        """Write what waits as one row group."""
        waiting, self._waiting, self._kept_bytes = self._waiting, [], 0
        self._groups.clear()
        if waiting:
            rows = _ARROW.concat_batches([rows for rows, _ in waiting])
            lengths = np.concatenate([lengths for _, lengths in waiting])
            rows = self._finished(rows, lengths)
            self._writer.write(rows, tokens=int(lengths.sum()), documents=len(rows))


def row_of(schema: pa.Schema, columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Return `count` rows of a schema; what is not there is null."""
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)


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
