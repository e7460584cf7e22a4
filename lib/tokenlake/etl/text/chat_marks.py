"""Marks in the place of a turn's words, which show where a template renders them.

A mark is a word of ASCII letters and digits that no text of the conversation holds. It
keeps the blanks around the words that it replaces, so that a template strips the marked
text as it strips the words. A turn has one mark for its content, one for its reasoning,
and one for the arguments of each of its calls: names and ids of calls stay, because the
turns that answer a call may repeat them.

    {"role": "assistant", "content": "<think>\\nhm\\n</think>\\n\\nIt is 3."}
    {"role": "assistant", "content": "<think>\\nQzVe0x\\n</think>\\n\\nQzVe1x"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, final

from tokenlake.etl.text.chat_protocol import Message
from tokenlake.etl.text.chat_weights import ASSISTANT
from tokenlake.etl.text.plain_data import texts_in

THOUGHTS: Final = ("reasoning_content", "thinking", "reasoning")
"""Names of the field that holds a turn's reasoning."""
THOUGHT_TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
)
"""Tags around reasoning that is a part of the content."""

# Of both cases, so that a template that changes the case loses it.
_SALT: Final = "QzVe"
_Kind = Literal["content", "reasoning", "call"]


@final
@dataclass(frozen=True, slots=True)
class Item:
    """A piece of a turn that has a mark.

    Attributes:
        kind: Kind of the piece.
        title: Name of the piece in errors.
        words: Text that the rendering must hold as it is: the words, or the name of the
            function that is called.
        mark: Mark in its place in the marked turn.
        lead: Text of the content before the words, such as a tag that opens the
            reasoning.
    """

    kind: _Kind
    title: str
    words: str
    mark: str
    lead: str = ""

    def is_in(self, rendered: str) -> bool:
        """Return whether the rendering of the marked turn holds the item as data,
        not as a quoted literal.
        """
        if self.mark not in rendered:
            return False
        if self.kind == "call":
            # JSON text that was quoted once more.
            is_literal = f'\\"{self.mark}' in rendered
        else:
            # A list of parts that became text as a whole.
            is_literal = (
                f"'text': '{self.mark}" in rendered
                or f'"text": "{self.mark}' in rendered
            )
        return not is_literal


@final
@dataclass(frozen=True, slots=True)
class MarkedTurn:
    """A turn with marks in the place of its words.

    Attributes:
        message: Turn for the template.
        items: Pieces that have marks, in the order of the turn.
    """

    message: Message
    items: tuple[Item, ...]

    def is_in(self, rendered: str) -> bool:
        """Return whether a rendering of the marked turn holds all of its items."""
        return all(item.is_in(rendered) for item in self.items)


def unused_salt(values: Sequence[Any]) -> str:
    """Return a beginning for marks: a word that no text of the values holds."""
    texts = list(texts_in(values))
    salt = _SALT
    while any(salt in text for text in texts):
        salt += "Q"
    return salt


def mark_turn(
    message: Message,
    salt: str,
    kinds: Iterable[_Kind] = ("content", "reasoning", "call"),
) -> MarkedTurn:
    """Return a turn with marks in the place of its words.

    Args:
        message: Turn.
        salt: Beginning of the marks.
        kinds: Kinds of pieces that are replaced; the others stay.
    """
    return _Marker(message, salt, frozenset(kinds)).marked()


@final
class _Marker:
    """Marks one turn."""

    def __init__(self, message: Message, salt: str, kinds: frozenset[str]) -> None:
        self._message = message
        self._salt = salt
        self._kinds = kinds
        self._items: list[Item] = []

    def marked(self) -> MarkedTurn:
        """Return the marked turn."""
        fields = dict(self._message)
        self._mark_thoughts(fields)
        content = fields.get("content")
        if isinstance(content, str):
            fields["content"] = self._content(content)
        elif isinstance(content, list):
            fields["content"] = [
                self._part(part) for part in cast("list[Any]", content)
            ]
        calls = fields.get("tool_calls")
        if isinstance(calls, list):
            fields["tool_calls"] = [
                self._call(call) for call in cast("list[Any]", calls)
            ]
        if isinstance(fields.get("function_call"), dict):
            fields["function_call"] = self._call(fields["function_call"])
        return MarkedTurn(fields, tuple(self._items))

    def _mark_thoughts(self, fields: dict[str, Any]) -> None:
        """Mark the reasoning, which may be in several fields."""
        names = [name for name in THOUGHTS if isinstance(fields.get(name), str)]
        if not names:
            return
        marked = self._words(str(fields[names[0]]), "reasoning", "its reasoning")
        for name in names:
            fields[name] = marked

    def _part(self, part: Any) -> Any:
        """Mark a text part of a content."""
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return {
                **cast("dict[str, Any]", part),
                "text": self._content(str(part["text"])),
            }
        return part

    def _content(self, text: str) -> str:
        """Mark a content; an assistant's may hold its reasoning between tags."""
        tags = THOUGHT_TAGS if self._message.get("role") == ASSISTANT else ()
        for opening, closing in tags:
            if text.count(closing) != 1:
                continue
            # Text before the opening tag, reasoning, and the answer behind the closing
            # tag.
            thought, closing_tag, answer = text.partition(closing)
            before, opening_tag, reasoning = thought.rpartition(opening)
            lead = before + opening_tag
            marked_reasoning = self._words(
                reasoning, "reasoning", f"its reasoning (before {closing})", lead
            )
            answer_lead = lead + reasoning + closing_tag
            marked_answer = self._words(answer, "content", "its content", answer_lead)
            return lead + marked_reasoning + closing_tag + marked_answer
        return self._words(text, "content", "its content")

    def _words(self, text: str, kind: _Kind, title: str, lead: str = "") -> str:
        """Put a mark in the place of a text, between the blanks around it, and
        behind `lead`.
        """
        words = text.strip()
        if not words or kind not in self._kinds:
            return text
        left_blanks, _, right_blanks = text.partition(words)
        mark = self._add(kind, title, words, (lead + left_blanks).lstrip())
        return left_blanks + mark + right_blanks

    def _add(self, kind: _Kind, title: str, words: str, lead: str = "") -> str:
        """Add a piece and return its mark."""
        mark = f"{self._salt}{len(self._items)}x"
        self._items.append(Item(kind, title, words, mark, lead))
        return mark

    def _call(self, call: Any) -> Any:
        """Mark the arguments of a call."""
        if not isinstance(call, dict) or "call" not in self._kinds:
            return call
        fields = cast("dict[str, Any]", call)
        inner = fields.get("function")
        function = cast("dict[str, Any]", inner if isinstance(inner, dict) else fields)
        name = str(function.get("name") or "")
        mark = self._add("call", f"its call of {name!r}", name)
        marked_function = {
            **function,
            "arguments": _marked_arguments(function.get("arguments"), mark),
        }
        if isinstance(inner, dict):
            return {**fields, "function": marked_function}
        return marked_function


def _marked_arguments(arguments: Any, mark: str) -> Any:
    """Return arguments of the same form and names, whose values are the mark."""
    if isinstance(arguments, str):
        values = json_object(arguments)
        return mark if values is None else json.dumps(_marked_arguments(values, mark))
    if not isinstance(arguments, dict):
        return {mark: mark}
    values = cast("dict[str, Any]", arguments)
    return dict.fromkeys(values, mark) if values else {mark: mark}


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text; None where it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a turn."""
    calls: list[dict[str, Any]] = []
    listed: Any = message.get("tool_calls")
    if isinstance(listed, list):
        calls += cast("list[dict[str, Any]]", listed)
    single: Any = message.get("function_call")
    if isinstance(single, dict):
        calls.append(cast("dict[str, Any]", single))
    return calls


Render = Callable[..., str]
"""Renders ``(messages, tools, **variables)``."""
