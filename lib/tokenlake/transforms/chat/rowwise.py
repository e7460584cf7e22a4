"""Row-wise: a row's conversation becomes a text by a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

from tokenlake.config.resolved_texts import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.rows import Row
from tokenlake.templates import ChatTemplate
from tokenlake.transforms.base import Transform
from tokenlake.transforms.chat.renderer import check_mode, tools_of, without_nulls
from tokenlake.transforms.chat.speaking import AnyTokenizer, ChatTokenizer
from tokenlake.transforms.chat.turns import Turns

TOOLS_FIELD = "tools"


@final
class ChatTemplateTransform(Transform):
    """Puts a conversation through the tokenizer's chat template.

    Args:
        tokenizer: Hub id, path, or a tokenizer of transformers.
        messages_field: where the conversation is; a row that lacks it may have it in `conversations` or
            `conversation`.
        output_field: what the text is called; a row that has it already is an error.
        tools: JSON schemas for all rows; None for those in each row's own field `tools`, where it has one.
        convert_from_value_format: read ShareGPT's turns, ``{"from", "value"}``, too.
        drop_messages: leave the conversation (and the row's tools) out of the new row.
        role_mapping: names of roles to rename, beside the usual ones.
        template: instead of the tokenizer's: Jinja text, the path of a file, or a name of one of the tokenizer's.
        template_kwargs: further variables of the template.
        add_generation_prompt: end with what begins the assistant's next turn.
        special_tokens_in_text: ``fail``: a row whose own text spells out a special token is an error; ``encode``: it
            stays, and becomes one when the text is tokenized.
        drop_nulls: take nulls inside objects for missing fields, as rows of Parquet and Arrow have them.

    Raises:
        ConfigError: there is no template, or it cannot be used.
    """

    def __init__(
        self,
        tokenizer: AnyTokenizer,
        messages_field: str = "messages",
        output_field: str = "text",
        tools: Sequence[Mapping[str, Any]] | None = None,
        convert_from_value_format: bool = True,
        drop_messages: bool = True,
        *,
        role_mapping: Mapping[str, str] | None = None,
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = False,
        special_tokens_in_text: Literal["fail", "encode"] = "fail",
        drop_nulls: bool = True,
    ) -> None:
        check_mode(special_tokens_in_text)
        speaks = ChatTokenizer.of(tokenizer, template)
        self._template = ChatTemplate(speaks.template, variables={**speaks.tokens, **(template_kwargs or {})})
        self._forgeries = speaks.forgeries if special_tokens_in_text == "fail" else None
        self._turns = Turns(role_mapping, value_format=convert_from_value_format)
        self._fields = tuple(dict.fromkeys((messages_field, *MESSAGES_FIELDS)))
        self._output, self._drop = output_field, drop_messages
        self._tools, self._prompt, self._lean = tools, add_generation_prompt, drop_nulls

    def has_conversation(self, example: Row) -> bool:
        """Return whether the row has something to render."""
        return self._field(example) is not None

    def __call__(self, example: Row) -> Row:
        """Return the row with its text.

        Raises:
            BadRecordError: it has no conversation, or none that can be rendered; `details` hold the reason.
        """
        field = self._field(example)
        if field is None:
            raise BadRecordError(
                f"the row has no conversation: none of {', '.join(self._fields)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        dropped = (
            {field, TOOLS_FIELD} if self._drop and self._tools is None else {field} if self._drop else set()
        )
        rest = {name: value for name, value in example.items() if name not in dropped}
        if self._output in rest:
            raise BadRecordError(
                f"the row has a field {self._output!r} already; give another output_field, or drop it before",
                reason="field_exists",
            )
        return {**rest, self._output: self._text(example, field)}

    def _text(self, row: Row, field: str) -> str:
        messages, tools = row[field], row.get(TOOLS_FIELD) if self._tools is None else [*self._tools]
        if self._lean:
            messages, tools = without_nulls(messages), without_nulls(tools)
        try:
            turns, schemas = self._turns.read(messages), tools_of(tools)
        except BadRecordError as error:
            raise BadRecordError(f"the field {field!r}: {error}", **error.details) from error
        for fault in self._forgeries.faults([(turns, schemas)]).values() if self._forgeries else ():
            raise BadRecordError(fault.detail, reason=fault.reason)
        return self._template.render(turns, schemas, add_generation_prompt=self._prompt).text

    def _field(self, row: Row) -> str | None:
        return next((name for name in self._fields if row.get(name) is not None), None)


@final
class MaybeApplyChatTemplate(Transform):
    """Puts rows that have a conversation through the chat template, and leaves the others as they are.

    It takes the arguments of :class:`ChatTemplateTransform`.
    """

    def __init__(self, tokenizer: AnyTokenizer, *args: Any, **options: Any) -> None:
        self._transform = ChatTemplateTransform(tokenizer, *args, **options)

    def __call__(self, example: Row) -> Row:
        """Return the row, with its text where it has a conversation."""
        return self._transform(example) if self._transform.has_conversation(example) else example
