"""Conversations of one shape, whose turns lie at the same places between their words.

A shape is a conversation with marks in the place of all words. Spans that are found
once for a shape hold for every conversation whose rendering is that of the shape with
the words put in. Each rendering is compared with that, so a template that renders some
words in another way is noticed, and the spans of such a conversation are found by
itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, final

from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_marks import mark_turn
from tokenlake.etl.text.chat_protocol import NO_DATA, CharSpan, Message

Find = Callable[[str, Sequence[Message]], tuple[CharSpan, ...]]
"""Finds spans in a rendering of a conversation: (rendering, messages)."""

# A salt that differs from that of other marks: a shape may be marked once more.
_SALT: Final = "QzVs"
_MARK: Final = re.compile(f"({_SALT}[0-9]+y[0-9]+x)")
# Conversations of a data set have few shapes; each holds a rendering in memory.
_MOST_SHAPES: Final = 1024


@final
@dataclass(frozen=True, slots=True)
class _TurnShape:
    """The rendering of a shape.

    Attributes:
        parts: Texts and marks by turns; marks have odd indices.
        starts: Index of the first character of each part.
        spans: Spans in the rendering.
    """

    parts: tuple[str, ...]
    starts: tuple[int, ...]
    spans: tuple[CharSpan, ...]

    def spans_in(self, text: str, words: dict[str, str]) -> tuple[CharSpan, ...] | None:
        """Return the spans in a rendering; None where it is not this shape's.

        Args:
            text: Rendering of the conversation.
            words: {mark: words in its place}.
        """
        # 1. The rendering with the words put in must be the text: a template may have
        #    changed a word, or rendered one depending on another.
        pieces = list(self.parts)
        for index in range(1, len(pieces), 2):
            pieces[index] = words.get(pieces[index], "")
        if "".join(pieces) != text:
            return None
        # 2. Every edge of a span keeps its distance from the beginning of its piece.
        piece_starts = list(accumulate(map(len, pieces), initial=0))
        moved_spans: list[CharSpan] = []
        for start, stop in self.spans:
            moved_start = self._moved(start, piece_starts)
            moved_stop = self._moved(stop, piece_starts)
            moved_spans.append((moved_start, moved_stop))
        return tuple(moved_spans)

    def part_at(self, place: int) -> int:
        """Return the index of the part that holds a character of the shape."""
        return bisect_right(self.starts, place) - 1

    def _moved(self, place: int, piece_starts: list[int]) -> int:
        """Return the place in a text of a place in the shape.

        Args:
            place: Index of a character of the shape.
            piece_starts: Index of the first character of each piece of the text.
        """
        part = self.part_at(place)
        return piece_starts[part] + place - self.starts[part]

    def is_inside_mark(self, place: int) -> bool:
        """Return whether a place lies inside a mark, not at its beginning."""
        part = self.part_at(place)
        return part % 2 == 1 and place > self.starts[part]


@final
class Shapes:
    """Spans of the shapes of one template.

    Args:
        render: Renderer of ``(messages, tools)``.
    """

    def __init__(
        self, render: Callable[[Sequence[Message], list[Any] | None], str]
    ) -> None:
        self._render = render
        self._shapes: dict[bytes, _TurnShape | None] = {}

    def spans(
        self,
        purpose: str,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        find: Find,
    ) -> tuple[CharSpan, ...]:
        """Return the spans of a conversation, by its shape where that is possible.

        Args:
            purpose: Purpose of the spans; those of one purpose do not serve another.
            text: Rendering of the conversation.
            messages: Messages of the conversation.
            tools: Tools of the conversation.
            find: Function that finds the spans in a rendering.

        Raises:
            BadRecordError: `find` raises it for this conversation.
        """
        # Words of the conversation that look like marks would be taken for such.
        if _SALT in text or not all(map(_has_words_alone, messages)):
            return find(text, messages)
        # 1. The shape of the conversation, and its words.
        marked_messages: list[Message] = []
        words: dict[str, str] = {}
        for index, message in enumerate(messages):
            marked = mark_turn(message, f"{_SALT}{index}y")
            marked_messages.append(marked.message)
            for item in marked.items:
                words[item.mark] = item.words
        # 2. The spans of the shape, moved to this text.
        shape = self._shape(purpose, marked_messages, tools, find)
        spans = None if shape is None else shape.spans_in(text, words)
        if spans is None:
            return find(text, messages)
        return spans

    def _shape(
        self,
        purpose: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        find: Find,
    ) -> _TurnShape | None:
        """Return the shape of marked messages; None where its spans cannot be moved."""
        text = json.dumps([purpose, messages, tools], default=_kind_of)
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        # The hash stands for a key that may be a long conversation. A dict keeps its
        # order, so that the oldest shape goes first.
        if key not in self._shapes:
            if len(self._shapes) >= _MOST_SHAPES:
                oldest_key = next(iter(self._shapes))
                del self._shapes[oldest_key]
            self._shapes[key] = self._new_shape(messages, tools, find)
        return self._shapes[key]

    def _new_shape(
        self, messages: Sequence[Message], tools: list[Any] | None, find: Find
    ) -> _TurnShape | None:
        """Return the shape of marked messages.

        None where the template fails, or a span ends inside a mark.
        """
        try:
            rendered = self._render(messages, tools)
            spans = find(rendered, messages)
        except BadRecordError:
            return None
        # Split with a group: the marks are the parts with odd indices.
        parts = tuple(_MARK.split(rendered))
        ends = tuple(accumulate(map(len, parts)))
        shape = _TurnShape(parts, (0, *ends[:-1]), spans)
        # An edge inside a mark would lie somewhere inside the words in its place.
        if any(map(shape.is_inside_mark, chain.from_iterable(spans))):
            return None
        return shape


def _kind_of(value: Any) -> str:
    """Return the text in a key of a value that is no JSON.

    A template sees nothing of such a value but its kind.
    """
    return f"{NO_DATA} {value.kind}"


def _has_words_alone(message: Message) -> bool:
    """Return whether a message has neither calls nor parts.

    The forms of those may depend on their words.
    """
    has_calls = "tool_calls" in message or "function_call" in message
    return not has_calls and not isinstance(message.get("content"), list)
