"""Packers: documents in, rows out, a row group at a time and in bounded memory, by whatever strategy.

**Windows**: documents are gathered, placed all at once, and copied once to where they go. A window ends with the
document that fills it up. A document longer than a row may go on in the next window, but only at a whole number of rows
from its beginning, so that where windows end depends on the documents alone and not on how they came.

Greedy rows need no window: where the pieces lie is known as documents come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int32, Int64, binary_over, offsets_of
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.greedy import greedy_segments
from tokenlake.etl.packing.segments import Packed, Segments, Stretch
from tokenlake.etl.packing.strategies import plan_segments
from tokenlake.runtime.mixing.random import key_of, shuffled


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
        # Pieces are byte strings, which Arrow gathers with one memcpy each: by index, token by token, costs five times
        # as much.
        begins = (np.cumsum(window.length) - window.length)[cut.document] + cut.start
        order = np.argsort(begins)
        string = np.empty(len(order), np.int64)
        string[order] = np.arange(len(order))
        edges = np.append(begins[order], len(window.ids)) * 4
        strings: Any = binary_over(edges, pa.py_buffer(np.ascontiguousarray(window.ids).data))
        first = 0
        while first < cut.rows:
            last = min(cut.rows, first + self._group_rows - sum(part.rows for part in self._rows))
            offsets = cut.row_offsets[first : last + 1]
            own = slice(int(offsets[0]), int(offsets[-1]))
            some = Segments(cut.document[own], cut.start[own], cut.length[own], offsets - offsets[0])
            used = np.diff(offsets_of(some.length)[some.row_offsets])
            tokens, taken = int(used.sum()), strings.take(pa.array(string[own]))
            ids = np.frombuffer(taken.buffers()[2], np.int32)[:tokens]
            ids = _padded(ids, used, self._capacity, self._pad_id)
            self._rows.append(Packed.of(ids, some, window, len(ids) - tokens))
            first = last
            if sum(part.rows for part in self._rows) == self._group_rows:
                rows, self._rows = self._rows, []
                yield Packed.joined(rows)


COPIED_TOKENS: Final = 1 << 22
"""Tokens joined at a time: bounds the copy that a very long document needs (16 MiB)."""


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
        copied_tokens: int = COPIED_TOKENS,
    ) -> None:
        self._copied_tokens = copied_tokens
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
            again: bool[n], True for a further part of the document before it. Such a part gets a prefix and a suffix of
                its own, and its `start` continues where the part before it ends. The first must be False: all parts of
                a document come in one call. None: all documents are whole.
        """
        whole = np.diff(offsets) + len(self._prefix) + len(self._suffix)
        ends = np.cumsum(whole)
        starts = np.zeros(len(whole), np.int64)
        if again is not None:
            # The start of a part is its distance from the first part of its document.
            begins = ends - whole
            first_parts = np.flatnonzero(~again)
            document = np.cumsum(~again) - 1
            starts = begins - begins[first_parts[document]]
        first = 0
        while first < len(whole):
            limit = int(ends[first] - whole[first]) + self._copied_tokens
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
            if int(whole[first]) > self._copied_tokens:
                tokens = ids[offsets[first] : offsets[first + 1]]
                windows = (
                    tokens[at : at + self._copied_tokens] for at in range(0, len(tokens), self._copied_tokens)
                )
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
    copied_tokens: int = COPIED_TOKENS,
) -> Packer:
    """Return a packer for one stream of documents.

    Args:
        pad_id: fills the ends of rows.
        group_tokens: of a row group; rows come out in multiples of one, but for the last.
        prefix, suffix: ids put around every document (BOS, EOS).
        shuffle_key: shuffle whole rows inside each window by this key; None: leave them as the strategy orders them.
    """
    capacity = pack.width
    group_rows = max(1, group_tokens // capacity)
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
    return Packer(rows, capacity, group_rows, prefix, suffix, copied_tokens)


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
