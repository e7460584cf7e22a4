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
        """Return whether a rendering holds the item as data, not as a quoted literal.

        Args:
            rendered: Rendering of the marked turn.
        """
        if self.mark not in rendered:
            return False
        if self.kind == "call":
            # JSON text that was quoted once more.
            return f'\\"{self.mark}' not in rendered
        # A list of parts that became text as a whole, in Python's notation or JSON's.
        is_python_literal = f"'text': '{self.mark}" in rendered
        is_json_literal = f'"text": "{self.mark}' in rendered
        return not is_python_literal and not is_json_literal


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

    def items_in(self, rendered: str) -> list[Item]:
        """Return the items whose marks a rendering holds, in any form."""
        return [item for item in self.items if item.mark in rendered]


def unused_salt(values: Sequence[Any]) -> str:
    """Return a beginning for marks: a word that no text of the values holds."""
    # A salt that is longer than every text is in none of them, so that the loop ends.
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
        # A content is a text, or a list of parts; null has no words to mark.
        content = fields.get("content")
        if isinstance(content, str):
            fields["content"] = self._content(content)
        elif isinstance(content, list):
            parts = cast("list[Any]", content)
            fields["content"] = [self._part(part) for part in parts]
        # Calls are in a list, or one call is in the older field.
        tool_calls = fields.get("tool_calls")
        if isinstance(tool_calls, list):
            calls = cast("list[Any]", tool_calls)
            fields["tool_calls"] = [self._call(call) for call in calls]
        if isinstance(fields.get("function_call"), dict):
            fields["function_call"] = self._call(fields["function_call"])
        return MarkedTurn(fields, tuple(self._items))

    def _mark_thoughts(self, fields: dict[str, Any]) -> None:
        """Mark the reasoning, which may be in several fields."""
        thought_fields: list[str] = []
        for field in THOUGHTS:
            if isinstance(fields.get(field), str):
                thought_fields.append(field)
        if not thought_fields:
            return
        # All fields hold the same reasoning, so that they get the same mark.
        thought = str(fields[thought_fields[0]])
        marked = self._words(thought, "reasoning", "its reasoning")
        for field in thought_fields:
            fields[field] = marked

    def _part(self, part: Any) -> Any:
        """Mark a text part of a content."""
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return part
        marked_part = dict(cast("dict[str, Any]", part))
        marked_part["text"] = self._content(marked_part["text"])
        return marked_part

    def _content(self, text: str) -> str:
        """Mark a content; an assistant's may hold its reasoning between tags."""
        if self._message.get("role") != ASSISTANT:
            return self._words(text, "content", "its content")
        for opening, closing in THOUGHT_TAGS:
            # Without the tag there is no reasoning; with several, its end is unclear.
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
        """Put a mark in the place of a text, between the blanks around it.

        Args:
            text: Text.
            kind: Kind of the piece.
            title: Name of the piece in errors.
            lead: Text of the content before this text.
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
        # A call of `tool_calls` wraps its function; one of `function_call` is the
        # function.
        inner = fields.get("function")
        function = fields
        if isinstance(inner, dict):
            function = cast("dict[str, Any]", inner)
        function_name = str(function.get("name") or "")
        mark = self._add("call", f"its call of {function_name!r}", function_name)
        arguments = _marked_arguments(function.get("arguments"), mark)
        marked_function = {**function, "arguments": arguments}
        if isinstance(inner, dict):
            return {**fields, "function": marked_function}
        return marked_function


def _marked_arguments(arguments: Any, mark: str) -> Any:
    """Return arguments of the same form and names, whose values are the mark."""
    if isinstance(arguments, str):
        # JSON text stays JSON text: a template may parse it or print it.
        parsed = json_object(arguments)
        if parsed is None:
            return mark
        return json.dumps(_marked_arguments(parsed, mark))
    # Without a name the mark itself is one, so that a rendering of the arguments shows
    # it in any case.
    if not isinstance(arguments, dict) or not arguments:
        return {mark: mark}
    return dict.fromkeys(cast("dict[str, Any]", arguments), mark)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text; None where it is something else."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None
    if not isinstance(parsed, dict):
        return None
    return cast("dict[str, Any]", parsed)


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a turn, in the newer field and in the older one."""
    calls: list[dict[str, Any]] = []
    tool_calls: Any = message.get("tool_calls")
    if isinstance(tool_calls, list):
        calls += cast("list[dict[str, Any]]", tool_calls)
    function_call: Any = message.get("function_call")
    if isinstance(function_call, dict):
        calls.append(cast("dict[str, Any]", function_call))
    return calls


Render = Callable[..., str]
"""Renders ``(messages, tools, **variables)``."""
