"""Sections of a docstring in Google style, for the pages of the reference and for the
tests of docstrings.

A docstring is a summary, prose, and sections, each with a title that ends in a colon and indented lines below it::

    Return the mean.

    Args:
        values: Numbers, float64[n].

    Returns:
        The mean.

`parse` returns the prose as text, the sections of named entries (``Args``,
``Attributes``, ``Raises``) as pairs of a name and its text, and the others
(``Returns``, ``Yields``, ``Example``) as text.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Final

NAMED: Final = ("Args", "Attributes", "Raises")
"""Sections that consist of entries ``name: text``."""

PLAIN: Final = ("Returns", "Yields", "Example")
"""Sections that consist of text."""

_TITLE: Final = re.compile(rf"({'|'.join((*NAMED, *PLAIN))}):$")
_ENTRY: Final = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)$")


@dataclass(frozen=True)
class ParsedDocstring:
    """Docstring by sections."""

    summary: str = ""
    """First paragraph, on one line."""

    prose: str = ""
    """Text between the summary and the first section, and text after sections, with
    its line breaks.
    """

    entries: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Title of a section of entries -> pairs of a name and its text, on one line
    unless it has paragraphs.
    """

    texts: dict[str, str] = field(default_factory=dict)
    """Title of a section of text -> its lines, without their indentation."""


def parse(docstring: str) -> ParsedDocstring:
    """Return the sections of a docstring.

    Args:
        docstring: Docstring as it is in the source; its indentation does not matter.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    prose: list[str] = []
    entries: dict[str, list[tuple[str, str]]] = {}
    texts: dict[str, str] = {}
    place = 0
    while place < len(lines):
        title = _TITLE.match(lines[place])
        if title is None:
            prose.append(lines[place])
            place += 1
            continue
        # A section lasts until the next line that is not indented.
        start = place = place + 1
        while place < len(lines) and (not lines[place] or lines[place].startswith(" ")):
            place += 1
        section = inspect.cleandoc("\n".join(["", *lines[start:place]]))
        if title[1] in NAMED:
            entries[title[1]] = _entries(section)
        else:
            texts[title[1]] = section
    summary, _, rest = "\n".join(prose).strip().partition("\n\n")
    return ParsedDocstring(" ".join(summary.split()), rest.strip(), entries, texts)


def _entries(section: str) -> list[tuple[str, str]]:
    """Return the entries of a section; lines that are indented continue the entry above
    them.

    Raises:
        ValueError: A line is neither an entry nor indented. It would be lost.
    """
    names: list[str] = []
    bodies: list[list[str]] = []
    for line in section.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            names.append(entry[1])
            bodies.append([entry[2]])
        elif bodies and (not line or line.startswith(" ")):
            bodies[-1].append(line.removeprefix("    "))
        else:
            raise ValueError(f"docstring: got the line {line!r}, expected 'NAME: text'")
    return [
        (name, "\n".join(body).strip())
        for name, body in zip(names, bodies, strict=True)
    ]
