"""How conversations become text."""

from __future__ import annotations

from typing import Any, Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Switch, Text


class ChatConfig(Section):
    """Section `chat` of a dataset: its rows hold conversations, which a chat template renders."""

    template: Text | None = None
    """Jinja template, or the path of a file with one; null: the tokenizer's own."""

    messages_field: Text | None = None
    """Field of the messages; null: `content_field` where that is set, else messages, conversations or conversation."""

    tools_field: Text | None = "tools"
    """Field of the tools that a conversation may call, where rows have it."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}; beside the usual ones."""

    loss: Literal["assistant", "all"] = "assistant"
    """What a trainer learns from: the assistant's turns, or everything."""

    template_kwargs: dict[Text, Any] | None = None
    """Further variables of the template."""

    add_generation_prompt: Switch = False
    """End with what begins the assistant's next turn."""
