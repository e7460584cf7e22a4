"""Greedy packing of a stream, in bounded memory: a row group at a time.

Documents are laid end to end.
No window is needed: the places of the pieces are known as documents come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import numpy as np

from tokenlake.etl.packing.greedy import greedy_segments
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.packing.stretch import Stretch


@final
class GreedyRows:
    """Lays the documents of one stream end to end.

    It holds less than a row group of tokens.

    Args:
        capacity: Tokens per row.
        group_rows: Rows of a row group. Rows are yielded in multiples of it, except by
            :meth:`finish`.
        pad_id: Id that fills the last row.
    """

    def __init__(self, capacity: int, *, group_rows: int, pad_id: int) -> None:
        self._capacity = capacity
        self._group_tokens = group_rows * capacity
        self._pad_id = pad_id
        self._held = Stretch.nothing()  # tokens that do not fill a row group yet

    def take(self, stretch: Stretch) -> Iterator[Packed]:
        """Append a stretch and yield the row groups that are full."""
        if len(self._held.ids):
            # Only the row group with tokens of both stretches is copied together.
            room = self._group_tokens - len(self._held.ids)
            head, stretch = stretch.cut(min(room, len(stretch.ids)))
            self._held = Stretch.joined([self._held, head])
            if len(self._held.ids) < self._group_tokens:
                return
            yield self._rows_of(self._held)
        if len(stretch.ids) >= self._group_tokens:
            tokens_left = len(stretch.ids) % self._group_tokens
            full_groups, stretch = stretch.cut(len(stretch.ids) - tokens_left)
            yield self._rows_of(full_groups)
        # A view would keep the whole stretch in memory.
        self._held = replace(stretch, ids=stretch.ids.copy())

    def finish(self) -> Iterator[Packed]:
        """Yield the remaining rows, the last one padded. Nothing is held afterwards."""
        remaining = self._held
        self._held = Stretch.nothing()
        if len(remaining.ids):
            padding = -len(remaining.ids) % self._capacity
            yield self._rows_of(remaining, padding=padding)

    def _rows_of(self, stretch: Stretch, padding: int = 0) -> Packed:
        """Return a stretch as rows, the last one padded with `padding` ids."""
        row_ids = stretch.ids
        if padding:
            padding_ids = np.full(padding, self._pad_id, np.int32)
            row_ids = np.concatenate([row_ids, padding_ids])
        plan = greedy_segments(stretch.length, self._capacity)
        packed = Packed.of(row_ids, plan, stretch, padding)
        # Whether the last document continues is not always known.
        packed.ends[-1:] = False
        return packed
