"""Texts of the code, which are reStructuredText, as Markdown of the site."""

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
        text: Text with reStructuredText's roles and literals.
        links: Public name, such as ``Dataset.take``, -> address of its entry in the
            reference.
    """

    def linked(role: re.Match[str]) -> str:
        path = role[2]
        # `tokenlake.data_pipeline.create_collate_fn` is listed as `create_collate_fn`,
        # `Dataset.take` with its class.
        parts = path.split(".")
        for name in (".".join(parts[-2:]), parts[-1]):
            if name in links:
                return f"[`{name}`]({links[name]})"
        shown = parts[-1] if role[1] else path
        return f"`{shown}`"

    text = _ROLE.sub(linked, text)
    text = _LITERAL.sub(r"`\1`", text)
    # An indented block is code in both languages; only the mark before it differs.
    text = _CODE_ALONE.sub("", text)
    return _BEFORE_CODE.sub(":", text)


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def definition(term: str, text: str) -> str:
    """Return an entry of a definition list, which wraps on a narrow screen where a
    table would not.

    Args:
        term: Term, such as a parameter and its type.
        text: Explanation, in Markdown; it may have paragraphs and lists.
    """
    first, *others = text.splitlines() or [""]
    continued = textwrap.indent("\n".join(others), "    ")
    return f"{term}\n:   {first}\n{continued}".rstrip() + "\n"


def block(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```\n"
