"""Where a unit's documents of one split end up: packed sequences, or one row per document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.build.job import UnitJob
from tokenlake.build.parts import PartWriter, packed_batches
from tokenlake.errors import AccountError
from tokenlake.manifest import ShardEntry
from tokenlake.packing import GreedyPacker, Packed, join_documents
from tokenlake.packing.marks import LEARNED, learned, plain
from tokenlake.schema import ROW_GROUP_TOKENS, packed_schema, row_group_rows, tokens_schema
from tokenlake.storage import Layout, Store

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Around:
    """How many of the ids given to a sink are BOS and EOS put there already, and how many documents had an EOS."""

    bos: int = 0
    eos: int = 0
    eos_existing: int = 0


NOTHING_AROUND: Final = Around()


class Sink(Protocol):
    """Takes documents, writes parts, and counts what became of every token.

    ``counts`` holds documents, content, bos, eos, eos_existing, pad, sequences and slots.
    """

    counts: Counter[str]

    def add(
        self,
        ids: Int32,
        offsets: Int64,
        file: Int64,
        position: Int64,
        around: Around = NOTHING_AROUND,
        again: Bools | None = None,
    ) -> None:
        """Add documents: ids int32[total], offsets int64[n + 1], file and position int64[n].

        In a build with a loss mask ids are marked, see :mod:`tokenlake.packing.marks`. `again`, bool[n], is True for
        a further piece of the document before; None where all are whole.
        """
        ...

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Add one document whose ids come in windows."""
        ...

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        ...

    def discard(self) -> None:
        """Give up: remove temporary files."""
        ...


def open_sink(
    job: UnitJob, store: Store, layout: Layout, split: str, prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> Sink:
    """The sink for one split of a unit.

    Args:
        prefix, suffix: what the tokenizer's post-processor puts around a document.
    """
    if job.pack is None:
        schema = tokens_schema(loss_mask=job.loss_mask)
        return TokensSink(
            PartWriter(store, layout, split, job.unit, schema, job.max_shard_size), schema, prefix, suffix
        )
    schema = packed_schema(
        job.pack.seq_length, store_segment_ids=job.pack.store_segment_ids, loss_mask=job.loss_mask
    )
    writer = PartWriter(store, layout, split, job.unit, schema, job.max_shard_size)
    return PackedSink(job, writer, schema, prefix, suffix)


@final
class PackedSink:
    """Greedy packing into sequences."""

    def __init__(
        self,
        job: UnitJob,
        writer: PartWriter,
        schema: pa.Schema,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
    ) -> None:
        assert job.pack is not None
        self.counts: Counter[str] = Counter()
        # A rendered document comes whole: what is around it is counted where it was put.
        whole = job.source.texts.masked
        self._existing = not job.append_eos and not whole
        self._masked = job.loss_mask
        self._prefix = prefix
        self._suffix = (*suffix, job.eos_id) if job.append_eos and not whole else suffix
        if job.loss_mask:
            self._suffix = tuple(token | LEARNED for token in self._suffix)
        self._seq_length = job.pack.seq_length
        self._group_rows = row_group_rows(self._seq_length)
        self._schema = schema
        self._writer = writer
        self._packer = GreedyPacker(
            self._seq_length,
            group_rows=self._group_rows,
            prefix=self._prefix,
            suffix=self._suffix,
            pad_id=job.pad_id,
        )

    def add(
        self,
        ids: Int32,
        offsets: Int64,
        file: Int64,
        position: Int64,
        around: Around = NOTHING_AROUND,
        again: Bools | None = None,
    ) -> None:
        self.counts["content"] += int(offsets[-1] - offsets[0]) - around.bos - around.eos
        self.counts.update(bos=around.bos, eos=around.eos, eos_existing=around.eos_existing)
        self._count(len(position), 0 if again is None else int(again.sum()))
        for packed in self._packer.add(ids, offsets, file, position, again):
            self._write(packed)

    def finish(self) -> list[ShardEntry]:
        for packed in self._packer.finish():
            self._write(packed)
        return self._writer.finish()

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        self._count(1)
        for packed in self._packer.add_long(self._counted(windows), file, position):
            self._write(packed)

    def discard(self) -> None:
        self._writer.discard()

    def _count(self, pieces: int, again: int = 0) -> None:
        # In packed rows a further piece is one more segment of its document, told by its start.
        self.counts["documents"] += pieces - again
        self.counts["bos"] += pieces * len(self._prefix)
        self.counts["eos"] += pieces * len(self._suffix)
        self.counts["eos_existing"] += pieces - again if self._existing else 0

    def _counted(self, windows: Iterable[Int32]) -> Iterator[Int32]:
        for tokens in windows:
            self.counts["content"] += len(tokens)
            yield tokens

    def _write(self, packed: Packed) -> None:
        check_boundaries(packed, self._prefix, self._suffix)
        mask = None
        if self._masked:
            mask, packed = learned(packed.input_ids), replace(packed, input_ids=plain(packed.input_ids))
        self.counts["pad"] += packed.pad
        self.counts["sequences"] += packed.rows
        self.counts["slots"] += packed.rows * self._seq_length
        for rows, tokens, documents in packed_batches(
            packed, self._schema, self._seq_length, self._group_rows, mask
        ):
            self._writer.write(rows, tokens=tokens, documents=documents)


@final
class TokensSink:
    """One row per document, exactly what the tokenizer's post-processor gives."""

    def __init__(
        self, writer: PartWriter, schema: pa.Schema, prefix: tuple[int, ...], suffix: tuple[int, ...]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._writer = writer
        self._schema = schema
        self._masked = "loss_mask" in schema.names
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray([token | LEARNED if self._masked else token for token in suffix], np.int32)
        self._ids: list[Int32] = []
        self._lengths: list[Int64] = []
        self._file: list[Int64] = []
        self._position: list[Int64] = []
        self._buffered = 0

    def add(
        self,
        ids: Int32,
        offsets: Int64,
        file: Int64,
        position: Int64,
        around: Around = NOTHING_AROUND,
        again: Bools | None = None,
    ) -> None:
        if not len(position):
            return
        self.counts.update(bos=around.bos, eos=around.eos, eos_existing=around.eos_existing)
        self.counts["content"] -= around.bos + around.eos
        affixes = len(self._prefix) + len(self._suffix)
        lengths = np.diff(offsets) + affixes
        self.counts["documents"] += len(position)
        self.counts["content"] += int(offsets[-1] - offsets[0])
        self.counts["bos"] += len(position) * len(self._prefix)
        self.counts["eos"] += len(position) * len(self._suffix)
        stream = (
            join_documents(ids, offsets, self._prefix, self._suffix)
            if affixes
            else ids[offsets[0] : offsets[-1]]
        )
        ends = np.cumsum(lengths)
        first = 0
        while first < len(lengths):
            begin = int(ends[first] - lengths[first])
            room = ROW_GROUP_TOKENS - self._buffered
            last = max(first + 1, int(np.searchsorted(ends, begin + room, side="right")))
            self._ids.append(stream[begin : ends[last - 1]])
            self._lengths.append(lengths[first:last])
            self._file.append(file[first:last])
            self._position.append(position[first:last])
            self._buffered += int(ends[last - 1]) - begin
            if self._buffered >= ROW_GROUP_TOKENS or last < len(lengths):
                self._flush()
            first = last

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        ids = np.concatenate(list(windows))
        self.add(ids, np.array([0, len(ids)]), np.array([file]), np.array([position]))

    def finish(self) -> list[ShardEntry]:
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()

    def _flush(self) -> None:
        if not self._lengths:
            return
        lengths = np.concatenate(self._lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = np.concatenate(self._ids)
        columns: dict[str, Any] = {
            "input_ids": _lists(offsets, plain(ids) if self._masked else ids, self._schema),
            "file": pa.array(np.concatenate(self._file)),
            "position": pa.array(np.concatenate(self._position)),
        }
        if self._masked:
            columns["loss_mask"] = _lists(offsets, learned(ids), self._schema, "loss_mask")
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        self._writer.write(rows, tokens=int(offsets[-1]), documents=len(lengths))
        for buffer in (self._ids, self._lengths, self._file, self._position):
            buffer.clear()
        self._buffered = 0


def _lists(offsets: Any, values: Any, schema: pa.Schema, name: str = "input_ids") -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field(name).type)


def check_boundaries(packed: Packed, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    """Assert on the packed ids themselves that documents begin with BOS and end with EOS.

    Raises:
        AccountError: a document begins or ends with another id, which would be a bug.
    """
    ends = np.cumsum(packed.segment_lengths, dtype=np.int64)
    begins = packed.start == 0
    if prefix:
        _require(packed.input_ids[(ends - packed.segment_lengths)[begins]], prefix[0], "begins", packed)
    if suffix and len(begins) > 1:
        # A piece is its document's last where the next one begins another document.
        _require(packed.input_ids[ends[:-1][begins[1:]] - 1], suffix[-1], "ends", packed)


def _require(found: Int32, expected: int, what: str, packed: Packed) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        raise AccountError(
            f"a document {what} with id {int(found[wrong[0]])}, expected {expected}, in rows packed from file id "
            f"{int(packed.file[0])}; this is a bug, nothing was committed"
        )
