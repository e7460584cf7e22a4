"""Rows with conversations become texts by a chat template, with the spans that bear loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.chat.batch_render import BatchRenderer
from tokenlake.text.chat.messages import ConversationReader, Turn, tools_of
from tokenlake.text.chat.template import ChatTemplate, LossOptions, RenderedChat
from tokenlake.text.chat.tokenizer_template import (
    AnyTokenizer,
    ChatTokenizer,
    SpecialTokenGuard,
    named_tokens,
    no_template,
)
from tokenlake.text.rendering import Rendered
from tokenlake.text.transform import Transform, fault_of
from tokenlake.tokenizers.arrays import Spans, byte_spans
from tokenlake.tokenizers.files import TokenizerFiles

_ARROW: Final[Any] = pa


class _Given(NamedTuple):
    """What rows hold: in each the field of the conversation, and what should be conversation and tools."""

    fields: Sequence[str]
    conversations: Sequence[Any]
    tools: Sequence[Any]


@final
class ChatRenderer:
    """Renders conversations by a chat template.

    Args:
        chat: resolved: with its template, and usually the field of the messages.
        special_tokens_in_text: ``fail`` or ``encode``.

    Raises:
        ConfigError: the template cannot be used, or special tokens of rows are to be plain text.
    """

    def __init__(self, chat: ResolvedChat, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        check_mode(special_tokens_in_text)
        if chat.template is None:
            raise ConfigError(no_template(files.name, []))
        self._chat = chat
        self._reader = ConversationReader(chat.role_mapping)
        fail = special_tokens_in_text == "fail"
        variables = {**named_tokens(files), **chat.template_kwargs}
        variables["add_generation_prompt"] = chat.add_generation_prompt
        loss = LossOptions(loss=chat.loss, special_tokens=tuple(files.special_tokens), guarded=fail)
        self.template: Final = ChatTemplate(chat.template, variables=variables, loss=loss)
        self._guard = SpecialTokenGuard.of(files) if fail else SpecialTokenGuard()
        self._batch = BatchRenderer(self.template, self._reader.roles, self._guard.scan)

    @property
    def columns(self) -> tuple[str, ...] | None:
        field, tools = self._chat.messages_field, self._chat.tools_field
        if field is None or "." in field:
            return None
        return (field,) if tools is None else (field, tools)

    @property
    def control_tokens(self) -> bool:
        return True

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row of which none can be made is bad, with the reason of what is wrong with it."""
        given = self._given(rows)
        left = np.ones(len(rows), np.bool_)
        together: list[Rendered] = []
        if not self._guard.normalizes:
            pairs = zip(given.conversations, given.tools, strict=True)
            together = self._batch.render([None if tools else messages for messages, tools in pairs])
            for made in together:
                left[made.origin] = False
        return _merged([*together, self._one_by_one(given, np.flatnonzero(left).tolist())])

    def _given(self, rows: Rows) -> _Given:
        """Return what rows hold where conversations and tools are."""
        fields = MESSAGES_FIELDS if self._chat.messages_field is None else (self._chat.messages_field,)
        names, found = [fields[0]] * len(rows), rows.values(fields[0])
        if len(fields) > 1:
            columns = [rows.values(field) for field in fields]
            at = [
                next((i for i, value in enumerate(values) if value is not None), 0)
                for values in zip(*columns, strict=True)
            ]
            names = [fields[i] for i in at]
            found = [columns[i][row] for row, i in enumerate(at)]
        tools = [None] * len(rows) if self._chat.tools_field is None else rows.values(self._chat.tools_field)
        if not rows.has_objects:
            # In columns every object has every key; a null there says that the row has none.
            found, tools = list(map(without_nulls, found)), list(map(without_nulls, tools))
        return _Given(names, found, tools)

    def _one_by_one(self, given: _Given, rows: list[int]) -> Rendered:
        """Render conversations of any form, each by the template; those that cannot be rendered are bad."""
        read: dict[int, tuple[list[Turn], list[Any] | None]] = {}
        bad: dict[int, Fault] = {}
        for row in rows:
            try:
                read[row] = self._read(given, row)
            except BadRecordError as error:
                bad[row] = fault_of(error)
        named = list(read)
        bad |= {named[at]: fault for at, fault in self._guard.faults(list(read.values())).items()}
        good = [row for row in named if row not in bad]
        texts: dict[int, RenderedChat] = {}
        for row, made in zip(good, self.template.render_all(read[row] for row in good), strict=True):
            if isinstance(made, RenderedChat):
                texts[row] = made
            elif isinstance(made, BadRecordError):
                bad[row] = fault_of(made)
            else:
                raise made
        return Rendered(
            text=_ARROW.array([chat.text for chat in texts.values()], pa.large_string()),
            origin=np.array(list(texts), np.int64),
            spans=Spans.of([byte_spans(chat.text, chat.loss) for chat in texts.values()]),
            bad=tuple(sorted(bad.items())),
        )

    def _read(self, given: _Given, row: int) -> tuple[list[Turn], list[Any] | None]:
        """Return the messages and the tools of a row; BadRecordError where it has none that can be used."""
        field = given.fields[row]
        try:
            messages = self._reader.read(given.conversations[row])
            field = str(self._chat.tools_field)
            return messages, tools_of(given.tools[row])
        except BadRecordError as error:
            raise BadRecordError(f"the field {field!r}: {error}", **error.details) from error


def _merged(parts: list[Rendered]) -> Rendered:
    """Put rendered conversations back into the order of their rows; the last part knows what is bad."""
    bad = parts[-1].bad
    parts = [part for part in parts if len(part.origin)] or parts[-1:]
    origin = np.concatenate([part.origin for part in parts])
    text: Any = _ARROW.concat_arrays([part.text for part in parts])
    spans = Spans.concat([part.spans for part in parts if part.spans is not None])
    if len(parts) > 1:
        order = np.argsort(origin)
        origin, text, spans = origin[order], text.take(_ARROW.array(order)), spans.take(order)
    return Rendered(text=text, origin=origin, spans=spans, bad=bad)


def check_mode(special_tokens_in_text: str) -> None:
    """Require a way to treat special tokens of rows that chat has.

    Raises:
        ConfigError: ``literal``.
    """
    if special_tokens_in_text == "literal":
        raise ConfigError(
            "special_tokens_in_text: 'literal' is not possible for conversations: their texts are encoded together "
            "with the control tokens of the chat template. Set it to 'fail' (a row that spells one out is a bad "
            "record; the default here) or to 'encode' (it becomes a control token, as the row says)"
        )


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null, at any depth."""
    if isinstance(value, dict):
        fields = cast("Mapping[str, Any]", value)
        return {name: without_nulls(item) for name, item in fields.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value


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
        self._guard = speaks.guard if special_tokens_in_text == "fail" else SpecialTokenGuard()
        self._reader = ConversationReader(role_mapping, value_format=convert_from_value_format)
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
            turns, schemas = self._reader.read(messages), tools_of(tools)
        except BadRecordError as error:
            raise BadRecordError(f"the field {field!r}: {error}", **error.details) from error
        for fault in self._guard.faults([(turns, schemas)]).values():
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
