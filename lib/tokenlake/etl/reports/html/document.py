"""A whole HTML page, its sections, and parts that open on a click.

A page may have one script, which is a file of this package. Its text stands in the
page, because a page that is opened as a file may not fetch others. The page's policy
names the script by its hash, so that the browser runs no other one, wherever data might
have become markup. Data for the script is JSON in an element of its own, which no
browser runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tokenlake.base.markup import Html, Part, printable_json, tag, together

# Nothing is loaded and nothing runs, except for what the page itself contains.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = Path(__file__).with_name("page.css")

# Character -> its escape in a JSON string. Without them a text could end the element,
# or begin a comment in it.
_JSON_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})

DATA_ID: Final = "page-data"
"""Id of the element that holds the data of a page's script."""


@final
@dataclass(frozen=True, slots=True)
class PageScript:
    """The script of a page.

    Attributes:
        path: JavaScript file of this package.
        data: Value that the script reads as JSON from the element :data:`DATA_ID`; None
            for no data.
    """

    path: Path
    data: object = None


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


def page(
    title: str,
    subtitle: str,
    head: Part,
    sections: Iterable[tuple[str, Html]],
    *,
    trail: Part = "",
    style: Path | None = None,
    script: PageScript | None = None,
) -> str:
    """Return a whole page.

    Args:
        title: Title of the page.
        subtitle: Line below the title.
        head: Content above the sections.
        sections: Pairs (title, content). The page's table of contents links to each
            title.
        trail: Links to other pages, above the title. Default: none.
        style: Style sheet of this package that is added to that of all pages. Default:
            none.
        script: Script of the page. Default: None, and the browser runs nothing.
    """
    links: list[Html] = []
    rendered_sections: list[Html] = []
    for section_title, content in sections:
        links.append(tag("a", section_title, href=f"#{anchor(section_title)}"))
        rendered_sections.append(section(section_title, content))

    # The header: links to other pages, titles, and the content above the sections.
    header = tag(
        "header", trail, tag("h1", title), tag("p", subtitle, class_="dim"), head
    )
    contents: Part = ""
    if links:
        contents = tag("nav", *links)
    main = tag("main", header, contents, *rendered_sections)
    # A second style sheet comes after the first, so that its rules prevail.
    style_text = _STYLE.read_text(encoding="utf-8")
    if style is not None:
        style_text += style.read_text(encoding="utf-8")
    # The policy allows one script, by the hash of its text.
    policy = _POLICY
    scripts: list[Html] = []
    if script is not None:
        code = script.path.read_text(encoding="utf-8")
        policy += f"; script-src '{_source_hash(code)}'"
        scripts = [_data_element(script.data), tag("script", Html(code))]
    head_element = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(f"\n{style_text}")),
    )
    html_element = tag("html", head_element, tag("body", main, *scripts), lang="en")
    return f"<!doctype html>\n{html_element.text}\n"


def _source_hash(code: str) -> str:
    """Return the hash of a script for a Content-Security-Policy: ``sha256-...``."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _data_element(value: object) -> Html:
    """Return a value as JSON in an element that no browser runs.

    Control characters are escaped, and the characters that HTML would read.
    """
    if value is None:
        return together([])
    json_text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    escaped = printable_json(json_text).translate(_JSON_ESCAPES)
    return tag("script", Html(escaped), type="application/json", id=DATA_ID)
