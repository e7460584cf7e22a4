"""The sink of a split: packed sequences, or one row per document; in one file after the other, or dealt to several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int32
from tokenlake.column_types import arrow_type
from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import AccountError
from tokenlake.etl.job import UnitJob
from tokenlake.etl.output.parts import PartWriter, packed_batches
from tokenlake.etl.output.sink import DealingSink, Sink, TokenDocuments, group_tokens
from tokenlake.etl.output.token_rows import Padding, TokensSink
from tokenlake.mixing.random import key_of
from tokenlake.packing.loss_mask import LOSS, learned, plain
from tokenlake.packing.packer import open_packer
from tokenlake.packing.segments import Packed
from tokenlake.schema import packed_schema, tokens_schema
from tokenlake.store.base import Store
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import Layout


def open_sink(
    job: UnitJob, store: Store, layout: Layout, split: str, prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> Sink:
    """The sink for one split of a unit.

    Args:
        prefix, suffix: what the tokenizer's post-processor puts around a document.
    """

    def one(only: int | None) -> Sink:
        writer = PartWriter(store, layout, split, job.unit, schema, job.max_shard_size, only)
        if job.pack is None:
            return TokensSink(writer, schema, prefix, suffix, _padding(job), group_tokens(job.files))
        # A rendered document comes whole: what is around it is counted where it was put.
        whole = job.source.texts.masked
        return PackedSink(
            writer,
            schema,
            job.pack,
            prefix=prefix,
            suffix=(*suffix, job.eos_id) if job.append_eos and not whole else suffix,
            pad_id=job.pad_id,
            existing=not job.append_eos and not whole,
            files=job.files,
            shuffle_key=_packing_key(job, split, only),
        )

    schema = _schema(job)
    if job.files is None or job.files == 1:
        return one(None if job.files is None else 0)
    return DealingSink([one(number) for number in range(job.files)])


def _schema(job: UnitJob) -> pa.Schema:
    if job.pack is None:
        kept = [(name, arrow_type(kind)) for name, kind in job.kept]
        return tokens_schema(loss_mask=job.loss_mask, attention_mask=job.attention_mask, kept=kept)
    return packed_schema(
        job.pack.seq_length, store_segment_ids=job.pack.store_segment_ids, loss_mask=job.loss_mask
    )


def _padding(job: UnitJob) -> Padding:
    settings = job.source.tokenizer
    return Padding(settings.padding, settings.max_length, settings.padding_side or "right", job.pad_id)


def _packing_key(job: UnitJob, split: str, file: int | None) -> int | None:
    """The key by which rows of one output are shuffled, or None.

    It names the unit by where it begins to read, and not by its number, which changes with the inputs before it.
    """
    if job.pack is None or job.pack.shuffle_seed is None:
        return None
    begin = job.ranges[0]
    number = [name for name, _ in job.source.splits].index(split)
    return key_of(job.pack.shuffle_seed, begin.file.file_id, begin.start, number, file or 0)


@final
class PackedSink:
    """Packing into sequences.

    Args:
        schema: of the rows; with a column ``loss_mask`` the ids given are marked.
        pack: how documents become rows.
        prefix, suffix: ids put around every document.
        pad_id: fills the ends of rows.
        existing: whether every document has its EOS from the tokenizer's post-processor.
        files: how many are written at the same time; None: one after the other.
        shuffle_key: by which whole rows are shuffled inside a window, or None.
    """

    def __init__(
        self,
        writer: PartWriter,
        schema: pa.Schema,
        pack: ResolvedPack,
        *,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        pad_id: int,
        existing: bool = False,
        files: int | None = None,
        shuffle_key: int | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._existing = existing
        self._masked = "loss_mask" in schema.names
        self._prefix = prefix
        self._suffix = tuple(token | LOSS for token in suffix) if self._masked else suffix
        self._seq_length = pack.seq_length
        self._group_rows = max(1, group_tokens(files) // self._seq_length)
        self._schema = schema
        self._writer = writer
        self._packer = open_packer(
            pack.strategy,
            self._seq_length,
            group_rows=self._group_rows,
            prefix=self._prefix,
            suffix=self._suffix,
            pad_id=pad_id,
            # Files that are written at the same time share the memory of one window.
            window_tokens=pack.window_tokens // (files or 1),
            num_packers=pack.num_packers,
            max_segments=pack.max_segments,
            shuffle_key=shuffle_key,
        )

    def add(self, documents: TokenDocuments) -> None:
        around = documents.around
        self.counts["content"] += documents.content
        self.counts.update(bos=around.bos, eos=around.eos, eos_existing=around.eos_existing)
        self._count(len(documents), documents.further)
        given = (documents.ids, documents.offsets, documents.file, documents.position)
        for packed in self._packer.add(*given, documents.again):
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


def check_boundaries(packed: Packed, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    """Assert on the packed ids themselves that documents begin with BOS and end with EOS.

    Raises:
        AccountError: a document begins or ends with another id, which would be a bug.
    """
    begins = packed.begins
    first = packed.start == 0
    if prefix:
        _require(packed.input_ids[begins[first]], prefix[0], "begins", packed)
    if suffix:
        last = (begins + packed.segment_lengths)[packed.ends] - 1
        _require(packed.input_ids[last], suffix[-1], "ends", packed)


def _require(found: Int32, expected: int, what: str, packed: Packed) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        raise AccountError(
            f"a document {what} with id {int(found[wrong[0]])}, expected {expected}, in rows packed from file id "
            f"{int(packed.file[0])}; this is a bug, nothing was committed"
        )
