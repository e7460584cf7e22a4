"""Transforms that put a row's conversation through a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast, final

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.chat_messages import (
    ConversationReader,
    in_field,
    tools_of,
    without_nulls,
)
from tokenlake.etl.text.chat_template import ChatTemplate
from tokenlake.etl.text.special_token_guard import SpecialTokenGuard
from tokenlake.etl.text.template_choice import (
    DEFAULT,
    check_mode,
    chosen_template,
    named_tokens,
)
from tokenlake.etl.text.transform import Transform
from tokenlake.etl.tokenizers.files import files_of

TOOLS_FIELD: Final = "tools"


@final
class ChatTemplateTransform(Transform):
    r"""Puts a conversation through the tokenizer's chat template.

    Args:
        tokenizer: Hub id, path, or a tokenizer of transformers.
        messages_field: Field of the conversation; a row that lacks it may have it in
            `conversations` or `conversation`.
        output_field: Field for the text; a row that has it already is an error.
        tools: JSON schemas for all rows; None for those in each row's own field
            `tools`.
        convert_from_value_format: True to read turns of ShareGPT, ``{"from",
            "value"}``, too.
        drop_messages: True to leave the conversation (and the row's tools) out of the
            new row.
        role_mapping: {role in the data: role in the template}, beside the usual ones.
        template: Template in the place of the tokenizer's: Jinja text, the path of a
            file, or the name of one of the tokenizer's templates.
        template_kwargs: Further variables of the template.
        add_generation_prompt: True to end with the beginning of the assistant's next
            turn.
        special_tokens_in_text: Treatment of rows that spell a special token: ``fail``
            makes such a row an error; ``encode`` keeps it, and it becomes a control
            token when the text is tokenized.
        drop_nulls: True to take nulls inside objects for missing fields, as rows of
            Parquet and Arrow have them.

    Raises:
        ConfigError: No template is found, or it cannot be used.

    Example:
        >>> import tokenlake as tl
        >>> transform = tl.ChatTemplateTransform("meta-llama/Llama-2-7b-chat-hf")
        >>> transform({"messages": [{"role": "user", "content": "Hello"}]})["text"]
        '<|user|>\nHello\n'
    """

    def __init__(
        self,
        tokenizer: Any,
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
        files = files_of(tokenizer)
        # An object of transformers may have several templates by name.
        own_templates = getattr(tokenizer, "chat_template", None)
        if isinstance(own_templates, dict):
            template = template or cast("dict[str, str]", own_templates).get(DEFAULT)
        # Arguments of the caller come before the tokenizer's tokens.
        variables = {**named_tokens(files), **(template_kwargs or {})}
        self._template = ChatTemplate(
            chosen_template(template, files), variables=variables
        )
        self._guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self._reader = ConversationReader(
            role_mapping, value_format=convert_from_value_format
        )
        # The given field comes first. A dict drops it where it is one of the usual
        # ones.
        self._fields = tuple(dict.fromkeys((messages_field, *MESSAGES_FIELDS)))
        self._output_field = output_field
        self._drops_messages = drop_messages
        self._tools = tools
        self._adds_generation_prompt = add_generation_prompt
        self._drops_nulls = drop_nulls

    def has_conversation(self, example: Row) -> bool:
        """Return whether the row has a conversation."""
        return self._field(example) is not None

    def __call__(self, example: Row) -> Row:
        """Return the row with its text.

        Raises:
            BadRecordError: The row has no conversation, or none that can be rendered;
                `details` hold the reason.
        """
        # 1. The field of the conversation, and room for the text.
        field = self._field(example)
        if field is None:
            raise BadRecordError(
                f"the row has no conversation: none of {', '.join(self._fields)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        new_row = self._without_conversation(example, field)
        if self._output_field in new_row:
            raise BadRecordError(
                f"the row has a field {self._output_field!r} already; give another output_field, or drop it before",
                reason="field_exists",
            )
        # 2. The values, of which the tools of all rows come before those of this one.
        messages = example[field]
        tools = example.get(TOOLS_FIELD)
        if self._tools is not None:
            tools = list(self._tools)
        if self._drops_nulls:
            messages = without_nulls(messages)
            tools = without_nulls(tools)
        # 3. Read the conversation, look for special tokens, and render it.
        with in_field(field):
            turns = self._reader.read(messages)
            schemas = tools_of(tools)
        for fault in self._guard.faults([(turns, schemas)]).values():
            raise BadRecordError(fault.detail, reason=fault.reason)
        rendered = self._template.render_whole(
            turns, schemas, add_generation_prompt=self._adds_generation_prompt
        )
        new_row[self._output_field] = rendered.text
        return new_row

    def _without_conversation(self, row: Row, field: str) -> Row:
        """Return a copy of the row, without the fields that are dropped.

        The row's own tools go with its conversation. Tools of all rows replace them, so
        that the field is data then, which stays.
        """
        new_row = dict(row)
        if self._drops_messages:
            del new_row[field]
            if self._tools is None:
                new_row.pop(TOOLS_FIELD, None)
        return new_row

    def _field(self, row: Row) -> str | None:
        """Return the field of the conversation; None where the row has none."""
        for field in self._fields:
            if row.get(field) is not None:
                return field
        return None


@final
class MaybeApplyChatTemplate(Transform):
    """Applies the chat template to rows that have a conversation.

    Other rows stay as they are.

    Args:
        tokenizer: Hub id, path, or a tokenizer of transformers.
        args: Further arguments of :class:`ChatTemplateTransform`.
        options: Further keyword arguments of :class:`ChatTemplateTransform`.

    Example:
        >>> import tokenlake as tl
        >>> transform = tl.MaybeApplyChatTemplate("meta-llama/Llama-2-7b-chat-hf")
        >>> transform({"text": "no conversation"})
        {'text': 'no conversation'}
    """

    def __init__(self, tokenizer: Any, *args: Any, **options: Any) -> None:
        self._transform = ChatTemplateTransform(tokenizer, *args, **options)

    def __call__(self, example: Row) -> Row:
        """Return the row, with its text where it has a conversation."""
        if not self._transform.has_conversation(example):
            return example
        return self._transform(example)
