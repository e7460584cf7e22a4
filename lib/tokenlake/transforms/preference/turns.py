"""Texts and conversations as rows hold them, in one form."""

from __future__ import annotations

from typing import Any, Final, cast

import orjson

from tokenlake.errors import BadRecordError
from tokenlake.faults import Fault
from tokenlake.transforms.chat.turns import Message, Turns

Turn = Message
Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

_TURNS: Final = Turns()


def value_of(raw: object, field: str) -> Value | Fault | None:
    """Return a field's value; None where it is missing or null, a fault where it is neither text nor turns."""
    if raw is None or isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        return Fault(
            "not_text_or_messages",
            f"the field {field!r} holds {type(raw).__name__}, expected a text or a list of messages",
        )
    try:
        return _TURNS.read(cast("list[Any]", raw)) if raw else []
    except BadRecordError as error:
        return Fault(str(error.details["reason"]), f"the field {field!r}: {error}")


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
    return not any(
        str(turn.get("content") or "").strip() or len(turn) > len(("role", "content")) for turn in value
    )
