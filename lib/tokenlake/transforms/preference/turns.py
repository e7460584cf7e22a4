"""Texts and conversations as rows hold them, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from tokenlake.faults import Fault

Turn = dict[str, Any]
Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

_ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function": "tool",
}


def value_of(raw: object, field: str) -> Value | Fault | None:
    """Return a field's value; None where it is missing or null, a fault where it is neither text nor turns."""
    if raw is None:
        return None
    if isinstance(raw, str):
        return (
            raw
            if _is_utf8(raw)
            else Fault("invalid_utf8", f"the field {field!r} holds half a surrogate pair")
        )
    if isinstance(raw, list):
        turns = [_turn(each) for each in cast("list[Any]", raw)]
        whole = [turn for turn in turns if turn is not None]
        if len(whole) == len(turns):
            return whole
    return Fault(
        "not_text_or_messages",
        f"the field {field!r} holds {_told(raw)}, expected a text or a list of messages with role and content",
    )


def _turn(raw: object) -> Turn | None:
    """Return a message with role and content, other keys that are set kept; None where it has no role."""
    if not isinstance(raw, Mapping):
        return None
    message = {key: value for key, value in cast("Mapping[str, Any]", raw).items() if value is not None}
    if "role" not in message and "from" in message:
        message["role"] = message.pop("from")
        if "value" in message:
            message["content"] = message.pop("value")
    role = message.get("role")
    if not isinstance(role, str) or not _is_utf8(str(message.get("content", ""))):
        return None
    return {**message, "role": _ROLES.get(role, role), "content": message.get("content", "")}


def tools_of(raw: object) -> list[Any] | Fault | None:
    """Return the tools that a conversation may call: a list, or JSON text of one."""
    if isinstance(raw, str):
        try:
            raw = orjson.loads(raw)
        except ValueError:
            return Fault("bad_tools", "the tools are text, but not JSON")
    if raw is None or raw == []:
        return None
    return cast("list[Any]", raw) if isinstance(raw, list) else Fault("bad_tools", "the tools are not a list")


def is_empty(value: Value) -> bool:
    """Say whether a text is blank, or a conversation has no turn that says or calls anything."""
    if isinstance(value, str):
        return not value.strip()
    return not any(str(turn["content"]).strip() or turn.get("tool_calls") for turn in value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _told(raw: object) -> str:
    return "messages without a role" if isinstance(raw, list) else type(raw).__name__
