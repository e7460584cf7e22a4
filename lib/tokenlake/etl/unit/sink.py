"""Where the documents of one split of a unit end up: packed rows, rows of one document each, or preferences.

Documents go to one file after the other, or are dealt to several, one document after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.job import UnitJob
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding
from tokenlake.etl.unit.token_files import PackedFile, TokenDocuments, TokensFile, group_tokens, rows_schema
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry

_ARROW: Final[Any] = pa


@final
class Sink:
    """Takes documents, writes parts, and counts what became of every token.

    Args:
        files: to which documents are dealt, document i to file i modulo their number.
        prefix, suffix: how many ids they put around every document.
        packed: whether a further piece is one more segment of its document, and not a row of its own.
        existing: whether every document has its EOS from the tokenizer's post-processor.

    Attributes:
        counts: documents, content_packed, bos, eos, eos_existing, pad, sequences and slots.
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
        self.counts: Counter[str] = Counter()
        for file in files:
            file.counts = self.counts

    def add(self, documents: TokenDocuments) -> None:
        """Add documents, or pieces of them; none is empty."""
        if not len(documents):
            return
        whole = np.ones(len(documents), np.bool_) if documents.again is None else ~documents.again
        content = int(documents.offsets[-1] - documents.offsets[0]) - documents.bos - documents.eos
        self._count(len(documents), int(whole.sum()), content)
        self.counts.update(bos=documents.bos, eos=documents.eos, eos_existing=documents.eos_existing)
        if len(self._files) == 1:
            self._files[0].add(documents)
            return
        number = self._next - 1 + np.cumsum(whole)  # of the document that each is, or is a piece of
        for index, file in enumerate(self._files):
            rows = np.flatnonzero(number % len(self._files) == index)
            if len(rows):
                file.add(documents.take(rows))
        self._next = (self._next + int(whole.sum())) % len(self._files)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Add one document whose ids come in windows."""

        def counted() -> Iterator[Int32]:
            for ids in windows:
                self.counts["content_packed"] += len(ids)
                yield ids

        self._count(1, 1, 0)
        self._files[self._next].add_long(counted(), file, position)
        self._next = (self._next + 1) % len(self._files)

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        return [entry for file in self._files for entry in file.finish()]

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _count(self, pieces: int, whole: int, content: int) -> None:
        documents = whole if self._packed else pieces
        self.counts.update(
            documents=documents,
            content_packed=content,
            bos=pieces * self._prefix,
            eos=pieces * self._suffix,
            eos_existing=documents if self._existing else 0,
        )


def part_numbers(job: UnitJob) -> Sequence[int | None]:
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
    numbers, args = part_numbers(job), (store, layout, split, job.unit, schema, job.max_shard_size)
    writers = [PartWriter(*args, only) for only in numbers]
    if job.pack is None:
        own, kept = job.source.tokenizer, [name for name, _ in job.source.kept]
        padding = Padding(own.padding, own.max_length, own.padding_side or "right", job.pad_id)
        full = group_tokens(job.files)
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


def _packing_key(job: UnitJob, pack: ResolvedPack, split: str, file: int | None) -> int | None:
    """The key by which rows of one output are shuffled, or None.

    It names the unit by where it begins to read, and not by its number, which changes with the inputs before it.
    """
    if pack.shuffle_seed is None:
        return None
    begin = job.ranges[0]
    number = job.source.split_names.index(split)
    return key_of(pack.shuffle_seed, begin.file.file_id, begin.start, number, file or 0)
