"""The sections of a dataset that say how its rows become text: chat, prompt and preference."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator

from tokenlake.config.section import Section, problem, shown
from tokenlake.config.suggestion import did_you_mean
from tokenlake.config.values import Switch, Text
from tokenlake.preference_columns import Method, Trainer


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


class PromptConfig(Section):
    """Section `prompt` of a dataset: a template puts columns into a text, of which the label is learned.

    Text goes in as it is; numbers and booleans as JSON writes them; a row whose value is null, missing or anything else
    is a bad record.
    """

    format_type: Literal["custom", "chat", "completion"] = "custom"
    """custom: `template`. chat: input and label are turns of the chat template. completion: input, label."""

    template: Text | None = None
    """Text with {column} or {{ column }} where values go; needed by custom. One newline at its end is dropped."""

    input_columns: tuple[Text, ...] = ()
    """Columns that make the prompt; for custom, none given: all that the template uses beside the label."""

    label_column: Text | None = None
    """Column of the answer, which is what is learned; null: everything is."""

    optional_columns: tuple[Text, ...] = ()
    """Input columns that may be null or missing; their place then stays empty."""

    separator: str = "\n"
    """For chat and completion: between the input columns that are not empty; for completion before the label too."""

    mask_input: Switch = True
    """Learn from the answer alone (and its EOS), not from the prompt; false: from both, but never from examples."""

    add_bos: Switch = True
    """Begin with what the tokenizer itself puts before a text (BOS), if it does."""

    add_eos: Switch = True
    """End with EOS, packed or not, where the template does not spell it; for chat, the chat template ends the answer
    and packing the document."""

    system_message: Text | None = None
    """What stands before the prompt; a turn of its own in chat."""

    examples: tuple[dict[Text, Any], ...] = ()
    """Worked examples (few-shot): rows put through the same template before each prompt; never learned."""

    example_separator: str = "\n\n"
    """Between system message, examples and prompt; not for chat, where they are turns."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for fault in (self._of_format(), self._of_columns(), self._of_examples()):
            if fault:
                raise problem(fault)
        return self

    def _of_format(self) -> str | None:
        if self.format_type == "custom":
            return None if self.template else "format_type: 'custom' needs a template, which is missing"
        if self.template:
            return f"template: is for format_type 'custom', but format_type is {self.format_type!r}"
        if not self.input_columns or not self.label_column:
            lacking = "label_column" if self.input_columns else "input_columns"
            return f"{lacking}: missing, format_type {self.format_type!r} needs it"
        return None

    def _of_columns(self) -> str | None:
        if self.label_column in self.input_columns:
            return f"label_column: {self.label_column!r} is one of input_columns; the answer would stand in the prompt"
        if len(set(self.input_columns)) < len(self.input_columns):
            return "input_columns: a column is named twice"
        if self.label_column in self.optional_columns:
            return f"optional_columns: {self.label_column!r} is the label_column, without which nothing is learned"
        for name in self.optional_columns:
            if self.input_columns and name not in self.input_columns:
                near = did_you_mean(name, self.input_columns)
                return f"optional_columns: {name!r} is not one of input_columns{near}"
        return None

    def _of_examples(self) -> str | None:
        columns = [*self.input_columns, *([self.label_column] if self.label_column else [])]
        for index, row in enumerate(self.examples):
            for name in columns:
                if (
                    name not in row
                    and name not in self.optional_columns
                    and name.partition(".")[0] not in row
                ):
                    has = ", ".join(map(repr, row)) or "none"
                    return f"examples.{index}: has no column {name!r}; it has {has}{did_you_mean(name, row)}"
        return None


class PreferenceConfig(Section):
    """Section `preference` of a dataset: rows hold answers that are better and worse, texts or conversations."""

    method: Method
    """Which trainer the rows are for: pairs (dpo, orpo, cpo, reward), judged answers (kto, bco), or prompts (grpo)."""

    trainer: Trainer = "easydel"
    """Whose column names the rows have: those of EasyDeL's trainers or of TRL's."""

    prompt_field: Text = "prompt"
    """Field of the prompt; where rows lack it, what `chosen` and `rejected` begin with alike."""

    chosen_field: Text = "chosen"
    """Field of the better answer."""

    rejected_field: Text = "rejected"
    """Field of the worse answer."""

    completion_field: Text = "completion"
    """Field of an answer that was judged by itself."""

    label_field: Text = "label"
    """Field that says whether it was good: true or false."""

    tools_field: Text = "tools"
    """Field of the tools that a conversation may call, where rows have it."""
