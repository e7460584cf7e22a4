"""Forms of a conversation, for templates that differ in the form that they take.

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
    """Return a message's fields that are not null.

    Its reasoning is in both fields that most templates know.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    for thought_field in THOUGHTS:
        if thought_field in fields:
            thought = fields[thought_field]
            return {"thinking": thought, **fields, "reasoning_content": thought}
    return fields


def is_special(message: Message) -> bool:
    """Return whether a template may leave out a part of a message.

    Calls, reasoning and parts are such: many templates do not know them.
    """
    if isinstance(message.get("content"), list):
        return True
    return any(field in message for field in ("tool_calls", "function_call", *THOUGHTS))


def forms(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield the forms of a conversation, in the order in which they are tried.

    Most conversations have one, or two where a content is a text.
    """
    cleaned_messages = [cleaned(message) for message in messages]
    if any(map(is_special, cleaned_messages)):
        yield from _special_forms(cleaned_messages)
    else:
        yield cleaned_messages
    # Templates of models that see images take nothing but lists of parts. This form is
    # the last one: a template that takes texts never gets it.
    if any(isinstance(message.get("content"), str) for message in cleaned_messages):
        yield [_as_parts(message) for message in cleaned_messages]


def _special_forms(
    messages: Sequence[dict[str, Any]],
) -> Iterator[list[dict[str, Any]]]:
    """Yield the different forms of a conversation with calls, reasoning or parts."""
    # Changes that do not concern a message leave it as it is, so that most of the 81
    # combinations are equal. A form is tried once.
    tried_forms: list[list[dict[str, Any]]] = []
    # The last changes vary first.
    for changes in product(
        _CALL_CHANGES, _PART_CHANGES, _ARGUMENT_CHANGES, _CONTENT_CHANGES
    ):
        form = [_changed(message, changes) for message in messages]
        if form in tried_forms or any(map(_is_unread, form)):
            continue
        tried_forms.append(form)
        yield form


def _changed(message: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Return a message after several changes."""
    for change in changes:
        message = change(message)
    return message


def _same(message: dict[str, Any]) -> dict[str, Any]:
    return message


# ---- calls ---------------------------------------------------------------------------


def _is_unread(message: dict[str, Any]) -> bool:
    """Return whether a call is still the text of ShareGPT, which no template reads."""
    return isinstance(message.get("function_call"), str)


def _without_function_call(message: dict[str, Any]) -> dict[str, Any]:
    fields = dict(message)
    fields.pop("function_call", None)
    return fields


def _as_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Write ``function_call`` as ``tool_calls``."""
    call = message.get("function_call")
    # OpenAI's older form holds the call as an object, ShareGPT's as JSON text.
    if isinstance(call, dict):
        calls = [{"type": "function", "function": call}]
    elif isinstance(call, str):
        calls = calls_of_text(call)
    else:
        calls = None
    if calls is None:
        return message
    return {**_without_function_call(message), "tool_calls": calls}


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Write ShareGPT's text of a call as the content."""
    call = message.get("function_call")
    if not isinstance(call, str):
        return _as_tool_calls(message)
    return {**_without_function_call(message), "content": call}


def calls_of_text(text: str) -> list[dict[str, Any]] | None:
    """Return the calls in a JSON text; None where it is something else.

    The text is an object with a name, or a list of such objects.
    """
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None
    items = cast("list[Any]", parsed)
    if not isinstance(parsed, list):
        items = [parsed]
    calls: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return None
        fields = cast("dict[str, Any]", item)
        # A call without arguments stays without them.
        function = {"name": fields["name"]}
        if "arguments" in fields:
            function["arguments"] = fields["arguments"]
        calls.append({"type": "function", "function": function})
    return calls or None


# ---- parts ---------------------------------------------------------------------------


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
    # Parts that are no text cannot reach here from a dataset: the reader of
    # conversations refuses them.
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


# ---- arguments -----------------------------------------------------------------------


def _with_arguments(
    message: dict[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    """Give the arguments of every call another form."""
    if not calls_of(message):
        return message
    fields = dict(message)
    tool_calls = fields.get("tool_calls")
    if isinstance(tool_calls, list):
        fields["tool_calls"] = [_call_with(call, change) for call in tool_calls]
    if isinstance(fields.get("function_call"), dict):
        fields["function_call"] = _call_with(fields["function_call"], change)
    return fields


def _call_with(call: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a call, or the function inside it, with changed arguments."""
    # A call of `tool_calls` wraps its function; one of `function_call` is the function.
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
    # An empty text means a call without arguments.
    parsed = json_object(arguments or "{}")
    if parsed is None:
        return arguments
    return parsed


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


# ---- turns without content -----------------------------------------------------------


def _has_no_content(message: dict[str, Any]) -> bool:
    """Return whether a turn has calls, or reasoning alone, and no content."""
    if not is_special(message):
        return False
    content = message.get("content")
    if isinstance(content, str):
        return not content.strip()
    return content is None or content == []


def _with_empty_content(message: dict[str, Any]) -> dict[str, Any]:
    """Give a turn without content an empty text."""
    if not _has_no_content(message):
        return message
    return {**message, "content": ""}


def _with_null_content(message: dict[str, Any]) -> dict[str, Any]:
    """Give a turn without content a null."""
    if not _has_no_content(message):
        return message
    return {**message, "content": None}


# Every tuple begins with no change, so that the first form is the conversation itself.


_CALL_CHANGES = (_same, _as_tool_calls, _as_text)
_PART_CHANGES = (_same, _with_joined_parts, _with_one_part)
_ARGUMENT_CHANGES = (_same, _with_objects, _with_json)
_CONTENT_CHANGES = (_same, _with_empty_content, _with_null_content)
