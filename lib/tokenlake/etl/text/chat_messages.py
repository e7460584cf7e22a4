"""Conversations of the shapes that datasets have, as messages with role and content.

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
# "input_text" and "output_text" are the parts of OpenAI's Responses API.
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_PLAIN_FIELDS: Final = 2  # role and content


# ---- conversations -------------------------------------------------------------------


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
        # A mapping of the configuration comes last, so that it overrides a synonym.
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
                problem = f"it is {_kind(turn)}, expected an object"
                _refuse_turn("not_messages", index, problem)
            fields = cast("Turn", turn)
            # Plain turns, turns of input and output, and all others.
            if self._is_plain(fields):
                messages.append(self._with_known_role(fields))
            elif _has_input_alone(fields):
                messages += _input_and_output(fields, index)
            else:
                messages.append(self._message(fields, index))
            _refuse_empty(messages[-1], index)
        return messages

    def _with_known_role(self, fields: Turn) -> Turn:
        """Return a plain turn with the role that its name means."""
        role = self.roles[fields["role"]]
        if role == fields["role"]:
            return fields  # most turns are not copied
        return {**fields, "role": role}

    def _is_plain(self, fields: Turn) -> bool:
        """Return whether a turn has a known role and a text, and nothing else.

        Most have, and need no more checks.
        """
        if len(fields) != _PLAIN_FIELDS or type(fields.get("content")) is not str:
            return False
        role = fields.get("role")
        if not isinstance(role, str) or role in _CALLING_ROLES:
            return False
        return role in self.roles

    def _message(self, fields: Turn, index: int) -> Turn:
        """Return the message of a turn of another form; BadRecordError where it has none."""
        # 1. The role and the content. A turn with a role and a value mixes both formats,
        #    and is read all the same.
        is_value_turn = self._reads_values and fields.get("role") is None
        role_field = "from" if is_value_turn else "role"
        role_name = self._role_name(fields, role_field, index)
        content = fields.get("content")
        read_fields = ["role", "content"]
        if self._reads_values and (is_value_turn or content is None):
            read_fields += ["from", "value"]
            if fields.get("value") is not None:
                content = fields["value"]
        turn: Turn = {"role": self.roles[role_name]}
        if content is not None:
            turn["content"] = _text_or_parts(content, index)
        # 2. All other fields stay: a template may print them.
        other_fields: Turn = {}
        for field, value in fields.items():
            if field not in read_fields:
                other_fields[field] = value
        turn |= _with_read_calls(other_fields, index)
        _check_thoughts(turn, index)
        try:
            check_weight(turn)
        except BadRecordError as error:
            raise BadRecordError(
                f"turn {index + 1}: {error}", **error.details
            ) from error
        # 3. A turn says something: words, a call, or reasoning.
        if role_name in _CALLING_ROLES and turn["role"] == ASSISTANT:
            turn = _with_written_call(turn)
        if turn.get("content") is None and not _says_beside_content(turn):
            problem = "its content is missing or null, and it calls no tools"
            _refuse_turn("no_content", index, problem)
        return turn

    def _role_name(self, fields: Turn, field: str, index: int) -> str:
        """Return the known name of a turn's role; BadRecordError where it has none.

        Args:
            fields: Turn.
            field: Field of the role.
            index: Index of the turn.
        """
        name = fields.get(field)
        if name is None:
            field_names = ", ".join(fields)
            problem = f"it has neither role nor from; its fields are {field_names}"
            _refuse_turn("no_role", index, problem)
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


def _has_input_alone(fields: Turn) -> bool:
    """Return whether a turn has no role and an input: a pair of input and output."""
    has_role = fields.get("role") is not None or fields.get("from") is not None
    return not has_role and fields.get("input") is not None


def _turns_of(conversation: Any) -> Sequence[Any]:
    """Return the turns of a conversation, or of its JSON text.

    Raises:
        BadRecordError: It is no list, or empty.
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
    """Return the messages of a turn that holds the user's and the assistant's text."""
    if fields.get("output") is None:
        _refuse_turn("no_content", index, "its output is missing or null")
    messages: list[Turn] = []
    # The system's text comes first, as templates expect it.
    roles = {"system": "system", "input": "user", "output": "assistant"}
    for field, role in roles.items():
        if fields.get(field) is not None:
            content = _text(fields[field], field, index)
            messages.append({"role": role, "content": content})
    return messages


def _refuse_empty(turn: Turn, index: int) -> None:
    """Refuse an assistant that says nothing: a model would learn to say nothing."""
    content = turn.get("content")
    if turn["role"] != ASSISTANT or content is None:
        return
    text = content
    if not isinstance(content, str):
        text = "".join(part["text"] for part in content)
    if not text.strip() and not _says_beside_content(turn):
        problem = "the assistant says nothing and calls no tools"
        _refuse_turn("empty_turn", index, problem)


def _says_beside_content(turn: Turn) -> bool:
    """Return whether a turn has calls or reasoning."""
    return any(turn.get(field) for field in _FIELDS_BESIDE_CONTENT)


# ---- contents ------------------------------------------------------------------------


def _text_or_parts(content: Any, index: int) -> str | list[Any]:
    """Return a content, a text or a list of text parts.

    Parts that are all blank become one text: where a template prints a list, no words
    would show it.

    Raises:
        BadRecordError: It is neither.
    """
    if not isinstance(content, list):
        return _text(content, "content", index)
    texts: list[str] = []
    for part_index, part in enumerate(cast("list[Any]", content)):
        texts.append(_part_text(part, part_index, index))
    joined_text = "".join(texts)
    if not joined_text.strip():
        return joined_text
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: Any, part_index: int, index: int) -> str:
    """Return the text of a part of a content; BadRecordError where it is no text part."""
    # A part may be its text alone, without the object around it.
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not part:
        _refuse_part(_kind(part), part_index, index)
    fields = cast("dict[str, Any]", part)
    part_type = fields.get("type", "text")
    text = fields.get("text")
    if part_type not in _TEXT_PARTS or not isinstance(text, str):
        problem = f"of type {part_type!r}, with text that is {_kind(text)}"
        _refuse_part(problem, part_index, index)
    return text


def _refuse_part(problem: str, part_index: int, index: int) -> NoReturn:
    """Raise the BadRecordError of a part of a turn's content."""
    _refuse_turn(
        "content_not_text",
        index,
        f"part {part_index + 1} of its content is {problem}, expected {{'type': 'text', 'text': 'Hello'}}; other "
        "parts, such as images, cannot become tokens",
    )


def _text(value: Any, field: str, index: int) -> str:
    """Return a text; BadRecordError where the value is none."""
    if not isinstance(value, str):
        problem = f"its {field} is {_kind(value)}, expected text"
        _refuse_turn("content_not_text", index, problem)
    return value


def _check_thoughts(turn: Turn, index: int) -> None:
    """Require that reasoning is text; BadRecordError where it is not."""
    for field in THOUGHTS:
        if turn.get(field) is not None:
            _text(turn[field], field, index)


# ---- calls and tools -----------------------------------------------------------------


def _with_read_calls(fields: Turn, index: int) -> Turn:
    """Return fields whose calls are objects.

    JSON text of calls is read, and empty lists are left out.
    """
    read_fields = dict(fields)
    for field in _CALL_FIELDS:
        problem = f"turn {index + 1}: its {field} are text that is not JSON"
        calls = _parsed(read_fields.pop(field, None), problem, BAD_CALLS)
        # Null, an empty list and an empty object say that the turn calls nothing.
        if not calls:
            continue
        # The older field holds one call, the newer one a list.
        items = calls if field == "tool_calls" else [calls]
        if not isinstance(items, list):
            problem = f"its {field} hold {_kind(calls)}, expected a list of calls"
            _refuse_turn(BAD_CALLS, index, problem)
        for call in cast("list[Any]", items):
            if not isinstance(call, dict):
                _refuse_turn(
                    BAD_CALLS,
                    index,
                    f"its {field} hold {_kind(call)}, expected an object with a name and arguments",
                )
        read_fields[field] = calls
    return read_fields


def _with_written_call(turn: Turn) -> Turn:
    """Return a turn of ShareGPT's ``function_call`` as one that makes the call.

    The text of the turn is the JSON of the call. It stays in ``function_call``: a
    template that renders no calls gets it as the content. A text that is no call stays
    the content.
    """
    content = turn.get("content")
    has_calls = any(turn.get(field) for field in _CALL_FIELDS)
    if has_calls or not isinstance(content, str) or calls_of_text(content) is None:
        return turn
    calling_turn = dict(turn)
    del calling_turn["content"]
    calling_turn["function_call"] = content
    return calling_turn


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a row; None where it has none.

    Args:
        value: List of objects (JSON schemas), or JSON text of one.

    Raises:
        BadRecordError: They are something else (``bad_tools``).
    """
    if value is None:
        return None
    tools = _parsed(value, "the tools are text that is not JSON", "bad_tools")
    are_schemas = isinstance(tools, list)
    if are_schemas:
        schemas = cast("list[Any]", tools)
        are_schemas = all(isinstance(schema, dict) for schema in schemas)
    if not are_schemas:
        raise BadRecordError(
            "the tools must be a list of objects (JSON schemas)", reason="bad_tools"
        )
    return tools or None


def texts_in_calls(value: Any) -> Iterator[str]:
    """Yield the texts in the JSON text of calls.

    A template may get the call instead of its JSON, and then prints these texts.
    """
    # A list of pending values in the place of recursion: rows may be nested deeply.
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            fields = cast("Mapping[str, Any]", item)
            for json_field in _JSON_FIELDS:
                text = fields.get(json_field)
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


# ---- values --------------------------------------------------------------------------


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null, at any depth."""
    if isinstance(value, dict):
        fields = cast("Mapping[str, Any]", value)
        present_fields: dict[str, Any] = {}
        for name, item in fields.items():
            if item is not None:
                present_fields[name] = without_nulls(item)
        return present_fields
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value


def _parsed(value: Any, problem: str, reason: str) -> Any:
    """Return a value, or the value of a JSON text; BadRecordError where it is no JSON."""
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


# ---- errors --------------------------------------------------------------------------


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
