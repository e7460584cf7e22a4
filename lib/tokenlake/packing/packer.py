"""Packers by the name of their strategy: one protocol, and from the lengths of documents to their places.

**First fit**: each document, in order, goes to the first row that has room for it; one longer than a row is whole rows
and a rest, and the rests are placed. To ask for the first row with room enough is to walk down a tournament: each node
of a binary tree over the rows holds the most room of the rows below it, so that one step decides whether the first such
row is in the left half.

**Pool**: a few rows stand open, and each document goes to the one that it fills best. One that fits none of them fills
the fullest to its end and goes on in the row that is opened in its place, so that rows have no padding but the last
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, Protocol, get_args

import numpy as np

from tokenlake.packing.best_fit import best_fit_segments
from tokenlake.packing.greedy import GreedyPacker, segments_of
from tokenlake.packing.segments import Packed, Rests, Segments, from_rests
from tokenlake.packing.window import WindowPacker
from tokenlake.ragged import Bools, Int32, Int64, offsets_of


def first_fit_segments(lengths: Int64, seq_length: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `seq_length` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input.
    """
    rests = Rests.of(lengths, seq_length, lambda sizes: first_fit(sizes, seq_length, max_segments))
    return from_rests(lengths, seq_length, rests)


def first_fit(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are opened: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin.
    """
    # Two neighbouring bins hold more than one bin's capacity, unless they are closed for their number of items.
    most = int(sizes.sum()) * 2 // capacity + 2 + (len(sizes) // max_items if max_items else 0)
    leaves = 1 << (min(most, max(1, len(sizes))) - 1).bit_length()
    room = [capacity] * (2 * leaves)
    items = [0] * leaves
    limit = max_items or len(sizes) + 1
    bins: list[int] = []
    for size in sizes.tolist():
        node = 1
        while node < leaves:
            node += node
            if room[node] < size:
                node += 1
        at = node - leaves
        bins.append(at)
        items[at] += 1
        left = room[node] - size if items[at] < limit else 0
        # Upwards only as far as the most room changes.
        room[node] = left
        while node > 1:
            other = room[node ^ 1]
            node >>= 1
            left = left if left > other else other
            if room[node] == left:
                break
            room[node] = left
    return np.array(bins, np.int64)


def pool_segments(lengths: Int64, seq_length: int, packers: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `seq_length` tokens.

    Args:
        packers: rows that stand open at a time.
        max_segments: at most so many pieces in a row, which is closed then, full or not; None: any number.

    Returns:
        Rows in the order in which they were opened, the pieces of a row in the order in which they came.
    """
    most = max_segments or seq_length
    room = [seq_length] * packers
    pieces = [0] * packers
    row = list(range(packers))  # numbers for the time being: who opens a row first is seen at the end
    opened = packers
    placed: list[tuple[int, int, int, int]] = []
    for document, length in enumerate(lengths.tolist()):
        # The least room that is enough, or else the least: of equals the first packer's.
        best = least = 0
        enough = seq_length + 1
        for packer, left in enumerate(room):
            if length <= left < enough:
                best, enough = packer, left
            if left < room[least]:
                least = packer
        packer = least if enough > seq_length else best
        start = 0
        while start < length:
            piece = min(length - start, room[packer])
            placed.append((row[packer], document, start, piece))
            start += piece
            room[packer] -= piece
            pieces[packer] += 1
            if not room[packer] or pieces[packer] == most:
                room[packer], pieces[packer], row[packer] = seq_length, 0, opened
                opened += 1
    return _by_row(np.array(placed, np.int64).reshape(-1, 4))


def _by_row(placed: Int64) -> Segments:
    """Return pieces (row, document, start, length: int64[S, 4]) as rows, in the order of their first pieces."""
    row, document, start, length = placed.T
    first = np.unique(row, return_index=True)[1]
    rank = np.empty(int(row.max(initial=-1)) + 1, np.int64)
    rank[row[np.sort(first)]] = np.arange(len(first))
    order = np.argsort(rank[row], kind="stable")
    return Segments(document[order], start[order], length[order], offsets_of(np.bincount(rank[row])))


Strategy = Literal["greedy", "pool", "first_fit", "best_fit"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


def plan_segments(
    strategy: Strategy,
    lengths: Int64,
    seq_length: int,
    *,
    num_packers: int = 4,
    max_segments: int | None = None,
) -> Segments:
    """Place documents of `lengths` (int64[n], each at least 1) in rows of `seq_length` tokens.

    Every token of every document is in exactly one piece. No token is looked at.

    Args:
        num_packers: rows that stand open at a time, for ``pool``.
        max_segments: at most so many pieces in a row; None: any number.
    """
    if strategy == "best_fit":
        return best_fit_segments(lengths, seq_length, max_segments)
    if strategy == "first_fit":
        return first_fit_segments(lengths, seq_length, max_segments)
    if strategy == "pool":
        return pool_segments(lengths, seq_length, num_packers, max_segments)
    return segments_of(lengths, seq_length, max_segments)


WINDOW_TOKENS: Final = 1 << 24


class Packer(Protocol):
    """Takes documents in order and gives rows, a multiple of a row group at a time."""

    def add(
        self, ids: Int32, offsets: Int64, file: Int64, position: Int64, again: Bools | None = None
    ) -> Iterator[Packed]:
        """Append documents and yield the row groups that are full.

        Args:
            ids: int32[total], the documents' tokens, contiguous, without prefix and suffix.
            offsets: int64[n + 1] into ``ids``.
            file: int64[n], id of the file that each document comes from.
            position: int64[n], each document's position in its file.
            again: bool[n], True for a further piece of the document before it; it gets a prefix and a suffix of its
                own, and its `start` counts on where the piece before it ends. None: all are whole.
        """
        ...

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in ``windows``, so that it need not lie in memory whole."""
        ...

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, rows padded; the packer is empty afterwards."""
        ...


def open_packer(
    strategy: Strategy,
    seq_length: int,
    *,
    group_rows: int,
    prefix: tuple[int, ...] = (),
    suffix: tuple[int, ...] = (),
    pad_id: int,
    window_tokens: int = WINDOW_TOKENS,
    num_packers: int = 4,
    max_segments: int | None = None,
    shuffle_key: int | None = None,
) -> Packer:
    """Return a packer for one stream of documents.

    Args:
        seq_length: tokens per row.
        group_rows: rows come out in multiples of this (a row group), but for the last.
        prefix, suffix: ids put around every document (BOS, EOS).
        pad_id: fills the ends of rows.
        window_tokens: tokens inside which documents, and rows where they are shuffled, may be reordered.
        num_packers: rows that stand open at a time, for ``pool``.
        max_segments: at most so many pieces in a row; None: any number.
        shuffle_key: shuffle whole rows inside each window by this key; None: leave them as the strategy orders them.
    """
    if strategy == "greedy" and max_segments is None and shuffle_key is None:
        return GreedyPacker(seq_length, group_rows=group_rows, prefix=prefix, suffix=suffix, pad_id=pad_id)
    return WindowPacker(
        partial(
            plan_segments,
            strategy,
            seq_length=seq_length,
            num_packers=num_packers,
            max_segments=max_segments,
        ),
        seq_length,
        group_rows=group_rows,
        prefix=prefix,
        suffix=suffix,
        pad_id=pad_id,
        window_tokens=window_tokens,
        shuffle_key=shuffle_key,
        carries=strategy == "greedy",
    )
