"""Sinks: the documents of one split of a unit, on their way to rows.

Rows are packed, or have one document each.

Documents go to one file after the other or, if a unit writes several files at a time,
are dealt to them one by one.

Example: of the documents a, b in two parts, and c, the first of two files gets a and c,
and the second one both parts of b.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from tokenlake.base.arrays import Int32
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.job import UnitJob
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding
from tokenlake.etl.unit.token_files import (
    PackedFile,
    TokenDocuments,
    TokensFile,
    group_tokens,
    rows_schema,
)
from tokenlake.etl.unit.whole_rows import WholeRowsFile
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry


@final
class Sink:
    """Takes documents, writes parts, and counts every token.

    Args:
        files: Files to which documents are dealt, document i to file i modulo their
            number.
        prefix: Number of ids that the files put before every document.
        suffix: Number of ids that the files put after every document.
        packed: True if a further part is one more segment of its document; False if it
            is a row by itself.
        existing: True if every document has its EOS from the tokenizer's
            post-processor.

    Attributes:
        counts: Counts of documents, content_packed, bos, eos, eos_existing, pad,
            sequences and slots.
    """

    def __init__(
        self,
        files: Sequence[TokensFile | PackedFile | WholeRowsFile],
        prefix: int,
        suffix: int,
        *,
        packed: bool,
        existing: bool = False,
    ) -> None:
        self._files = files
        self._next_file = 0
        self._prefix = prefix
        self._suffix = suffix
        self._packed = packed
        self._existing = existing
        self.counts: Counter[str] = Counter()
        for file in files:
            file.counts = self.counts

    def add(self, documents: TokenDocuments) -> None:
        """Add documents, or parts of them; none is empty."""
        if not len(documents):
            return
        # 1. Count. A further part counts as a document only where it is a row by itself.
        is_first_part = np.ones(len(documents), np.bool_)
        if documents.again is not None:
            is_first_part = ~documents.again
        document_count = int(is_first_part.sum())
        id_count = int(documents.offsets[-1] - documents.offsets[0])
        content_ids = id_count - documents.bos - documents.eos
        self._count(len(documents), document_count, content_ids)
        self.counts.update(
            bos=documents.bos, eos=documents.eos, eos_existing=documents.eos_existing
        )
        # 2. Deal. All parts of a document go to the same file.
        if len(self._files) == 1:
            self._files[0].add(documents)
            return
        document_number = self._next_file - 1 + np.cumsum(is_first_part)
        file_count = len(self._files)
        for file_index, file in enumerate(self._files):
            rows = np.flatnonzero(document_number % file_count == file_index)
            if len(rows):
                file.add(documents.take(rows))
        self._next_file = (self._next_file + document_count) % len(self._files)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Add one document that comes in pieces.

        Args:
            windows: Ids of the document, a piece at a time.
            file: Id of the document's file.
            position: Position of the document in its file.
        """

        def counted() -> Iterator[Int32]:
            # The ids are counted while they are packed: they are never in memory as a
            # whole.
            for token_ids in windows:
                self.counts["content_packed"] += len(token_ids)
                yield token_ids

        self._count(1, 1, 0)
        self._files[self._next_file].add_long(counted(), file, position)
        self._next_file = (self._next_file + 1) % len(self._files)

    def finish(self) -> list[ShardEntry]:
        """Write and publish the rest; return the parts."""
        entries: list[ShardEntry] = []
        for file in self._files:
            entries += file.finish()
        return entries

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _count(self, parts: int, documents: int, content: int) -> None:
        """Count documents.

        Args:
            parts: Number of their parts, each of which gets a prefix and a suffix.
            documents: Number of documents.
            content: Number of ids of the text.
        """
        if not self._packed:
            documents = parts
        self.counts.update(
            documents=documents,
            content_packed=content,
            bos=parts * self._prefix,
            eos=parts * self._suffix,
        )
        if self._existing:
            self.counts["eos_existing"] += documents


def part_numbers(job: UnitJob) -> Sequence[int | None]:
    """Return the numbers of the files that are written at a time.

    None: one file after the other.
    """
    if job.files is None:
        return [None]
    return range(job.files)


def open_sink(
    job: UnitJob,
    store: Store,
    layout: Layout,
    split: str,
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
) -> Sink:
    """Return the sink of one split of a unit.

    Args:
        job: Job of the unit.
        store: Store of the version.
        layout: Keys of the version.
        split: Name of the split.
        prefix: Ids that the tokenizer's post-processor puts before a document.
        suffix: Ids that the tokenizer's post-processor puts after a document.
    """
    # 1. A writer for each file that is written at a time.
    schema = rows_schema(
        job.pack,
        job.tokenizer_json,
        loss_mask=job.loss_mask,
        attention_mask=job.attention_mask,
        kept=job.kept,
    )
    writers: dict[int | None, PartWriter] = {}
    for part_number in part_numbers(job):
        writers[part_number] = PartWriter(
            store, layout, split, job.unit, schema, job.max_shard_size, part_number
        )
    # 2. Rows of one document each, rows that were packed already, or packed rows.
    if job.pack is None:
        return _tokens_sink(job, list(writers.values()), prefix, suffix)
    if job.source.has_whole_rows:
        full_group = group_tokens(job.files)
        whole_rows_files: list[WholeRowsFile] = []
        for writer in writers.values():
            whole_rows_files.append(
                WholeRowsFile(writer, job.pack.width, job.pad_id, full_group)
            )
        return Sink(whole_rows_files, 0, 0, packed=True)
    return _packed_sink(job, job.pack, split, writers, prefix, suffix)


def _tokens_sink(
    job: UnitJob,
    writers: Sequence[PartWriter],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
) -> Sink:
    """Return a sink of rows of one document each."""
    settings = job.source.tokenizer
    padding = Padding(
        settings.padding,
        settings.max_length,
        settings.padding_side or "right",
        job.pad_id,
    )
    full_group = group_tokens(job.files)
    kept_names = [name for name, _ in job.source.kept]
    files: list[TokensFile] = []
    for writer in writers:
        files.append(
            TokensFile(writer, prefix, suffix, padding, full_group, kept_names)
        )
    return Sink(files, len(prefix), len(suffix), packed=False)


def _packed_sink(
    job: UnitJob,
    pack: ResolvedPack,
    split: str,
    writers: dict[int | None, PartWriter],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
) -> Sink:
    """Return a sink of packed rows."""
    # Files that are written at the same time share the memory of one window.
    window_tokens = pack.window_tokens // (job.files or 1)
    shared_pack = replace(pack, window_tokens=window_tokens)
    # A rendered document, and one of imported ids, comes finished; its BOS and EOS are
    # counted where they were put.
    is_finished = job.source.is_finished
    if job.append_eos and not is_finished:
        suffix = (*suffix, job.eos_id)
    files: list[PackedFile] = []
    for part_number, writer in writers.items():
        file = PackedFile(
            writer,
            shared_pack,
            prefix=prefix,
            suffix=suffix,
            pad_id=job.pad_id,
            full=group_tokens(job.files),
            shuffle_key=_shuffle_key(job, shared_pack, split, part_number or 0),
        )
        files.append(file)
    # Without an EOS of packing, plain documents end with that of the post-processor.
    has_eos = not job.append_eos and not is_finished
    return Sink(files, len(prefix), len(suffix), packed=True, existing=has_eos)


def _shuffle_key(job: UnitJob, pack: ResolvedPack, split: str, file: int) -> int | None:
    """Return the key by which rows of one file are shuffled; None if they are not.

    It names the unit by the place where it begins to read, and not by its number, which
    changes with the inputs before it.
    """
    if pack.shuffle_seed is None:
        return None
    first_range = job.ranges[0]
    split_number = job.source.split_names.index(split)
    return key_of(
        pack.shuffle_seed,
        first_range.file.file_id,
        first_range.start,
        split_number,
        file,
    )
