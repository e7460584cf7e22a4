"""What packs a stream of documents: one protocol, and which packer a strategy needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Protocol

from tokenlake.packing.greedy import GreedyPacker
from tokenlake.packing.segments import Packed
from tokenlake.packing.strategy import Strategy, plan_segments
from tokenlake.packing.window import WindowPacker
from tokenlake.ragged import Bools, Int32, Int64

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
