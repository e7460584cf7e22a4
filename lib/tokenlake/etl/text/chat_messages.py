"""Conversations of the shapes that datasets have, as messages ``{"role", "content",
...}``.

| shape | a turn |
|---|---|
| messages | ``{"role": "user", "content": "Hello"}`` |
| messages of parts | ``{"role": "user", "content": [{"type": "text", "text": "Hello"}]}`` |
| ShareGPT | ``{"from": "human", "value": "Hello"}`` |
| input-output | ``{"input": "Hello", "output": "Hi"}``, with or without ``"system"``: two or three messages |

All other fields of a turn (tool calls, names) stay. A conversation may also be the JSON
text of its list. A turn of ShareGPT's ``function_call``, whose text is the JSON of a
call, becomes a turn of the assistant that makes this call.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, cast, final

import orjson

from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_forms import calls_of_text
from tokenlake.etl.text.chat_marks import THOUGHTS
from tokenlake.etl.text.chat_weights import ASSISTANT, check_weight
from tokenlake.etl.text.plain_data import texts_in

Turn = dict[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages."""

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
"""Other names of roles in data, unless a mapping gives them another role."""

BAD_CALLS: Final = "bad_tool_calls"
"""Reason of rows whose calls have no known form."""

_CALLING_ROLES: Final = ("function_call", "tool_call")
"""Names of roles whose text is the JSON of a call."""
_CALL_FIELDS: Final = ("tool_calls", "function_call")
_FIELDS_BESIDE_CONTENT: Final = (*_CALL_FIELDS, *THOUGHTS)
"""Fields by which a turn says something without content."""
_JSON_FIELDS: Final = ("arguments", "function_call")
"""Fields that may hold JSON text."""
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_PLAIN_FIELDS: Final = 2  # role and content


# ---- conversations
# -----------------------------------------------------------------------------------------


@final
class ConversationReader:
    """Reads conversations.

    Args:
        role_mapping: {role in the data: role}; these come before the known synonyms.
        use_default_mapping: True to know the synonyms.
        value_format: True to read turns of ``{"from", "value"}``, too.
    """

    def __init__(
        self,
        role_mapping: Mapping[str, str] | None = None,
        *,
        use_default_mapping: bool = True,
        value_format: bool = True,
    ) -> None:
        self._reads_values = value_format
        roles = {role: role for role in ROLES}
        if use_default_mapping:
            roles |= SYNONYMS
        roles |= role_mapping or {}
        self.roles: Final[Mapping[str, str]] = roles

    def read(self, conversation: Any) -> list[Turn]:
        """Return the messages of a conversation.

        Raises:
            BadRecordError: It has another shape; `details` hold the reason:
                ``no_messages``, ``not_messages``, ``no_role``, ``unknown_role``,
                ``no_content``, ``content_not_text``, ``empty_turn``,
                ``bad_tool_calls``, ``bad_weight``.
        """
        messages: list[Turn] = []
        for index, turn in enumerate(_turns_of(conversation)):
            if not isinstance(turn, dict):
                _refuse_turn(
                    "not_messages", index, f"it is {_kind(turn)}, expected an object"
                )
            fields = cast("Turn", turn)
            role = fields.get("role")
            # Plain turns, turns of input and output, and all others.
            if self._is_plain(fields):
                new_role = self.roles[fields["role"]]
                messages.append(
                    fields if new_role == role else {**fields, "role": new_role}
                )
            elif (
                role is None
                and fields.get("from") is None
                and fields.get("input") is not None
            ):
                messages += _input_and_output(fields, index)
            else:
                messages.append(self._message(fields, index))
            _refuse_empty(messages[-1], index)
        return messages

    def _is_plain(self, fields: Turn) -> bool:
        """Return whether a turn has a known role and a text, and nothing else: most
        have, and need no more checks.
        """
        if len(fields) != _PLAIN_FIELDS or type(fields.get("content")) is not str:
            return False
        role = fields.get("role")
        return (
            isinstance(role, str) and role in self.roles and role not in _CALLING_ROLES
        )

    def _message(self, fields: Turn, index: int) -> Turn:
        """Return the message of a turn of another form; BadRecordError where it has
        none.
        """
        has_from = self._reads_values and fields.get("role") is None
        name = self._role_name(fields, "from" if has_from else "role", index)
        content = fields.get("content")
        own_names = ["role", "content"]
        if self._reads_values and (has_from or content is None):
            own_names += ["from", "value"]
            if fields.get("value") is not None:
                content = fields["value"]
        turn: Turn = {"role": self.roles[name]}
        if content is not None:
            turn["content"] = _text_or_parts(content, index)
        # All other fields stay.
        other_fields = {
            key: value for key, value in fields.items() if key not in own_names
        }
        turn |= _with_read_calls(other_fields, index)
        _check_thoughts(turn, index)
        try:
            check_weight(turn)
        except BadRecordError as error:
            raise BadRecordError(
                f"turn {index + 1}: {error}", **error.details
            ) from error
        if name in _CALLING_ROLES and turn["role"] == ASSISTANT:
            turn = _with_written_call(turn)
        if turn.get("content") is None and not _says_beside_content(turn):
            _refuse_turn(
                "no_content",
                index,
                "its content is missing or null, and it calls no tools",
            )
        return turn

    def _role_name(self, fields: Turn, field: str, index: int) -> str:
        """Return the known name of a turn's role in a field; BadRecordError where it
        has none.
        """
        name = fields.get(field)
        if name is None:
            listed = ", ".join(fields)
            _refuse_turn(
                "no_role",
                index,
                f"it has neither role nor from; its fields are {listed}",
            )
        if not isinstance(name, str):
            _refuse_turn("no_role", index, f"its role is {_kind(name)}, expected text")
        if name not in self.roles:
            known_roles = ", ".join(self.roles)
            _refuse_turn(
                "unknown_role",
                index,
                f"its role {name[:60]!r} is unknown, expected one of {known_roles}; name it in role_mapping",
            )
        return name


def _turns_of(conversation: Any) -> Sequence[Any]:
    """Return the turns of a conversation, or of its JSON text; BadRecordError where
    it is no list, or empty.
    """
    turns = _parsed(conversation, "got text, expected a list of turns", "not_messages")
    if turns is None:
        raise BadRecordError(
            "it is missing or null, expected a list of turns", reason="no_messages"
        )
    if not isinstance(turns, list | tuple):
        raise BadRecordError(
            f"it holds {_kind(turns)}, expected a list of turns", reason="not_messages"
        )
    if not turns:
        raise BadRecordError(
            "it is empty, expected at least one turn", reason="no_messages"
        )
    return cast("Sequence[Any]", turns)


def _input_and_output(fields: Turn, index: int) -> list[Turn]:
    """Return the messages of a turn that holds the texts of the user and the
    assistant.
    """
    if fields.get("output") is None:
        _refuse_turn("no_content", index, "its output is missing or null")
    messages: list[Turn] = []
    for name, role in (
        ("system", "system"),
        ("input", "user"),
        ("output", "assistant"),
    ):
        if fields.get(name) is not None:
            messages.append({"role": role, "content": _text(fields[name], name, index)})
    return messages


def _refuse_empty(turn: Turn, index: int) -> None:
    """Refuse an assistant that says nothing: a model would learn to say nothing."""
    content = turn.get("content")
    if turn["role"] != ASSISTANT or content is None:
        return
    text = (
        content
        if isinstance(content, str)
        else "".join(part["text"] for part in content)
    )
    if not text.strip() and not _says_beside_content(turn):
        _refuse_turn(
            "empty_turn", index, "the assistant says nothing and calls no tools"
        )


def _says_beside_content(turn: Turn) -> bool:
    """Return whether a turn has calls or reasoning."""
    return any(turn.get(name) for name in _FIELDS_BESIDE_CONTENT)


# ---- contents
# ----------------------------------------------------------------------------------------------


def _text_or_parts(content: Any, index: int) -> str | list[Any]:
    """Return a content, a text or a list of text parts; BadRecordError where it is
    neither.

    Parts that are all blank become one text: where a template prints a list, no words
    would show it.
    """
    if not isinstance(content, list):
        return _text(content, "content", index)
    texts = [
        _part_text(part, place, index)
        for place, part in enumerate(cast("list[Any]", content))
    ]
    if not "".join(texts).strip():
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: Any, place: int, index: int) -> str:
    """Return the text of a part of a content; BadRecordError where it is no text
    part.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not part:
        _refuse_part(_kind(part), place, index)
    fields = cast("dict[str, Any]", part)
    part_type = fields.get("type", "text")
    text = fields.get("text")
    if part_type not in _TEXT_PARTS or not isinstance(text, str):
        _refuse_part(
            f"of type {part_type!r}, with text that is {_kind(text)}", place, index
        )
    return text


def _refuse_part(problem: str, place: int, index: int) -> NoReturn:
    """Raise the BadRecordError of a part of a turn's content."""
    _refuse_turn(
        "content_not_text",
        index,
        f"part {place + 1} of its content is {problem}, expected {{'type': 'text', 'text': 'Hello'}}; other "
        "parts, such as images, cannot become tokens",
    )


def _text(value: Any, name: str, index: int) -> str:
    """Return a text; BadRecordError where the value is none."""
    if not isinstance(value, str):
        _refuse_turn(
            "content_not_text", index, f"its {name} is {_kind(value)}, expected text"
        )
    return value


def _check_thoughts(turn: Turn, index: int) -> None:
    """Require that reasoning is text; BadRecordError where it is not."""
    for name in THOUGHTS:
        value = turn.get(name)
        if value is not None and not isinstance(value, str):
            _refuse_turn(
                "content_not_text",
                index,
                f"its {name} is {_kind(value)}, expected text",
            )


# ---- calls and tools
# ---------------------------------------------------------------------------------------


def _with_read_calls(fields: Turn, index: int) -> Turn:
    """Return fields whose calls are objects; JSON text of calls is read, and empty
    lists are left out.
    """
    read_fields = dict(fields)
    for field in _CALL_FIELDS:
        calls = _parsed(
            read_fields.pop(field, None),
            f"turn {index + 1}: its {field} are text that is not JSON",
            BAD_CALLS,
        )
        # Null, an empty list and an empty object say that the turn calls nothing.
        if not calls:
            continue
        listed = calls if field == "tool_calls" else [calls]
        if not isinstance(listed, list):
            _refuse_turn(
                BAD_CALLS,
                index,
                f"its {field} hold {_kind(calls)}, expected a list of calls",
            )
        for call in cast("list[Any]", listed):
            if not isinstance(call, dict):
                _refuse_turn(
                    BAD_CALLS,
                    index,
                    f"its {field} hold {_kind(call)}, expected an object with a name and arguments",
                )
        read_fields[field] = calls
    return read_fields


def _with_written_call(turn: Turn) -> Turn:
    """Return a turn of ShareGPT's ``function_call`` as one that makes the call of which
    its text is the JSON.

    The text stays in ``function_call``: a template that renders no calls gets it as the
    content. A text that is no call stays the content.
    """
    content = turn.get("content")
    has_calls = any(turn.get(name) for name in _CALL_FIELDS)
    if has_calls or not isinstance(content, str) or calls_of_text(content) is None:
        return turn
    calling_turn = {name: value for name, value in turn.items() if name != "content"}
    calling_turn["function_call"] = content
    return calling_turn


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a row: a list of objects (JSON schemas), or JSON text of one;
    None where it is empty.

    Raises:
        BadRecordError: They are something else (``bad_tools``).
    """
    if value is None:
        return None
    tools = _parsed(value, "the tools are text that is not JSON", "bad_tools")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) for tool in cast("list[Any]", tools)
    ):
        raise BadRecordError(
            "the tools must be a list of objects (JSON schemas)", reason="bad_tools"
        )
    return cast("list[Any]", tools) or None


def texts_in_calls(value: Any) -> Iterator[str]:
    """Yield the texts in the JSON text of calls: a template may get the call instead
    of its JSON.
    """
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            fields = cast("Mapping[str, Any]", item)
            for name in _JSON_FIELDS:
                text = fields.get(name)
                if isinstance(text, str):
                    yield from _texts_in_json(text)
            pending += fields.values()
        elif isinstance(item, list | tuple):
            pending += cast("Sequence[Any]", item)


def _texts_in_json(text: str) -> Iterator[str]:
    """Yield the texts in a JSON text; nothing where it is no JSON."""
    try:
        yield from texts_in(json.loads(text))
    except (ValueError, RecursionError):
        return


# ---- values
# ------------------------------------------------------------------------------------------------


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null, at any depth."""
    if isinstance(value, dict):
        fields = cast("Mapping[str, Any]", value)
        return {
            name: without_nulls(item)
            for name, item in fields.items()
            if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value


def _parsed(value: Any, problem: str, reason: str) -> Any:
    """Return a value, or the value of a JSON text; BadRecordError where a text is no
    JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        raise BadRecordError(problem, reason=reason) from None


def _kind(value: Any) -> str:
    """Return the name of a value's type in JSON, with its article."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), f"a {type(value).__name__}")


# ---- errors
# ------------------------------------------------------------------------------------------------


@contextmanager
def in_field(name: str) -> Generator[None]:
    """Name the field of a row in the BadRecordError about its value."""
    try:
        yield
    except BadRecordError as error:
        details = {**error.details, "field_path": name}
        raise BadRecordError(f"the field {name!r}: {error}", **details) from error


def _refuse_turn(reason: str, index: int, problem: str) -> NoReturn:
    """Raise the BadRecordError of a turn."""
    raise BadRecordError(f"turn {index + 1}: {problem}", reason=reason)
