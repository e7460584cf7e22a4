"""How conversations become text."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from tokenlake.config.explain import problem, shown
from tokenlake.config.section import Section
from tokenlake.config.values import Switch, Text


def _plain(value: Any) -> Any:
    """Return plain data; a date, which YAML makes of 2025-01-31, is its text."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
    raise problem(f"got {shown(value)}, must be plain data: texts, numbers, lists, objects")


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted({"messages", "tools", "documents", "add_generation_prompt"} & value.keys()):
        raise problem(
            f"{taken[0]!r} is not a variable to set here: it comes from the rows or has its own option"
        )
    return value


Variables = Annotated[
    dict[Text, Any], BeforeValidator(_plain), AfterValidator(_variables), WithJsonSchema({"type": "object"})
]


class ChatConfig(Section):
    """Section `chat` of a dataset: its rows hold conversations, which a chat template renders."""

    template: Text | None = None
    """Jinja template, the path of a file with one, or the name of one of the tokenizer's; null: the tokenizer's own."""

    messages_field: Text | None = None
    """Field of the messages; null: `content_field` where that is set, else messages, conversations or conversation."""

    tools_field: Text | None = "tools"
    """Field of the tools that a conversation may call, where rows have it."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}; beside the usual ones."""

    loss: Literal["assistant", "all"] = "assistant"
    """What a trainer learns from: the assistant's turns, or everything."""

    template_kwargs: Variables | None = None
    """Further variables of the template; strftime_now is the date that the function of this name says."""

    add_generation_prompt: Switch = False
    """End with what begins the assistant's next turn."""
