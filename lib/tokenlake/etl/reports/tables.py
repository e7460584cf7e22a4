"""Tables of typed values, as Markdown, HTML or plain records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, grid, markdown_text, tag, together

Writer = Callable[[Any], str]
"""Function that writes a value as text for people."""


@final
@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: Key that programs see, in ``--json``.
        heading: Heading that people see.
        write: Function that writes a value.
        align: Side of the cell at which a value stands.
    """

    key: str
    heading: str
    write: Writer = str
    align: Literal["left", "right"] = "left"

    def cell(self, value: object) -> str:
        """Return the written form of a value; None is empty, whatever the writer."""
        if value is None:
            return ""
        return self.write(value)


def number(
    key: str, heading: str | None = None, write: Writer = numbers.count
) -> Column:
    """Return a right-aligned column of figures; its heading is the key by default."""
    if heading is None:
        heading = key
    return Column(key, heading, write, "right")


def label(key: str, heading: str | None = None) -> Column:
    """Return a left-aligned column of text; its heading is the key by default."""
    if heading is None:
        heading = key
    return Column(key, heading)


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw values under columns, with an optional title."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str | None = None

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        records: Sequence[Mapping[str, Any]],
        title: str | None = None,
    ) -> Table:
        """Build a table from mappings.

        A missing key is an empty cell; surplus keys are left out.
        """
        rows: list[tuple[Any, ...]] = []
        for record in records:
            rows.append(tuple(record.get(column.key) for column in columns))
        return cls(tuple(columns), tuple(rows), title)

    def records(self) -> list[dict[str, Any]]:
        """Return the raw values by column key, for ``--json``."""
        keys = [column.key for column in self.columns]
        mappings: list[dict[str, Any]] = []
        for row in self.rows:
            mappings.append(dict(zip(keys, row, strict=True)))
        return mappings

    def cells(self) -> list[list[str]]:
        """Return the written values, row by row."""
        written_rows: list[list[str]] = []
        for row in self.rows:
            # Strict: a row with a value too few would shift its cells.
            pairs = zip(self.columns, row, strict=True)
            written_rows.append([column.cell(value) for column, value in pairs])
        return written_rows


def facts(pairs: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """Return a table of names and written values, such as a summary."""
    return Table((label("name", ""), label("value", "")), tuple(pairs), title)


def listed(lines: Sequence[str], title: str) -> Table:
    """Return a table of one column: lines under a title."""
    rows = tuple((line,) for line in lines)
    return Table((label("note", ""),), rows, title)


def to_markdown(table: Table) -> str:
    """Return the table as GitHub Markdown that ends in a newline.

    Cells are escaped, so that data cannot become markup.
    """
    headings: list[str] = []
    rulers: list[str] = []
    for column in table.columns:
        headings.append(markdown_text(column.heading))
        # A colon at the right end of the ruler aligns the column to the right.
        rulers.append("---:" if column.align == "right" else "---")

    lines: list[str] = []
    if table.title:
        lines += [f"### {table.title}", ""]
    lines += [_markdown_row(headings), _markdown_row(rulers)]
    for row in table.cells():
        lines.append(_markdown_row([markdown_text(cell) for cell in row]))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def to_html(table: Table) -> Html:
    """Return the table as HTML, with its title as a heading.

    A wide table scrolls by itself, so that the page stays as wide as the screen.
    """
    headings: list[str] = []
    alignments: list[Literal["left", "right"]] = []
    for column in table.columns:
        headings.append(column.heading)
        alignments.append(column.align)
    scrolled = tag("div", grid(headings, table.cells(), alignments), class_="wide")
    if not table.title:
        return scrolled
    return together([tag("h3", table.title), scrolled])
