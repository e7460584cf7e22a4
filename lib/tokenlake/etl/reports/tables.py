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
    """One column: the key programs see, the heading people see, and how a value is written."""

    key: str
    heading: str
    write: Writer = str
    align: Literal["left", "right"] = "left"

    def cell(self, value: object) -> str:
        """The written form of ``value``; ``None`` is empty whatever the writer."""
        return "" if value is None else self.write(value)


def number(key: str, heading: str | None = None, write: Writer = numbers.count) -> Column:
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
        cls, columns: Sequence[Column], records: Sequence[Mapping[str, Any]], title: str | None = None
    ) -> Table:
        """Build a table from mappings; a missing key is an empty cell, surplus keys are left out."""
        rows = tuple(tuple(record.get(column.key) for column in columns) for record in records)
        return cls(tuple(columns), rows, title)

    def records(self) -> list[dict[str, Any]]:
        """Raw values by column key, for ``--json``."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Written values, row by row."""
        return [[c.cell(v) for c, v in zip(self.columns, row, strict=True)] for row in self.rows]


def facts(pairs: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """A two-column table of names and written values, e.g. a summary."""
    return Table((label("name", ""), label("value", "")), tuple(pairs), title)


def listed(lines: Sequence[str], title: str) -> Table:
    """A table of one column: lines under a title."""
    return Table((label("note", ""),), tuple((line,) for line in lines), title)


def to_markdown(table: Table) -> str:
    """The table as GitHub Markdown, ending in a newline; what would be markup in a cell is escaped."""
    heads = [markdown_text(column.heading) for column in table.columns]
    rules = ["---:" if column.align == "right" else "---" for column in table.columns]
    body = [[markdown_text(cell) for cell in row] for row in table.cells()]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rules, *body)]
    title = [f"### {table.title}", ""] if table.title else []
    return "\n".join([*title, *lines]) + "\n"


def to_html(table: Table) -> Html:
    """The table as HTML, its title as a heading; a wide one scrolls by itself."""
    heads, sides = [column.heading for column in table.columns], [column.align for column in table.columns]
    shown = tag("div", grid(heads, table.cells(), sides), class_="wide")
    return together([tag("h3", table.title), shown]) if table.title else shown
