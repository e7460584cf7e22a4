"""Where the documents of one split of a unit end up: packed rows, rows of one document each, or preferences.

Documents go to one file after the other, or are dealt to several, one document after the other.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Bools, FlatRows, Int32, Int64, Level, Ragged, offsets_of
from tokenlake.arrays import values as plain_values
from tokenlake.columns import ColumnType, text_weights
from tokenlake.config.resolved import ResolvedPack, ResolvedPreference
from tokenlake.etl.job import UnitJob
from tokenlake.etl.unit.parts import Padding, PartWriter, RowsFile, row_of
from tokenlake.etl.unit.text_documents import TextDocuments, taken
from tokenlake.mixing.random import key_of
from tokenlake.packing.packer import join_documents, open_packer
from tokenlake.packing.segments import LOSS, Packed, learned, plain
from tokenlake.schema import (
    ROW_GROUP_TOKENS,
    arrow_type,
    described,
    packed_schema,
    preference_schema,
    tokens_schema,
)
from tokenlake.store.base import Store
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import ShardEntry
from tokenlake.text.preference_ids import Joined, Joiner, preference_batch
from tokenlake.tokenizers.encoder import Encoded, Encoder

_ARROW: Final[Any] = pa

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
        ids: int32[total]; in a build with a loss mask they are marked, see :mod:`tokenlake.packing.segments`.
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
