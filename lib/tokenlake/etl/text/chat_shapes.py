"""Conversations of the same shape, whose turns lie at the same places between their words.

A shape is a conversation with marks in the place of all words. What is found once for a shape holds for every
conversation whose rendering is that of the shape with the words put in; that is compared for each conversation, so a
template that renders some words in another way is found, and such a conversation is looked at by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, final

from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_marks import Item, mark_turn
from tokenlake.etl.text.chat_template import NO_DATA, CharSpan, Message

Find = Callable[[str, Sequence[Message]], tuple[CharSpan, ...]]
"""Finds spans in the rendering of a conversation, given both."""

_SALT: Final = "QzVs"
_MARK: Final = re.compile(f"({_SALT}[0-9]+y[0-9]+x)")
_MOST_SHAPES: Final = 1024


@final
@dataclass(frozen=True, slots=True)
class _TurnShape:
    """The rendering of a shape.

    Attributes:
        parts: text and marks in turn; marks have odd indices.
        starts: where each part begins.
        spans: what was found in the rendering.
    """

    parts: tuple[str, ...]
    starts: tuple[int, ...]
    spans: tuple[CharSpan, ...]

    def spans_in(self, text: str, words: dict[str, str]) -> tuple[CharSpan, ...] | None:
        """Return the spans in the rendering of a conversation of this shape; None where it is not the shape's.

        Args:
            text: the rendering.
            words: what stands in the place of each mark.
        """
        pieces = [words.get(part, "") if index % 2 else part for index, part in enumerate(self.parts)]
        if "".join(pieces) != text:
            return None
        begins = [*accumulate(map(len, pieces), initial=0)]
        return tuple((self._moved(start, begins), self._moved(stop, begins)) for start, stop in self.spans)

    def _moved(self, place: int, begins: list[int]) -> int:
        """Return where a place of the shape lies in a text whose parts begin at `begins`."""
        part = bisect_right(self.starts, place) - 1
        return begins[part] + place - self.starts[part]


@final
class Shapes:
    """Remembers what was found for shapes.

    Args:
        render: renders ``(messages, tools)`` as the text of a conversation is rendered.
    """

    def __init__(self, render: Callable[[Sequence[Message], list[Any] | None], str]) -> None:
        self._render = render
        self._known: dict[bytes, _TurnShape | None] = {}

    def spans(
        self, purpose: str, text: str, messages: Sequence[Message], tools: list[Any] | None, find: Find
    ) -> tuple[CharSpan, ...]:
        """Return what `find` finds in the rendering of a conversation, by its shape where that is possible.

        Args:
            purpose: what is looked for; what is found for one purpose does not count for another.
            text: the rendering of the conversation.

        Raises:
            BadRecordError: `find` raises it for this conversation.
        """
        items: list[Item] = []
        marked = [_marked(index, message, items) for index, message in enumerate(messages)]
        if _SALT in text or None in marked:
            return find(text, messages)
        shape_messages = [message for message in marked if message is not None]
        shape = self._shape(purpose, shape_messages, tools, find)
        words = {item.mark: item.words for item in items}
        spans = None if shape is None else shape.spans_in(text, words)
        return find(text, messages) if spans is None else spans

    def _shape(
        self, purpose: str, messages: Sequence[Message], tools: list[Any] | None, find: Find
    ) -> _TurnShape | None:
        """Return the shape of marked messages; None where nothing can be found for it."""
        text = json.dumps([purpose, messages, tools], default=_kind_of)
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if key not in self._known:
            if len(self._known) >= _MOST_SHAPES:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[key] = self._found(messages, tools, find)
        return self._known[key]

    def _found(self, messages: Sequence[Message], tools: list[Any] | None, find: Find) -> _TurnShape | None:
        try:
            rendered = self._render(messages, tools)
            spans = find(rendered, messages)
        except BadRecordError:
            return None
        parts = tuple(_MARK.split(rendered))
        starts = tuple(accumulate(map(len, parts), initial=0))
        shape = _TurnShape(parts, starts[:-1], spans)
        is_inside = any(shape.parts and _is_inside(shape, place) for span in spans for place in span)
        return None if is_inside else shape


def _kind_of(value: Any) -> str:
    """Return what stands in a key for a value that is no JSON, of which a template sees nothing but its kind."""
    return f"{NO_DATA} {value.kind}"


def _is_inside(shape: _TurnShape, place: int) -> bool:
    """Return whether a place lies inside a mark."""
    part = bisect_right(shape.starts, place) - 1
    return part % 2 == 1 and place > shape.starts[part]


def _marked(index: int, message: Message, items: list[Item]) -> Message | None:
    """Return a message with marks in the place of its words, which are added to `items`; None where it has calls."""
    if "tool_calls" in message or "function_call" in message or isinstance(message.get("content"), list):
        return None
    marked = mark_turn(message, f"{_SALT}{index}y")
    items += marked.items
    return marked.message
