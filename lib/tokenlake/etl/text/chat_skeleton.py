"""Skeletons: the words of a template around the contents of conversations.

All conversations of the same roles share one.

1. Render the roles with symbols as contents; a template that looks into one has no
   skeleton.
2. Render them once more with marks as contents, which gives the spans that count toward
   the loss.
3. Both texts must be equal but for the sides on which contents are stripped.
4. Cut the text at the marks, and the words where spans begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from tokenlake.errors import TokenlakeError
from tokenlake.etl.text.chat_protocol import (
    CharSpan,
    Message,
    RenderedChat,
    Skeleton,
    Slot,
)
from tokenlake.etl.text.chat_sandbox import OPEN, LookedInto, Symbol, mark

_MARK: Final = re.compile(f"{OPEN}([0-3])([0-9]+)\ue001")
_SPLIT: Final = re.compile(f"({OPEN}[0-3][0-9]+\ue001)")

RenderMessages = Callable[[Sequence[Message]], RenderedChat]


def skeleton(
    roles: Sequence[str], render_plain: RenderMessages, render_with_loss: RenderMessages
) -> Skeleton | None:
    """Return the skeleton of conversations of some roles.

    None where each conversation must be rendered by itself.

    Args:
        roles: Roles of the messages.
        render_plain: Renderer by the template alone.
        render_with_loss: The same, with the spans that count toward the loss.
    """
    symbols: list[Message] = []
    marks: list[Message] = []
    for index, role in enumerate(roles):
        symbols.append({"role": role, "content": Symbol((index, 0))})
        marks.append({"role": role, "content": mark(index, 0)})
    try:
        text = render_plain(symbols).text
        marked = render_with_loss(marks)
    except (LookedInto, TokenlakeError):
        return None
    # A template that strips a symbol, but not its mark, renders contents in another
    # way.
    if _MARK.sub(_unstripped_mark, text) != marked.text:
        return None
    return _cut(text, marked.loss)


def _unstripped_mark(match: re.Match[str]) -> str:
    return mark(int(match[2]), 0)


def _cut(text: str, loss: Sequence[CharSpan]) -> Skeleton | None:
    """Return a text in parts that count toward the loss as a whole or not at all.

    None where a span begins or ends inside a content.
    """
    all_edges: set[int] = set()
    for span in loss:
        all_edges.update(span)
    edges = sorted(all_edges)
    parts: list[str | Slot] = []
    flags: list[bool] = []
    part_begin = 0
    for part in filter(None, _SPLIT.split(text)):
        # 1. Cut the part at the edges inside it.
        part_end = part_begin + len(part)
        inner_edges: list[int] = []
        for edge in edges:
            if part_begin < edge < part_end:
                inner_edges.append(edge)
        cuts = [part_begin, *inner_edges, part_end]
        slot_mark = _MARK.fullmatch(part)
        # Contents differ from row to row: an edge inside one has no fixed place.
        if slot_mark and inner_edges:
            return None
        for piece_begin, piece_end in pairwise(cuts):
            if slot_mark:
                parts.append((int(slot_mark[2]), int(slot_mark[1])))
            else:
                parts.append(part[piece_begin - part_begin : piece_end - part_begin])
            # 2. A piece between two edges counts as a whole or not at all.
            flags.append(_is_covered(piece_begin, piece_end, loss))
        part_begin = part_end
    return Skeleton(tuple(parts), tuple(flags))


def _is_covered(begin: int, end: int, spans: Sequence[CharSpan]) -> bool:
    """Return whether one of the spans holds the characters ``[begin, end)``."""
    return any(start <= begin and end <= stop for start, stop in spans)
