"""Parser of docstrings in Google style.

The pages of the reference and the tests of docstrings use it.

A docstring has a summary, prose, and sections. A section has a title that ends in a
colon, and indented lines below it::

    Return the mean.

    Args:
        values: Numbers, float64[n].

    Returns:
        The mean.

:func:`parse` returns the sections of named entries (``Args``, ``Attributes``,
``Raises``) as pairs of a name and its text, and the other sections (``Returns``,
``Yields``, ``Example``) as text.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Final

NAMED: Final = ("Args", "Attributes", "Raises")
"""Sections of entries ``name: text``."""

PLAIN: Final = ("Returns", "Yields", "Example")
"""Sections of text."""

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
        docstring: Docstring as it is in the source, with any indentation.

    Raises:
        ValueError: A line of a section of entries belongs to no entry.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    prose: list[str] = []
    entries: dict[str, list[tuple[str, str]]] = {}
    texts: dict[str, str] = {}
    line_number = 0
    while line_number < len(lines):
        # A line outside of sections is prose, unless it is a title.
        title = _TITLE.match(lines[line_number])
        if title is None:
            prose.append(lines[line_number])
            line_number += 1
            continue
        # A section ends at the next line that is neither indented nor empty.
        line_number += 1
        section_lines = [""]
        while line_number < len(lines):
            line = lines[line_number]
            if line and not line.startswith(" "):
                break
            section_lines.append(line)
            line_number += 1
        section = inspect.cleandoc("\n".join(section_lines))
        if title[1] in NAMED:
            entries[title[1]] = _entries(section)
        else:
            texts[title[1]] = section
    summary, _, further_prose = "\n".join(prose).strip().partition("\n\n")
    return ParsedDocstring(
        " ".join(summary.split()), further_prose.strip(), entries, texts
    )


def _entries(section: str) -> list[tuple[str, str]]:
    """Return the entries of a section as pairs of a name and its text.

    Indented lines continue the entry above them.

    Args:
        section: Lines of the section, without their common indentation.

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
    texts = ["\n".join(body).strip() for body in bodies]
    return list(zip(names, texts, strict=True))
