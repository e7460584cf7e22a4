"""Strategies: from the lengths of documents to their places in rows, no token looked at and none lost.

**Greedy**: picture a roll of tape. Each document is glued on with its BOS in front and its EOS behind, and the roll is
cut into strips of equal length. A document that crosses a cut continues on the next strip, so nothing is lost and only
the last strip of a stream needs padding. Where the pieces lie is a function of the documents' lengths alone; tokens are
copied once.

**First fit**: each document, in order, goes to the first row that has room for it; one longer than a row is whole rows
and a rest, and the rests are placed. To ask for the first row with room enough is to walk down a tournament: each node
of a binary tree over the rows holds the most room of the rows below it, so that one step decides whether the first such
row is in the left half.

**Pool**: a few rows stand open, and each document goes to the one that it fills best. One that fits none of them fills
the fullest to its end and goes on in the row that is opened in its place, so that rows have no padding but the last
ones.

**Best fit**: as few rows as can be without cutting a document that fits one. A document longer than a row is whole rows
and a rest. The rests are placed by best-fit decreasing, which is fast and mostly as good as it gets. Where its rows are
not full enough, the rests of documents that are cut anyway fill gaps. Where that is not enough either, rows are made
anew by exact fit, which comes first where all documents are short.

**Best-fit decreasing.** Items, largest first, go each to the bin with the least room that is enough, or to a new one.
Items of one size are alike, and so are bins with the same room: it is enough to count, in the order of falling sizes,
how many bins of a room take how many items each (:data:`Move`). There are few such moves, and which item and which bin
each is about follows for all at once: bins with one room are a queue, so the k-th bin that leaves it is the k-th that
came.

**Exact fit.** A bin takes the commonest size until two items more will do, and then two that fill it exactly. To take
the commonest first keeps all sizes in stock until the end, so that such a pair is nearly always there. This fills bins
better than best-fit decreasing does where all items are of middling sizes and nothing small is left for the gaps; where
many are larger than half a bin it is the worse one.

Items of one size are alike: a bin is a list of sizes, and as many bins are made alike as the stock allows. Which sizes
are in stock is a number with a bit for each, and so is the same in a mirror; shifted against each other, the two have
a bit in common for each pair with a given sum.

**Spilling.** A rest may be cut once more, for its document has several pieces already. So the emptiest rows that hold
nothing but such rests are emptied into the largest gaps of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final, final

import numpy as np

from tokenlake.arrays import Bools, Int64, offsets_of, places
from tokenlake.config.resolved import ResolvedPack
from tokenlake.packing.segments import Rests, Segments, from_rests, small


def greedy_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Cut documents of ``lengths`` tokens, laid end to end from a row's beginning, into rows.

    Args:
        lengths: int64[n], tokens per document, each at least 1.
        capacity: tokens per row.
        max_segments: at most so many pieces in a row, which ends then, full or not; None: any number.

    Returns:
        The pieces of the rows. Without `max_segments` all rows but the last are full.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cut = _cut(lengths, ends, np.arange(0, total, capacity, dtype=np.int64))
    if max_segments is None or not len(ends) or int(np.diff(cut.row_offsets).max()) <= max_segments:
        return cut
    return _cut(lengths, ends, _bounded_rows(ends.tolist(), capacity, max_segments))


def _cut(lengths: Int64, ends: Int64, row_starts: Int64) -> Segments:
    """Cut documents, laid end to end, where rows begin (int64[R])."""
    doc_starts = ends - lengths
    cuts = np.union1d(doc_starts, row_starts)
    document = np.searchsorted(doc_starts, cuts, side="right") - 1
    length = np.diff(cuts, append=ends[-1:])
    row_offsets = np.append(np.searchsorted(cuts, row_starts), len(cuts))
    return Segments(document, cuts - doc_starts[document], length, row_offsets)


def _bounded_rows(ends: list[int], capacity: int, most: int) -> Int64:
    """Return where rows begin that end when they are full or have `most` pieces; `ends` of n >= 1 documents."""
    starts: list[int] = []
    at = document = 0
    while at < ends[-1]:
        starts.append(at)
        last = min(document + most, len(ends)) - 1  # the document of the row's last piece, if it has so many
        at = min(at + capacity, ends[last])
        document = bisect_right(ends, at, document, last + 1)
    return np.array(starts, np.int64)


def first_fit_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input.
    """
    rests = Rests.of(lengths, capacity, lambda sizes: first_fit(sizes, capacity, max_segments))
    return from_rests(lengths, capacity, rests)


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


def pool_segments(lengths: Int64, capacity: int, packers: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        packers: rows that stand open at a time.
        max_segments: at most so many pieces in a row, which is closed then, full or not; None: any number.

    Returns:
        Rows in the order in which they were opened, the pieces of a row in the order in which they came.
    """
    most = max_segments or capacity
    room = [capacity] * packers
    pieces = [0] * packers
    row = list(range(packers))  # numbers for the time being: who opens a row first is seen at the end
    opened = packers
    placed: list[tuple[int, int, int, int]] = []
    for document, length in enumerate(lengths.tolist()):
        # The least room that is enough, or else the least: of equals the first packer's.
        best = least = 0
        enough = capacity + 1
        for packer, left in enumerate(room):
            if length <= left < enough:
                best, enough = packer, left
            if left < room[least]:
                least = packer
        packer = least if enough > capacity else best
        start = 0
        while start < length:
            piece = min(length - start, room[packer])
            placed.append((row[packer], document, start, piece))
            start += piece
            room[packer] -= piece
            pieces[packer] += 1
            if not room[packer] or pieces[packer] == most:
                room[packer], pieces[packer], row[packer] = capacity, 0, opened
                opened += 1
    number, document, start_of, length_of = np.array(placed, np.int64).reshape(-1, 4).T
    first = np.unique(number, return_index=True)[1]
    rank = np.empty(int(number.max(initial=-1)) + 1, np.int64)
    rank[number[np.sort(first)]] = np.arange(len(first))
    order = np.argsort(rank[number], kind="stable")
    offsets = offsets_of(np.bincount(rank[number]))
    return Segments(document[order], start_of[order], length_of[order], offsets)


_NEW: Final = -1  # where a row comes from that was empty
Move = tuple[int, int, int, int]
"""Queue that rows leave (or _NEW), queue they join, how many rows, how many documents each is given."""


def best_fit_decreasing(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are opened: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin; None: any number.

    Items of one size go in order, and of bins with the same room the one that has it longest comes first.
    """
    bins = np.empty(len(sizes), np.int64)
    if len(sizes):
        counts = np.bincount(sizes)
        distinct = np.flatnonzero(counts)[::-1]
        falling = distinct.tolist(), counts[distinct].tolist(), capacity
        moves = _free_moves(*falling) if max_items is None else _bounded_moves(*falling, max_items)
        order = np.argsort(small(capacity - sizes), kind="stable")
        bins[order] = _resolved(np.fromiter(chain.from_iterable(moves), np.int64).reshape(-1, 4))
    return bins


def _free_moves(sizes: list[int], counts: list[int], capacity: int) -> Iterator[Move]:
    """Yield what becomes of items of falling `sizes`, `counts` of each.

    Queues are named by their room; bit r of `rooms` says that some bin has room r.
    """
    waiting = [0] * (capacity + 1)
    rooms = 0
    for size, count in zip(sizes, counts, strict=True):
        while count:
            if enough := rooms >> size:
                room = source = size + (enough & -enough).bit_length() - 1
                each = room // size
                bins = min(waiting[room], count // each)
                left = waiting[room] = waiting[room] - (bins or 1)
                if not left:
                    rooms ^= 1 << room
            else:
                room, source, each = capacity, _NEW, capacity // size
                bins = count // each
            # A bin that takes one item has the least room that is enough for the next one too, until it has too little.
            if not bins:
                bins, each = 1, count
            target = room - each * size
            if target:
                if not waiting[target]:
                    rooms |= 1 << target
                waiting[target] += bins
            count -= bins * each
            yield source, target, bins, each


def _bounded_moves(sizes: list[int], counts: list[int], capacity: int, most: int) -> Iterator[Move]:
    """As :func:`_free_moves`. Queues are named by ``room * most + items``; of one room the fullest bins come first."""
    waiting: dict[int, int] = {}
    held = [0] * (capacity + 1)  # bit i of held[r]: some bin has room r and i items
    rooms = 0
    for size, count in zip(sizes, counts, strict=True):
        while count:
            if enough := rooms >> size:
                room = size + (enough & -enough).bit_length() - 1
                items = held[room].bit_length() - 1
                source = room * most + items
                each = min(room // size, most - items)
                bins = min(waiting[source], count // each)
                left = waiting[source] = waiting[source] - (bins or 1)
                if not left:
                    held[room] ^= 1 << items
                    if not held[room]:
                        rooms ^= 1 << room
            else:
                room, items, source, each = capacity, 0, _NEW, min(capacity // size, most)
                bins = count // each
            if not bins:
                bins, each = 1, count
            room, items = room - each * size, items + each
            target = room * most + items
            if room and items < most:
                waiting[target] = waiting.get(target, 0) + bins
                held[room] |= 1 << items
                rooms |= 1 << room
            else:
                target = 0  # full: nobody asks for it again
            count -= bins * each
            yield source, target, bins, each


def _resolved(moves: Int64) -> Int64:
    """Return the bin of each item, in the order of the moves; `moves` is int64[m, 4], see :data:`Move`."""
    source, target, bins, each = moves.T
    visits = offsets_of(bins)  # a visit is one bin in one move

    def queued(queue: Int64, mask: Bools) -> tuple[Int64, Int64]:
        """Return queue and visit of all bins in the moves of `mask`, by queue and then by move."""
        of = np.flatnonzero(mask)
        of = of[np.argsort(queue[of], kind="stable")]
        return np.repeat(queue[of], bins[of]), places(visits[of], bins[of])

    (joined, arrivals), (left, departures) = queued(target, target > 0), queued(source, source != _NEW)
    before = np.arange(visits[-1])  # the visit of the same bin before, or itself
    # The k-th bin that left a queue is the k-th that joined it.
    rank = np.arange(len(left)) - np.searchsorted(left, left)
    before[departures] = arrivals[np.searchsorted(joined, left) + rank]
    while not np.array_equal(before, earlier := before[before]):
        before = earlier
    opened = np.cumsum(np.repeat(source == _NEW, bins)) - 1
    return np.repeat(opened[before], np.repeat(each, bins))


def exact_fit(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are filled: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin; None: any number.

    Items of one size go in order.
    """
    bins = np.empty(len(sizes), np.int64)
    if not len(sizes):
        return bins
    stock = _Stock(np.bincount(sizes, minlength=capacity + 1), capacity)
    takes: list[tuple[int, int, int, int]] = []  # size, first bin, bins, items of that size in each
    opened = 0
    for made, pattern in stock.patterns(max_items or len(sizes)):
        takes += [(size, opened, made, items) for size, items in pattern.items()]
        opened += made
    size, first, made, items = np.array(takes, np.int64).T
    order = np.argsort(size, kind="stable")
    each = np.repeat(items[order], made[order])
    bins[np.argsort(small(sizes), kind="stable")] = np.repeat(places(first[order], made[order]), each)
    return bins


@final
class _Stock:
    """How many items of each size there are."""

    def __init__(self, counts: Int64, capacity: int) -> None:
        self._counts, self._capacity = counts.tolist(), capacity
        sizes = np.flatnonzero(counts).tolist()
        self._there = sum(1 << size for size in sizes)
        self._mirror = sum(1 << (capacity - size) for size in sizes)
        # Of equally common sizes the larger; counts fall behind, and are set right when they come up.
        self._commonest = [(-self._counts[size], -size) for size in sizes]
        heapify(self._commonest)

    def patterns(self, most: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield, until nothing is left, how many bins are filled alike and with how many items of each size."""
        counts = self._counts
        while self._there:
            pattern = self._pattern(most)
            made = min(counts[size] // items for size, items in pattern.items())
            for size, items in pattern.items():
                counts[size] -= made * items
                if not counts[size]:
                    self._there ^= 1 << size
                    self._mirror ^= 1 << (self._capacity - size)
            yield made, pattern

    def _pattern(self, most: int) -> dict[int, int]:
        """Fill one bin."""
        counts, capacity = self._counts, self._capacity
        there, mirror = self._there, self._mirror
        two_more = 2 * (there.bit_length() - 1)
        pattern: dict[int, int] = {}
        room, free = capacity, most
        while free and (fits := there & ((2 << room) - 1)):
            size, items = fits.bit_length() - 1, 1
            if room > two_more:
                size = self._common(pattern) or size
                items = min(-((two_more - room) // size), counts[size] - pattern.get(size, 0), free)
            elif 2 * size >= room and size != room and free > 1:
                pair = self._pair(fits & (mirror >> (capacity - room)), room, pattern)
                if pair:
                    for half in (pair, room - pair):
                        pattern[half] = pattern.get(half, 0) + 1
                    break
            held = pattern[size] = pattern.get(size, 0) + items
            if held == counts[size]:
                there ^= 1 << size
                mirror ^= 1 << (capacity - size)
            room, free = room - items * size, free - items
        return pattern

    def _pair(self, larger: int, room: int, pattern: dict[int, int]) -> int:
        """Return the larger size of two that fill `room`, the most unequal ones; 0 where there are none."""
        while larger:
            size = larger.bit_length() - 1
            if 2 * size < room:
                break
            if 2 * size != room or self._counts[size] - pattern.get(size, 0) > 1:
                return size
            larger ^= 1 << size
        return 0

    def _common(self, pattern: dict[int, int]) -> int:
        """Return the commonest size, or 0 where the bin has all of it already."""
        heap, counts = self._commonest, self._counts
        while True:
            known, size = -heap[0][0], -heap[0][1]
            if counts[size] == known:
                return size if known > pattern.get(size, 0) else 0
            if counts[size]:
                heapreplace(heap, (-counts[size], -size))
            else:
                heappop(heap)


_LEAST_GAP: Final = 64  # a gap smaller than a row divided by this is not worth a piece of its own


def spilled(rests: Rests, capacity: int, too_many: int, max_segments: int | None = None) -> Rests:
    """Empty up to `too_many` rows; return the rests as they are where none can be.

    Args:
        rests: in shared rows of `capacity` tokens.
        max_segments: at most so many pieces in a row; None: any number.
    """
    used = np.bincount(rests.bin, rests.length).astype(np.int64)
    whole = np.bincount(rests.bin, rests.start == 0) > 0  # rows with a document that is not cut
    movable = np.flatnonzero(~whole)
    emptied = movable[np.argsort(used[movable], kind="stable")][:too_many]
    room = capacity - used
    room[room < capacity // _LEAST_GAP] = 0
    if max_segments is not None:
        room[np.bincount(rests.bin) + 2 > max_segments] = 0
    while len(emptied):
        gaps = room.copy()
        gaps[emptied] = 0
        if gaps.sum() >= used[emptied].sum():
            moved = _moved(rests, np.isin(rests.bin, emptied), gaps)
            most = int(np.bincount(moved.bin).max())
            return moved if max_segments is None or most <= max_segments else rests
        emptied = emptied[:-1]
    return rests


def _moved(rests: Rests, moving: Bools, gaps: Int64) -> Rests:
    """Lay the rests that are moving end to end, and cut them where a gap is full and the next one begins."""
    length = rests.length[moving]
    begins = np.cumsum(length) - length
    order = np.argsort(-gaps, kind="stable")
    starts = np.cumsum(gaps[order]) - gaps[order]
    starts = starts[: int(np.searchsorted(starts, length.sum()))]
    cuts = np.union1d(begins, starts)
    rest = np.searchsorted(begins, cuts, side="right") - 1
    document = np.concatenate([rests.document[~moving], rests.document[moving][rest]])
    start = np.concatenate([rests.start[~moving], rests.start[moving][rest] + cuts - begins[rest]])
    sizes = np.concatenate([rests.length[~moving], np.diff(cuts, append=length.sum())])
    rows = np.concatenate([rests.bin[~moving], order[np.searchsorted(starts, cuts, side="right") - 1]])
    by_document = np.lexsort((start, document))
    bins = np.unique(rows[by_document], return_inverse=True)[1]
    return Rests(document[by_document], start[by_document], sizes[by_document], bins)


_PADDING: Final = 1000  # one slot in so many may be padding before something else is tried


def best_fit_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input. A document that fits a row is never cut. A longer one is
        whole rows and a rest, which is mostly one piece.
    """
    tokens = int(lengths.sum())
    # Rows are few enough where they are as few as is possible, or where hardly a slot is padding.
    enough = max(-(-tokens // capacity), tokens * _PADDING // (capacity * (_PADDING - 1)))
    goal = enough - int((lengths // capacity).sum())
    methods = (best_fit_decreasing, exact_fit)
    if 2 * int(lengths.max(initial=0)) <= capacity:  # nothing large: exact fit will do, and at once
        methods = (exact_fit, best_fit_decreasing)
    best: Rests | None = None
    for method in methods:
        rests = Rests.of(lengths, capacity, lambda sizes, fit=method: fit(sizes, capacity, max_segments))
        if rests.bins > goal:
            rests = spilled(rests, capacity, rests.bins - goal, max_segments)
        best = rests if best is None or rests.bins < best.bins else best
        if best.bins <= goal:
            break
    assert best is not None
    return from_rests(lengths, capacity, best)


STRATEGIES: Final[Mapping[str, Callable[[Int64, ResolvedPack], Segments]]] = {
    "greedy": lambda lengths, pack: greedy_segments(lengths, pack.width, pack.max_segments),
    "pool": lambda lengths, pack: pool_segments(lengths, pack.width, pack.num_packers, pack.max_segments),
    "first_fit": lambda lengths, pack: first_fit_segments(lengths, pack.width, pack.max_segments),
    "best_fit": lambda lengths, pack: best_fit_segments(lengths, pack.width, pack.max_segments),
}
"""From the lengths of documents (int64[n], each at least 1) to the places of their pieces; no token is looked at.

Every token of every document is in exactly one piece. A new strategy is a function, a line here, and its name in
:class:`tokenlake.config.stages.PackStageConfig`.
"""


def plan_segments(lengths: Int64, pack: ResolvedPack) -> Segments:
    """Place documents of `lengths` (int64[n], each at least 1) in rows."""
    return STRATEGIES[pack.strategy](lengths, pack)
