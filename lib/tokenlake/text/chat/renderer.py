"""Rows with conversations to texts, with what of them a trainer learns.

Row-wise: a row's conversation becomes a text by a chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.chat.batch_render import Alike, Together
from tokenlake.text.chat.messages import Message, Turns
from tokenlake.text.chat.skeletons import Skeletons
from tokenlake.text.chat.template import ChatTemplate, Lessons, RenderedChat
from tokenlake.text.chat.tokenizer_template import (
    AnyTokenizer,
    ChatTokenizer,
    ForgeryScan,
    named_tokens,
    no_template,
)
from tokenlake.text.rendering import Rendered
from tokenlake.text.transform import Transform
from tokenlake.tokenizers.arrays import Spans, byte_stretches
from tokenlake.tokenizers.files import TokenizerFiles

_ARROW: Final[Any] = pa


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template gets of a row."""

    messages: list[Message]
    tools: list[Any] | None = None


class _Given(NamedTuple):
    """What rows hold: fields, the one of each row, and what should be a conversation and tools in each."""

    fields: Sequence[str]
    at: Sequence[int]
    conversations: Sequence[Any]
    tools: Sequence[Any]


@final
class ChatRenderer:
    """Renders conversations by a chat template.

    Args:
        chat: settled: with its template, and usually the field of the messages.
        special_tokens_in_text: ``fail`` or ``encode``.

    Raises:
        ConfigError: the template cannot be used, or special tokens of rows are to be plain text.
    """

    def __init__(self, chat: ResolvedChat, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        check_mode(special_tokens_in_text)
        if chat.template is None:
            raise ConfigError(no_template(files.name, []))
        self._chat = chat
        self._turns = Turns(chat.role_mapping)
        variables = {**named_tokens(files), **chat.template_kwargs}
        variables["add_generation_prompt"] = chat.add_generation_prompt
        fail = special_tokens_in_text == "fail"
        lessons = Lessons(loss=chat.loss, special_tokens=tuple(files.special_tokens), guarded=fail)
        self.template: Final = ChatTemplate(chat.template, variables=variables, lessons=lessons)
        self._forgeries = ForgeryScan.of(files) if fail else None
        self._alike: Alike | None = None
        if self._forgeries is None or not self._forgeries.normalizes:
            scan = None if self._forgeries is None else self._forgeries.scan
            self._alike = Alike(Skeletons(self.template), self._turns.roles, scan)

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
        plain = given.conversations
        if any(given.tools):
            plain = [None if tools else found for found, tools in zip(plain, given.tools, strict=True)]
        together = [] if self._alike is None else self._alike.render(plain)
        left = np.ones(len(plain), np.bool_)
        for made in together:
            left[made.rows] = False
        apart, bad = self._apart(given, np.flatnonzero(left).tolist())
        return _merged([*together, apart], bad)

    def _apart(self, given: _Given, rows: list[int]) -> tuple[Together, dict[int, Fault]]:
        """Render conversations one by one, those that fail aside."""
        conversations = self._without_forged([self._read(given, row) for row in rows])
        made = dict(zip(rows, self.render_many(conversations), strict=True))
        texts = {row: found for row, found in made.items() if isinstance(found, RenderedChat)}
        rendered = Together(
            np.array(list(texts), np.int64),
            _ARROW.array([chat.text for chat in texts.values()], pa.large_string()),
            Spans.of([byte_stretches(chat.text, chat.learned) for chat in texts.values()]),
        )
        return rendered, {row: found for row, found in made.items() if isinstance(found, Fault)}

    def render_many(self, conversations: Sequence[Conversation | Fault]) -> list[RenderedChat | Fault]:
        """Return the text of each conversation, with what is learned of it, or why there is none.

        They are taken as they are: their messages must be of the right form, and forge nothing.

        Raises:
            ConfigError: the template cannot be used at all.
        """
        given = [row for row in conversations if isinstance(row, Conversation)]
        made = iter(self.template.learn((row.messages, row.tools) for row in given))
        return [row if isinstance(row, Fault) else _usable(next(made)) for row in conversations]

    def _given(self, rows: Rows) -> _Given:
        """Return what rows hold where conversations and tools are."""
        fields = MESSAGES_FIELDS if self._chat.messages_field is None else (self._chat.messages_field,)
        values = [rows.values(field) for field in fields]
        tools = [None] * len(rows) if self._chat.tools_field is None else rows.values(self._chat.tools_field)
        at = [0] * len(rows)
        found = values[0]
        if len(fields) > 1:
            at = [
                next((at for at, column in enumerate(values) if column[row] is not None), 0)
                for row in range(len(rows))
            ]
            found = [values[which][row] for row, which in enumerate(at)]
        if not rows.has_objects:
            # In columns every object has every key; a null there says that the row has none.
            found, tools = (
                [without_nulls(value) for value in found],
                [without_nulls(value) for value in tools],
            )
        return _Given(fields, at, found, tools)

    def _read(self, given: _Given, row: int) -> Conversation | Fault:
        """Return the conversation of a row, or why it has none."""
        try:
            messages = self._turns.read(given.conversations[row])
        except BadRecordError as error:
            return _in_field(fault_of(error), given.fields[given.at[row]])
        try:
            return Conversation(messages, tools_of(given.tools[row]))
        except BadRecordError as error:
            return _in_field(fault_of(error), str(self._chat.tools_field))

    def _without_forged(self, found: list[Conversation | Fault]) -> list[Conversation | Fault]:
        if self._forgeries is None:
            return found
        values = [(row.messages, row.tools) if isinstance(row, Conversation) else None for row in found]
        for index, fault in self._forgeries.faults(values).items():
            found[index] = fault
        return found


def _merged(parts: list[Together], bad: Mapping[int, Fault]) -> Rendered:
    """Put rendered conversations back into the order of their rows."""
    parts = [part for part in parts if len(part.rows)] or parts[-1:]
    made = parts[0]
    if len(parts) > 1:
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows)
        text: Any = _ARROW.concat_arrays([part.text for part in parts])
        spans = Spans.concat([part.spans for part in parts])
        made = Together(rows[order], text.take(_ARROW.array(order)), spans.take(order))
    return Rendered(text=made.text, origin=made.rows, spans=made.spans, bad=tuple(sorted(bad.items())))


def _usable(made: RenderedChat | TokenlakeError) -> RenderedChat | Fault:
    if isinstance(made, BadRecordError):
        return fault_of(made)
    if isinstance(made, TokenlakeError):
        raise made
    return made


def fault_of(error: BadRecordError) -> Fault:
    """Return why a row cannot be used."""
    return Fault(str(error.details.get("reason", "chat")), str(error))


def check_mode(special_tokens_in_text: str) -> None:
    """Require a way to treat special tokens of rows that chat has.

    Raises:
        ConfigError: ``literal``.
    """
    if special_tokens_in_text == "literal":
        raise ConfigError(
            "special_tokens_in_text: 'literal' is not to be had for conversations: their texts are encoded together "
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


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a row; None where the list is empty.

    Raises:
        BadRecordError: they are no list of objects (``bad_tools``).
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            raise BadRecordError("the tools are text that is no JSON", reason="bad_tools") from None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in cast("list[Any]", value)):
        raise BadRecordError("the tools must be a list of objects (JSON schemas)", reason="bad_tools")
    return cast("list[Any]", value) or None


def _in_field(fault: Fault, field: str) -> Fault:
    return Fault(fault.reason, f"the field {field!r}: {fault.detail}")


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
