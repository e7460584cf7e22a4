"""Figures of a page: stacked bars with legends, bar charts, and shares that move.

A drawing is 1,000 units wide and stretches to the width of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.base.numbers import count, percent

COLOURS: Final = 8
"""Number of colours: the parts of a figure have the classes ``c0`` to ``c7``. The
last is grey, for padding.
"""

GREY: Final = COLOURS - 1
"""Colour of padding, which is no content."""

WIDTH: Final = 1000
"""Width of a drawing, in its own units."""

_SMALLEST_PART: Final = 2  # in the same units; a smaller part would be invisible


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a whole.

    Attributes:
        name: Name in the legend.
        value: Size of the part.
        colour: Number of its colour, 0 to 7.
        written: Text of the value in the legend; empty: the value as a whole number.
    """

    name: str
    value: float
    colour: int
    written: str = ""


def coloured(
    values: Mapping[str, float], written: Mapping[str, str] | None = None
) -> list[Piece]:
    """Return the parts of a whole, with colours by their places.

    Args:
        values: Name -> value.
        written: Name -> text of the value in the legend; a name may be missing.
    """
    texts = written or {}
    pieces: list[Piece] = []
    for index, (name, value) in enumerate(values.items()):
        # Grey is never taken: it means padding on every page.
        pieces.append(Piece(name, value, index % GREY, texts.get(name, "")))
    return pieces


def stack(pieces: Sequence[Piece]) -> Html:
    """Draw the parts of a whole as one bar."""
    # A total of 0 would divide by zero; then no part has a width.
    total = sum(piece.value for piece in pieces) or 1
    shapes: list[Html] = []
    left_edge = 0.0
    for piece in pieces:
        # A part that is too small is widened. At the right edge it moves to the left,
        # so that it is not cut off. Only a part of 0 is not visible.
        width = WIDTH * piece.value / total
        drawn_width = 0.0
        if piece.value:
            drawn_width = max(width, _SMALLEST_PART)
        drawn_left = min(left_edge, WIDTH - drawn_width)
        shapes.append(
            tag(
                "rect",
                x=drawn_left,
                y=0,
                width=drawn_width,
                height=20,
                class_=f"c{piece.colour}",
            )
        )
        left_edge += width
    return drawing(20, *shapes, height="20px")


def legend(pieces: Iterable[Piece], total: float | None = None) -> Html:
    """List the parts of a whole with their values.

    Args:
        pieces: Parts.
        total: Whole, of which each part's share is added; None for no shares.
    """
    lines: list[Html] = []
    for piece in pieces:
        entry_text = f"{piece.name} {piece.written or count(int(piece.value))}"
        # Shares need a whole; the legend of a mixture gives shares as values already.
        if total:
            entry_text += f" ({percent(piece.value, total)})"
        lines.append(tag("li", tag("i", class_=f"c{piece.colour}"), entry_text))
    return tag("ul", *lines, class_="legend")


def bars(values: Sequence[tuple[str, int]]) -> Html:
    """Draw counts as bars below each other.

    Args:
        values: Pairs (name, count).
    """
    # The longest bar has the whole width, and a count of 0 has no bar.
    largest = max((bar_count for _, bar_count in values), default=0) or 1
    table_rows: list[Html] = []
    for bar_name, bar_count in values:
        bar: Part = ""
        if bar_count:
            bar = tag("i", style=f"width:{100 * bar_count / largest:.2f}%")
        cells = [
            tag("td", bar_name, class_="right"),
            tag("td", bar),
            tag("td", count(bar_count), class_="right"),
        ]
        table_rows.append(tag("tr", *cells))
    return tag("table", tag("tbody", *table_rows), class_="bars")


def doubling(lengths: Iterable[tuple[int, int]]) -> list[tuple[str, int]]:
    """Count lengths by ranges that double, from the shortest length to the longest.

    >>> doubling([(3, 10), (4, 1), (9, 2)])
    [('2-3', 10), ('4-7', 1), ('8-15', 2)]

    Args:
        lengths: Pairs (length, number of documents of this length); lengths are at
            least 1.

    Returns:
        Pairs (range, number of documents).
    """
    # The range of a length is given by its number of bits: 4 to 7 have three.
    count_by_bits: dict[int, int] = {}
    for length, documents in lengths:
        bit_count = length.bit_length()
        count_by_bits[bit_count] = count_by_bits.get(bit_count, 0) + documents

    # Ranges without documents are listed, too, so that the bars have an even scale.
    least_bits = min(count_by_bits, default=1)
    most_bits = max(count_by_bits, default=0)
    ranges: list[tuple[str, int]] = []
    for bit_count in range(least_bits, most_bits + 1):
        # A length of 0 has no bits; halving the power of two gives it the range 0 to 0.
        least_length = (1 << bit_count) >> 1
        largest_length = (1 << bit_count) - 1
        range_name = count(least_length)
        if least_length < largest_length:
            range_name += f"-{count(largest_length)}"
        ranges.append((range_name, count_by_bits.get(bit_count, 0)))
    return ranges


def areas(points: Sequence[tuple[float, Mapping[str, float]]], unit: str) -> Html:
    """Draw shares of a whole that change along an axis, as areas on top of each other.

    Args:
        points: Pairs (position, name -> share) with ascending positions. All have the
            same names.
        unit: Unit of the positions.
    """
    first_position, first_shares = points[0]
    last_position, last_shares = points[-1]
    # A schedule of one point has no length; 1 avoids a division by zero.
    span = (last_position - first_position) or 1
    across: list[float] = []
    for position, _ in points:
        across.append(WIDTH * (position - first_position) / span)

    # Each area lies on the one before it: its floor is their sum. An area is a polygon
    # of its upper edge from left to right, and its lower edge from right to left.
    floor = [0.0] * len(points)
    shapes: list[Html] = []
    for index, name in enumerate(first_shares):
        upper_edge: list[tuple[float, float]] = []
        lower_edge: list[tuple[float, float]] = []
        ceiling: list[float] = []
        for x, below, (_, shares) in zip(across, floor, points, strict=True):
            above = below + shares[name]
            ceiling.append(above)
            upper_edge.append((x, 100 * above))
            lower_edge.append((x, 100 * below))
        shapes.append(polygon([*upper_edge, *reversed(lower_edge)], f"c{index % GREY}"))
        floor = ceiling

    # The legend gives the shares at both ends.
    shares_at_end: dict[str, float] = {}
    written: dict[str, str] = {}
    for name, first_share in first_shares.items():
        shares_at_end[name] = last_shares[name]
        written[name] = f"{percent(first_share, 1)} to {percent(last_shares[name], 1)}"
    left_end = tag("span", f"{unit} {count(int(first_position))}")
    right_end = tag("span", count(int(last_position)))
    ends = tag("div", left_end, right_end, class_="ends dim")
    return together(
        [
            drawing(100, *shapes, height="140px"),
            ends,
            legend(coloured(shares_at_end, written)),
        ]
    )


def polygon(corners: Iterable[tuple[float, float]], class_: str) -> Html:
    """Return a polygon of a class by its corners (x, y)."""
    return tag(
        "polygon",
        points=" ".join(f"{x:.5g},{y:.5g}" for x, y in corners),
        class_=class_,
    )


def drawing(units_high: int, *shapes: Html, height: str = "") -> Html:
    """Return shapes that stretch to the width of the page.

    Words would stretch with them, and therefore stand beside the drawing.

    Args:
        units_high: Height in units of the drawing.
        *shapes: SVG elements.
        height: Height on the page, in CSS; empty: by the style of the page.
    """
    # Without the second attribute a browser would keep the proportions, and leave the
    # page's width unused.
    attributes = {"viewBox": f"0 0 {WIDTH} {units_high}", "preserveAspectRatio": "none"}
    if height:
        return tag(
            "svg", *shapes, **attributes, aria_hidden="true", style=f"height:{height}"
        )
    return tag("svg", *shapes, **attributes, aria_hidden="true")
