"""Packers: documents are added, and rows come out a row group at a time.

Memory is bounded, with any strategy.

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
        # 1. The place of each document's first token among the tokens of all.
        lengths = np.diff(offsets) + len(self._prefix) + len(self._suffix)
        ends = np.cumsum(lengths)
        starts = np.zeros(len(lengths), np.int64)
        if again is not None:
            # The start of a part is its distance from the first part of its document.
            begins = ends - lengths
            first_parts = np.flatnonzero(~again)
            document = np.cumsum(~again) - 1
            starts = begins - begins[first_parts[document]]
        # 2. Stretches of as many documents as the copy may have tokens, and at least
        #    one.
        first = 0
        while first < len(lengths):
            token_limit = int(ends[first] - lengths[first]) + self._copied_tokens
            fitting = int(np.searchsorted(ends, token_limit, side="right"))
            end = max(first + 1, fitting)
            if int(lengths[first]) > self._copied_tokens:
                # A document that is too long for one copy comes in pieces.
                pieces = self._pieces(ids[offsets[first] : offsets[first + 1]])
                yield from self.add_long(
                    pieces, int(file[first]), int(position[first]), int(starts[first])
                )
            else:
                joined_ids = join_documents(
                    ids, offsets[first : end + 1], self._prefix, self._suffix
                )
                stretch = Stretch(
                    joined_ids,
                    length=lengths[first:end],
                    start=starts[first:end],
                    file=file[first:end],
                    position=position[first:end],
                    ends=np.ones(end - first, np.bool_),
                )
                yield from self._rows.take(stretch)
            first = end

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in pieces.

        It need not be in memory as a whole.

        Args:
            windows: Tokens of the document, a piece at a time.
            file: Id of the document's file.
            position: Position of the document in its file.
            start: Index of the first token within the document; not 0 for a further
                part of a document.
        """
        pieces = chain([self._prefix], windows, [self._suffix])
        for block, is_last in _blocks(pieces, self._capacity):
            stretch = Stretch.one(block, start, file, position, ends=is_last)
            yield from self._rows.take(stretch)
            start += len(block)

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
    """Yield the same ids in blocks, and True with the last block.

    All blocks but the last are multiples of `step` long, so that a document continues at
    a whole number of rows from its beginning.
    """
    waiting: list[Int32] = []
    waiting_ids = 0
    for piece in pieces:
        waiting.append(piece)
        waiting_ids += len(piece)
        if waiting_ids > step:
            stream = np.concatenate(waiting)
            full_size = (
                (waiting_ids - 1) // step * step
            )  # the last block is never empty
            yield stream[:full_size], False
            waiting = [stream[full_size:].copy()]
            waiting_ids -= full_size
    if waiting_ids:
        yield np.concatenate(waiting), True
