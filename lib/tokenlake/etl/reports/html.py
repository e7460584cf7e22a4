"""The report's page, its figures, and the parts of it that a manifest says.

A page is one file that loads nothing, runs nothing, and says so to the browser. Figures are shapes in SVG that stretch
with it, and words beside them in HTML, which do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.base.numbers import count, percent
from tokenlake.etl.reports import Table, dataset, label, number, to_html
from tokenlake.etl.reports.dataset import CALLED, asked, mixture_table, order_table, share
from tokenlake.runtime.store.account import LAWS, Account
from tokenlake.runtime.store.draws import schedule_of
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import MixtureRecord

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def folded(summary: Part, *parts: Part, is_open: bool = False) -> Html:
    """Return what is shown on a click on its summary."""
    return tag("details", tag("summary", summary), *parts, open=is_open)


def section(title: str, *parts: Part) -> Html:
    """Return a part of a page, under a heading that can be linked to."""
    return tag("section", tag("h2", title), *parts, id=anchor(title))


def anchor(title: str) -> str:
    """Return what a link calls a section of this title.

    >>> anchor("Longest and shortest documents")
    'longest-and-shortest-documents'
    """
    return "-".join(title.lower().split())


def page(title: str, subtitle: str, head: Part, sections: Iterable[tuple[str, Html]]) -> str:
    """Return a whole page.

    Args:
        title, subtitle: of the page.
        head: what stands above the sections.
        sections: each with its title, by which the page's own contents link to it.
    """
    listed = list(sections)
    links = [tag("a", name, href=f"#{anchor(name)}") for name, _ in listed]
    header = tag("header", tag("h1", title), tag("p", subtitle, class_="dim"), head)
    body = [header, tag("nav", *links), *(section(name, content) for name, content in listed)]
    top = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(f"\n{_STYLE.read_text(encoding='utf-8')}")),
    )
    whole = tag("html", tag("head", *top), tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{whole.text}\n"


COLOURS: Final = 8
"""Parts of a figure are of class ``c0`` to ``c7``; the last one is grey, for what is no content."""
_STYLE: Final = Path(__file__).with_name("page.css")
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
    lines: list[Html] = []
    for piece in pieces:
        part = f" ({percent(piece.value, total)})" if total else ""
        told = f"{piece.name} {piece.written or count(int(piece.value))}{part}"
        lines.append(tag("li", tag("i", class_=f"c{piece.colour}"), told))
    return tag("ul", *lines, class_="legend")


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
    found: list[tuple[str, int]] = []
    for bits in range(min(by_bits, default=1), max(by_bits, default=0) + 1):
        low, high = (1 << bits) >> 1, (1 << bits) - 1
        name = count(low) if low >= high else f"{count(low)}-{count(high)}"
        found.append((name, by_bits.get(bits, 0)))
    return found


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
    laws, rows = [law for law in LAWS if account.count(law)], list[Html]()
    for law, after in zip(laws, [*laws[1:], None], strict=True):
        pieces, total = list[Piece](), account.count(law)
        for part in LAWS[law]:  # those by reason one by one
            name, value = CALLED.get(part, part), getattr(account, part)
            counts = (
                {name: value} if isinstance(value, int) else {f"{name}: {key}": value[key] for key in value}
            )
            for called, many in counts.items():
                colour = _GREY if part == "pad" else len(pieces) % _GREY
                pieces += [Piece(called, many, colour)] if many else []
        words = tag("div", tag("b", f"{law.replace('_', ' ')} {count(total)}"), legend(pieces, total))
        drawn = [stack(pieces)]
        if after is not None:
            part, into = _FLOWS[law]
            left, right = _span(account, law, part)
            low, high = _span(account, after, into if into in LAWS[after] else None)
            drawn.append(_drawing(40, _polygon([(left, 0), (right, 0), (high, 40), (low, 40)], "stream")))
        rows.append(tag("div", words, tag("div", *drawn, class_="drawn")))
    return tag("div", *rows, class_="flow")


def _span(account: Account, law: str, part: str | None) -> tuple[float, float]:
    """Where a part of a law begins and ends in its bar; None: the whole."""
    if part is None:
        return 0, _WIDTH
    parts = LAWS[law]
    before = sum(account.count(name) for name in parts[: parts.index(part)])
    scale = _WIDTH / account.count(law)
    return before * scale, (before + account.count(part)) * scale


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


_PLACES: Final = 64  # of a schedule that are drawn
Sections = list[tuple[str, Html]]


def tiles(manifest: Manifest) -> Html:
    """What a person wants to know first."""
    facts = [*dataset.headline(manifest).rows, ("build", manifest.fingerprint[:12])]
    return tag(
        "div",
        *(tag("div", tag("b", value), tag("span", name, class_="dim")) for name, value in facts),
        class_="tiles",
    )


def manifest_sections(manifest: Manifest, texts: Mapping[str, Account]) -> Sections:
    """Return account, sources and mixture.

    Args:
        texts: the account of each source's text; of a mixture that of its parents, as far as they are there.
    """
    remarks = [tag("p", remark) for remark in dataset.remarks(manifest.account)]
    account = [flow(manifest.account), to_html(dataset.account_table(manifest, None)), *remarks]
    found = [("Account", together(account)), ("Sources", _sources(manifest, texts))]
    if (record := manifest.mixture) is not None:
        tables = [to_html(table) for table in (mixture_table(record, None), order_table(record))]
        found.append(("Mixture", together([*_shares(record), *tables, _weights(record)])))
    return found


def _sources(manifest: Manifest, texts: Mapping[str, Account]) -> Html:
    # In the order of the mixture, so that a source has one colour on the whole page.
    names = manifest.accounts if manifest.mixture is None else manifest.mixture.sources
    sizes = {name: float(manifest.accounts[name].tokens) for name in names if name in manifest.accounts}
    pieces = coloured(sizes)
    drawn: list[Part] = [stack(pieces), legend(pieces, sum(sizes.values()))] if len(pieces) > 1 else []
    tables = [
        dataset.sources_table(manifest.accounts, None),
        density_table(texts),
        dataset.splits_table(manifest),
    ]
    return together([*drawn, *(to_html(table) for table in tables if table.rows)])


def density_table(texts: Mapping[str, Account]) -> Table:
    """Tokens per byte of text, by source; a line for each whose text is known."""
    columns = (
        label("source"),
        number("tokens"),
        number("text_bytes", "text", numbers.size),
        number("tokens_per_byte", "tokens per byte", lambda value: f"{value:.3f}"),
        number("bytes_per_token", "bytes per token", lambda value: f"{value:.2f}"),
        number("mean", "tokens per document", lambda value: f"{value:,.0f}"),
    )
    rows: list[tuple[Any, ...]] = []
    for name, each in texts.items():
        if each.text_bytes and each.tokens:
            mean = each.tokens / each.documents if each.documents else None
            ratios = each.tokens / each.text_bytes, each.text_bytes / each.tokens
            rows.append((name, each.tokens, each.text_bytes, *ratios, mean))
    return Table(columns, tuple(rows), "Tokens per byte")


def _shares(record: MixtureRecord) -> list[Part]:
    """What was asked, and what it came to, as bars below each other."""
    sources = record.sources
    found = {
        f"asked of {record.weights_by}": {name: asked(source) for name, source in sources.items()},
        "of rows": {name: source.achieved_rows for name, source in sources.items()},
        "of tokens": {name: source.achieved_tokens for name, source in sources.items()},
    }
    parts: list[Part] = []
    for title, shares in found.items():
        pieces = coloured(shares, {name: share(value) for name, value in shares.items()})
        parts += [tag("p", title, class_="dim"), stack(pieces), legend(pieces)]
    return parts


def _weights(record: MixtureRecord) -> Html:
    order, scheduler = record.order, schedule_of(record.spec)
    last = max(order.points[-1].step, -(-order.rows // order.step_rows))
    if not scheduler.changes:
        return tag("p", "The weights are the same at every step.")
    steps = sorted(
        {last * place // _PLACES for place in range(_PLACES + 1)} | {each.step for each in order.points}
    )
    drawn = areas([(step, scheduler.get_weights(step)) for step in steps], "step")
    return together([tag("h3", "Weights over steps"), drawn])


def lineage(manifest: Manifest, ancestors: Table) -> Html:
    """What it was made from, by what, and how it was asked for.

    Args:
        ancestors: the versions that it was made from, and those that these were made from.
    """
    config = json.dumps(manifest.config, indent=2, ensure_ascii=False, sort_keys=True)
    tables = [dataset.lineage_table(manifest), *([ancestors] if ancestors.rows else [])]
    tables += [dataset.tokenizers_table(manifest), dataset.inputs_table(manifest)]
    return together([*map(to_html, tables), folded("Configuration", tag("pre", config))])
