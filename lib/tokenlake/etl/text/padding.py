"""Rows of ids of many lengths, padded to a rectangle."""

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

SHORTEST_BUCKET: Final = 32


@final
@dataclass(frozen=True, slots=True)
class Padded:
    """n rows of w ids each.

    Attributes:
        rows: int64[n], ascending: which of the rows given these are.
        input_ids: int32[n, w].
        attention_mask: int32[n, w], 1 for a row's own ids, 0 for padding.
        labels: int32[n, w], the ids where they bear loss, :data:`IGNORED` elsewhere, on padding always.
    """

    rows: Int64
    input_ids: Int32
    attention_mask: Int32
    labels: Int32

    @property
    def width(self) -> int:
        """Ids in a row."""
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
    """Make rectangles of n rows of ids: one, or one for each group of rows, the narrowest first.

    Args:
        pad_id: fills rows up; a token that also stands in texts is fine, the mask tells.
        strategy:
            - ``none``: no padding; rows of one length make one rectangle.
            - ``longest``: all rows as wide as the longest.
            - ``max_length``: all rows `max_length` wide.
            - ``buckets``: every row as wide as the first of `boundaries` that holds it; a bucket with rows makes one
              rectangle.
        side: where the padding goes.
        max_length: for ``max_length``: the width.
        boundaries: for ``buckets``: ascending widths.
        loss: bool[total], which ids bear loss; None: all.

    Raises:
        ConfigError: a strategy without what it needs, or a row that is longer than any width allowed: truncate first.
    """
    require_one_of("strategy", strategy, PADDING_STRATEGIES)
    require_one_of("side", side, SIDES)
    edges = [max_length] if strategy == "max_length" and max_length is not None else boundaries
    widths = rows.lengths
    if strategy != "none":
        widths = _widths(widths, None if strategy == "longest" else edges)
    labels = Ragged(rows.ids if loss is None else np.where(loss, rows.ids, np.int32(IGNORED)), rows.offsets)
    found: list[Padded] = []
    for width in np.unique(widths).tolist():
        here = widths == width
        ids, mask = rows.select(here).rectangle(width, pad_id, left=side == "left")
        learned, _ = labels.select(here).rectangle(width, IGNORED, left=side == "left")
        found.append(Padded(np.flatnonzero(here), ids, mask.astype(np.int32), learned))
    return found


def _widths(lengths: Int64, boundaries: npt.ArrayLike | None) -> Int64:
    """int64[n]: the first of ascending boundaries that holds each row; None: the length of the longest."""
    longest = int(lengths.max(initial=0))
    edges = np.asarray([longest] if boundaries is None else boundaries, np.int64)
    if boundaries is not None and (not len(edges) or edges[0] < 1 or np.any(np.diff(edges) <= 0)):
        raise ConfigError(f"boundaries are {edges.tolist()}, expected ascending numbers of at least 1")
    if longest > edges[-1]:
        row = int(np.argmax(lengths > edges[-1]))
        raise ConfigError(
            f"row {row} has {lengths[row]} tokens, the widest rectangle holds {edges[-1]}; truncate rows before "
            "padding them",
            row=row,
            got=int(lengths[row]),
            expected=int(edges[-1]),
        )
    return edges[np.searchsorted(edges, lengths, side="left")]
