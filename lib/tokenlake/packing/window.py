"""Packing window by window: documents are gathered, placed all at once, and copied once to where they go.

A window ends with the document that fills it up. A document longer than a row may go on in the next window, but only
at a whole number of rows from its beginning, so that where windows end depends on the documents alone and not on how
they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.mixing.random import key_of, shuffled
from tokenlake.packing.greedy import join_documents, starts_of
from tokenlake.packing.segments import Packed, Segments, Stretch
from tokenlake.ragged import Bools, Int32, Int64, offsets_of

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
        buffers = [None, pa.py_buffer(edges.data), pa.py_buffer(np.ascontiguousarray(window.ids).data)]
        self._strings: Any = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(order), buffers)

    def packed(self, first: int, last: int, seq_length: int, pad_id: int) -> Packed:
        """Return the rows from `first` to `last`."""
        window, cut = self._window, self._cut
        offsets = cut.row_offsets[first : last + 1]
        pieces = slice(int(offsets[0]), int(offsets[-1]))
        taken: Any = self._strings.take(pa.array(self._string[pieces]))
        ids = np.frombuffer(taken.buffers()[2], np.int32)
        document, start, length = cut.document[pieces], cut.start[pieces], cut.length[pieces]
        row_offsets = offsets - offsets[0]
        used = np.diff(offsets_of(length)[row_offsets])
        return Packed(
            input_ids=_padded(ids[: int(used.sum())], used, seq_length, pad_id),
            segment_lengths=length.astype(np.int32),
            row_offsets=row_offsets,
            file=window.file[document],
            position=window.position[document],
            start=(start + window.start[document]).astype(np.int32),
            ends=window.ends[document] & (start + length == window.length[document]),
            pad=(last - first) * seq_length - int(used.sum()),
        )


def _padded(ids: Int32, used: Int64, seq_length: int, pad_id: int) -> Int32:
    """Spread rows of `used` ids (int64[R]), laid end to end, to `seq_length` each."""
    if len(ids) == len(used) * seq_length:
        return ids
    out = np.full(len(used) * seq_length, pad_id, np.int32)
    # Full rows before and after are copied together with the row that has padding.
    edges = np.append(np.flatnonzero(used < seq_length) + 1, len(used))
    begin = source = 0
    for end in edges.tolist():
        size = int(used[begin:end].sum())
        out[begin * seq_length : begin * seq_length + size] = ids[source : source + size]
        begin, source = end, source + size
    return out


Planner = Callable[[Int64], Segments]
"""Lengths of documents (int64[n], each at least 1) to their places."""


@final
class WindowPacker:
    """Packs one stream of documents in windows.

    Holds the tokens of one window and less than a row group of rows.

    Args:
        plan: the strategy.
        seq_length: tokens per row.
        group_rows: rows come out in multiples of this (a row group), but for :meth:`finish`.
        prefix, suffix: ids put around every document (BOS, EOS).
        pad_id: fills the ends of rows.
        window_tokens: tokens after which a window ends; BOS and EOS count.
        shuffle_key: whole rows are shuffled inside each window, by this key; None: they come as planned.
        carries: whether a window's last row, if it is not full, is planned again with the next window.
    """

    def __init__(
        self,
        plan: Planner,
        seq_length: int,
        *,
        group_rows: int,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        pad_id: int,
        window_tokens: int,
        shuffle_key: int | None = None,
        carries: bool = False,
    ) -> None:
        self._plan, self._seq_length, self._group_rows = plan, seq_length, group_rows
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray(suffix, np.int32)
        self._pad_id = pad_id
        self._window_tokens, self._windows = max(window_tokens, seq_length), 0
        self._shuffle_key, self._carries = shuffle_key, carries
        # A window ends less than a row past its tokens.
        self._held = Growing(self._window_tokens + seq_length)
        self._rows: list[Packed] = []  # that do not make a row group yet

    def add(
        self, ids: Int32, offsets: Int64, file: Int64, position: Int64, again: Bools | None = None
    ) -> Iterator[Packed]:
        """Append documents and yield the row groups that are full; as :meth:`GreedyPacker.add`."""
        if len(offsets) > 1:
            whole = np.diff(offsets) + len(self._prefix) + len(self._suffix)
            starts = starts_of(np.cumsum(whole) - whole, again)
            stream = join_documents(ids, offsets, self._prefix, self._suffix)
            yield from self._feed(
                Stretch(stream, whole, starts, file, position, np.ones(len(whole), np.bool_))
            )

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in `windows`; as :meth:`GreedyPacker.add_long`."""
        fed = start
        for ids, last in _blocks(chain([self._prefix], windows, [self._suffix]), self._seq_length):
            yield from self._feed(Stretch.one(ids, fed, file, position, ends=last))
            fed += len(ids)

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, rows padded; the packer is empty afterwards."""
        if self._held.tokens:
            yield from self._close(final=True)
        rows, self._rows = self._rows, []
        if rows:
            yield Packed.joined(rows)

    def _feed(self, stretch: Stretch) -> Iterator[Packed]:
        """Append a stretch, whose first document begins, or goes on at a whole number of rows from its beginning."""
        while True:
            head, stretch = stretch.split(self._window_tokens - self._held.tokens, self._seq_length)
            self._held.append(head)
            if self._held.tokens < self._window_tokens:
                return
            yield from self._close(final=False)
            if not len(stretch.ids):
                return

    def _close(self, *, final: bool) -> Iterator[Packed]:
        """Plan the window and yield its row groups."""
        window = self._held.joined()
        carried = Stretch.nothing()
        cut = self._plan(window.length)
        if self._carries and not final and int(cut.length[cut.row_offsets[-2] :].sum()) < self._seq_length:
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
            self._rows.append(pieces.packed(first, last, self._seq_length, self._pad_id))
            first = last
            if sum(part.rows for part in self._rows) == self._group_rows:
                rows, self._rows = self._rows, []
                yield Packed.joined(rows)


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
