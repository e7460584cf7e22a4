"""Packing window by window: documents are gathered, placed all at once, and copied once to where they go.

A window ends with the document that fills it up. A document longer than a row may go on in the next window, but only
at a whole number of rows from its beginning, so that where windows end depends on the documents alone and not on how
they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.order.random import key_of, shuffled
from tokenlake.packing.gather import Gather
from tokenlake.packing.greedy import starts_of
from tokenlake.packing.joining import join_documents
from tokenlake.packing.packed import Packed
from tokenlake.packing.segments import Segments
from tokenlake.packing.stretch import Growing, Stretch

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
