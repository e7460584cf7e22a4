"""Packers by the name of their strategy: one protocol, and from the lengths of documents to their places.

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
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.arrays import binary_over
from tokenlake.config.resolved import ResolvedPack
from tokenlake.packing.best_fit import best_fit_segments
from tokenlake.packing.segments import Packed, Rests, Segments, Stretch, from_rests
from tokenlake.packing.window import WindowRows
from tokenlake.ragged import Bools, Int32, Int64, offsets_of


def join_documents(ids: Int32, offsets: Int64, prefix: Int32, suffix: Int32) -> Int32:
    """Documents laid end to end with ``prefix`` and ``suffix`` around each.

    Arrow joins byte strings with a separator in one pass of memcpy (2.2 Gtok/s; a mask in numpy
    reaches 1.3, a loop over documents 0.25 on short ones), so tokens pass as 4-byte strings here.

    Args:
        ids: int32[total].
        offsets: int64[n + 1] into ``ids``, n at least 1.

    Returns:
        int32[offsets[-1] - offsets[0] + n * (len(prefix) + len(suffix))], read-only.
    """
    # An empty string at either end gives the first document its prefix and the last one its suffix;
    # the half separators outside are sliced off.
    edges = np.concatenate([offsets[:1], offsets, offsets[-1:]]) * 4
    count = len(edges) - 1
    strings: Any = binary_over(edges, pa.py_buffer(np.ascontiguousarray(ids).data))
    documents: Any = pa.LargeListArray.from_arrays(pa.array([0, count], pa.int64()), strings)
    separator = pa.scalar(suffix.tobytes() + prefix.tobytes(), pa.large_binary())
    joined: Any = pc.binary_join(documents, separator)
    tokens = np.frombuffer(joined.buffers()[2], np.int32)
    return tokens[len(suffix) : len(tokens) - len(prefix)]


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


@final
class GreedyRows:
    """Lays the documents of one stream end to end, chunk by chunk, in bounded memory.

    Args:
        capacity: tokens per row.
        group_rows: rows come out in multiples of this (a row group), but for :meth:`finish`.
        pad_id: fills the last row.
    """

    def __init__(self, capacity: int, *, group_rows: int, pad_id: int) -> None:
        self._capacity, self._group, self._pad_id = capacity, group_rows * capacity, pad_id
        self._held = Stretch.nothing()

    def take(self, new: Stretch) -> Iterator[Packed]:
        """Append a stretch and yield the row groups that are full."""
        if len(self._held.ids):
            # Only the row group that holds both old and new tokens is copied together.
            head, new = new.cut(min(self._group - len(self._held.ids), len(new.ids)))
            self._held = Stretch.joined([self._held, head])
            if len(self._held.ids) < self._group:
                return
            yield self._emit(self._held)
        if len(new.ids) >= self._group:
            full, new = new.cut(len(new.ids) - len(new.ids) % self._group)
            yield self._emit(full)
        self._held = replace(new, ids=new.ids.copy())

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, the last row padded; nothing is held afterwards."""
        held, self._held = self._held, Stretch.nothing()
        if len(held.ids):
            yield self._emit(held, pad=-len(held.ids) % self._capacity)

    def _emit(self, taken: Stretch, pad: int = 0) -> Packed:
        """Whole rows of the next tokens of the stream, the last one padded."""
        ids = np.concatenate([taken.ids, np.full(pad, self._pad_id, np.int32)]) if pad else taken.ids
        packed = Packed.of(ids, greedy_segments(taken.length, self._capacity), taken, pad)
        packed.ends[-1:] = False  # of the last of all it is not always known
        return packed


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
    return _by_row(np.array(placed, np.int64).reshape(-1, 4))


def _by_row(placed: Int64) -> Segments:
    """Return pieces (row, document, start, length: int64[S, 4]) as rows, in the order of their first pieces."""
    row, document, start, length = placed.T
    first = np.unique(row, return_index=True)[1]
    rank = np.empty(int(row.max(initial=-1)) + 1, np.int64)
    rank[row[np.sort(first)]] = np.arange(len(first))
    order = np.argsort(rank[row], kind="stable")
    return Segments(document[order], start[order], length[order], offsets_of(np.bincount(rank[row])))


STRATEGIES: Final[Mapping[str, Callable[[Int64, ResolvedPack], Segments]]] = {
    "greedy": lambda lengths, pack: greedy_segments(lengths, pack.seq_length, pack.max_segments),
    "pool": lambda lengths, pack: pool_segments(
        lengths, pack.seq_length, pack.num_packers, pack.max_segments
    ),
    "first_fit": lambda lengths, pack: first_fit_segments(lengths, pack.seq_length, pack.max_segments),
    "best_fit": lambda lengths, pack: best_fit_segments(lengths, pack.seq_length, pack.max_segments),
}
"""From the lengths of documents (int64[n], each at least 1) to the places of their pieces; no token is looked at.

Every token of every document is in exactly one piece. A new strategy is a file of its own, a line here, and its name in
:class:`tokenlake.config.stages.PackStageConfig`.
"""


def plan_segments(lengths: Int64, pack: ResolvedPack) -> Segments:
    """Place documents of `lengths` (int64[n], each at least 1) in rows."""
    return STRATEGIES[pack.strategy](lengths, pack)


_TOGETHER: Final = 1 << 22
"""Tokens assembled at a time: bounds the copy that a very long document needs (16 MiB)."""


@final
class Packer:
    """Takes documents in order and gives rows, a multiple of a row group at a time.

    Args:
        rows: what becomes of the stream.
        capacity: tokens per row.
        group_rows: rows of a row group.
        prefix, suffix: ids put around every document (BOS, EOS).
    """

    def __init__(
        self,
        rows: GreedyRows | WindowRows,
        capacity: int,
        group_rows: int,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
    ) -> None:
        self._rows, self._capacity, self.group_rows = rows, capacity, group_rows
        self._prefix, self._suffix = np.asarray(prefix, np.int32), np.asarray(suffix, np.int32)

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
        whole = np.diff(offsets) + len(self._prefix) + len(self._suffix)
        ends = np.cumsum(whole)
        starts = _starts_of(ends - whole, again)
        first = 0
        while first < len(whole):
            limit = int(ends[first] - whole[first]) + _TOGETHER
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
            if int(whole[first]) > _TOGETHER:
                tokens = ids[offsets[first] : offsets[first + 1]]
                windows = (tokens[at : at + _TOGETHER] for at in range(0, len(tokens), _TOGETHER))
                yield from self.add_long(windows, int(file[first]), int(position[first]), int(starts[first]))
            else:
                stream = join_documents(ids, offsets[first : last + 1], self._prefix, self._suffix)
                own, here = slice(first, last), np.ones(last - first, np.bool_)
                yield from self._rows.take(
                    Stretch(stream, whole[own], starts[own], file[own], position[own], here)
                )
            first = last

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in ``windows``, so that it need not lie in memory whole.

        Args:
            start: of the document's first token; not 0 for a further piece of a document.
        """
        for ids, last in _blocks(chain([self._prefix], windows, [self._suffix]), self._capacity):
            yield from self._rows.take(Stretch.one(ids, start, file, position, ends=last))
            start += len(ids)

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, rows padded; the packer is empty afterwards."""
        return self._rows.finish()


def open_packer(
    pack: ResolvedPack,
    *,
    pad_id: int,
    group_tokens: int,
    prefix: tuple[int, ...] = (),
    suffix: tuple[int, ...] = (),
    shuffle_key: int | None = None,
) -> Packer:
    """Return a packer for one stream of documents.

    Args:
        pad_id: fills the ends of rows.
        group_tokens: of a row group; rows come out in multiples of one, but for the last.
        prefix, suffix: ids put around every document (BOS, EOS).
        shuffle_key: shuffle whole rows inside each window by this key; None: leave them as the strategy orders them.
    """
    capacity, group_rows = pack.seq_length, max(1, group_tokens // pack.seq_length)
    if pack.strategy == "greedy" and pack.max_segments is None and shuffle_key is None:
        rows = GreedyRows(capacity, group_rows=group_rows, pad_id=pad_id)
    else:
        rows = WindowRows(
            partial(plan_segments, pack=pack),
            capacity,
            group_rows=group_rows,
            pad_id=pad_id,
            window_tokens=pack.window_tokens,
            shuffle_key=shuffle_key,
            carries=pack.strategy == "greedy",
        )
    return Packer(rows, capacity, group_rows, prefix, suffix)


def _starts_of(places: Int64, again: Bools | None) -> Int64:
    """int64[n]: 0 for documents laid out at `places` of a stream, for further pieces the way from their document's."""
    if again is None:
        return np.zeros(len(places), np.int64)
    first = np.flatnonzero(~again)
    return places - places[first[np.cumsum(~again) - 1]]


def _blocks(windows: Iterable[Int32], step: int) -> Iterator[tuple[Int32, bool]]:
    """Yield the same ids in blocks, and whether a block is the last; the others are multiples of `step` long."""
    parts: list[Int32] = []
    size = 0
    for ids in windows:
        parts.append(ids)
        size += len(ids)
        if size > step:
            stream = np.concatenate(parts)
            full = (size - 1) // step * step  # the last block is never empty
            yield stream[:full], False
            parts, size = [stream[full:].copy()], size - full
    if size:
        yield np.concatenate(parts), True
