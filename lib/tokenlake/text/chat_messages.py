"""Conversations of the shapes that datasets have, as messages ``{"role", "content", ...}``.

| shape | a turn |
|---|---|
| messages | ``{"role": "user", "content": "Hello"}`` |
| ShareGPT | ``{"from": "human", "value": "Hello"}`` |
| input-output | ``{"input": "Hello", "output": "Hi"}``, with or without ``"system"``: two or three messages |

Whatever else a turn holds (tool calls, names) stays. A conversation may also be the JSON text of its list.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, cast, final

import orjson

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.sources.rows import Row
from tokenlake.text.transform import Transform

Turn = dict[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
"""What roles are called in the end."""

SYNONYMS: Final[Mapping[str, str]] = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function": "tool",
}
"""Other names that are known, unless a mapping says otherwise."""

_SAID_BY_OTHER_MEANS: Final = ("tool_calls", "function_call", "reasoning_content", "thinking", "reasoning")


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
                ``no_role``, ``unknown_role``, ``no_content``, ``content_not_text``, ``empty_turn``.
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
            if isinstance(role, str) and role in self.roles and type(fields.get("content")) is str:
                messages.append(fields if self.roles[role] == role else {**fields, "role": self.roles[role]})
            elif role is None and fields.get("from") is None and fields.get("input") is not None:
                if fields.get("output") is None:
                    _refuse("no_content", index, "its output is missing or null")
                for name, spoken in (("system", "system"), ("input", "user"), ("output", "assistant")):
                    if fields.get(name) is not None:
                        messages.append({"role": spoken, "content": _text(fields[name], name, index)})
            else:
                messages.append(self._message(fields, index))
            # An assistant that says nothing would be a lesson in saying nothing.
            last, content = messages[-1], messages[-1].get("content")
            blank = last["role"] == "assistant" and content is not None and not content.strip()
            if blank and not any(last.get(name) for name in _SAID_BY_OTHER_MEANS):
                _refuse("empty_turn", index, "the assistant says nothing and calls no tools")
        return messages

    def _message(self, fields: Turn, index: int) -> Turn:
        """Return one turn that is not as it should be yet."""
        other = self._value_format and fields.get("role") is None
        theirs, said = ("from", "value") if other else ("role", "content")
        name = fields.get(theirs)
        if name is None:
            _refuse("no_role", index, f"it has no role (nor from); its fields are {', '.join(fields)}")
        if not isinstance(name, str):
            _refuse("no_role", index, f"its role is {_kind(name)}, expected text")
        if name not in self.roles:
            known = ", ".join(self.roles)
            told = f"its role {name[:60]!r} is unknown, expected one of {known}; name it in role_mapping"
            _refuse("unknown_role", index, told)
        content = fields.get(said) if fields.get(said) is not None else fields.get("content")
        rest = {key: value for key, value in fields.items() if key not in (theirs, said, "content", "role")}
        if content is not None:
            return {"role": self.roles[name], "content": _text(content, "content", index), **rest}
        if not any(rest.get(means) for means in _SAID_BY_OTHER_MEANS):
            _refuse("no_content", index, "its content is missing or null, and it calls no tools")
        return {"role": self.roles[name], **rest}


@contextmanager
def in_field(name: str) -> Generator[None]:
    """Name the field of a row in the BadRecordError of what stands in it."""
    try:
        yield
    except BadRecordError as error:
        raise BadRecordError(f"the field {name!r}: {error}", **error.details) from error


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
    out. ``human`` becomes ``user``, ``gpt``, ``bot`` and ``model`` become ``assistant``, ``function`` becomes ``tool``.

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
            raise BadRecordError(f"the field {self._input!r} is missing or null", reason="no_messages")
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
