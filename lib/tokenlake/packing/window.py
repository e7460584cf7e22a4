"""Packing window by window: documents are gathered, placed all at once, and copied once to where they go.

A window ends with the document that fills it up. A document longer than a row may go on in the next window, but only
at a whole number of rows from its beginning, so that where windows end depends on the documents alone and not on how
they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import binary_over
from tokenlake.mixing.random import key_of, shuffled
from tokenlake.packing.segments import Packed, Segments, Stretch
from tokenlake.ragged import Int32, Int64, offsets_of

_NO_IDS: Final = np.empty(0, np.int32)


@final
class Growing:
    """A stretch that grows, in memory that is used again for the next one.

    Args:
        tokens: it will hold at most.
    """

    def __init__(self, tokens: int) -> None:
        self._most = tokens
        self._ids = np.empty(0, np.int32)
        self._parts: list[Stretch] = []
        self.tokens = 0

    def append(self, part: Stretch) -> None:
        """Append what follows; its ids are copied."""
        end = self.tokens + len(part.ids)
        if end > len(self._ids):
            # Doubled, so that what is small stays small, and all is copied twice at most.
            larger = np.empty(max(end, min(2 * end, self._most)), np.int32)
            larger[: self.tokens] = self._ids[: self.tokens]
            self._ids = larger
        self._ids[self.tokens : end] = part.ids
        self._parts.append(replace(part, ids=_NO_IDS))  # a view of them would keep them all
        self.tokens = end

    def clear(self) -> None:
        """Begin again."""
        self._parts, self.tokens = [], 0

    def joined(self) -> Stretch:
        """Return all of it, good until the next change; a document that goes on in the next part is one document."""
        return Stretch.joined(self._parts, self._ids[: self.tokens])


@final
class Gather:
    """The pieces of a window as byte strings, which Arrow gathers with one memcpy each.

    A gather of single tokens by index costs five times as much.
    """

    def __init__(self, window: Stretch, cut: Segments) -> None:
        self._window, self._cut = window, cut
        begins = (np.cumsum(window.length) - window.length)[cut.document] + cut.start
        order = np.argsort(begins)
        self._string = np.empty(len(order), np.int64)
        self._string[order] = np.arange(len(order))
        edges = np.append(begins[order], len(window.ids)) * 4
        self._strings: Any = binary_over(edges, pa.py_buffer(np.ascontiguousarray(window.ids).data))

    def packed(self, first: int, last: int, capacity: int, pad_id: int) -> Packed:
        """Return the rows from `first` to `last`."""
        offsets = self._cut.row_offsets[first : last + 1]
        own = slice(int(offsets[0]), int(offsets[-1]))
        taken: Any = self._strings.take(pa.array(self._string[own]))
        whole = self._cut
        cut = Segments(whole.document[own], whole.start[own], whole.length[own], offsets - offsets[0])
        used = np.diff(offsets_of(cut.length)[cut.row_offsets])
        tokens = int(used.sum())
        ids = _padded(np.frombuffer(taken.buffers()[2], np.int32)[:tokens], used, capacity, pad_id)
        return Packed.of(ids, cut, self._window, (last - first) * capacity - tokens)


def _padded(ids: Int32, used: Int64, capacity: int, pad_id: int) -> Int32:
    """Spread rows of `used` ids (int64[R]), laid end to end, to `capacity` each."""
    if len(ids) == len(used) * capacity:
        return ids
    out = np.full(len(used) * capacity, pad_id, np.int32)
    # Full rows before and after are copied together with the row that has padding.
    edges = np.append(np.flatnonzero(used < capacity) + 1, len(used))
    begin = source = 0
    for end in edges.tolist():
        size = int(used[begin:end].sum())
        out[begin * capacity : begin * capacity + size] = ids[source : source + size]
        begin, source = end, source + size
    return out


Planner = Callable[[Int64], Segments]
"""Lengths of documents (int64[n], each at least 1) to their places."""


@final
class WindowRows:
    """Packs one stream of documents in windows.

    Holds the tokens of one window and less than a row group of rows.

    Args:
        plan: the strategy.
        capacity: tokens per row.
        group_rows: rows come out in multiples of this (a row group), but for :meth:`finish`.
        pad_id: fills the ends of rows.
        window_tokens: tokens after which a window ends; BOS and EOS count.
        shuffle_key: whole rows are shuffled inside each window, by this key; None: they come as planned.
        carries: whether a window's last row, if it is not full, is planned again with the next window.
    """

    def __init__(
        self,
        plan: Planner,
        capacity: int,
        *,
        group_rows: int,
        pad_id: int,
        window_tokens: int,
        shuffle_key: int | None = None,
        carries: bool = False,
    ) -> None:
        self._plan, self._capacity, self._group_rows = plan, capacity, group_rows
        self._pad_id = pad_id
        self._window_tokens, self._windows = max(window_tokens, capacity), 0
        self._shuffle_key, self._carries = shuffle_key, carries
        # A window ends less than a row past its tokens.
        self._held = Growing(self._window_tokens + capacity)
        self._rows: list[Packed] = []  # that do not make a row group yet

    def take(self, stretch: Stretch) -> Iterator[Packed]:
        """Append a stretch and yield the row groups that are full.

        Its first document begins here, or goes on at a whole number of rows from its beginning.
        """
        while True:
            head, stretch = stretch.split(self._window_tokens - self._held.tokens, self._capacity)
            self._held.append(head)
            if self._held.tokens < self._window_tokens:
                return
            yield from self._close(final=False)
            if not len(stretch.ids):
                return

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, rows padded; nothing is held afterwards."""
        if self._held.tokens:
            yield from self._close(final=True)
        rows, self._rows = self._rows, []
        if rows:
            yield Packed.joined(rows)

    def _close(self, *, final: bool) -> Iterator[Packed]:
        """Plan the window and yield its row groups."""
        window = self._held.joined()
        carried = Stretch.nothing()
        cut = self._plan(window.length)
        if self._carries and not final and int(cut.length[cut.row_offsets[-2] :].sum()) < self._capacity:
            # The last row is the end of the window.
            cut = cut.taken(np.arange(cut.rows - 1))
            window, carried = window.cut(int(cut.length.sum()))
        number, self._windows = self._windows, self._windows + 1
        if self._shuffle_key is not None:
            cut = cut.taken(shuffled(cut.rows, key_of(self._shuffle_key, number)))
        yield from self._groups(window, cut)
        self._held.clear()
        self._held.append(carried)

    def _groups(self, window: Stretch, cut: Segments) -> Iterator[Packed]:
        pieces = Gather(window, cut)
        first = 0
        while first < cut.rows:
            last = min(cut.rows, first + self._group_rows - sum(part.rows for part in self._rows))
            self._rows.append(pieces.packed(first, last, self._capacity, self._pad_id))
            first = last
            if sum(part.rows for part in self._rows) == self._group_rows:
                rows, self._rows = self._rows, []
                yield Packed.joined(rows)
