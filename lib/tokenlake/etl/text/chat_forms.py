"""The forms in which a conversation can be given to a template, where templates differ in what they take.

| what a turn has | forms, in this order |
|---|---|
| content that is a list of text parts | the list; the parts joined to one text; a list of that text |
| calls and no content | as it is; content ""; content null |
| arguments of a call | as they are; an object for JSON text, JSON text for an object |
| ``function_call``, OpenAI's object | as it is; ``tool_calls`` |
| ``function_call``, ShareGPT's text | ``tool_calls``; the text as content |
| content that is a text | the text; a list of one part, as templates of models that see images want it |

The first form that the template renders without losing anything is taken. The order is the same for every
conversation, so the text is a function of the conversation and the template alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from tokenlake.etl.text.chat_marks import THOUGHTS, calls_of, json_object
from tokenlake.etl.text.chat_template import Message

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives a message another form; a message that it does not concern stays as it is."""


def cleaned(message: Message) -> dict[str, Any]:
    """Return a message's fields that are not null; its reasoning is there under every name that templates know."""
    fields = {name: value for name, value in message.items() if value is not None}
    thought = next((fields[name] for name in THOUGHTS if name in fields), None)
    if thought is not None:
        return {"thinking": thought, **fields, "reasoning_content": thought}
    return fields


def is_special(message: Message) -> bool:
    """Return whether a message has more than words: calls, reasoning or parts, which a template may leave out."""
    if isinstance(message.get("content"), list):
        return True
    return any(name in message for name in ("tool_calls", "function_call", *THOUGHTS))


def forms(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield the forms of a conversation, in the order in which they are tried; most have one."""
    given = [cleaned(message) for message in messages]
    if any(map(is_special, given)):
        yield from _special_forms(given)
    else:
        yield given
    if any(isinstance(message.get("content"), str) for message in given):
        yield [_as_parts(message) for message in given]


def _special_forms(given: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the forms of a conversation with calls, reasoning or parts."""
    tried: list[list[dict[str, Any]]] = []
    for call in (_same, _as_tool_calls, _as_text):
        for parts in (_same, _with_joined_parts, _with_one_part):
            for arguments in (_same, _with_objects, _with_json):
                for content in (_same, _with_empty_content, _with_null_content):
                    changes = (call, parts, arguments, content)
                    form = [_changed(message, changes) for message in given]
                    if form not in tried and not any(map(_is_unread, form)):
                        tried.append(form)
                        yield form


def _changed(message: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    for change in changes:
        message = change(message)
    return message


def _same(message: dict[str, Any]) -> dict[str, Any]:
    return message


def _is_unread(message: dict[str, Any]) -> bool:
    """Return whether a call is still the text that ShareGPT writes, which no template reads."""
    return isinstance(message.get("function_call"), str)


def _as_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Write ``function_call`` as ``tool_calls``."""
    legacy = message.get("function_call")
    rest = {name: value for name, value in message.items() if name != "function_call"}
    if isinstance(legacy, dict):
        return {**rest, "tool_calls": [{"type": "function", "function": legacy}]}
    if isinstance(legacy, str):
        calls = calls_of_text(legacy)
        return message if calls is None else {**rest, "tool_calls": calls}
    return message


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Write ShareGPT's text of a call as the content."""
    legacy = message.get("function_call")
    if not isinstance(legacy, str):
        return _as_tool_calls(message)
    rest = {name: value for name, value in message.items() if name != "function_call"}
    return {**rest, "content": legacy}


def calls_of_text(text: str) -> list[dict[str, Any]] | None:
    """Return the calls that a text is the JSON of, an object with a name or a list of them; None where it is not."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    listed = cast("list[Any]", value if isinstance(value, list) else [value])
    calls: list[dict[str, Any]] = []
    for call in listed:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        function = cast("dict[str, Any]", call)
        known = {name: function[name] for name in ("name", "arguments") if name in function}
        calls.append({"type": "function", "function": known})
    return calls or None


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return (
        {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
    )


def _with_joined_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part.get("text") for part in cast("list[Any]", content) if isinstance(part, dict)]
    return {**message, "content": "".join(text for text in texts if isinstance(text, str))}


def _with_one_part(message: dict[str, Any]) -> dict[str, Any]:
    return _as_parts(_with_joined_parts(message)) if isinstance(message.get("content"), list) else message


def _with_arguments(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Give the arguments of every call another form."""
    if not calls_of(message):
        return message
    fields = dict(message)
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [_call_with(call, change) for call in fields["tool_calls"]]
    if isinstance(fields.get("function_call"), dict):
        fields["function_call"] = _call_with(fields["function_call"], change)
    return fields


def _call_with(call: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    inner = call.get("function")
    if isinstance(inner, dict):
        return {**call, "function": _call_with(cast("dict[str, Any]", inner), change)}
    return {**call, "arguments": change(call.get("arguments", {}))}


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Write arguments that are JSON text of an object as the object."""
    return _with_arguments(message, _object)


def _object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    value = json_object(arguments or "{}")
    return arguments if value is None else value


def _with_json(message: dict[str, Any]) -> dict[str, Any]:
    """Write arguments that are an object as JSON text."""
    return _with_arguments(message, _json)


def _json(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except TypeError:  # a value that is no JSON, such as a date
        return arguments


def _is_silent_call(message: dict[str, Any]) -> bool:
    """Return whether a turn has calls, or reasoning alone, and no content."""
    content = message.get("content")
    is_blank = content is None or content == [] or (isinstance(content, str) and not content.strip())
    return is_blank and is_special(message)


def _with_empty_content(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": ""} if _is_silent_call(message) else message


def _with_null_content(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": None} if _is_silent_call(message) else message
