"""Rows with conversations to texts, with what of them a trainer learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.config.resolved_texts import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.spans import Spans, Stretch, byte_stretches
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.forging import ForgeryScan
from tokenlake.transforms.chat.learning import NOTHING, TurnFinder, check_learned
from tokenlake.transforms.chat.skeletons import Skeletons
from tokenlake.transforms.chat.sources import no_template
from tokenlake.transforms.chat.template import ChatTemplate, RenderedChat, named_tokens
from tokenlake.transforms.chat.turns import Message, Turns
from tokenlake.transforms.rendering import Rendered

_ARROW: Final[Any] = pa


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template gets of a row."""

    messages: list[Message]
    tools: list[Any] | None = None


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
        self.template: Final = ChatTemplate.of(chat.template, files, chat.template_kwargs)
        variables = {**named_tokens(files), **chat.template_kwargs}
        variables["add_generation_prompt"] = chat.add_generation_prompt
        self._skeletons = Skeletons(chat.template, self._by_template, variables)
        self._finder = TurnFinder(self.template, files.special_tokens)
        self._forgeries = ForgeryScan.of(files) if special_tokens_in_text == "fail" else None

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
        conversations = self._read(rows)
        good = [index for index, found in enumerate(conversations) if isinstance(found, Conversation)]
        made = self.render_many([cast("Conversation", conversations[index]) for index in good])
        bad = {index: found for index, found in enumerate(conversations) if isinstance(found, Fault)}
        bad |= {index: found for index, found in zip(good, made, strict=True) if isinstance(found, Fault)}
        texts = [
            (index, found) for index, found in zip(good, made, strict=True) if isinstance(found, RenderedChat)
        ]
        return Rendered(
            text=_ARROW.array([chat.text for _, chat in texts], pa.large_string()),
            origin=np.array([index for index, _ in texts], np.int64),
            spans=Spans.of([byte_stretches(chat.text, chat.learned) for _, chat in texts]),
            bad=tuple(sorted(bad.items())),
        )

    def render_many(self, conversations: Sequence[Conversation]) -> list[RenderedChat | Fault]:
        """Return the text of each conversation, with what is learned of it, or why there is none.

        The conversations are checked already: their messages are of the right form and forge nothing.
        """
        return [self._filled(conversation) or self._one(conversation) for conversation in conversations]

    def _filled(self, conversation: Conversation) -> RenderedChat | None:
        """Return what a skeleton makes of a conversation, None where the template must be run."""
        filled = None if conversation.tools is not None else self._skeletons.fill(conversation.messages)
        return None if filled is None else RenderedChat(filled.text, filled.learned)

    def _by_template(self, messages: Sequence[Any]) -> tuple[str, Sequence[Stretch]]:
        made = self._rendered(list(messages), None)
        return made.text, made.learned

    def _one(self, conversation: Conversation) -> RenderedChat | Fault:
        try:
            return self._rendered(conversation.messages, conversation.tools)
        except BadRecordError as error:
            return fault_of(error)

    def _rendered(self, messages: list[Message], tools: list[Any] | None) -> RenderedChat:
        prompt = self._chat.add_generation_prompt
        made = self.template.render(messages, tools, add_generation_prompt=prompt)
        learned: tuple[Stretch, ...]
        if self._chat.loss == "all":
            if not made.text:
                raise BadRecordError("the chat template renders no text", reason=NOTHING)
            return RenderedChat(made.text, ((0, len(made.text)),))
        if self.template.marked:
            learned = made.learned
        else:
            learned = self._finder.find(made.text, messages, tools, add_generation_prompt=prompt)
        check_learned(made.text, learned, messages)
        return RenderedChat(made.text, learned)

    def _read(self, rows: Rows) -> list[Conversation | Fault]:
        """Return the conversations of rows, and refuse those that have none, or forge a turn."""
        # In columns every object has every key; a null there says that the row has none.
        lean = without_nulls if not rows.has_objects else _same
        fields = MESSAGES_FIELDS if self._chat.messages_field is None else (self._chat.messages_field,)
        values = [rows.values(field) for field in fields]
        tools = [None] * len(rows) if self._chat.tools_field is None else rows.values(self._chat.tools_field)
        found: list[Conversation | Fault] = []
        for index in range(len(rows)):
            at = next((at for at, column in enumerate(values) if column[index] is not None), 0)
            try:
                messages = self._turns.read(lean(values[at][index]))
            except BadRecordError as error:
                found.append(_in_field(fault_of(error), fields[at]))
                continue
            try:
                found.append(Conversation(messages, tools_of(lean(tools[index]))))
            except BadRecordError as error:
                found.append(_in_field(fault_of(error), str(self._chat.tools_field)))
        return self._without_forged(found)

    def _without_forged(self, found: list[Conversation | Fault]) -> list[Conversation | Fault]:
        if self._forgeries is None:
            return found
        values = [(row.messages, row.tools) if isinstance(row, Conversation) else None for row in found]
        for index, fault in self._forgeries.faults(values).items():
            found[index] = fault
        return found


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


def _same(value: Any) -> Any:
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
