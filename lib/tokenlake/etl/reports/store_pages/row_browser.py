"""The browser of a version's rows: a page with a sample of decoded rows.

The page's script lists the rows and searches them. All of them are in the page, because
a page that is opened as a file may not fetch others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.etl.reports.html import PageScript, page
from tokenlake.etl.reports.store_pages.contents import VersionName
from tokenlake.etl.reports.store_pages.lineage_drawing import STYLE
from tokenlake.etl.reports.store_pages.places import ABOVE_VERSION, INDEX, version_page

_SCRIPT: Final = Path(__file__).with_name("rows.js")


@final
@dataclass(frozen=True, slots=True)
class DecodedDocument:
    """A document, or a piece of one, in a row.

    Attributes:
        source: Name of its source.
        origin: Source, file and position: ``web  a.jsonl:17``.
        place: Its ids in the row, and how many count toward the loss.
        runs: Pairs (text, mark). The mark is True if the tokens count toward the loss,
            False if not, and None if the version has no loss mask.
        hidden: Sentence about text that is left out; "" if all is there.
    """

    source: str
    origin: str
    place: str
    runs: tuple[tuple[str, bool | None], ...]
    hidden: str = ""


@final
@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A row as text.

    Attributes:
        split: Name of the split.
        row: Index of the row in the split.
        shard: Path of its shard.
        content: Number of tokens, documents and padding.
        documents: Documents in the order of the row.
        kept: Values of the additional fields, by name; other values than texts are
            JSON.
        hidden: Sentence about documents that are left out; "" if all are there.
    """

    split: str
    row: int
    shard: str
    content: str
    documents: tuple[DecodedDocument, ...]
    kept: Mapping[str, str]
    hidden: str = ""


def render_rows(
    name: VersionName, rows: Sequence[DecodedRow], total_rows: int, problem: str = ""
) -> str:
    """Return the page.

    Args:
        name: Name of the version.
        rows: Decoded rows.
        total_rows: Number of rows of the version.
        problem: Sentence that says why there are no rows. Default: none.
    """
    # The trail leads to the index and to the report of the version.
    store_link = tag("a", "Store", href=f"{ABOVE_VERSION}{INDEX}")
    version_link = tag("a", str(name), href=f"{ABOVE_VERSION}{version_page(name)}")
    trail = tag("p", store_link, " / ", version_link, " / Rows", class_="trail")
    # Without rows there is nothing for the script to do, and the page has none.
    if problem or not rows:
        explanation = problem or "The version has no rows."
        return page(
            f"Rows of {name}", "", tag("p", explanation), [], trail=trail, style=STYLE
        )
    data = {"rows": [asdict(row) for row in rows]}
    subtitle = f"{numbers.plural(len(rows), 'row')} of {numbers.count(total_rows)}, at even distances"
    script = PageScript(_SCRIPT, data)
    return page(
        f"Rows of {name}",
        subtitle,
        _browser(name, rows),
        [],
        trail=trail,
        style=STYLE,
        script=script,
    )


def _browser(name: VersionName, rows: Sequence[DecodedRow]) -> Html:
    """Return the controls and the empty parts that the script fills."""
    splits: dict[str, None] = {}
    documents: list[DecodedDocument] = []
    for row in rows:
        splits[row.split] = None
        documents += row.documents
    sources = {document.source for document in documents}

    # The controls: a search field, and menus where there is a choice.
    field = tag(
        "input",
        type="search",
        id="search",
        placeholder="Text, file, position, or field:value",
    )
    controls: list[Part] = [tag("label", "Search ", field)]
    controls += [" ", _choice("split", list(splits))]
    controls += [" ", _choice("source", sorted(sources))]
    # The legend explains the marks of tokens; without a loss mask there are none.
    legend: Part = ""
    if any(_has_marks(document) for document in documents):
        counts = tag("span", "count toward the loss", class_="on")
        legend = tag(
            "p",
            "Tokens with this background ",
            counts,
            "; the others do not.",
            class_="dim",
        )
    # Explanations, also for a browser without scripts; then the list of rows on the
    # left, and the chosen row beside it.
    help_text = (
        "All words must occur in a row: in its text, its files and positions, or its kept fields. "
        "row:12, file:a.jsonl, source:web and the name of a kept field look there only."
    )
    without_scripts = f"The browser of rows needs scripts. `tokenlake peek {name}` shows rows in a terminal."
    list_pane = tag(
        "div",
        tag("p", id="count", class_="dim"),
        tag("div", id="list"),
        class_="side",
    )
    row_pane = tag("div", id="row", aria_live="polite")
    return together(
        [
            tag("noscript", tag("p", without_scripts)),
            tag("p", *controls, class_="script controls"),
            tag("p", help_text, class_="dim script"),
            legend,
            tag("div", list_pane, row_pane, class_="browser"),
        ]
    )


def _has_marks(document: DecodedDocument) -> bool:
    """Return True if a loss mask marks the tokens of a document."""
    return any(mark is not None for _, mark in document.runs)


def _choice(name: str, values: Sequence[str]) -> Part:
    """Return a menu of values with an entry for all; nothing if there is no choice."""
    if len(values) < 2:
        return ""
    options = [tag("option", f"all {name}s", value="")]
    for value in values:
        options.append(tag("option", value, value=value))
    return tag("select", *options, id=name, aria_label=name)
