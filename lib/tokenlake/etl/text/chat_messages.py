"""Conversations of the shapes that datasets have, as messages ``{"role", "content", ...}``.

| shape | a turn |
|---|---|
| messages | ``{"role": "user", "content": "Hello"}`` |
| messages of parts | ``{"role": "user", "content": [{"type": "text", "text": "Hello"}]}`` |
| ShareGPT | ``{"from": "human", "value": "Hello"}`` |
| input-output | ``{"input": "Hello", "output": "Hi"}``, with or without ``"system"``: two or three messages |

Whatever else a turn holds (tool calls, names) stays. A conversation may also be the JSON text of its list. A turn of
ShareGPT's ``function_call``, whose text is the JSON of a call, becomes a turn of the assistant that makes this call.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, cast, final

import orjson

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.chat_forms import calls_of_text
from tokenlake.etl.text.chat_marks import THOUGHTS
from tokenlake.etl.text.chat_template import texts_in
from tokenlake.etl.text.chat_weights import check_weight
from tokenlake.etl.text.transform import Transform

Turn = dict[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
"""What roles are called in the end."""

SYNONYMS: Final[Mapping[str, str]] = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "ipython": "tool",
}
"""Other names that are known, unless a mapping says otherwise."""

_CALLING: Final = ("function_call", "tool_call")
_CALLS: Final = ("tool_calls", "function_call")
_SAID_BY_OTHER_MEANS: Final = (*_CALLS, *THOUGHTS)
_WRITTEN: Final = ("arguments", "function_call")
"""Fields that may hold JSON text."""
_TEXT_PARTS: Final = ("text", "input_text", "output_text")


@final
class ConversationReader:
    """Reads conversations.

    Args:
        role_mapping: {their name: role}, before the known synonyms.
        use_default_mapping: whether the synonyms are known.
        value_format: whether turns may be ``{"from", "value"}``.
    """

    def __init__(
        self,
        role_mapping: Mapping[str, str] | None = None,
        *,
        use_default_mapping: bool = True,
        value_format: bool = True,
    ) -> None:
        self._value_format = value_format
        known = {role: role for role in ROLES} | dict(SYNONYMS if use_default_mapping else {})
        self.roles: Final[Mapping[str, str]] = known | dict(role_mapping or {})

    def read(self, conversation: Any) -> list[Turn]:
        """Return the messages of a conversation.

        Raises:
            BadRecordError: it has another shape; `details` hold the reason: ``no_messages``, ``not_messages``,
                ``no_role``, ``unknown_role``, ``no_content``, ``content_not_text``, ``empty_turn``,
                ``bad_tool_calls``, ``bad_weight``.
        """
        conversation = _parsed(conversation, "got text, expected a list of turns", "not_messages")
        if conversation is None:
            raise BadRecordError("it is missing or null, expected a list of turns", reason="no_messages")
        if not isinstance(conversation, list | tuple):
            told = f"it holds {_kind(conversation)}, expected a list of turns"
            raise BadRecordError(told, reason="not_messages")
        if not conversation:
            raise BadRecordError("it is empty, expected at least one turn", reason="no_messages")
        messages: list[Turn] = []
        for index, turn in enumerate(cast("Sequence[Any]", conversation)):
            if not isinstance(turn, dict):
                _refuse("not_messages", index, f"it is {_kind(turn)}, expected an object")
            fields = cast("Turn", turn)
            role = fields.get("role")
            is_plain = len(fields) == len(("role", "content")) and type(fields.get("content")) is str
            if is_plain and isinstance(role, str) and role in self.roles and role not in _CALLING:
                messages.append(fields if self.roles[role] == role else {**fields, "role": self.roles[role]})
            elif role is None and fields.get("from") is None and fields.get("input") is not None:
                messages += _input_and_output(fields, index)
            else:
                messages.append(self._message(fields, index))
            _refuse_empty(messages[-1], index)
        return messages

    def _message(self, fields: Turn, index: int) -> Turn:
        """Return one turn that is not as it should be yet."""
        is_other = self._value_format and fields.get("role") is None
        theirs = "from" if is_other else "role"
        name = fields.get(theirs)
        if name is None:
            _refuse("no_role", index, f"it has no role (nor from); its fields are {', '.join(fields)}")
        if not isinstance(name, str):
            _refuse("no_role", index, f"its role is {_kind(name)}, expected text")
        if name not in self.roles:
            known = ", ".join(self.roles)
            told = f"its role {name[:60]!r} is unknown, expected one of {known}; name it in role_mapping"
            _refuse("unknown_role", index, told)
        own_names = ["role", "content"]
        content = fields.get("content")
        if self._value_format and (is_other or content is None):
            own_names += ["from", "value"]
            content = content if fields.get("value") is None else fields["value"]
        rest = {key: value for key, value in fields.items() if key not in own_names}
        turn: Turn = {"role": self.roles[name]}
        if content is not None:
            turn["content"] = _text_or_parts(content, index)
        turn |= _with_calls(rest, index)
        _check_thoughts(turn, index)
        try:
            check_weight(turn)
        except BadRecordError as error:
            raise BadRecordError(f"turn {index + 1}: {error}", **error.details) from error
        if name in _CALLING and turn["role"] == "assistant":
            turn = _with_written_call(turn)
        if turn.get("content") is None and not any(turn.get(means) for means in _SAID_BY_OTHER_MEANS):
            _refuse("no_content", index, "its content is missing or null, and it calls no tools")
        return turn


def _input_and_output(fields: Turn, index: int) -> list[Turn]:
    """Return the messages of a turn that holds what the user and the assistant say."""
    if fields.get("output") is None:
        _refuse("no_content", index, "its output is missing or null")
    messages: list[Turn] = []
    for name, role in (("system", "system"), ("input", "user"), ("output", "assistant")):
        if fields.get(name) is not None:
            messages.append({"role": role, "content": _text(fields[name], name, index)})
    return messages


def _refuse_empty(turn: Turn, index: int) -> None:
    """Refuse an assistant that says nothing: it would be a lesson in saying nothing."""
    content = turn.get("content")
    if turn["role"] != "assistant" or content is None:
        return
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    if not "".join(texts).strip() and not any(turn.get(name) for name in _SAID_BY_OTHER_MEANS):
        _refuse("empty_turn", index, "the assistant says nothing and calls no tools")


def _text_or_parts(content: Any, index: int) -> str | list[Any]:
    """Return a content, a text or a list of text parts; BadRecordError where it is neither.

    Parts that are all blank become one text: where a template prints a list, no words would show it.
    """
    if not isinstance(content, list):
        return _text(content, "content", index)
    parts: list[Any] = []
    for place, part in enumerate(cast("list[Any]", content)):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        kind = fields.get("type", "text")
        if kind not in _TEXT_PARTS or not isinstance(fields.get("text"), str):
            what = (
                f"of type {kind!r}, with text that is {_kind(fields.get('text'))}" if fields else _kind(part)
            )
            _refuse(
                "content_not_text",
                index,
                f"part {place + 1} of its content is {what}, expected {{'type': 'text', 'text': 'Hello'}}; other "
                "parts, such as images, cannot become tokens",
            )
        parts.append({"type": "text", "text": fields["text"]})
    text = "".join(part["text"] for part in parts)
    return parts if text.strip() else text


def _with_calls(fields: Turn, index: int) -> Turn:
    """Return fields whose calls are objects; JSON text of them is read, and empty lists are left out."""
    made = dict(fields)
    for field in _CALLS:
        calls = _parsed(
            made.pop(field, None), f"turn {index + 1}: its {field} are text that is not JSON", BAD_CALLS
        )
        if not calls:
            continue
        listed = calls if field == "tool_calls" else [calls]
        if not isinstance(listed, list):
            _refuse(BAD_CALLS, index, f"its {field} hold {_kind(calls)}, expected a list of calls")
        for call in cast("list[Any]", listed):
            if not isinstance(call, dict):
                told = f"its {field} hold {_kind(call)}, expected an object with a name and arguments"
                _refuse(BAD_CALLS, index, told)
        made[field] = calls
    return made


def _check_thoughts(turn: Turn, index: int) -> None:
    """Require that reasoning is text; BadRecordError where it is not."""
    for name in THOUGHTS:
        value = turn.get(name)
        if value is not None and not isinstance(value, str):
            _refuse("content_not_text", index, f"its {name} is {_kind(value)}, expected text")


def _with_written_call(turn: Turn) -> Turn:
    """Return a turn of ShareGPT's ``function_call`` as one that makes the call which its text is the JSON of.

    The text stays in ``function_call``: a template that renders no calls gets it as the content. A text that is no call
    stays the content.
    """
    content = turn.get("content")
    if (
        not isinstance(content, str)
        or any(turn.get(name) for name in _CALLS)
        or calls_of_text(content) is None
    ):
        return turn
    rest = {name: value for name, value in turn.items() if name != "content"}
    return {**rest, "function_call": content}


@contextmanager
def in_field(name: str) -> Generator[None]:
    """Name the field of a row in the BadRecordError of what stands in it."""
    try:
        yield
    except BadRecordError as error:
        details = {**error.details, "field_path": name}
        raise BadRecordError(f"the field {name!r}: {error}", **details) from error


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a row: a list of objects (JSON schemas), or JSON text of one; None where it is empty.

    Raises:
        BadRecordError: they are something else (``bad_tools``).
    """
    if value is None:
        return None
    value = _parsed(value, "the tools are text that is not JSON", "bad_tools")
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in cast("list[Any]", value)):
        raise BadRecordError("the tools must be a list of objects (JSON schemas)", reason="bad_tools")
    return cast("list[Any]", value) or None


def texts_in_calls(value: Any) -> Iterator[str]:
    """Yield the texts that stand in the JSON text of calls: a template may get the call instead of its JSON."""
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping):
            fields = cast("Mapping[str, Any]", item)
            for name, field in fields.items():
                if name in _WRITTEN and isinstance(field, str):
                    yield from _texts_in_json(field)
            rest += fields.values()
        elif isinstance(item, list | tuple):
            rest += cast("Sequence[Any]", item)


def _texts_in_json(text: str) -> Iterator[str]:
    """Yield the texts in a JSON text; nothing where it is something else."""
    try:
        yield from texts_in(json.loads(text))
    except (ValueError, RecursionError):
        return


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null, at any depth."""
    if isinstance(value, dict):
        fields = cast("Mapping[str, Any]", value)
        return {name: without_nulls(item) for name, item in fields.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value


def _parsed(value: Any, told: str, reason: str) -> Any:
    """Return a value, or what a text says in JSON."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise BadRecordError(told, reason=reason) from None


BAD_CALLS: Final = "bad_tool_calls"
"""The reason of rows whose calls have no form that is known."""


def _text(value: Any, name: str, index: int) -> str:
    if not isinstance(value, str):
        _refuse("content_not_text", index, f"its {name} is {_kind(value)}, expected text")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def _refuse(reason: str, index: int, why: str) -> NoReturn:
    raise BadRecordError(f"turn {index + 1}: {why}", reason=reason)


OUTPUT: Final = "messages"


@final
class ConvertToChatML(Transform):
    """Makes ``messages``, a list of ``{"role", "content", ...}``, of a row's conversation.

    The conversation is the first of the fields messages, conversations and conversation that the row has; it is taken
    out. ``human`` becomes ``user``, ``gpt``, ``bot`` and ``model`` become ``assistant``, ``function`` becomes ``tool``;
    so do the other names of :data:`SYNONYMS`.

    Args:
        role_mapping: further names, {their name: role}; they come before those.
        use_default_mapping: whether those are known.
    """

    def __init__(
        self, role_mapping: Mapping[str, str] | None = None, use_default_mapping: bool = True
    ) -> None:
        self._reader = ConversationReader(role_mapping, use_default_mapping=use_default_mapping)

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages; BadRecordError where it has no conversation."""
        field = conversation_field(example)
        if field is None:
            raise BadRecordError(
                f"the row has none of the fields {', '.join(MESSAGES_FIELDS)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        return _with_messages(example, field, self._reader)


@final
class ConvertInputOutputToChatML(Transform):
    """Makes ``messages`` of a row's input and output: a user's turn and an assistant's.

    They are texts in two fields of the row, or a conversation whose turns are ``{"input", "output"}``. Where there is
    a system message, beside them or in a turn, it comes first. The fields are taken out.
    """

    def __init__(
        self, input_field: str = "input", output_field: str = "output", system_field: str | None = "system"
    ) -> None:
        self._input, self._output, self._system = input_field, output_field, system_field
        self._reader = ConversationReader()

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages; BadRecordError where it has no input or output."""
        if example.get(self._input) is None and (field := conversation_field(example)) is not None:
            return _with_messages(example, field, self._reader)
        names = {self._input: "input", self._output: "output"}
        if self._system is not None:
            names[self._system] = "system"
        if example.get(self._input) is None:
            told = f"the field {self._input!r} is missing or null"
            raise BadRecordError(told, reason="no_messages", field_path=self._input)
        messages = self._reader.read([{role: example.get(name) for name, role in names.items()}])
        rest = {key: value for key, value in example.items() if key not in names}
        return {**rest, OUTPUT: messages}


def conversation_field(row: Row) -> str | None:
    """Return the field of a row that holds its conversation."""
    return next((name for name in MESSAGES_FIELDS if row.get(name) is not None), None)


def _with_messages(row: Row, field: str, reader: ConversationReader) -> Row:
    with in_field(field):
        messages = reader.read(row[field])
    return {**{key: value for key, value in row.items() if key != field}, OUTPUT: messages}
