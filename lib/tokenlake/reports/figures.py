"""Figures of a page: shapes in SVG that stretch with it, and words beside them in HTML, which do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.markup import Html, tag, together
from tokenlake.numbers import count, percent
from tokenlake.reports.dataset import CALLED
from tokenlake.reports.html import COLOURS
from tokenlake.store.account import LAWS, Account

_WIDTH: Final = 1000  # of a drawing, in its own units
_GREY: Final = COLOURS - 1


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a whole.

    Attributes:
        name: as a legend calls it.
        value: how much it is.
        colour: 0 to 7.
        written: of the value; empty: as a number.
    """

    name: str
    value: float
    colour: int
    written: str = ""


def coloured(values: Mapping[str, float], written: Mapping[str, str] | None = None) -> list[Piece]:
    """Return the parts of a whole, each with a colour by its place."""
    told = written or {}
    return [
        Piece(name, value, index % _GREY, told.get(name, ""))
        for index, (name, value) in enumerate(values.items())
    ]


def stack(pieces: Sequence[Piece]) -> Html:
    """Draw the parts of a whole as one bar."""
    total = sum(piece.value for piece in pieces) or 1
    shapes, at = list[Html](), 0.0
    for piece in pieces:
        width = _WIDTH * piece.value / total
        # What there is little of is seen all the same.
        drawn = max(width, 2) if piece.value else 0
        shapes.append(
            tag("rect", x=min(at, _WIDTH - drawn), y=0, width=drawn, height=20, class_=f"c{piece.colour}")
        )
        at += width
    return _drawing(20, *shapes, height="20px")


def legend(pieces: Iterable[Piece], total: float | None = None) -> Html:
    """Name the parts of a whole, with their values, and their shares of a total."""
    return tag("ul", *(_named(piece, total) for piece in pieces), class_="legend")


def _named(piece: Piece, total: float | None) -> Html:
    value = piece.written or count(int(piece.value))
    part = f" ({percent(piece.value, total)})" if total else ""
    return tag("li", tag("i", class_=f"c{piece.colour}"), f"{piece.name} {value}{part}")


def bars(values: Sequence[tuple[str, int]]) -> Html:
    """Draw counts as bars below each other."""
    most = max((value for _, value in values), default=0) or 1
    rows = [
        tag(
            "tr",
            tag("td", name, class_="right"),
            tag("td", tag("i", style=f"width:{100 * value / most:.2f}%") if value else ""),
            tag("td", count(value), class_="right"),
        )
        for name, value in values
    ]
    return tag("table", tag("tbody", *rows), class_="bars")


def doubling(lengths: Iterable[tuple[int, int]]) -> list[tuple[str, int]]:
    """Count lengths by ranges that double, from the shortest one there is to the longest.

    Args:
        lengths: (length, how many of it), from 1 on.

    Returns:
        (``256-511``, how many).
    """
    by_bits: dict[int, int] = {}
    for length, many in lengths:
        by_bits[length.bit_length()] = by_bits.get(length.bit_length(), 0) + many
    found = range(min(by_bits, default=1), max(by_bits, default=0) + 1)
    return [(_range(bits), by_bits.get(bits, 0)) for bits in found]


def _range(bits: int) -> str:
    low, high = (1 << bits) >> 1, (1 << bits) - 1
    return count(low) if low >= high else f"{count(low)}-{count(high)}"


def areas(points: Sequence[tuple[float, Mapping[str, float]]], unit: str) -> Html:
    """Draw how shares of a whole move.

    Args:
        points: (place, name -> share), places ascending; of the same names each.
        unit: of the places.
    """
    first, last = points[0][0], points[-1][0]
    span, names = (last - first) or 1, list(points[0][1])
    floor = [0.0] * len(points)
    shapes = list[Html]()
    for index, name in enumerate(names):
        top = [low + shares[name] for low, (_, shares) in zip(floor, points, strict=True)]
        line = [(_WIDTH * (x - first) / span, 100 * y) for (x, _), y in zip(points, top, strict=True)]
        under = [(_WIDTH * (x - first) / span, 100 * y) for (x, _), y in zip(points, floor, strict=True)]
        shapes.append(_polygon([*line, *reversed(under)], f"c{index % _GREY}"))
        floor = top
    ends = tag(
        "div", tag("span", f"{unit} {count(int(first))}"), tag("span", count(int(last))), class_="ends dim"
    )
    whole = {name: points[-1][1][name] for name in names}
    told = {name: f"{percent(points[0][1][name], 1)} to {percent(whole[name], 1)}" for name in names}
    return together([_drawing(100, *shapes, height="140px"), ends, legend(coloured(whole, told))])


_FLOWS: Final = {
    "rows_read": ("kept", "kept"),
    "documents": (None, None),
    "tokens": ("content_packed", "content_packed"),
}
"""Of each law which part goes on, and which part of the next law it is; None: all of it."""


def flow(account: Account) -> Html:
    """Draw where every row and every token went: a bar for each law of the account, and what goes on to the next."""
    laws = [law for law in LAWS if account.count(law)]
    rows = [_stage(account, law, after) for law, after in zip(laws, [*laws[1:], None], strict=True)]
    return tag("div", *rows, class_="flow")


def _stage(account: Account, law: str, after: str | None) -> Html:
    pieces, total = _pieces(account, law), account.count(law)
    words = tag("div", tag("b", f"{law.replace('_', ' ')} {count(total)}"), legend(pieces, total))
    drawn = [stack(pieces)]
    if after is not None:
        part, into = _FLOWS[law]
        drawn.append(
            _stream(_span(account, law, part), _span(account, after, into if into in LAWS[after] else None))
        )
    return tag("div", words, tag("div", *drawn, class_="drawn"))


def _pieces(account: Account, law: str) -> list[Piece]:
    """The parts of a law, those by reason one by one; none that are 0."""
    found: list[Piece] = []
    for part in LAWS[law]:
        name, value = CALLED.get(part, part), getattr(account, part)
        counts = {name: value} if isinstance(value, int) else {f"{name}: {key}": value[key] for key in value}
        for called, many in counts.items():
            colour = _GREY if part == "pad" else len(found) % _GREY
            found += [Piece(called, many, colour)] if many else []
    return found


def _span(account: Account, law: str, part: str | None) -> tuple[float, float]:
    """Where a part of a law begins and ends in its bar; None: the whole."""
    if part is None:
        return 0, _WIDTH
    parts = LAWS[law]
    before = sum(account.count(name) for name in parts[: parts.index(part)])
    scale = _WIDTH / account.count(law)
    return before * scale, (before + account.count(part)) * scale


def _stream(top: tuple[float, float], bottom: tuple[float, float]) -> Html:
    corners = [(top[0], 0), (top[1], 0), (bottom[1], 40), (bottom[0], 40)]
    return _drawing(40, _polygon(corners, "stream"))


def _polygon(corners: Iterable[tuple[float, float]], class_: str) -> Html:
    return tag("polygon", points=" ".join(f"{x:.5g},{y:.5g}" for x, y in corners), class_=class_)


def _drawing(high: int, *shapes: Html, height: str = "") -> Html:
    """Shapes that stretch to the width of the page; words in them would, too, so there are none."""
    style = {"style": f"height:{height}"} if height else {}
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {_WIDTH} {high}",
        preserveAspectRatio="none",
        aria_hidden="true",
        **style,
    )
