"""Pages of the report: one file that loads nothing, runs nothing, and says so to the browser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tokenlake.markup import Html, Part, tag

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def folded(summary: Part, *parts: Part, is_open: bool = False) -> Html:
    """Return what is shown on a click on its summary."""
    return tag("details", tag("summary", summary), *parts, open=is_open)


def section(title: str, *parts: Part) -> Html:
    """Return a part of a page, under a heading that can be linked to."""
    return tag("section", tag("h2", title), *parts, id=anchor(title))


def anchor(title: str) -> str:
    """Return what a link calls a section of this title.

    >>> anchor("Longest and shortest documents")
    'longest-and-shortest-documents'
    """
    return "-".join(title.lower().split())


def page(title: str, subtitle: str, head: Part, sections: Iterable[tuple[str, Html]]) -> str:
    """Return a whole page.

    Args:
        title, subtitle: of the page.
        head: what stands above the sections.
        sections: each with its title, by which the page's own contents link to it.
    """
    listed = list(sections)
    links = [tag("a", name, href=f"#{anchor(name)}") for name, _ in listed]
    header = tag("header", tag("h1", title), tag("p", subtitle, class_="dim"), head)
    body = [header, tag("nav", *links), *(section(name, content) for name, content in listed)]
    top = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(_STYLE)),
    )
    whole = tag("html", tag("head", *top), tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{whole.text}\n"


COLOURS: Final = 8
"""Parts of a figure are of class ``c0`` to ``c7``; the last one is grey, for what is no content."""

_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --fore: #1c2024; --dim: #5b6570; --line: #dde1e6; --soft: #f4f6f8;
  --c0: #1668c7; --c1: #c2570c; --c2: #1f7f4c; --c3: #8a43b0; --c4: #94700a; --c5: #c0392f; --c6: #14788a;
  --c7: #9aa3ad }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --fore: #e4e7ea; --dim: #98a2ad; --line: #333a41;
  --soft: #1d2226; --c0: #4f9cf0; --c1: #ee8a45; --c2: #4dbb82; --c3: #bf86e0; --c4: #d6ac3a; --c5: #f0776c;
  --c6: #4cbacd; --c7: #6b7580 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--fore); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 16px }
h1 { margin: 8px 0 0; font-size: 26px; overflow-wrap: anywhere }
h2 { margin: 36px 0 8px; font-size: 19px; border-bottom: 1px solid var(--line); padding-bottom: 4px }
h3 { margin: 20px 0 4px; font-size: 15px }
p { margin: 4px 0 10px; max-width: 80ch }
.dim, th, summary + p { color: var(--dim) }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 20px }
a { color: var(--c0) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { font-weight: 500; text-align: left; vertical-align: bottom }
td, th { padding: 3px 18px 3px 0; vertical-align: top; unicode-bidi: isolate }
tr + tr > td, thead + tbody > tr > td { border-top: 1px solid var(--line) }
td { overflow-wrap: anywhere; max-width: 70ch }
td.left { min-width: 11ch }
td.right, th.right { text-align: right; white-space: nowrap }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 10px; margin-top: 16px }
.tiles > div { background: var(--soft); border-radius: 8px; padding: 10px 14px }
.tiles b { display: block; font-weight: 600; overflow-wrap: anywhere }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 8px 40px }
.grid > * { min-width: 0 }
svg { display: block; width: 100% }
.bars td { border: 0 !important; padding-top: 1px; padding-bottom: 1px; white-space: nowrap }
.bars, .bars td:nth-child(2) { width: 100% }
.bars i { display: block; height: 12px; margin-top: 5px; min-width: 1px; background: var(--c0); border-radius: 2px }
.legend { display: flex; flex-wrap: wrap; gap: 0 14px; margin: 2px 0; padding: 0; list-style: none; font-size: 13px }
.legend li { unicode-bidi: isolate; overflow-wrap: anywhere }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px }
.flow > div { display: grid; grid-template-columns: minmax(150px, 34%) 1fr; gap: 16px; min-height: 76px }
.flow > div > div:first-child { padding-bottom: 12px }
.flow .legend { display: block }
.flow .drawn { display: flex; flex-direction: column }
.flow .drawn svg + svg { flex: 1; height: 0; min-height: 40px }
.stream { fill: var(--c0); opacity: .18 }
.ends { display: flex; justify-content: space-between; font-size: 13px }
.c0 { fill: var(--c0) } .c1 { fill: var(--c1) } .c2 { fill: var(--c2) } .c3 { fill: var(--c3) }
.c4 { fill: var(--c4) } .c5 { fill: var(--c5) } .c6 { fill: var(--c6) } .c7 { fill: var(--c7) }
i.c0 { background: var(--c0) } i.c1 { background: var(--c1) } i.c2 { background: var(--c2) }
i.c3 { background: var(--c3) } i.c4 { background: var(--c4) } i.c5 { background: var(--c5) }
i.c6 { background: var(--c6) } i.c7 { background: var(--c7) }
details { border-top: 1px solid var(--line); padding: 5px 0 }
summary { cursor: pointer; overflow-wrap: anywhere }
.document { border-left: 4px solid; padding: 2px 0 2px 10px; margin: 8px 0 }
.b0 { border-color: var(--c0) } .b1 { border-color: var(--c1) } .b2 { border-color: var(--c2) }
.b3 { border-color: var(--c3) } .b4 { border-color: var(--c4) } .b5 { border-color: var(--c5) }
.b6 { border-color: var(--c6) } .b7 { border-color: var(--c7) }
.document p { font-size: 13px; margin: 0; max-width: none; overflow-wrap: anywhere; unicode-bidi: isolate }
pre { margin: 2px 0; font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate; tab-size: 4 }
pre .off { color: var(--dim) }
pre .on { background: color-mix(in srgb, var(--c2) 18%, transparent) }
@media (max-width: 560px) { body { font-size: 14px } td, th { padding-right: 12px } main { padding: 10px } }
@media print { details > * { display: block } }
"""
