"""Figures of a page: stacked bars with legends, bars below each other, and shares that
move.

A drawing is 1,000 units wide and stretches to the width of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.base.markup import Html, tag, together
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
    return [
        Piece(name, value, index % GREY, texts.get(name, ""))
        for index, (name, value) in enumerate(values.items())
    ]


def stack(pieces: Sequence[Piece]) -> Html:
    """Draw the parts of a whole as one bar."""
    total = sum(piece.value for piece in pieces) or 1
    shapes: list[Html] = []
    left = 0.0
    for piece in pieces:
        width = WIDTH * piece.value / total
        drawn_width = max(width, _SMALLEST_PART) if piece.value else 0
        drawn_left = min(left, WIDTH - drawn_width)
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
        left += width
    return drawing(20, *shapes, height="20px")


def legend(pieces: Iterable[Piece], total: float | None = None) -> Html:
    """List the parts of a whole with their values.

    Args:
        pieces: Parts.
        total: Whole, of which each part's share is added; None for no shares.
    """
    lines: list[Html] = []
    for piece in pieces:
        text = f"{piece.name} {piece.written or count(int(piece.value))}"
        if total:
            text += f" ({percent(piece.value, total)})"
        lines.append(tag("li", tag("i", class_=f"c{piece.colour}"), text))
    return tag("ul", *lines, class_="legend")


def bars(values: Sequence[tuple[str, int]]) -> Html:
    """Draw counts as bars below each other.

    Args:
        values: Pairs (name, count).
    """
    largest = max((value for _, value in values), default=0) or 1
    rows: list[Html] = []
    for name, value in values:
        bar = tag("i", style=f"width:{100 * value / largest:.2f}%") if value else ""
        cells = [
            tag("td", name, class_="right"),
            tag("td", bar),
            tag("td", count(value), class_="right"),
        ]
        rows.append(tag("tr", *cells))
    return tag("table", tag("tbody", *rows), class_="bars")


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
    for length, number in lengths:
        bits = length.bit_length()
        count_by_bits[bits] = count_by_bits.get(bits, 0) + number

    ranges: list[tuple[str, int]] = []
    for bits in range(min(count_by_bits, default=1), max(count_by_bits, default=0) + 1):
        low = (1 << bits) >> 1
        high = (1 << bits) - 1
        name = count(low) if low >= high else f"{count(low)}-{count(high)}"
        ranges.append((name, count_by_bits.get(bits, 0)))
    return ranges


def areas(points: Sequence[tuple[float, Mapping[str, float]]], unit: str) -> Html:
    """Draw shares of a whole that change along an axis, as areas on top of each other.

    Args:
        points: Pairs (position, name -> share) with ascending positions. All have the
            same names.
        unit: Unit of the positions.
    """
    first, first_shares = points[0]
    last, last_shares = points[-1]
    span = (last - first) or 1
    across = [WIDTH * (position - first) / span for position, _ in points]

    # Each area lies on the one before it: its floor is their sum.
    floor = [0.0] * len(points)
    shapes: list[Html] = []
    for index, name in enumerate(first_shares):
        top = [
            low + shares[name] for low, (_, shares) in zip(floor, points, strict=True)
        ]
        upper_edge = [(x, 100 * y) for x, y in zip(across, top, strict=True)]
        lower_edge = [(x, 100 * y) for x, y in zip(across, floor, strict=True)]
        shapes.append(polygon([*upper_edge, *reversed(lower_edge)], f"c{index % GREY}"))
        floor = top

    # The legend gives the shares at both ends.
    shares_at_end: dict[str, float] = {}
    written: dict[str, str] = {}
    for name, first_share in first_shares.items():
        shares_at_end[name] = last_shares[name]
        written[name] = f"{percent(first_share, 1)} to {percent(last_shares[name], 1)}"
    left_end = tag("span", f"{unit} {count(int(first))}")
    ends = tag("div", left_end, tag("span", count(int(last))), class_="ends dim")
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
    """Return shapes that stretch to the width of the page. Words would stretch with
    them and belong beside it.

    Args:
        units_high: Height in units of the drawing.
        *shapes: SVG elements.
        height: Height on the page, in CSS; empty: by the style of the page.
    """
    attributes = {"viewBox": f"0 0 {WIDTH} {units_high}", "preserveAspectRatio": "none"}
    if height:
        return tag(
            "svg", *shapes, **attributes, aria_hidden="true", style=f"height:{height}"
        )
    return tag("svg", *shapes, **attributes, aria_hidden="true")
