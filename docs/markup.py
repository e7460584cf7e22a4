"""Markdown of the site from texts of the code, which are reStructuredText."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Final

_ROLE: Final = re.compile(r":\w+:`(~?)([^`]+)`")
_LITERAL: Final = re.compile(r"``+([^`]+)``+")
_CODE_ALONE: Final = re.compile(r"^::\n\n", re.MULTILINE)
_BEFORE_CODE: Final = re.compile(r"::$", re.MULTILINE)


def markdown_of(text: str, links: Mapping[str, str]) -> str:
    """Return a text of a docstring as Markdown.

    Args:
        text: Text with roles and literals of reStructuredText.
        links: Public name, such as ``Dataset.take``, -> address of its entry in the
            reference.
    """

    def link_of(role: re.Match[str]) -> str:
        """Return the object of a role as a link, or as code if it has no entry."""
        is_short = role[1] == "~"
        path = role[2]
        # `tokenlake.data_pipeline.create_collate_fn` is listed as `create_collate_fn`,
        # `Dataset.take` with its class.
        parts = path.split(".")
        name = parts[-1]
        name_with_owner = ".".join(parts[-2:])
        for listed_name in (name_with_owner, name):
            if listed_name in links:
                return f"[`{listed_name}`]({links[listed_name]})"
        if is_short:
            return f"`{name}`"
        return f"`{path}`"

    text = _ROLE.sub(link_of, text)
    text = _LITERAL.sub(r"`\1`", text)
    # An indented block is code in both languages; only the mark before it differs.
    text = _CODE_ALONE.sub("", text)
    return _BEFORE_CODE.sub(":", text)


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def definition(term: str, text: str) -> str:
    """Return an entry of a definition list.

    A definition list wraps on a narrow screen, where a table does not.

    Args:
        term: Term, such as a parameter and its type.
        text: Explanation, in Markdown; it may have paragraphs and lists.
    """
    first_line, _, further_lines = text.partition("\n")
    indented_lines = textwrap.indent(further_lines, "    ")
    return f"{term}\n:   {first_line}\n{indented_lines}".rstrip() + "\n"


def block(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```\n"
