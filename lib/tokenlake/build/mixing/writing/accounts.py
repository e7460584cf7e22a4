"""What of the rows that were read is content, BOS and EOS, source by source: counted on the ids themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.account import Account
from tokenlake.build.mixing.job import RowsOut
from tokenlake.errors import AccountError
from tokenlake.manifest import ShardEntry
from tokenlake.ragged import Ragged, offsets_of

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
            name: _account(*counts) for name, counts in zip(self._names, self._counts.T.tolist(), strict=True)
        }


def _account(rows: int, ids: int, bos: int, eos: int, existing: int) -> Account:
    content = ids - bos - eos
    return Account(
        rows_read=rows,
        kept=rows,
        documents=rows,
        tokens=content,
        content_packed=content,
        bos=bos,
        eos=eos,
        eos_existing=existing,
    )


def check_written(
    account: Account, parts: Sequence[ShardEntry], seq_length: int | None, *, where: str
) -> None:
    """Check that an account of what was read closes, and that as many ids were written.

    Raises:
        AccountError: it does not, or they were not, which would be a bug.
    """
    account.check(seq_length, where=where)
    read, written = account.content_packed + account.bos + account.eos, sum(part.tokens for part in parts)
    if read != written:
        raise AccountError(
            f"{where}: {read} ids were read or put around documents, EOS included, but {written} were written; this is "
            "a bug, nothing was committed",
            left=read,
            right=written,
            where=where,
        )


@final
@dataclass(frozen=True, slots=True)
class Ends:
    """How documents begin and end, as their parents hold them; all int64[n] or bool[n].

    Attributes:
        bos, eos: how many ids at the beginning and at the end are the post-processor's.
        lacks: which documents packing puts an EOS after.
    """

    bos: Int64
    eos: Int64
    lacks: Bools

    @classmethod
    def of(cls, ids: Int32, offsets: Int64, whole: Bools, out: RowsOut) -> Ends:
        """Look at n documents, none of them empty.

        Args:
            ids: int32[total], not marked.
            offsets: int64[n + 1] from 0.
            whole: bool[n], which of them come rendered. What a template spelled is their content, and only what
                packing appends is not: nobody can tell any more who put a BOS there.
        """
        documents, size = Ragged(ids, offsets), np.diff(offsets)
        bos, eos = np.zeros((2, len(size)), np.int64)
        if out.prefix:
            bos = np.where(documents.begins_with(out.prefix) & ~whole, len(out.prefix), bos)
        if out.suffix:
            room = size - bos >= len(out.suffix)
            eos = np.where(documents.ends_with(out.suffix) & ~whole & room, len(out.suffix), eos)
        if out.pack is None:
            return cls(bos, eos, np.zeros(len(size), np.bool_))
        # The text of a plain document may spell an EOS itself: it still gets its own.
        return cls(bos, eos, np.where(whole, ids[offsets[1:] - 1] != out.eos_id, out.append_eos))


@final
@dataclass(frozen=True, slots=True)
class PackedCounts:
    """What is in each of n packed rows; all int64[n].

    Attributes:
        tokens: ids that are not padding.
        documents: documents that begin in it.
        bos: ids of the post-processor's prefix that its documents begin with.
        eos: segments that end with EOS.
    """

    tokens: Int64
    documents: Int64
    bos: Int64
    eos: Int64

    @classmethod
    def of(cls, rows: pa.RecordBatch, out: RowsOut) -> PackedCounts:
        """Count in rows of a packed dataset."""
        columns: dict[str, Any] = {
            name: rows.column(name) for name in ("segment_lengths", "documents", "input_ids")
        }
        limits = columns["segment_lengths"].offsets.to_numpy().astype(np.int64)
        lengths = columns["segment_lengths"].flatten().to_numpy()
        starts = columns["documents"].flatten().field("start").to_numpy() == 0
        ids = columns["input_ids"].flatten().to_numpy()
        edges, width = offsets_of(lengths), columns["input_ids"].type.list_size
        tokens = np.diff(edges[limits])
        begin = edges[:-1] + np.repeat(np.arange(len(rows)) * width - edges[limits[:-1]], np.diff(limits))
        last = begin + lengths
        bos = starts & (ids[begin] == out.prefix[0]) if out.prefix else np.zeros(len(starts), np.bool_)
        own = np.minimum(bos * len(out.prefix), lengths)  # a prefix of several ids may go on in the next row
        eos = (ids[last - 1] == out.eos_id) & (lengths > own)
        return cls(tokens, _sums(starts, limits), _sums(own, limits), _sums(eos, limits))


def _sums(values: npt.NDArray[Any], limits: Int64) -> Int64:
    """int64[n]: sums of values per row; rows may have none."""
    return np.diff(offsets_of(values)[limits])
