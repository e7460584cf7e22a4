"""Packers: documents are added, and rows come out a row group at a time, in bounded
memory, by any strategy.

Greedy rows are laid down as documents come (:mod:`~tokenlake.etl.packing.greedy_rows`).
All other strategies plan a window of documents at a time
(:mod:`~tokenlake.etl.packing.window_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.document_join import join_documents
from tokenlake.etl.packing.greedy_rows import GreedyRows
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.packing.strategies import plan_segments
from tokenlake.etl.packing.stretch import Stretch
from tokenlake.etl.packing.window_rows import WindowRows

COPIED_TOKENS: Final = 1 << 22
"""Tokens joined at a time: bounds the copy that a very long document needs (16 MiB)."""


@final
class Packer:
    """Takes documents in order and yields rows, a multiple of a row group at a time.

    Args:
        rows: Rows of the stream.
        capacity: Tokens per row.
        group_rows: Rows of a row group.
        prefix: Ids put before every document (BOS).
        suffix: Ids put after every document (EOS).
        copied_tokens: Tokens joined at a time.
    """

    def __init__(
        self,
        rows: GreedyRows | WindowRows,
        capacity: int,
        group_rows: int,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        copied_tokens: int = COPIED_TOKENS,
    ) -> None:
        self._rows = rows
        self._capacity = capacity
        self.group_rows = group_rows
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray(suffix, np.int32)
        self._copied_tokens = copied_tokens

    def add(
        self,
        ids: Int32,
        offsets: Int64,
        file: Int64,
        position: Int64,
        again: Bools | None = None,
    ) -> Iterator[Packed]:
        """Append documents and yield the row groups that are full.

        Args:
            ids: Tokens of the documents, contiguous, without prefix and suffix,
                int32[total].
            offsets: Beginnings of the documents in `ids`, and the end of the last one,
                int64[n + 1].
            file: Id of the file that each document comes from, int64[n].
            position: Position of each document in its file, int64[n].
            again: True for a further part of the document before it, bool[n]. A further
                part gets a prefix and a suffix of its own, and its `start` continues
                where the part before it ends. The first value must be False: all parts
                of a document come in one call. None: all documents are whole.
        """
        lengths = np.diff(offsets) + len(self._prefix) + len(self._suffix)
        ends = np.cumsum(lengths)
        starts = np.zeros(len(lengths), np.int64)
        if again is not None:
            # The start of a part is its distance from the first part of its document.
            begins = ends - lengths
            first_parts = np.flatnonzero(~again)
            document = np.cumsum(~again) - 1
            starts = begins - begins[first_parts[document]]
        first = 0
        while first < len(lengths):
            # As many documents as the copy may have tokens, and at least one.
            limit = int(ends[first] - lengths[first]) + self._copied_tokens
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
            if int(lengths[first]) > self._copied_tokens:
                pieces = self._pieces(ids[offsets[first] : offsets[first + 1]])
                yield from self.add_long(
                    pieces, int(file[first]), int(position[first]), int(starts[first])
                )
            else:
                stretch = Stretch(
                    join_documents(
                        ids, offsets[first : last + 1], self._prefix, self._suffix
                    ),
                    length=lengths[first:last],
                    start=starts[first:last],
                    file=file[first:last],
                    position=position[first:last],
                    ends=np.ones(last - first, np.bool_),
                )
                yield from self._rows.take(stretch)
            first = last

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in pieces, so that it need not be in memory as
        a whole.

        Args:
            windows: Tokens of the document, a piece at a time.
            file: Id of the document's file.
            position: Position of the document in its file.
            start: Index of the first token within the document; not 0 for a further
                part of a document.
        """
        pieces = chain([self._prefix], windows, [self._suffix])
        for ids, is_last in _blocks(pieces, self._capacity):
            yield from self._rows.take(
                Stretch.one(ids, start, file, position, ends=is_last)
            )
            start += len(ids)

    def finish(self) -> Iterator[Packed]:
        """Yield the remaining rows, padded. The packer is empty afterwards."""
        return self._rows.finish()

    def _pieces(self, ids: Int32) -> Iterator[Int32]:
        """Yield ids in pieces of the tokens that are joined at a time."""
        for begin in range(0, len(ids), self._copied_tokens):
            yield ids[begin : begin + self._copied_tokens]


def open_packer(
    pack: ResolvedPack,
    *,
    pad_id: int,
    group_tokens: int,
    prefix: tuple[int, ...] = (),
    suffix: tuple[int, ...] = (),
    shuffle_key: int | None = None,
    copied_tokens: int = COPIED_TOKENS,
) -> Packer:
    """Return a packer for one stream of documents.

    Args:
        pack: Width of rows and strategy.
        pad_id: Id that fills the ends of rows.
        group_tokens: Tokens of a row group. Rows are yielded in multiples of a group,
            except the last ones.
        prefix: Ids put before every document (BOS).
        suffix: Ids put after every document (EOS).
        shuffle_key: Key by which whole rows are shuffled inside each window; None: rows
            stay in the order of the plan.
        copied_tokens: Tokens joined at a time; it bounds memory, and changes no row.
    """
    capacity = pack.width
    group_rows = max(1, group_tokens // capacity)
    is_greedy = pack.strategy == "greedy"
    if is_greedy and pack.max_segments is None and shuffle_key is None:
        rows = GreedyRows(capacity, group_rows=group_rows, pad_id=pad_id)
    else:
        rows = WindowRows(
            partial(plan_segments, pack=pack),
            capacity,
            group_rows=group_rows,
            pad_id=pad_id,
            window_tokens=pack.window_tokens,
            shuffle_key=shuffle_key,
            carries=is_greedy,
        )
    return Packer(rows, capacity, group_rows, prefix, suffix, copied_tokens)


def _blocks(pieces: Iterable[Int32], step: int) -> Iterator[tuple[Int32, bool]]:
    """Yield the same ids in blocks, and True with the last block. All others are
    multiples of `step` long.
    """
    parts: list[Int32] = []
    size = 0
    for ids in pieces:
        parts.append(ids)
        size += len(ids)
        if size > step:
            stream = np.concatenate(parts)
            full = (size - 1) // step * step  # the last block is never empty
            yield stream[:full], False
            parts = [stream[full:].copy()]
            size -= full
    if size:
        yield np.concatenate(parts), True
