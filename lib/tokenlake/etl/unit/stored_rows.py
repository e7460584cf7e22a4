"""Rows of stored versions in a worker: parents that stay open, what of their rows is content, BOS and EOS, and where
mixed or repacked rows are written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, FlatRows, Int32, Int64, Ragged, offsets_of
from tokenlake.errors import AccountError, ConfigError, IntegrityError
from tokenlake.etl.job import MixJob, ParentVersion, RepackJob, RowsOut
from tokenlake.etl.packing.segments import LOSS, learned, marked
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding
from tokenlake.etl.unit.token_files import (
    PackedFile,
    TokenDocuments,
    TokensFile,
    described_packed,
    group_tokens,
    rows_schema,
)
from tokenlake.runtime.reading.documents import StoredDocuments
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.schema import row_group_rows
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest

_KEPT: Final = 64  # parents that stay open between jobs


@final
class OpenedParents:
    """Manifests that were read, and files that are open, between jobs."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str, str], StoredRows] = OrderedDict()

    def open(self, store: Store, parent: ParentVersion, split: str | None = None) -> StoredRows:
        """Return the rows of a parent's split.

        Args:
            split: another one than the parent's.

        Raises:
            IntegrityError: the version there is not the one that was planned with.
            NotFoundError: there is none.
        """
        key = store.url, parent.sha256, parent.split if split is None else split
        if key not in self._rows:
            self._rows[key] = StoredRows(store, self.manifest(store, parent), key[2])
        self._rows.move_to_end(key)
        while len(self._rows) > _KEPT:
            self._rows.popitem(last=False)[1].close()
        return self._rows[key]

    def manifest(self, store: Store, parent: ParentVersion) -> Manifest:
        """Return the manifest of a parent; errors are those of :meth:`open`."""
        for (_, sha256, _), rows in self._rows.items():
            if sha256 == parent.sha256:
                return rows.manifest
        found = Catalog(store).manifest(parent.dataset, parent.version)
        if found.sha256 != parent.sha256:
            reference = f"{parent.dataset}@v{parent.version}"
            raise IntegrityError(
                f"source {parent.name!r}: the manifest of {reference} has sha256 {found.sha256}; expected "
                f"{parent.sha256}, with which this build was planned. Somebody put another version in its place: run "
                f"`tokenlake verify {reference}`, restore what was there, or start the build anew",
                expected=parent.sha256,
                got=found.sha256,
            )
        return found


@final
class Shares:
    """The accounts of the sources of a unit, while it is being built.

    Args:
        names: of the sources.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._counts = np.zeros((5, len(names)), np.int64)

    def add(self, source: Int64, length: Int64, bos: Int64, eos: Int64, existing: Int64) -> None:
        """Count rows.

        Args:
            source: index of each one's source, int64[n].
            length: ids of each, with all that is around them, int64[n].
            bos, eos: how many of these are such, int64[n].
            existing: 1 for a document that had its EOS before it was packed, int64[n].
        """
        for counts, values in zip(self._counts[1:], (length, bos, eos, existing), strict=True):
            np.add.at(counts, source, values)
        self._counts[0] += np.bincount(source, minlength=len(self._names))

    def accounts(self) -> dict[str, Account]:
        """Return source -> account, without what is no one source's."""
        return {
            name: Account(
                rows_read=rows,
                kept=rows,
                documents=rows,
                tokens=ids - bos - eos,
                content_packed=ids - bos - eos,
                bos=bos,
                eos=eos,
                eos_existing=existing,
            )
            for name, (rows, ids, bos, eos, existing) in zip(
                self._names, self._counts.T.tolist(), strict=True
            )
        }


def check_written(account: Account, parts: Sequence[ShardEntry], width: int | None, *, where: str) -> None:
    """Check that an account of what was read closes, and that as many ids were written.

    Raises:
        AccountError: it does not, or they were not, which would be a bug.
    """
    account.check(width, where=where)
    read, written = account.content_packed + account.bos + account.eos, sum(part.tokens for part in parts)
    if read != written:
        raise AccountError(
            f"{where}: {read} ids were read or put around documents, EOS included, but {written} were written; this is "
            "a bug, nothing was committed",
            left=read,
            right=written,
            where=where,
        )


def _ends(ids: Int32, offsets: Int64, whole: Bools, out: RowsOut) -> tuple[Int64, Int64, Bools]:
    """Look at how n documents, none of them empty, begin and end, as their parents hold them.

    Args:
        ids: int32[total], not marked.
        offsets: int64[n + 1] from 0.
        whole: bool[n], which of them come rendered. What a template spelled is their content, and only what packing
            appends is not: nobody can tell any more who put a BOS there.

    Returns:
        how many ids at the beginning and at the end are the post-processor's, int64[n] each; which documents packing
        puts an EOS after, bool[n].
    """
    documents, size = Ragged(ids, offsets), np.diff(offsets)
    bos, eos = np.zeros((2, len(size)), np.int64)
    if out.prefix:
        bos = np.where(documents.begins_with(out.prefix) & ~whole, len(out.prefix), bos)
    if out.suffix:
        room = size - bos >= len(out.suffix)
        eos = np.where(documents.ends_with(out.suffix) & ~whole & room, len(out.suffix), eos)
    if out.pack is None:
        return bos, eos, np.zeros(len(size), np.bool_)
    # The text of a plain document may spell an EOS itself: it still gets its own.
    return bos, eos, np.where(whole, ids[offsets[1:] - 1] != out.eos_id, out.append_eos)


def count_packed(rows: pa.RecordBatch, out: RowsOut) -> tuple[Int64, Int64, Int64, Int64]:
    """Count in n rows of a packed dataset.

    Returns:
        int64[n] each: ids that are not padding; documents that begin there; ids of the post-processor's prefix that
        its documents begin with; segments that end with EOS.
    """
    columns: dict[str, Any] = {
        name: rows.column(name) for name in ("segment_lengths", "documents", "input_ids")
    }
    limits = columns["segment_lengths"].offsets.to_numpy().astype(np.int64)
    lengths = columns["segment_lengths"].flatten().to_numpy()
    starts = columns["documents"].flatten().field("start").to_numpy() == 0
    ids = columns["input_ids"].flatten().to_numpy()
    edges, width = offsets_of(lengths), columns["input_ids"].type.list_size
    begin = edges[:-1] + np.repeat(np.arange(len(rows)) * width - edges[limits[:-1]], np.diff(limits))
    bos = starts & (ids[begin] == out.prefix[0]) if out.prefix else np.zeros(len(starts), np.bool_)
    own = np.minimum(bos * len(out.prefix), lengths)  # a prefix of several ids may go on in the next row
    eos = (ids[begin + lengths - 1] == out.eos_id) & (lengths > own)
    return np.diff(edges[limits]), _sums(starts, limits), _sums(own, limits), _sums(eos, limits)


def _sums(values: npt.NDArray[Any], limits: Int64) -> Int64:
    """int64[n]: sums of values per row; rows may have none."""
    return np.diff(offsets_of(values)[limits])


@final
class DocumentsOut:
    """Writes documents of `tokens` datasets as a job says, each as it is stored but for the EOS that packing adds.

    Args:
        split: of the parts.
        names: of the sources that documents are counted for.
        shuffle_key: by which packed rows are shuffled inside a window, or None.
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
        self._out = out = job.out
        self._whole = whole
        self.shares = Shares(names)
        # Where every document lacks its EOS, the packer lays it down while it copies.
        self._alike = out.append_eos and not whole.any()
        layout = Layout(job.dataset, job.version)
        schema = rows_schema(out.pack, out.tokenizer, loss_mask=out.loss_mask)
        args = store, layout, split, job.unit, schema, out.max_shard_size
        writer = PartWriter(*args)
        full = group_tokens(None)
        if out.pack is None:
            self._file: TokensFile | PackedFile = TokensFile(writer, (), (), Padding("none"), full)
        else:
            ends = {"prefix": (), "suffix": (out.eos_id,) if self._alike else ()}
            self._file = PackedFile(
                writer, out.pack, **ends, pad_id=out.pad_id, full=full, shuffle_key=shuffle_key
            )
        self.finish, self.discard = self._file.finish, self._file.discard

    def add(self, documents: StoredDocuments, source: Int64) -> int:
        """Write documents, of sources that `source` (int64[n]) numbers; return how many ids they have.

        Raises:
            IntegrityError: one has no id, which no `tokens` dataset of ours has.
        """
        if not len(source):
            return 0
        ids, offsets = documents.ids, documents.offsets
        if not np.diff(offsets).all():
            raise IntegrityError(
                f"a stored document has no ids, among those from file id {documents.file[0]} on; expected some in "
                "every row. Run `tokenlake verify --deep` on the dataset"
            )
        bos, eos, lacks = _ends(ids, offsets, self._whole[source], self._out)
        existing = np.zeros_like(eos) if self._out.pack is None else (~lacks).astype(np.int64)
        self.shares.add(source, np.diff(offsets) + lacks, bos, eos + lacks, existing)
        if self._out.loss_mask:
            ids = marked(ids, True if documents.learned is None else documents.learned)
        if not self._alike:
            ids, offsets = self._closed(ids, offsets, lacks, self._whole[source])
        self._file.add(
            TokenDocuments(ids=ids, offsets=offsets, file=documents.file, position=documents.position)
        )
        return int(documents.offsets[-1])

    @property
    def rows_of_all(self) -> Account:
        """What of the account is no one source's: the packed rows and their padding."""
        counts = self._file.counts
        return Account(sequences=counts["sequences"], slots=counts["slots"], pad=counts["pad"])

    def _closed(self, ids: Int32, offsets: Int64, lacks: Bools, whole: Bools) -> tuple[Int32, Int64]:
        """Put an EOS behind the documents that lack it. After a rendered one it bears loss where the last id does: who
        learns the last word of an answer must learn to stop after it."""
        if not lacks.any():
            return ids, offsets
        behind = offsets[1:][lacks]
        eos = np.full(len(behind), self._out.eos_id, np.int32)
        if self._out.loss_mask:
            eos[learned(ids[behind - 1]) | ~whole[lacks]] |= LOSS
        return np.insert(ids, behind, eos), offsets + offsets_of(lacks)


@final
class SequencesOut:
    """Writes rows of `packed` datasets as a job says, a row group after the other.

    Args:
        split: of the parts.
        names: of the sources that rows are counted for.
    """

    def __init__(self, job: MixJob, store: Store, split: str, names: tuple[str, ...]) -> None:
        self._out = out = job.out
        self._length = out.width or 0
        self.shares = Shares(names)
        self._schema = described_packed(self._length, out.tokenizer, loss_mask=out.loss_mask)
        layout = Layout(job.dataset, job.version)
        args = store, layout, split, job.unit, self._schema, out.max_shard_size
        self._writer = PartWriter(*args)
        self.finish, self.discard = self._writer.finish, self._writer.discard
        self._rows = self._tokens = 0

    def add(self, rows: pa.RecordBatch, source: Int64) -> int:
        """Write rows, whole row groups but for the last time, of sources that `source` (int64[n]) numbers.

        Returns:
            how many ids they have, padding not counted.

        Raises:
            ConfigError: they are not what the job says.
        """
        if not rows.schema.equals(self._schema):
            raise ConfigError(
                f"rows with the columns {rows.schema}; expected {self._schema.remove_metadata()}, as planned"
            )
        tokens, begun, bos, eos = count_packed(rows, self._out)
        self.shares.add(source, tokens, bos, eos, np.zeros_like(tokens))
        size = row_group_rows(self._length)
        for first in range(0, len(rows), size):
            own = slice(first, first + size)
            told = {"tokens": int(tokens[own].sum()), "documents": int(begun[own].sum())}
            self._writer.write(FlatRows.of(rows.slice(first, size)), **told)
        self._rows += len(rows)
        self._tokens += int(tokens.sum())
        return int(tokens.sum())

    @property
    def rows_of_all(self) -> Account:
        """What of the account is no one source's: the rows and their padding."""
        slots = self._rows * self._length
        return Account(sequences=self._rows, slots=slots, pad=slots - self._tokens)
