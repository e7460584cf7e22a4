"""The page with the lineage of a store: its graph as SVG, in pixels of the screen."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, Part, tag
from tokenlake.etl.reports.html import COLOURS, PageScript, page
from tokenlake.etl.reports.store_pages.contents import StoreContents
from tokenlake.etl.reports.store_pages.graph_layout import (
    BOX_WIDTH,
    COLUMN_GAP,
    HEAD_HEIGHT,
    LINE_HEIGHT,
    PlacedBox,
    place_boxes,
)
from tokenlake.etl.reports.store_pages.lineage_graph import (
    SHOWN_VERSIONS,
    GraphLine,
    LineageGraph,
    build_graph,
)
from tokenlake.etl.reports.store_pages.places import INDEX

STYLE: Final = Path(__file__).with_name("pages.css")
"""Style sheet of the pages of a store, in addition to that of all pages."""

_SCRIPT: Final = Path(__file__).with_name("lineage.js")

# Number of narrow characters for which a line of a box has room.
_LINE_CHARACTERS: Final = 34

# Legend: kind of a line -> its name.
_KIND_NAMES: Final = {
    "inputs": "input files",
    "tokens": "tokens",
    "rows": "rows",
    "mixture": "mixture",
    "absent": "not in this store",
    "exports": "export",
    "statements": "statement",
}


def render_lineage(contents: StoreContents) -> str:
    """Return the page: notes and a search field above the graph."""
    # The trail leads back to the index.
    graph = build_graph(contents)
    trail = tag("p", tag("a", "Store", href=INDEX), " / Lineage", class_="trail")
    head: Part = tag("p", "The store has no committed versions yet.")
    if graph.boxes:
        head = tag(
            "div",
            _note(graph),
            _controls(),
            tag("div", draw(graph), class_="wide graph"),
        )
    script = PageScript(_SCRIPT)
    return page(
        "Lineage", contents.url, head, [], trail=trail, style=STYLE, script=script
    )


def _note(graph: LineageGraph) -> Html:
    """Return the sentences above the graph."""
    # The arrows point to the results, unlike references, which point to the origins.
    sentences = [
        "Arrows lead from a version to the versions, exports and statements that were made from it."
    ]
    if graph.folded:
        sentences.append(
            f"The {SHOWN_VERSIONS} newest versions of each dataset are shown, with all that they were made from; "
            f"{numbers.plural(graph.folded, 'older version')} share a line per dataset."
        )
    # Only kinds that occur have an entry, in the order of their first boxes.
    kinds = dict.fromkeys(box.kind for box in graph.boxes)
    legend: list[Html] = []
    for line_kind in kinds:
        swatch = tag("i", class_=f"kind-{line_kind}")
        legend.append(tag("li", swatch, _KIND_NAMES[line_kind]))
    return tag(
        "div",
        tag("p", " ".join(sentences), class_="dim"),
        tag("ul", *legend, class_="legend"),
    )


def _controls() -> Html:
    """Return the search field; a browser without scripts does not show it."""
    field = tag(
        "input",
        type="search",
        id="search",
        placeholder="Find a dataset, version or tag",
    )
    return tag(
        "p",
        tag("label", "Search ", field),
        " ",
        tag("span", id="count", class_="dim"),
        class_="script",
    )


def draw(graph: LineageGraph) -> Html:
    """Return the graph as SVG. Arrows are drawn first, below the boxes."""
    placed_boxes = place_boxes(graph)

    # Arrows refer to lines. They take the colour of the box from which they come, so
    # that the arrows of a dataset can be told from those of others.
    point_by_key: dict[str, tuple[float, float]] = {}
    colour_by_key: dict[str, int] = {}
    for box_index, placed_box in enumerate(placed_boxes):
        for line_index, line in enumerate(placed_box.box.lines):
            point_by_key[line.key] = placed_box.x, placed_box.line_y(line_index)
            colour_by_key[line.key] = box_index % (COLOURS - 1)

    arrows: list[Html] = []
    for origin, target in graph.arrows:
        arrows.append(_arrow(origin, target, point_by_key, colour_by_key[origin]))
    boxes: list[Html] = []
    width = 0.0
    height = 0.0
    for placed_box in placed_boxes:
        boxes.append(_box(placed_box))
        width = max(width, placed_box.x + BOX_WIDTH)
        height = max(height, placed_box.y + placed_box.height)
    # A border of two pixels, so that no line at an edge is cut.
    attributes = {"viewBox": f"-2 -2 {width + 4:.0f} {height + 4:.0f}"}
    return tag(
        "svg",
        tag("g", *arrows, class_="arrows"),
        *boxes,
        **attributes,
        width=width + 4,
        height=height + 4,
        role="img",
        aria_label="Lineage of the versions of this store",
    )


def _arrow(
    origin: str, target: str, points: Mapping[str, tuple[float, float]], colour: int
) -> Html:
    """Return a curve from the right end of a line to the left end of another one."""
    # A Bezier curve: both of its ends are level, and it bends in the gap between the
    # columns.
    left, start_y = points[origin]
    start_x = left + BOX_WIDTH
    end_x, end_y = points[target]
    bend = COLUMN_GAP / 2
    curve = (
        f"M{start_x:.0f},{start_y:.1f} "
        f"C{start_x + bend:.0f},{start_y:.1f} {end_x - bend:.0f},{end_y:.1f} {end_x:.0f},{end_y:.1f}"
    )
    return tag("path", d=curve, class_=f"s{colour}", data_from=origin, data_to=target)


def _box(placed: PlacedBox) -> Html:
    """Return a box: a frame, a title and its lines.

    An `svg` element within the drawing cuts off texts that are too long for the box.
    """
    box = placed.box
    rows: list[Html] = []
    for line_index, line in enumerate(box.lines):
        rows.append(_line(line, HEAD_HEIGHT + LINE_HEIGHT * line_index))
    frame = tag(
        "rect",
        width=BOX_WIDTH,
        height=placed.height,
        rx=6,
        class_=f"box kind-{box.kind}",
    )
    shown_title = _shortened(box.title, _LINE_CHARACTERS - 7)  # bold letters are wider
    title = tag("text", shown_title, tag("title", box.title), x=10, y=19, class_="name")
    size = {"x": placed.x, "y": placed.y, "width": BOX_WIDTH, "height": placed.height}
    return tag("svg", frame, title, *rows, **size, class_="part")


def _line(line: GraphLine, top: int) -> Html:
    """Return a line of a box: a label on the left, and a detail on the right.

    It is a link if the line has a page.
    """
    middle = top + 16
    # The full text appears at the pointer, because the label may be shortened. The
    # search looks at it, too.
    full_text = f"{line.title} {line.label}"
    if line.detail:
        full_text += f": {line.detail}"
    label = _shortened(line.label, _LINE_CHARACTERS - _width(line.detail))
    # The first shape is the background, which the script colours for lines that match.
    shapes = [
        tag(
            "rect",
            x=1,
            y=top,
            width=BOX_WIDTH - 2,
            height=LINE_HEIGHT - 1,
            rx=4,
            class_="back",
        ),
        tag("text", label, x=10, y=middle),
        tag("text", line.detail, x=BOX_WIDTH - 10, y=middle, class_="detail"),
        tag("title", full_text),
    ]
    content = tag("g", *shapes)
    if line.link:
        content = tag("a", *shapes, href=line.link)
    return tag(
        "g", content, class_="line", data_key=line.key, data_text=full_text.lower()
    )


def _width(text: str) -> int:
    """Return the width of a text, in narrow characters.

    Chinese, Japanese and Korean characters are twice as wide.
    """
    width = len(text)
    for character in text:
        # W and F: wide and full-width characters of Unicode's annex 11.
        if unicodedata.east_asian_width(character) in "WF":
            width += 1
    return width


def _shortened(text: str, most_width: int) -> str:
    """Return a text that is at most so wide, in narrow characters.

    Three points replace the end of a longer text.
    >>> _shortened("pretraining-data", 10)
    'pretrai...'
    """
    if _width(text) <= most_width:
        return text
    # The three points take three places of the width.
    shown = text
    while shown and _width(shown) > most_width - 3:
        shown = shown[:-1]
    return f"{shown}..."
