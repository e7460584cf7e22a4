"""Packing of a stream in windows, by any strategy.

1. Documents are gathered until a window has its tokens (:class:`TokenWindow`).
2. The strategy plans the window from the lengths of its documents.
3. Each piece is copied once, to its place in a row.

A window ends with the document that fills it. A document longer than a row may continue
in the next window, but only at a whole number of rows from its beginning. Where windows
end therefore depends on the documents alone, and not on the sizes of the chunks in
which they arrive.

Example: rows of 4 tokens, windows of 8, documents of 3, 4, 4 and 20 tokens. The first
window has the first three documents (11 tokens: the third one fills it). The fourth
document is longer than a row: the next windows have its tokens [0, 8) and [8, 16), and
its last 4 tokens begin a window together with the documents after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32, Int64, binary_over, offsets_of
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.packing.segments import Segments
from tokenlake.etl.packing.stretch import Stretch
from tokenlake.runtime.mixing.random import key_of, shuffled

Planner: TypeAlias = Callable[[Int64], Segments]
"""Function from the lengths of documents (int64[n], each at least 1) to their places."""

_NO_IDS: Final = np.empty(0, np.int32)
_ID_BYTES: Final = 4


@final
class TokenWindow:
    """A stretch that grows, in memory that is reused for the next one.

    Args:
        tokens: Largest number of tokens that it will hold.
    """

    def __init__(self, tokens: int) -> None:
        self._max_tokens = tokens
        self._ids = np.empty(0, np.int32)
        self._parts: list[Stretch] = []
        self.tokens = 0

    def append(self, part: Stretch) -> None:
        """Append a stretch; its ids are copied."""
        new_tokens = self.tokens + len(part.ids)
        if new_tokens > len(self._ids):
            # The memory doubles: small windows stay small, and ids are copied twice at
            # most.
            doubled_size = min(2 * new_tokens, self._max_tokens)
            larger = np.empty(max(new_tokens, doubled_size), np.int32)
            larger[: self.tokens] = self._ids[: self.tokens]
            self._ids = larger
        self._ids[self.tokens : new_tokens] = part.ids
        # A view of the ids would keep all of them in memory.
        self._parts.append(replace(part, ids=_NO_IDS))
        self.tokens = new_tokens

    def clear(self) -> None:
        """Forget all tokens."""
        self._parts = []
        self.tokens = 0

    def joined(self) -> Stretch:
        """Return all parts as one stretch, valid until the next change of the window."""
        return Stretch.joined(self._parts, self._ids[: self.tokens])


@final
class WindowRows:
    """Packs one stream of documents in windows.

    It holds the tokens of one window, and less than a row group of rows.

    Args:
        plan: Strategy.
        capacity: Tokens per row.
        group_rows: Rows of a row group. Rows are yielded in multiples of it, except by
            :meth:`finish`.
        pad_id: Id that fills the ends of rows.
        window_tokens: Tokens after which a window ends; BOS and EOS count.
        shuffle_key: Key by which whole rows are shuffled inside each window; None: rows
            stay in the order of the plan.
        carries: True if a window's last row, when it is not full, is planned again with
            the next window.
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
        self._plan = plan
        self._capacity = capacity
        self._group_rows = group_rows
        self._pad_id = pad_id
        self._window_tokens = max(window_tokens, capacity)
        self._shuffle_key = shuffle_key
        self._carries = carries
        # A window ends less than a row past its tokens.
        self._window = TokenWindow(self._window_tokens + capacity)
        self._window_number = 0
        self._waiting: list[Packed] = []  # rows that do not fill a row group yet
        self._waiting_rows = 0

    def take(self, stretch: Stretch) -> Iterator[Packed]:
        """Append a stretch and yield the row groups that are full.

        Args:
            stretch: Documents; the first begins here, or continues at a whole number of
                rows from its beginning.
        """
        while True:
            room = self._window_tokens - self._window.tokens
            head, stretch = stretch.split(room, self._capacity)
            self._window.append(head)
            if self._window.tokens < self._window_tokens:
                return
            yield from self._close_window(is_last=False)
            if not len(stretch.ids):
                return

    def finish(self) -> Iterator[Packed]:
        """Yield the remaining rows, padded. Nothing is held afterwards."""
        if self._window.tokens:
            yield from self._close_window(is_last=True)
        if self._waiting:
            yield self._take_waiting()

    def _close_window(self, *, is_last: bool) -> Iterator[Packed]:
        """Plan the window and yield its row groups."""
        window = self._window.joined()
        plan = self._plan(window.length)
        carried = Stretch.nothing()
        if self._carries and not is_last:
            tokens_of_last_row = int(plan.length[plan.row_offsets[-2] :].sum())
            if tokens_of_last_row < self._capacity:
                # The last row of a greedy plan is the end of the window.
                plan = plan.taken(np.arange(plan.rows - 1))
                window, carried = window.cut(int(plan.length.sum()))
        if self._shuffle_key is not None:
            order = shuffled(plan.rows, key_of(self._shuffle_key, self._window_number))
            plan = plan.taken(order)
        self._window_number += 1
        yield from self._row_groups(window, plan)
        self._window.clear()
        self._window.append(carried)

    def _row_groups(self, window: Stretch, plan: Segments) -> Iterator[Packed]:
        """Copy the pieces of a plan into rows, and yield the row groups that are full."""
        # 1. The pieces of the window as byte strings, in the order of their tokens.
        #    Arrow gathers strings with one memcpy each; to gather token by token costs
        #    five times as much.
        document_begins = np.cumsum(window.length) - window.length
        begins = document_begins[plan.document] + plan.start
        order = np.argsort(begins)
        edges = np.append(begins[order], len(window.ids)) * _ID_BYTES
        window_ids = pa.py_buffer(np.ascontiguousarray(window.ids).data)
        strings: Any = binary_over(edges, window_ids)
        # 2. The string of each piece of the plan: the inverse of the order.
        string_of_piece = np.empty(len(order), np.int64)
        string_of_piece[order] = np.arange(len(order))
        first_row = 0
        while first_row < plan.rows:
            # 3. As many rows as the open row group has room for.
            free_rows = self._group_rows - self._waiting_rows
            end_row = min(plan.rows, first_row + free_rows)
            row_offsets = plan.row_offsets[first_row : end_row + 1]
            pieces = slice(int(row_offsets[0]), int(row_offsets[-1]))
            rows = Segments(
                plan.document[pieces],
                plan.start[pieces],
                plan.length[pieces],
                row_offsets - row_offsets[0],
            )
            row_tokens = np.diff(offsets_of(rows.length)[rows.row_offsets])
            token_count = int(row_tokens.sum())
            gathered = strings.take(pa.array(string_of_piece[pieces]))
            row_ids = np.frombuffer(gathered.buffers()[2], np.int32)[:token_count]
            row_ids = _padded(row_ids, row_tokens, self._capacity, self._pad_id)
            padding = len(row_ids) - token_count
            self._waiting.append(Packed.of(row_ids, rows, window, padding))
            self._waiting_rows += end_row - first_row
            first_row = end_row
            # 4. A full row group is handed on.
            if self._waiting_rows == self._group_rows:
                yield self._take_waiting()

    def _take_waiting(self) -> Packed:
        """Return the rows that wait, and hold none."""
        rows = Packed.joined(self._waiting)
        self._waiting = []
        self._waiting_rows = 0
        return rows


def _padded(ids: Int32, row_tokens: Int64, capacity: int, pad_id: int) -> Int32:
    """Spread rows of ids, laid end to end, to `capacity` ids each.

    Args:
        ids: Ids of all rows without padding, int32[total].
        row_tokens: Ids of each row, int64[R].
        capacity: Ids of a padded row.
        pad_id: Id of the padding.
    """
    if len(ids) == len(row_tokens) * capacity:
        return ids
    padded = np.full(len(row_tokens) * capacity, pad_id, np.int32)
    # Each run of rows up to one that has padding is one copy.
    run_ends = np.append(np.flatnonzero(row_tokens < capacity) + 1, len(row_tokens))
    run_begin = 0
    source = 0
    for run_end in run_ends.tolist():
        size = int(row_tokens[run_begin:run_end].sum())
        target = run_begin * capacity
        padded[target : target + size] = ids[source : source + size]
        run_begin = run_end
        source += size
    return padded
