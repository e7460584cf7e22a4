"""Outputs of units of stored rows: documents, packed or not, and packed rows.

Each has the accounts of its sources.

A parent does not record which ids were put around its documents. They are counted here
by looking at the ids: a document that begins with the prefix of the tokenizer's
post-processor has its BOS, one that ends with its suffix its EOS. A rendered document
is content as a whole: a template may have spelled its BOS itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, FlatRows, Int32, Int64, Ragged, offsets_of
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.job import MixJob, RepackJob, RowsOut
from tokenlake.etl.packing.loss_marks import LOSS, learned, marked
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding
from tokenlake.etl.unit.source_shares import Shares
from tokenlake.etl.unit.token_files import (
    PackedFile,
    TokenDocuments,
    TokensFile,
    described_packed,
    group_tokens,
    rows_schema,
)
from tokenlake.runtime.reading.documents import StoredDocuments
from tokenlake.runtime.schema import row_group_rows
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout


@final
@dataclass(frozen=True, slots=True)
class _Ends:
    """Special tokens at the ends of n stored documents.

    Attributes:
        bos: Ids at the beginning that are the post-processor's, int64[n].
        eos: Ids at the end that are the post-processor's, int64[n].
        lacks_eos: True for a document that packing puts an EOS after, bool[n].
    """

    bos: Int64
    eos: Int64
    lacks_eos: Bools


def _ends(ids: Int32, offsets: Int64, is_rendered: Bools, out: RowsOut) -> _Ends:
    """Return the special tokens at the ends of n stored documents.

    Args:
        ids: Ids of the documents, without loss marks, int32[total].
        offsets: Beginnings of the documents and the end of the last one, from 0, int64[n +
            1]. No document is empty.
        is_rendered: True for documents that are content as a whole, bool[n]; of these
            only the EOS that packing appends is not.
        out: Rows of the job.
    """
    documents = Ragged(ids, offsets)
    sizes = np.diff(offsets)
    bos_ids = np.zeros(len(sizes), np.int64)
    eos_ids = np.zeros(len(sizes), np.int64)
    if out.prefix:
        has_prefix = documents.begins_with(out.prefix)
        bos_ids[has_prefix & ~is_rendered] = len(out.prefix)
    # A document of one id that is both prefix and suffix has only its BOS.
    if out.suffix:
        has_suffix = documents.ends_with(out.suffix)
        has_room = sizes - bos_ids >= len(out.suffix)
        eos_ids[has_suffix & ~is_rendered & has_room] = len(out.suffix)
    if out.pack is None:
        return _Ends(bos_ids, eos_ids, np.zeros(len(sizes), np.bool_))
    # The text of a plain document may spell an EOS itself: the document still gets its
    # own.
    last_ids = ids[offsets[1:] - 1]
    lacks_eos = np.where(is_rendered, last_ids != out.eos_id, out.append_eos)
    return _Ends(bos_ids, eos_ids, lacks_eos)


@final
class DocumentsOut:
    """Writes documents of `tokens` datasets as a job says.

    Each is written as it is stored, except for the EOS that packing adds.

    Args:
        job: Job of the unit.
        store: Store of the new version.
        split: Split of the parts.
        names: Names of the sources that documents are counted for.
        whole: True for sources whose documents are rendered, bool[sources].
        shuffle_key: Key by which packed rows are shuffled inside a window; None: they
            are not.

    Attributes:
        shares: Accounts of the sources.
    """

    def __init__(
        self,
        job: MixJob | RepackJob,
        store: Store,
        split: str,
        names: tuple[str, ...],
        whole: Bools,
        shuffle_key: int | None,
    ) -> None:
        out = job.out
        self._out = out
        self._is_rendered_source = whole
        self.shares = Shares(names)
        # If every document lacks its EOS, the packer puts it down while it copies.
        self._packer_adds_eos = out.append_eos and not whole.any()
        # Rows of one document each, or packed rows. The ends of documents are stored
        # already.
        schema = rows_schema(out.pack, out.tokenizer, loss_mask=out.loss_mask)
        layout = Layout(job.dataset, job.version)
        writer = PartWriter(store, layout, split, job.unit, schema, out.max_shard_size)
        full_group = group_tokens(None)
        self._file: TokensFile | PackedFile
        if out.pack is None:
            self._file = TokensFile(writer, (), (), Padding("none"), full_group)
        else:
            self._file = PackedFile(
                writer,
                out.pack,
                prefix=(),
                suffix=(out.eos_id,) if self._packer_adds_eos else (),
                pad_id=out.pad_id,
                full=full_group,
                shuffle_key=shuffle_key,
            )
        self.finish = self._file.finish
        self.discard = self._file.discard

    def add(self, documents: StoredDocuments, source: Int64) -> int:
        """Write documents; return their number of ids.

        Args:
            documents: Documents, n of them.
            source: Index of the source of each, int64[n].

        Raises:
            IntegrityError: A document has no ids, which no `tokens` dataset contains.
        """
        if not len(source):
            return 0
        token_ids = documents.ids
        offsets = documents.offsets
        if not np.diff(offsets).all():
            raise IntegrityError(
                f"a stored document has no ids, among those from file id {documents.file[0]} on; expected some in "
                "every row. Run `tokenlake verify --deep` on the dataset"
            )
        # 1. Count. The EOS that packing adds is one more id.
        is_rendered = self._is_rendered_source[source]
        ends = _ends(token_ids, offsets, is_rendered, self._out)
        existing_eos = np.zeros(len(source), np.int64)
        if self._out.pack is not None:
            existing_eos[~ends.lacks_eos] = 1
        lengths = np.diff(offsets) + ends.lacks_eos
        eos_ids = ends.eos + ends.lacks_eos
        self.shares.add(source, lengths, ends.bos, eos_ids, existing_eos)
        # 2. Mark ids with the loss mask, and add EOS.
        if self._out.loss_mask:
            is_learned = True if documents.learned is None else documents.learned
            token_ids = marked(token_ids, is_learned)
        if not self._packer_adds_eos and ends.lacks_eos.any():
            token_ids = self._with_eos(token_ids, offsets, ends.lacks_eos, is_rendered)
            offsets = offsets + offsets_of(ends.lacks_eos)
        # 3. Write.
        self._file.add(
            TokenDocuments(
                ids=token_ids,
                offsets=offsets,
                file=documents.file,
                position=documents.position,
            )
        )
        return int(documents.offsets[-1])

    @property
    def rows_of_all(self) -> Account:
        """Account of the packed rows and their padding, of no single source."""
        counts = self._file.counts
        return Account(
            sequences=counts["sequences"], slots=counts["slots"], pad=counts["pad"]
        )

    def _with_eos(
        self, ids: Int32, offsets: Int64, lacks_eos: Bools, is_rendered: Bools
    ) -> Int32:
        """Return the ids with an EOS after each document that lacks it.

        After a rendered document the EOS counts toward the loss if the last id does: a
        model that learns the last word of an answer must learn to stop after it.
        """
        document_ends = offsets[1:][lacks_eos]
        eos_ids = np.full(len(document_ends), self._out.eos_id, np.int32)
        if self._out.loss_mask:
            is_last_learned = learned(ids[document_ends - 1])
            eos_ids[is_last_learned | ~is_rendered[lacks_eos]] |= LOSS
        return np.insert(ids, document_ends, eos_ids)


@final
class SequencesOut:
    """Writes rows of `packed` datasets as a job says, one row group after the other.

    Args:
        job: Job of the unit.
        store: Store of the new version.
        split: Split of the parts.
        names: Names of the sources that rows are counted for.

    Attributes:
        shares: Accounts of the sources.
    """

    def __init__(
        self, job: MixJob, store: Store, split: str, names: tuple[str, ...]
    ) -> None:
        out = job.out
        self._out = out
        self._width = out.width or 0
        self.shares = Shares(names)
        self._schema = described_packed(
            self._width, out.tokenizer, loss_mask=out.loss_mask
        )
        layout = Layout(job.dataset, job.version)
        self._writer = PartWriter(
            store, layout, split, job.unit, self._schema, out.max_shard_size
        )
        self.finish = self._writer.finish
        self.discard = self._writer.discard
        self._rows = 0
        self._tokens = 0

    def add(self, rows: pa.RecordBatch, source: Int64) -> int:
        """Write rows; return their number of ids, padding not counted.

        Args:
            rows: Whole row groups of n rows, except the last time.
            source: Index of the source of each row, int64[n].

        Raises:
            ConfigError: The rows have other columns than the job says.
        """
        if not rows.schema.equals(self._schema):
            raise ConfigError(
                f"rows with the columns {rows.schema}; expected {self._schema.remove_metadata()}, as planned"
            )
        # Packed rows have no EOS of the post-processor to be told from others.
        counts = _count_packed(rows, self._out)
        no_existing_eos = np.zeros_like(counts.tokens)
        self.shares.add(source, counts.tokens, counts.bos, counts.eos, no_existing_eos)
        # A row group has a fixed number of tokens, and so fewer of the wider rows.
        group_rows = row_group_rows(self._width)
        for first_row in range(0, len(rows), group_rows):
            end_row = first_row + group_rows
            self._writer.write(
                FlatRows.of(rows.slice(first_row, group_rows)),
                tokens=int(counts.tokens[first_row:end_row].sum()),
                documents=int(counts.documents[first_row:end_row].sum()),
            )
        tokens = int(counts.tokens.sum())
        self._rows += len(rows)
        self._tokens += tokens
        return tokens

    @property
    def rows_of_all(self) -> Account:
        """Account of the rows and their padding, which belong to no single source."""
        slots = self._rows * self._width
        return Account(sequences=self._rows, slots=slots, pad=slots - self._tokens)


@final
@dataclass(frozen=True, slots=True)
class _PackedCounts:
    """Counts of n packed rows.

    Attributes:
        tokens: Ids that are not padding, int64[n].
        documents: Documents that begin in the row, int64[n].
        bos: Ids of the post-processor's prefix that its documents begin with, int64[n].
        eos: Segments that end with EOS, int64[n].
    """

    tokens: Int64
    documents: Int64
    bos: Int64
    eos: Int64


def _count_packed(rows: pa.RecordBatch, out: RowsOut) -> _PackedCounts:
    """Count in rows of a packed dataset."""
    segment_lengths: Any = rows.column("segment_lengths")
    documents: Any = rows.column("documents")
    input_ids: Any = rows.column("input_ids")
    # 1. Segments: their lengths, and which rows they are in.
    row_offsets = segment_lengths.offsets.to_numpy().astype(np.int64)
    lengths = segment_lengths.flatten().to_numpy()
    begins_document = documents.flatten().field("start").to_numpy() == 0
    # 2. Index of each segment's first id: its row's first id, and the ids of the row's
    #    segments before it.
    token_ids = input_ids.flatten().to_numpy()
    ids_before = offsets_of(lengths)
    row_begins = np.arange(len(rows)) * input_ids.type.list_size
    shift_of_row = row_begins - ids_before[row_offsets[:-1]]
    segment_begins = ids_before[:-1] + np.repeat(shift_of_row, np.diff(row_offsets))
    # 3. BOS and EOS. A prefix of several ids may continue in the next row.
    has_bos = np.zeros(len(lengths), np.bool_)
    if out.prefix:
        has_bos = begins_document & (token_ids[segment_begins] == out.prefix[0])
    bos_ids = np.minimum(has_bos * len(out.prefix), lengths)
    last_ids = token_ids[segment_begins + lengths - 1]
    has_eos = (last_ids == out.eos_id) & (lengths > bos_ids)
    return _PackedCounts(
        tokens=np.diff(ids_before[row_offsets]),
        documents=_sums(begins_document, row_offsets),
        bos=_sums(bos_ids, row_offsets),
        eos=_sums(has_eos, row_offsets),
    )


def _sums(values: npt.NDArray[Any], row_offsets: Int64) -> Int64:
    """Return the sums of the values of each row, int64[n]; rows may have no values."""
    return np.diff(offsets_of(values)[row_offsets])
