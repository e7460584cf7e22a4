"""Where the documents of one split of a unit end up: packed rows, rows of one document each, or preferences.

Documents go to one file after the other, or are dealt to several, one document after the other.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int32, Int64
from tokenlake.column_types import ColumnType, arrow_type
from tokenlake.config.resolved import ResolvedPack, ResolvedPreference, ResolvedSource
from tokenlake.etl.job import UnitJob
from tokenlake.etl.unit.documents import TextDocuments, taken
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows import (
    PackedFile,
    Padding,
    RowsFile,
    TokenDocuments,
    TokensFile,
    row_of,
)
from tokenlake.mixing.random import key_of
from tokenlake.preference_columns import text_weights
from tokenlake.schema import (
    ROW_GROUP_TOKENS,
    described,
    packed_schema,
    preference_schema,
    tokens_schema,
)
from tokenlake.store.base import Store
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import Layout
from tokenlake.text.preference_ids import Joined, Joiner, preference_batch
from tokenlake.tokenizers.encoder import Encoded, Encoder

_ARROW: Final[Any] = pa

_HELD_TOKENS: Final = 1 << 24  # in row groups in the making, of all files of a split together: 64 MiB
_LEAST_TOKENS: Final = 1 << 14  # of a row group


def group_tokens(files: int | None) -> int:
    """Return how many ids a full row group has, where a unit writes so many files (None: one after the other)."""
    return max(_LEAST_TOKENS, min(ROW_GROUP_TOKENS, _HELD_TOKENS // (files or 1)))


@final
class Sink:
    """Takes documents, writes parts, and counts what became of every token.

    Args:
        files: to which documents are dealt, document i to file i modulo their number.
        prefix, suffix: how many ids they put around every document.
        packed: whether a further piece is one more segment of its document, and not a row of its own.
        existing: whether every document has its EOS from the tokenizer's post-processor.
    """

    def __init__(
        self,
        files: Sequence[TokensFile | PackedFile],
        prefix: int,
        suffix: int,
        *,
        packed: bool,
        existing: bool = False,
    ) -> None:
        self._files, self._next = files, 0
        self._prefix, self._suffix, self._packed, self._existing = prefix, suffix, packed, existing
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Documents, content_packed, bos, eos, eos_existing, pad, sequences and slots."""
        total = Counter(self._counts)
        for file in self._files:
            total.update(file.counts)
        return total

    def add(self, documents: TokenDocuments) -> None:
        """Add documents, or pieces of them; none is empty."""
        if not len(documents):
            return
        around, ids = documents.around, int(documents.offsets[-1] - documents.offsets[0])
        self._count(len(documents), documents.further, ids - around.bos - around.eos)
        self._counts.update(bos=around.bos, eos=around.eos, eos_existing=around.eos_existing)
        if len(self._files) == 1:
            self._files[0].add(documents)
            return
        whole = np.ones(len(documents), np.bool_) if documents.again is None else ~documents.again
        number = self._next - 1 + np.cumsum(whole)  # of the document that each is, or is a piece of
        for index, file in enumerate(self._files):
            rows = np.flatnonzero(number % len(self._files) == index)
            if len(rows):
                file.add(documents.take(rows))
        self._next = (self._next + int(whole.sum())) % len(self._files)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Add one document whose ids come in windows."""
        self._count(1, 0, 0)
        self._files[self._next].add_long(self._counted(windows), file, position)
        self._next = (self._next + 1) % len(self._files)

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        return [entry for file in self._files for entry in file.finish()]

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _count(self, pieces: int, further: int, content: int) -> None:
        documents = pieces - further if self._packed else pieces
        self._counts.update(
            documents=documents,
            content_packed=content,
            bos=pieces * self._prefix,
            eos=pieces * self._suffix,
            eos_existing=documents if self._existing else 0,
        )

    def _counted(self, windows: Iterable[Int32]) -> Iterator[Int32]:
        for tokens in windows:
            self._counts["content_packed"] += len(tokens)
            yield tokens


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
    return described_packed(pack.seq_length, tokenizer, pieces=pack.store_segment_ids, loss_mask=loss_mask)


@functools.cache
def described_packed(
    width: int, tokenizer: str | None, *, pieces: bool = False, loss_mask: bool = False
) -> pa.Schema:
    """Return the schema of packed rows, made once for all units; `pieces`: whether segment ids are stored."""
    return described(packed_schema(width, store_segment_ids=pieces, loss_mask=loss_mask), tokenizer)


def _numbers(job: UnitJob) -> Sequence[int | None]:
    """The numbers of the files that are written at a time; None: one after the other."""
    return [None] if job.files is None else range(job.files)


def open_sink(
    job: UnitJob, store: Store, layout: Layout, split: str, prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> Sink:
    """The sink for one split of a unit.

    Args:
        prefix, suffix: what the tokenizer's post-processor puts around a document.
    """
    masks = {"loss_mask": job.loss_mask, "attention_mask": job.attention_mask}
    schema = rows_schema(job.pack, job.tokenizer_json, **masks, kept=job.kept)
    numbers, args = _numbers(job), (store, layout, split, job.unit, schema, job.max_shard_size)
    writers = [PartWriter(*args, only) for only in numbers]
    if job.pack is None:
        padding, full = _padding(job.source, job.pad_id), group_tokens(job.files)
        kept = [name for name, _ in job.source.kept]
        files = [TokensFile(writer, prefix, suffix, padding, full, kept) for writer in writers]
        return Sink(files, len(prefix), len(suffix), packed=False)
    # Files that are written at the same time share the memory of one window.
    pack = replace(job.pack, window_tokens=job.pack.window_tokens // (job.files or 1))
    # A rendered document comes whole: what is around it is counted where it was put.
    whole = job.source.texts.masked
    suffix = (*suffix, job.eos_id) if job.append_eos and not whole else suffix
    packed = [
        PackedFile(
            writer,
            pack,
            prefix=prefix,
            suffix=suffix,
            pad_id=job.pad_id,
            full=group_tokens(job.files),
            shuffle_key=_packing_key(job, pack, split, only),
        )
        for writer, only in zip(writers, numbers, strict=True)
    ]
    existing = not job.append_eos and not whole
    return Sink(packed, len(prefix), len(suffix), packed=True, existing=existing)


def _padding(source: ResolvedSource, pad_id: int) -> Padding:
    settings = source.tokenizer
    return Padding(settings.padding, settings.max_length, settings.padding_side or "right", pad_id)


def _packing_key(job: UnitJob, pack: ResolvedPack, split: str, file: int | None) -> int | None:
    """The key by which rows of one output are shuffled, or None.

    It names the unit by where it begins to read, and not by its number, which changes with the inputs before it.
    """
    if pack.shuffle_seed is None:
        return None
    begin = job.ranges[0]
    number = job.source.split_names.index(split)
    return key_of(pack.shuffle_seed, begin.file.file_id, begin.start, number, file or 0)


@final
class PreferenceSink:
    """Joins prompts and answers to one row per judged prompt, and counts what became of every token.

    Rows have the columns of their trainer, and are dealt to the files one by one.
    """

    def __init__(
        self,
        job: UnitJob,
        settings: ResolvedPreference,
        store: Store,
        layout: Layout,
        split: str,
        encoder: Encoder,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings, own = settings, job.source.tokenizer
        self._joiner = Joiner(settings.method, encoder.prefix, job.eos_id, own.max_length, own.long_documents)
        kept = [(name, arrow_type(kind)) for name, kind in job.kept]
        rows = preference_schema(settings.method, settings.trainer, kept)
        self._schema = described(rows, job.tokenizer_json)
        args = store, layout, split, job.unit, self._schema, job.max_shard_size
        # Rows are not padded here, but none goes into a group that it does not fit into.
        padding, full = Padding("max_length"), group_tokens(job.files)
        self._files = [
            RowsFile(PartWriter(*args, only), padding, full, lambda rows, _: rows) for only in _numbers(job)
        ]
        self._dealt = 0

    def add(self, documents: TextDocuments, encoded: Encoded) -> Joined:
        """Add documents whose texts were encoded; returns what became of them."""
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        self.counts.update(
            documents=len(joined.origin),
            content_packed=joined.tokens - sum(joined.dropped.values()),
            bos=joined.bos,
            eos=joined.eos,
            eos_existing=joined.eos_existing,
        )
        if len(joined.origin):
            self._deal(self._rows(documents, joined), joined.lengths)
        return joined

    def text_bytes(self, documents: TextDocuments) -> int:
        """Return the UTF-8 bytes of prompts and answers, each counted once as ids are."""
        sizes = documents.text_sizes.reshape(-1, documents.parts).sum(axis=0)
        return int(sizes @ np.array(text_weights(self._settings.method)))

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        return [entry for file in self._files for entry in file.finish()]

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _rows(self, documents: TextDocuments, joined: Joined) -> pa.RecordBatch:
        batch = preference_batch(self._settings, joined, documents.label, documents.text)
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["file"] = _ARROW.array(documents.file[joined.origin])
        columns["position"] = _ARROW.array(documents.position[joined.origin])
        if (kept := taken(documents.kept, joined.origin)) is not None:
            columns |= dict(zip(kept.schema.names, kept.columns, strict=True))
        return row_of(self._schema, columns, len(joined.origin))

    def _deal(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        many = len(self._files)
        for number, file in enumerate(self._files):
            if many == 1:
                file.add(rows, lengths)
                continue
            mine = np.arange((number - self._dealt) % many, len(lengths), many)
            file.add(rows.take(_ARROW.array(mine)), lengths[mine])
        self._dealt += len(lengths)
