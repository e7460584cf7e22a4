"""Padding of rows of texts: rows of ids of many lengths become rectangles.

The loader has its own padding (:mod:`tokenlake.runtime.loader.padding`).

For example rows of 2, 5 and 3 ids: ``longest`` makes one rectangle 5 ids wide;
``buckets`` of 4 and 8 make one of the first and third row, 4 wide, and one of the
second, 8 wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged
from tokenlake.base.checks import require_one_of
from tokenlake.base.columns import IGNORED
from tokenlake.errors import ConfigError
from tokenlake.etl.text.truncation import SIDES, Side

PaddingStrategy = Literal["none", "longest", "max_length", "buckets"]

PADDING_STRATEGIES: Final[tuple[PaddingStrategy, ...]] = get_args(PaddingStrategy)

# Narrower rectangles would save little padding, and cost a compiled shape each.
SHORTEST_BUCKET: Final = 32

_WIDTHS: Final = {"max_length": "max_length", "buckets": "boundaries"}
"""Arguments that hold the widths of a strategy."""


@final
@dataclass(frozen=True, slots=True)
class Padded:
    """A rectangle of n rows, w ids wide.

    Attributes:
        rows: int64[n], ascending: indices of these rows among the rows that were
            padded.
        input_ids: int32[n, w]: ids.
        attention_mask: int32[n, w]: 1 for a row's own ids, 0 for padding.
        labels: int32[n, w]: ids where they count toward the loss, :data:`IGNORED`
            elsewhere and on padding.
    """

    rows: Int64
    input_ids: Int32
    attention_mask: Int32
    labels: Int32

    @property
    def width(self) -> int:
        """Number of ids in a row."""
        return self.input_ids.shape[1]


def pad(
    rows: Ragged,
    *,
    pad_id: int,
    strategy: PaddingStrategy = "longest",
    side: Side = "right",
    max_length: int | None = None,
    boundaries: npt.ArrayLike | None = None,
    loss: Bools | None = None,
) -> list[Padded]:
    """Pad n rows of ids to one rectangle, or to one for each width.

    Rectangles come in the order of their widths, the narrowest first.

    Args:
        rows: Ids of the rows.
        pad_id: Id of padding; a token that also occurs in texts is fine, because the
            mask tells them apart.
        strategy: Rule for the width of a row:

            - ``none``: no padding; rows of one length make one rectangle.
            - ``longest``: the length of the longest row.
            - ``max_length``: `max_length`.
            - ``buckets``: the first of `boundaries` that holds the row.
        side: Side on which padding is put.
        max_length: Width for ``max_length``.
        boundaries: Ascending widths for ``buckets``.
        loss: bool[total]: ids that count toward the loss; None: all.

    Raises:
        ConfigError: The strategy lacks its widths, or a row is longer than the widest:
            truncate rows first.
    """
    require_one_of("strategy", strategy, PADDING_STRATEGIES)
    require_one_of("side", side, SIDES)
    # 1. The width of each row.
    allowed_widths = boundaries if strategy == "buckets" else max_length
    row_widths = _widths_of(rows.lengths, strategy, allowed_widths)
    # 2. Labels are the ids that count.
    labels = rows
    if loss is not None:
        labels = Ragged(np.where(loss, rows.ids, np.int32(IGNORED)), rows.offsets)
    # 3. One rectangle for each width, of ids and of labels.
    rectangles: list[Padded] = []
    pads_left = side == "left"
    for width in np.unique(row_widths).tolist():
        has_width = row_widths == width
        padded_ids, is_token = rows.select(has_width).rectangle(
            width, pad_id, left=pads_left
        )
        padded_labels, _ = labels.select(has_width).rectangle(
            width, IGNORED, left=pads_left
        )
        rectangles.append(
            Padded(
                rows=np.flatnonzero(has_width),
                input_ids=padded_ids,
                attention_mask=is_token.astype(np.int32),
                labels=padded_labels,
            )
        )
    return rectangles


def _widths_of(
    lengths: Int64, strategy: PaddingStrategy, allowed_widths: npt.ArrayLike | None
) -> Int64:
    """Return the width of each row by the rule of a strategy, int64[n].

    Args:
        lengths: Ids of each row, int64[n].
        strategy: Rule for the width of a row.
        allowed_widths: One width, or several ascending ones; None where none was given.
    """
    if strategy == "none":
        return lengths
    if strategy == "longest":
        # No rows have no longest one; their width is 0.
        longest = int(lengths.max(initial=0))
        return np.full(len(lengths), longest, np.int64)
    if allowed_widths is None:
        raise ConfigError(f"padding strategy {strategy!r} needs {_WIDTHS[strategy]}")
    # One width is a list of one allowed width.
    ascending_widths = np.atleast_1d(np.asarray(allowed_widths, np.int64))
    return _first_widths(lengths, ascending_widths)


def _first_widths(lengths: Int64, allowed_widths: Int64) -> Int64:
    """Return the first of ascending widths that holds each row: int64[n]."""
    if (
        not len(allowed_widths)
        or allowed_widths[0] < 1
        or np.any(np.diff(allowed_widths) <= 0)
    ):
        raise ConfigError(
            f"boundaries are {allowed_widths.tolist()}, expected ascending numbers of at least 1"
        )
    widest = int(allowed_widths[-1])
    too_long = np.flatnonzero(lengths > widest)
    if len(too_long):
        row = int(too_long[0])
        raise ConfigError(
            f"row {row} has {lengths[row]} tokens, the widest rectangle holds {widest}; truncate rows before padding "
            "them",
            row=row,
            got=int(lengths[row]),
            expected=widest,
        )
    # "left" finds the first width that is at least the length of the row.
    return allowed_widths[np.searchsorted(allowed_widths, lengths, side="left")]
