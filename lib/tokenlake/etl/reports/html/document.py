"""A whole HTML page, its sections, and parts that open on a click."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenlake.base.markup import Html, Part, tag

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = Path(__file__).with_name("page.css")


def folded(summary: Part, *parts: Part, is_open: bool = False) -> Html:
    """Return parts that a click on their summary shows.

    Args:
        summary: Text that is always visible.
        *parts: Contents.
        is_open: True to show the contents from the beginning.
    """
    return tag("details", tag("summary", summary), *parts, open=is_open)


def section(title: str, *parts: Part) -> Html:
    """Return a part of a page, under a heading that can be linked to."""
    return tag("section", tag("h2", title), *parts, id=anchor(title))


def anchor(title: str) -> str:
    """Return the id of a section, by which links find it.

    >>> anchor("Longest and shortest documents")
    'longest-and-shortest-documents'
    """
    return "-".join(title.lower().split())


def page(title: str, subtitle: str, head: Part, sections: Iterable[tuple[str, Html]]) -> str:
    """Return a whole page.

    Args:
        title: Title of the page.
        subtitle: Line below the title.
        head: Content above the sections.
        sections: Pairs (title, content). The page's table of contents links to each title.
    """
    links: list[Html] = []
    rendered_sections: list[Html] = []
    for name, content in sections:
        links.append(tag("a", name, href=f"#{anchor(name)}"))
        rendered_sections.append(section(name, content))

    header = tag("header", tag("h1", title), tag("p", subtitle, class_="dim"), head)
    body = tag("body", tag("main", header, tag("nav", *links), *rendered_sections))
    metadata = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(f"\n{_STYLE.read_text(encoding='utf-8')}")),
    )
    whole = tag("html", metadata, body, lang="en")
    return f"<!doctype html>\n{whole.text}\n"
