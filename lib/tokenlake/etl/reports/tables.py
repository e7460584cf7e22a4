"""Tables of typed values, as Markdown, HTML or plain records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, grid, markdown_text, tag, together

Writer = Callable[[Any], str]


@final
@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key programs see, the heading people see, and how a value is
    written.
    """

    key: str
    heading: str
    write: Writer = str
    align: Literal["left", "right"] = "left"

    def cell(self, value: object) -> str:
        """The written form of ``value``; ``None`` is empty whatever the writer."""
        return "" if value is None else self.write(value)


def number(
    key: str, heading: str | None = None, write: Writer = numbers.count
) -> Column:
    """A right-aligned column of figures."""
    return Column(key, key if heading is None else heading, write, "right")


def label(key: str, heading: str | None = None) -> Column:
    """A left-aligned column of text."""
    return Column(key, key if heading is None else heading)


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
        """Build a table from mappings; a missing key is an empty cell, surplus keys
        are left out.
        """
        rows = tuple(
            tuple(record.get(column.key) for column in columns) for record in records
        )
        return cls(tuple(columns), rows, title)

    def records(self) -> list[dict[str, Any]]:
        """Raw values by column key, for ``--json``."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Written values, row by row."""
        return [
            [c.cell(v) for c, v in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def facts(pairs: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """A two-column table of names and written values, e.g. a summary."""
    return Table((label("name", ""), label("value", "")), tuple(pairs), title)


def listed(lines: Sequence[str], title: str) -> Table:
    """A table of one column: lines under a title."""
    return Table((label("note", ""),), tuple((line,) for line in lines), title)


def to_markdown(table: Table) -> str:
    """Return the table as GitHub Markdown that ends in a newline; cells are escaped,
    so that they hold no markup.
    """
    headings = [markdown_text(column.heading) for column in table.columns]
    rules = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [headings, rules]
    rows += [[markdown_text(cell) for cell in cells] for cells in table.cells()]

    lines: list[str] = []
    if table.title:
        lines += [f"### {table.title}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> Html:
    """Return the table as HTML, with its title as a heading; a wide table scrolls by
    itself.
    """
    headings = [column.heading for column in table.columns]
    alignments = [column.align for column in table.columns]
    scrolled = tag("div", grid(headings, table.cells(), alignments), class_="wide")
    if not table.title:
        return scrolled
    return together([tag("h3", table.title), scrolled])
