"""Unpacked rows: each is a document, padded where asked, with its masks and the fields kept beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int32, Int64
from tokenlake.etl.output.parts import PartWriter
from tokenlake.etl.output.sink import TokenDocuments
from tokenlake.packing.greedy import join_documents
from tokenlake.packing.loss_mask import LOSS, learned, plain
from tokenlake.ragged import places
from tokenlake.store.entries import ShardEntry


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
    length: int
    side: Literal["left", "right"]
    pad_id: int

    def sizes(self, lengths: Int64) -> Int64:
        """Return how many ids each of the n rows of a row group has, its documents having `lengths` (int64[n])."""
        if self.kind == "none" or not len(lengths):
            return lengths
        return np.maximum(lengths, self.length if self.kind == "max_length" else lengths.max())

    def apply(self, ids: Int32, lengths: Int64, sizes: Int64) -> tuple[Int32, Int32]:
        """Lay documents (ids int32[sum of lengths]) into rows of `sizes`; return ids and mask, int32[sum of sizes]."""
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


_ARROW: Final[Any] = pa
_KEPT_BYTES: Final = 64 << 20  # of kept fields after which a row group ends, however few tokens it has


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some documents that wait for their row group to be full."""

    ids: Int32
    lengths: Int64
    file: Int64
    position: Int64
    kept: pa.RecordBatch | None


@final
class TokensSink:
    """One row per document, exactly what the tokenizer's post-processor gives.

    Args:
        schema: of the rows; columns that are not ids, masks or provenance are kept fields.
        prefix, suffix: what is put around every document.
        group_tokens: ids of a full row group.
    """

    def __init__(
        self,
        writer: PartWriter,
        schema: pa.Schema,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        padding: Padding,
        group_tokens: int,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._writer, self._schema, self._padding = writer, schema, padding
        self._masked = "loss_mask" in schema.names
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray([token | LOSS if self._masked else token for token in suffix], np.int32)
        self._groups = RowGroups(padding, group_tokens)
        self._waiting: list[_Chunk] = []
        self._kept_bytes = 0

    def add(self, documents: TokenDocuments) -> None:
        if not len(documents):
            return
        self._count(documents)
        ids, offsets = documents.ids, documents.offsets
        stream = ids[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets)
        if affixes := len(self._prefix) + len(self._suffix):
            stream, lengths = join_documents(ids, offsets, self._prefix, self._suffix), lengths + affixes
        ends = np.cumsum(lengths)
        first = 0
        while first < len(lengths):
            taken, full = self._groups.take(lengths[first:])
            last = first + taken
            if taken:
                chosen = stream[ends[first] - lengths[first] : ends[last - 1]]
                kept = None if documents.kept is None else documents.kept.slice(first, taken)
                place = documents.file[first:last], documents.position[first:last]
                self._wait(_Chunk(chosen, lengths[first:last], *place, kept))
            if full or self._kept_bytes >= _KEPT_BYTES:
                self._flush()
            first = last

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        ids = np.concatenate(list(windows))
        at, where = np.array([file]), np.array([position])
        self.add(TokenDocuments(ids=ids, offsets=np.array([0, len(ids)]), file=at, position=where))

    def finish(self) -> list[ShardEntry]:
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()

    def _count(self, documents: TokenDocuments) -> None:
        around, number = documents.around, len(documents)
        self.counts.update(
            documents=number,
            content=documents.content,
            bos=around.bos + number * len(self._prefix),
            eos=around.eos + number * len(self._suffix),
            eos_existing=around.eos_existing,
        )

    def _wait(self, chunk: _Chunk) -> None:
        self._waiting.append(chunk)
        if chunk.kept is not None:
            self._kept_bytes += chunk.kept.nbytes

    def _flush(self) -> None:
        """Write what waits as one row group."""
        waiting, self._waiting, self._kept_bytes = self._waiting, [], 0
        self._groups.clear()
        if not waiting:
            return
        lengths = np.concatenate([chunk.lengths for chunk in waiting])
        columns = self._columns(np.concatenate([chunk.ids for chunk in waiting]), lengths)
        columns["file"] = pa.array(np.concatenate([chunk.file for chunk in waiting]))
        columns["position"] = pa.array(np.concatenate([chunk.position for chunk in waiting]))
        columns |= self._kept([chunk.kept for chunk in waiting if chunk.kept is not None])
        arrays = [
            columns[name] if name in columns else pa.nulls(len(lengths), self._schema.field(name).type)
            for name in self._schema.names
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._writer.write(rows, tokens=int(lengths.sum()), documents=len(lengths))

    def _columns(self, ids: Int32, lengths: Int64) -> dict[str, Any]:
        """The columns of ids and masks."""
        sizes = self._padding.sizes(lengths)
        mask = np.ones(0, np.int32)
        if self._padding.kind != "none":
            ids, mask = self._padding.apply(ids, lengths, sizes)
            self.counts["pad"] += len(ids) - int(lengths.sum())
        elif "attention_mask" in self._schema.names:
            mask = np.ones(len(ids), np.int32)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        flat: dict[str, Any] = {"input_ids": plain(ids) if self._masked else ids}
        if "attention_mask" in self._schema.names:
            flat["attention_mask"] = mask
        if self._masked:
            flat["loss_mask"] = learned(ids)
        return {name: self._lists(name, offsets, values) for name, values in flat.items()}

    def _lists(self, name: str, offsets: Any, values: Any) -> Any:
        kind = self._schema.field(name).type
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)

    def _kept(self, batches: list[pa.RecordBatch]) -> dict[str, Any]:
        """The kept fields of all rows, which are of one source and so have the same."""
        names = batches[0].schema.names if batches else []
        return {name: _ARROW.concat_arrays([batch.column(name) for batch in batches]) for name in names}
