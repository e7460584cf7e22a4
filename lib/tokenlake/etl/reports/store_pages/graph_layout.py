"""Places of the boxes of a lineage graph, so that arrows are short and cross little.

All boxes of a column have one x. Their heights follow from their lines, so that only
their order and y are free. The barycentre method of Sugiyama, Tagawa and Toda (1981)
finds both:

1. Stack the boxes of each column in the given order.
2. Go through the columns from left to right. A box wishes for the top that makes the
   arrows into it level: the mean of their origins' heights. Sort the column by the
   wishes, and stack it (step 4).
3. The same from right to left, with the arrows out of each box. Repeat both
   :data:`_SWEEPS` times, and end with a pass from left to right.
4. Stacking: each top is the wish of its box, or right below the box above it if that is
   lower. Then the column moves up by the mean distance from the wishes.
5. Parts of the graph that no arrow joins drift apart. A band that no box of any column
   touches is closed to :data:`_BAND_GAP`.

Example: three boxes of height 40 wish for the tops 100, 100 and 400; the gap is 20.
Stacked they get 100, 160 and 400. The mean distance from the wishes is (0 + 60 + 0) / 3
= 20, and the column moves up: 80, 140 and 380.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.etl.reports.store_pages.lineage_graph import GraphBox, LineageGraph

BOX_WIDTH: Final = 240
COLUMN_GAP: Final = 96
BOX_GAP: Final = 20
HEAD_HEIGHT: Final = 28
LINE_HEIGHT: Final = 24
"""Sizes in pixels."""

# Passes in both directions. Their number is fixed, so that the same graph has the same
# drawing.
_SWEEPS: Final = 4
_BAND_GAP: Final = 2 * BOX_GAP
"""Largest height of a band without boxes, in pixels."""


@final
@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box and its upper left corner, in pixels.

    Attributes:
        box: The box.
        x: Distance from the left edge.
        y: Distance from the upper edge.
    """

    box: GraphBox
    x: float
    y: float

    @property
    def height(self) -> int:
        """Height of the box, in pixels."""
        return box_height(self.box)

    def line_y(self, index: int) -> float:
        """Return the y of the middle of a line."""
        return self.y + HEAD_HEIGHT + LINE_HEIGHT * (index + 0.5)


def box_height(box: GraphBox) -> int:
    """Return the height of a box, in pixels."""
    return HEAD_HEIGHT + LINE_HEIGHT * len(box.lines)


def place_boxes(graph: LineageGraph) -> list[PlacedBox]:
    """Return all boxes with their places; the uppermost box begins at y = 0."""
    # Step 1: the boxes of a column begin in the order of the graph, stacked from 0.
    indices_by_column: dict[int, list[int]] = {}
    for index, box in enumerate(graph.boxes):
        indices_by_column.setdefault(box.column, []).append(index)
    columns = [indices_by_column[column] for column in sorted(indices_by_column)]
    tops = [0.0] * len(graph.boxes)
    for column in columns:
        _stack(column, graph.boxes, tops, dict.fromkeys(column, 0.0))

    # Steps 2 and 3: columns alternate between their left and their right neighbours.
    lefts, rights = _neighbours(graph)
    for _ in range(_SWEEPS):
        for column in columns:
            _sort_and_stack(column, graph.boxes, tops, lefts)
        for column in reversed(columns):
            _sort_and_stack(column, graph.boxes, tops, rights)
    for column in columns:
        _sort_and_stack(column, graph.boxes, tops, lefts)

    _close_bands(graph.boxes, tops)
    # The drawing begins at 0, wherever the passes have moved the columns.
    highest = min(tops, default=0.0)
    placed_boxes: list[PlacedBox] = []
    for box, top in zip(graph.boxes, tops, strict=True):
        x = box.column * (BOX_WIDTH + COLUMN_GAP)
        placed_boxes.append(PlacedBox(box, x, top - highest))
    return placed_boxes


def _close_bands(boxes: Sequence[GraphBox], tops: list[float]) -> None:
    """Move boxes up where nothing stands above them in any column (step 5).

    Args:
        boxes: All boxes.
        tops: Top of each box, which is replaced.
    """
    lowest_bottom = min(tops, default=0.0)
    shift = 0.0
    for index in sorted(range(len(boxes)), key=lambda index: tops[index]):
        top = tops[index] - shift
        # Whole pixels, so that boxes that touch still touch.
        excess = math.floor(top - lowest_bottom - _BAND_GAP)
        if excess > 0:
            shift += excess
            top -= excess
        tops[index] = top
        lowest_bottom = max(lowest_bottom, top + box_height(boxes[index]))


@final
@dataclass(frozen=True, slots=True)
class _Neighbour:
    """The other end of an arrow.

    Attributes:
        box: Index of the box at the other end.
        offset: Height of that end below the top of its box.
        own_offset: Height of this end below the top of its own box.
    """

    box: int
    offset: float
    own_offset: float


def _neighbours(
    graph: LineageGraph,
) -> tuple[list[list[_Neighbour]], list[list[_Neighbour]]]:
    """Return the other ends of the arrows into each box, and of those out of it."""
    # An arrow names lines by their keys: the box of a line, and the middle of its
    # height.
    place_by_key: dict[str, tuple[int, float]] = {}
    for index, box in enumerate(graph.boxes):
        for line_index, line in enumerate(box.lines):
            middle = HEAD_HEIGHT + LINE_HEIGHT * (line_index + 0.5)
            place_by_key[line.key] = (index, middle)
    # Each arrow is seen from both of its ends.
    lefts: list[list[_Neighbour]] = [[] for _ in graph.boxes]
    rights: list[list[_Neighbour]] = [[] for _ in graph.boxes]
    for origin_key, target_key in graph.arrows:
        origin, origin_offset = place_by_key[origin_key]
        target, target_offset = place_by_key[target_key]
        lefts[target].append(_Neighbour(origin, origin_offset, target_offset))
        rights[origin].append(_Neighbour(target, target_offset, origin_offset))
    return lefts, rights


def _sort_and_stack(
    column: list[int],
    boxes: Sequence[GraphBox],
    tops: list[float],
    neighbours: Sequence[Sequence[_Neighbour]],
) -> None:
    """Sort the boxes of a column so that their arrows are level, and stack them.

    These are steps 2 and 4.

    Args:
        column: Indices of the boxes, which are sorted.
        boxes: All boxes.
        tops: Top of each box, which is replaced.
        neighbours: Other ends of the arrows on one side of each box.
    """
    wishes: dict[int, float] = {}
    # A box without arrows on this side wishes to stay.
    for index in column:
        ends = neighbours[index]
        wishes[index] = tops[index]
        if ends:
            level_tops = [tops[end.box] + end.offset - end.own_offset for end in ends]
            wishes[index] = sum(level_tops) / len(ends)
    # Equal wishes keep the order of the boxes, so that the drawing is reproducible.
    column.sort(key=lambda index: (wishes[index], index))
    _stack(column, boxes, tops, wishes)


def _stack(
    column: Iterable[int],
    boxes: Sequence[GraphBox],
    tops: list[float],
    wishes: Mapping[int, float],
) -> None:
    """Give the boxes of a column, in their order, tops near their wishes (step 4).

    No two boxes overlap.
    """
    # From top to bottom: only boxes that would overlap are pushed down.
    lowest_top = float("-inf")
    distance = 0.0
    for index in column:
        tops[index] = max(wishes[index], lowest_top)
        distance += tops[index] - wishes[index]
        lowest_top = tops[index] + box_height(boxes[index]) + BOX_GAP
    if not wishes:
        return
    # All boxes were pushed in one direction. The mean of it is taken back, which leaves
    # the sum of the distances from the wishes at zero.
    shift = distance / len(wishes)
    for index in wishes:
        tops[index] -= shift
