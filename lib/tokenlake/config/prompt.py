"""How the columns of a row become a prompt and its answer."""

from __future__ import annotations

from typing import Any, Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Switch, Text


class PromptConfig(Section):
    """Section `prompt` of a dataset: a template puts columns into a text, of which the label is learned."""

    format_type: Literal["custom", "chat", "completion"] = "custom"
    """custom: `template`. chat: input and label are turns of the chat template. completion: input, label."""

    template: Text | None = None
    """Text with {column} or {{ column }} where values go; needed by custom."""

    input_columns: tuple[Text, ...] = ()
    """Columns that make the prompt."""

    label_column: Text | None = None
    """Column of the answer, which is what is learned; null: everything is."""

    mask_input: Switch = True
    """Learn from the answer alone, not from the prompt."""

    add_bos: Switch = True
    """Begin with the tokenizer's BOS, where it has one."""

    add_eos: Switch = True
    """End the answer with EOS."""

    system_message: Text | None = None
    """What stands before the prompt; a turn of its own in chat."""

    examples: tuple[dict[Text, Any], ...] = ()
    """Worked examples (few-shot): rows put through the same template before each prompt."""

    example_separator: str = "\n\n"
    """Between examples, and before the prompt."""
