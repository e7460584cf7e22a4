"""Forms in which a conversation can be given to a template, where templates differ in
the form they take.

| a turn has | forms, in this order |
|---|---|
| content that is a list of text parts | the list; the parts joined to one text; a list of that text |
| calls and no content | as it is; content ""; content null |
| arguments of a call | as they are; an object for JSON text, JSON text for an object |
| ``function_call``, OpenAI's object | as it is; ``tool_calls`` |
| ``function_call``, ShareGPT's text | ``tool_calls``; the text as content |
| content that is a text | the text; a list of one part, as templates of models that see images take it |

The first form that the template renders without losing anything is taken. The order is
the same for every conversation, so the text is a function of the conversation and the
template alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, cast

from tokenlake.etl.text.chat_marks import THOUGHTS, calls_of, json_object
from tokenlake.etl.text.chat_protocol import Message

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives a message another form; returns a message that it does not concern as it is."""


def cleaned(message: Message) -> dict[str, Any]:
    """Return a message's fields that are not null; its reasoning is in both fields
    that most templates know.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    thought = next((fields[name] for name in THOUGHTS if name in fields), None)
    if thought is None:
        return fields
    return {"thinking": thought, **fields, "reasoning_content": thought}


def is_special(message: Message) -> bool:
    """Return whether a message has calls, reasoning or parts, which a template may
    leave out.
    """
    if isinstance(message.get("content"), list):
        return True
    return any(name in message for name in ("tool_calls", "function_call", *THOUGHTS))


def forms(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield the forms of a conversation, in the order in which they are tried; most
    have one.
    """
    cleaned_messages = [cleaned(message) for message in messages]
    if any(map(is_special, cleaned_messages)):
        yield from _special_forms(cleaned_messages)
    else:
        yield cleaned_messages
    if any(isinstance(message.get("content"), str) for message in cleaned_messages):
        yield [_as_parts(message) for message in cleaned_messages]


def _special_forms(
    messages: Sequence[dict[str, Any]],
) -> Iterator[list[dict[str, Any]]]:
    """Yield the different forms of a conversation with calls, reasoning or parts."""
    tried: list[list[dict[str, Any]]] = []
    # The last changes vary first.
    for changes in product(
        _CALL_CHANGES, _PART_CHANGES, _ARGUMENT_CHANGES, _CONTENT_CHANGES
    ):
        form = [_changed(message, changes) for message in messages]
        if form not in tried and not any(map(_is_unread, form)):
            tried.append(form)
            yield form


def _changed(message: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Return a message after several changes."""
    for change in changes:
        message = change(message)
    return message


def _same(message: dict[str, Any]) -> dict[str, Any]:
    return message


# ---- calls
# -------------------------------------------------------------------------------------------------


def _is_unread(message: dict[str, Any]) -> bool:
    """Return whether a call is still the text of ShareGPT, which no template reads."""
    return isinstance(message.get("function_call"), str)


def _without_function_call(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "function_call"}


def _as_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Write ``function_call`` as ``tool_calls``."""
    call = message.get("function_call")
    if isinstance(call, dict):
        return {
            **_without_function_call(message),
            "tool_calls": [{"type": "function", "function": call}],
        }
    if isinstance(call, str):
        calls = calls_of_text(call)
        if calls is not None:
            return {**_without_function_call(message), "tool_calls": calls}
    return message


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Write ShareGPT's text of a call as the content."""
    call = message.get("function_call")
    if not isinstance(call, str):
        return _as_tool_calls(message)
    return {**_without_function_call(message), "content": call}


def calls_of_text(text: str) -> list[dict[str, Any]] | None:
    """Return the calls in a JSON text, an object with a name or a list of them; None
    where it is something else.
    """
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    listed = cast("list[Any]", value if isinstance(value, list) else [value])
    calls: list[dict[str, Any]] = []
    for call in listed:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        fields = cast("dict[str, Any]", call)
        function = {
            name: fields[name] for name in ("name", "arguments") if name in fields
        }
        calls.append({"type": "function", "function": function})
    return calls or None


# ---- parts
# -------------------------------------------------------------------------------------------------


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Write a text as a list of one part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _with_joined_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Write a list of parts as one text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts: list[str] = []
    for part in cast("list[Any]", content):
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            texts.append(text)
    return {**message, "content": "".join(texts)}


def _with_one_part(message: dict[str, Any]) -> dict[str, Any]:
    """Write a list of parts as a list of one part."""
    if not isinstance(message.get("content"), list):
        return message
    return _as_parts(_with_joined_parts(message))


# ---- arguments
# ---------------------------------------------------------------------------------------------


def _with_arguments(
    message: dict[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    """Give the arguments of every call another form."""
    if not calls_of(message):
        return message
    fields = dict(message)
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [
            _call_with(call, change) for call in fields["tool_calls"]
        ]
    if isinstance(fields.get("function_call"), dict):
        fields["function_call"] = _call_with(fields["function_call"], change)
    return fields


def _call_with(call: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a call, or the function inside it, with changed arguments."""
    inner = call.get("function")
    if isinstance(inner, dict):
        return {**call, "function": _call_with(cast("dict[str, Any]", inner), change)}
    return {**call, "arguments": change(call.get("arguments", {}))}


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Write arguments that are JSON text of an object as the object."""
    return _with_arguments(message, _object_of_json)


def _object_of_json(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    value = json_object(arguments or "{}")
    return arguments if value is None else value


def _with_json(message: dict[str, Any]) -> dict[str, Any]:
    """Write arguments that are an object as JSON text."""
    return _with_arguments(message, _json_of_object)


def _json_of_object(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except TypeError:  # a value that is no JSON, such as a date
        return arguments


# ---- turns without content
# ---------------------------------------------------------------------------------


def _has_no_content(message: dict[str, Any]) -> bool:
    """Return whether a turn has calls, or reasoning alone, and no content."""
    content = message.get("content")
    is_blank = (
        content is None
        or content == []
        or (isinstance(content, str) and not content.strip())
    )
    return is_blank and is_special(message)


def _with_empty_content(message: dict[str, Any]) -> dict[str, Any]:
    """Give a turn without content an empty text."""
    return {**message, "content": ""} if _has_no_content(message) else message


def _with_null_content(message: dict[str, Any]) -> dict[str, Any]:
    """Give a turn without content a null."""
    return {**message, "content": None} if _has_no_content(message) else message


_CALL_CHANGES = (_same, _as_tool_calls, _as_text)
_PART_CHANGES = (_same, _with_joined_parts, _with_one_part)
_ARGUMENT_CHANGES = (_same, _with_objects, _with_json)
_CONTENT_CHANGES = (_same, _with_empty_content, _with_null_content)
