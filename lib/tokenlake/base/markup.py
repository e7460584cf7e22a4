"""Text of data, made safe to show in a terminal and on a page.

It must not drive the terminal, and must not be HTML on the page.

::

    tag("p", "a < b, ", tag("b", "bold"), class_="note")      # <p class="note">a &lt; b, <b>bold</b></p>

Only :func:`tag` makes :class:`Html` of data, so that no name, reason or text of a
document can become a tag. Pages (``reports/html.py``), tables (``reports``) and the view
of an object in a notebook are made of it. Anything that is not :class:`Html` is text,
and text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

_SHOWN: Final = 20
"""Number of rows of a table that a notebook shows."""
_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
)
_VOID: Final = frozenset({"meta", "br"})
"""Elements without an end tag."""


@final
@dataclass(frozen=True, slots=True)
class Html:
    """Markup, as :func:`tag` made it."""

    text: str


Part: TypeAlias = Html | str
"""Content of an element: markup, or text that is escaped."""


def tag(name: str, *parts: Part, **attributes: str | float | bool) -> Html:
    """Make an element; control characters in texts are made visible.

    Args:
        name: Name of the element.
        parts: Content of the element.
        attributes: Attributes by name; ``class_`` stands for ``class``, ``aria_hidden``
            for ``aria-hidden``. True is an attribute without a value, False none.
    """
    written: list[str] = []
    # A keyword cannot be `class`, nor have a hyphen.
    for keyword, value in attributes.items():
        attribute = keyword.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {attribute}")
        elif value is not False:
            written.append(f' {attribute}="{_escaped(_written(value))}"')
    opening = f"<{name}{''.join(written)}>"
    if name in _VOID:
        return Html(opening)
    return Html(f"{opening}{together(parts).text}</{name}>")


def together(parts: Iterable[Part]) -> Html:
    """Return parts, one after the other."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, Html):
            texts.append(part.text)
        else:
            texts.append(_escaped(part))
    return Html("".join(texts))


def grid(
    heads: Sequence[str], rows: Iterable[Sequence[str]], sides: Sequence[str]
) -> Html:
    """Return a table; without a line of headings if all headings are empty.

    Args:
        heads: Heading of each column.
        rows: Cells of each row, as text.
        sides: ``left`` or ``right`` for each column, the class of its cells.
    """
    sections: list[Html] = []
    if any(heads):
        sections.append(tag("thead", _table_row("th", heads, sides)))
    body_rows = [_table_row("td", row, sides) for row in rows]
    sections.append(tag("tbody", *body_rows))
    return tag("table", *sections)


def _table_row(cell_tag: str, cells: Sequence[str], sides: Sequence[str]) -> Html:
    """Return a row of a table."""
    elements: list[Html] = []
    for cell, side in zip(cells, sides, strict=True):
        elements.append(tag(cell_tag, cell, class_=side))
    return tag("tr", *elements)


def named_facts(
    title: str,
    facts: Mapping[str, object],
    heads: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """Return the HTML of an object in a notebook: its title, its facts, and a table.

    Args:
        title: Title, in bold.
        facts: Values by name. None and "" are left out, integers have commas.
        heads: Headings of the table.
        rows: Rows of the table; the first 20 are shown.
    """
    # Facts without a value are not shown at all.
    lines: list[tuple[str, str]] = []
    for name, value in facts.items():
        if value not in (None, ""):
            lines.append((name, _fact(value)))
    elements = [tag("b", title), grid(("", ""), lines, ("left", "left"))]
    if rows:
        elements.append(grid(heads, rows[:_SHOWN], ["left"] * len(heads)))
    if len(rows) > _SHOWN:
        elements.append(tag("p", f"and {len(rows) - _SHOWN:,} more"))
    return tag("div", *elements).text


def _fact(value: object) -> str:
    """Return a value as text; an integer has commas."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _escaped(text: str) -> str:
    return printable(text).translate(_ESCAPES)


def _written(value: str | float) -> str:
    """Return the value of an attribute as text."""
    if isinstance(value, str):
        return value
    return f"{value:.6g}"


def printable(text: str) -> str:
    """Return a text with visible control characters.

    Data must not control the reader's terminal.

    Line ends and tabs stay. Also escaped: the C1 range, the marks that reorder text,
    and halves of surrogate pairs, which no file of text can hold.
    """
    return text.translate(VISIBLE)


def _visible() -> dict[int, str]:
    """Return the escapes of control characters, marks that reorder text, and surrogates.

    Control characters are those of the ranges C0 and C1.
    """
    controls = [
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        0x200E,
        0x200F,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ]
    # Line ends and tabs are text.
    escapes: dict[int, str] = {}
    for code in controls:
        if chr(code) not in "\n\t":
            escapes[code] = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return escapes


VISIBLE: Final[Any] = _visible()
"""Control character -> its text in :func:`printable`."""


def printable_json(text: str) -> str:
    """Return JSON with the same characters escaped.

    ``json`` itself escapes only characters below the space.
    """
    return text.translate(_IN_JSON)


_IN_JSON: Final[Any] = {code: f"\\u{code:04x}" for code in VISIBLE if code > 0x20}


def one_line(text: str) -> str:
    """Return a text as :func:`printable` does, with visible line ends and tabs."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


_MARKDOWN: Final = str.maketrans(
    {
        "\\": "\\\\",
        "|": "\\|",
        "`": "\\`",
        "*": "\\*",
        "[": "\\[",
        "<": "&lt;",
        "\r": " ",
        "\n": " ",
    }
)
_ENTITY: Final = re.compile(r"&(?=#?\w+;)")
_BACKTICKS: Final = re.compile(r"`+")


def markdown_text(text: str) -> str:
    """Return a text of data for a line or a cell of Markdown.

    No markup, link or HTML begins in it.
    """
    # An entity such as &lt; would become the character; a lone & is text.
    return printable(_ENTITY.sub("&amp;", text).translate(_MARKDOWN))


def code_span(text: str) -> str:
    """Return a text of data as code of Markdown, whatever it holds: `` `name` ``."""
    visible_text = one_line(text)
    longest = max(map(len, _BACKTICKS.findall(visible_text)), default=0)
    fence = "`" * (longest + 1)
    # A backtick at an end, or a space at both, would be taken for a part of the fence.
    is_plain = not longest and visible_text.strip()
    if is_plain:
        return f"{fence}{visible_text}{fence}"
    return f"{fence} {visible_text} {fence}"


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: it has no half of a surrogate pair."""
    # ASCII is known without encoding.
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
