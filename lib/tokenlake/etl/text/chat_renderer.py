"""Conversations become texts by a chat template, with the spans that bear loss.

Plain conversations of the same roles are rendered together: their contents, as columns, between the words of a
skeleton. Plain are those with a role and a text in every message, no text blank, none that spells a special token. All
others, and those for which a template has no skeleton, are left to the template itself, which takes 20 to 40 times as
long. Of the conversations rendered together one in :data:`CHECKED` is rendered by the template as well, and a
difference ends the build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, Final, Literal, Self, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int64, select, taken, text_of_strings
from tokenlake.base.markup import is_encodable
from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError, TemplateMismatchError, TokenlakeError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.chat_messages import (
    ConversationReader,
    Turn,
    in_field,
    texts_in_calls,
    tools_of,
    without_nulls,
)
from tokenlake.etl.text.chat_template import (
    DEFAULT,
    FORGED,
    LEFT,
    RIGHT,
    ChatTemplate,
    RenderedChat,
    Skeleton,
    check_mode,
    chosen_template,
    named_tokens,
    no_template,
    texts_in,
)
from tokenlake.etl.text.renderer import Rendered, byte_sizes, join_pieces
from tokenlake.etl.text.transform import Column, Transform, called, fault_of
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.engines import ReferenceEngine
from tokenlake.etl.tokenizers.files import TokenizerFiles, files_of
from tokenlake.etl.tokenizers.offsets import Span, Spans, byte_spans

TOOLS_FIELD: Final = "tools"
_BROKEN: Final = Fault("invalid_utf8", "a text holds half of a surrogate pair")


@final
class SpecialTokenGuard:
    """Finds values that spell a special token anywhere: in contents, names, tool calls, definitions, keys.

    Spelled out there, it would become a control id and forge a turn.

    Args:
        tokens: texts of the special tokens; none: only text that is no valid Unicode is found.
        normalize: what the tokenizer does to a text before it looks for some of them; None where it does not.
    """

    def __init__(self, tokens: Sequence[str] = (), normalize: Callable[[str], str] | None = None) -> None:
        self.scan: Final = SpecialScan([*tokens, *(map(normalize, tokens) if normalize else ())])
        self._normalize = normalize
        self.normalizes: Final = normalize is not None
        """Whether texts must be looked at as the tokenizer normalizes them, too, so that `scan` alone is not enough."""

    @classmethod
    def of(cls, files: TokenizerFiles, special_tokens_in_text: str) -> Self:
        """Return the guard for a tokenizer's special tokens; one that lets all pass unless it is to ``fail``."""
        if special_tokens_in_text != "fail":
            return cls()
        normalized = any(token.get("special") and token.get("normalized") for token in files.added_tokens)
        if not normalized or files.spec.get("normalizer") is None:
            return cls(files.special_tokens)
        return cls(files.special_tokens, ReferenceEngine(files).normalized)

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return {index: why} of the values that cannot be used."""
        strings: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            texts = [*texts_in(value), *texts_in_calls(value)]
            texts += [self._normalize(text) for text in texts] if self._normalize else []
            strings += texts
            owners += [index] * len(texts)
        found: dict[int, Fault] = {}
        try:
            column = text_of_strings(strings)
        except UnicodeEncodeError:
            broken = [not is_encodable(text) for text in strings]
            found = dict.fromkeys(compress(owners, broken), _BROKEN)
            column = text_of_strings(["" if bad else text for text, bad in zip(strings, broken, strict=True)])
        for row in self.scan.count(column)[0].tolist():
            told = (
                f"a text of the conversation spells out the special token {self.scan.first(strings[row])!r}, which "
                "would become a control token; take it out, or set special_tokens_in_text: encode to allow it"
            )
            found.setdefault(owners[row], Fault(FORGED, told))
        return found


CHECKED: Final = 997
"""Conversations of which one is rendered both ways; a prime, so that it does not beat with an order in the data."""

Chat = tuple[list[Turn], list[Any] | None]
"""The messages of a conversation, and its tools."""

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
# Exactly what Python strips: Arrow's own idea of a blank is another.
_BLANKS: Final = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_STRIP: Final[Mapping[int, Any]] = {
    LEFT: _COMPUTE.utf8_ltrim,
    RIGHT: _COMPUTE.utf8_rtrim,
    LEFT | RIGHT: _COMPUTE.utf8_trim,
}
_FEW: Final = 8  # conversations of the same roles that are not worth the calls
_SKELETONS: Final = 4096  # remembered; conversations of further roles are left to the template
_TURNS: Final = 64


@final
class Conversations:
    """Renders conversations, plain ones of the same roles together and the others one by one.

    Args:
        roles: {name in the data: role in the template}.
        guard: finds special tokens, which no text of a conversation may spell.
    """

    def __init__(self, template: ChatTemplate, roles: Mapping[str, str], guard: SpecialTokenGuard) -> None:
        self._template, self._roles, self._guard = template, roles, guard
        self._skeletons: dict[tuple[str, ...], Skeleton | None] = {}
        self._seen = 0

    def render(self, messages: Sequence[Any], tools: Sequence[Any], read: Callable[[int], Chat]) -> Rendered:
        """Render n conversations.

        Args:
            messages, tools: of each, as the data have them.
            read: checks those that are no plain ones, and returns them as the template takes them; BadRecordError where
                one cannot be used.

        Raises:
            TemplateMismatchError: a skeleton and the template differ, which would be a bug.
        """
        parts: list[Rendered] = []
        if not self._guard.normalizes:
            plain = [None if own else turns for turns, own in zip(messages, tools, strict=True)]
            parts = self.together(plain)
        left = np.ones(len(messages), np.bool_)
        for part in parts:
            left[part.origin] = False
        rest = self._one_by_one(np.flatnonzero(left).tolist(), read)
        parts = [part for part in (*parts, rest) if len(part.origin)] or [rest]
        if len(parts) == 1:
            return replace(parts[0], bad=rest.bad)
        # Back into the order of the rows.
        origin = np.concatenate([part.origin for part in parts])
        text: Any = _ARROW.concat_arrays([part.text for part in parts])
        spans = Spans.concat([part.spans for part in parts if part.spans is not None])
        order = np.argsort(origin)
        return Rendered(text=taken(text, order), origin=origin[order], spans=spans.take(order), bad=rest.bad)

    def together(self, conversations: Sequence[Any]) -> list[Rendered]:
        """Return what can be rendered together, a part for each sequence of roles; the others are left."""
        found: list[Rendered] = []
        for names, (rows, contents) in _by_roles(conversations).items():
            roles = tuple(self._roles.get(name, "") for name in names)
            if len(rows) < _FEW or len(roles) > _TURNS or "" in roles:
                continue
            if roles not in self._skeletons and len(self._skeletons) < _SKELETONS:
                self._skeletons[roles] = self._template.skeleton(roles)
            skeleton = self._skeletons.get(roles)
            columns = None if skeleton is None else _columns(contents)
            if skeleton is not None and columns is not None:
                found.append(self._rendered(roles, skeleton, np.array(rows), columns))
        return found

    def _one_by_one(self, rows: Sequence[int], read: Callable[[int], Chat]) -> Rendered:
        """Render conversations of any form, each by the template; those that cannot be rendered are bad."""
        chats, unread = called(read, rows)
        bad = {rows[at]: fault for at, fault in unread}
        chats = {row: chat for row, chat in zip(rows, chats, strict=True) if row not in bad}
        named = list(chats)
        bad |= {named[at]: fault for at, fault in self._guard.faults(list(chats.values())).items()}
        good = [row for row in named if row not in bad]
        texts: dict[int, RenderedChat] = {}
        for row, made in zip(good, self._template.render_all(chats[row] for row in good), strict=True):
            if isinstance(made, RenderedChat):
                texts[row] = made
            elif isinstance(made, BadRecordError):
                bad[row] = fault_of(made)
            else:
                raise made
        return rendered_chats(texts, bad)

    def _rendered(
        self, roles: tuple[str, ...], skeleton: Skeleton, rows: Int64, columns: list[Column]
    ) -> Rendered:
        # No content is blank, and none spells a special token.
        usable = np.ones(len(rows), np.bool_)
        for column in columns:
            usable &= byte_sizes(_COMPUTE.utf8_ltrim(column, _BLANKS)) > 0
            usable[self._guard.scan.count(column)[0]] = False
        if not usable.all():
            rows, columns = rows[usable], [select(column, usable) for column in columns]
        pieces: list[str | Column] = []
        for part in skeleton.parts:
            words = isinstance(part, str)
            piece: Any = part if words else columns[part[0]]
            pieces.append(piece if words or not part[1] else _STRIP[part[1]](piece, _BLANKS))
        text, spans = join_pieces(pieces, skeleton.loss, len(rows))
        made = Rendered(text=text, origin=rows, spans=spans)
        self._check(made, roles, columns)
        return made

    def _check(self, made: Rendered, roles: tuple[str, ...], columns: list[Column]) -> None:
        first = -self._seen % CHECKED
        self._seen += len(made.origin)
        for row in range(first, len(made.origin), CHECKED):
            assert made.spans is not None
            pairs = zip(roles, columns, strict=True)
            messages = [{"role": role, "content": str(column[row])} for role, column in pairs]
            (expected,) = self._template.render_all([(messages, None)])
            if isinstance(expected, TokenlakeError):
                expected = RenderedChat(f"the error {expected}")
            text, spans = str(made.text[row]), made.spans.slice(row, row + 1)
            got = list(zip(spans.start.tolist(), spans.stop.tolist(), strict=True))
            if (expected.text, byte_spans(expected.text, _joined(expected.loss))) != (text, got):
                raise TemplateMismatchError(
                    f"the chat template gives {expected.text[:400]!r} for a conversation, and its skeleton gives "
                    f"{text[:400]!r}, with loss on {expected.loss} and {got} (bytes). Expected the same; this is a "
                    "bug, please report the template. Nothing was committed"
                )


def rendered_chats(texts: Mapping[int, RenderedChat], bad: Mapping[int, Fault]) -> Rendered:
    """Return the texts of rows (by their indices, ascending), and why others have none."""
    return Rendered(
        text=text_of_strings([chat.text for chat in texts.values()]),
        origin=np.array(list(texts), np.int64),
        spans=Spans.of([byte_spans(chat.text, chat.loss) for chat in texts.values()]),
        bad=tuple(sorted(bad.items())),
    )


def _by_roles(conversations: Sequence[Any]) -> dict[tuple[str, ...], tuple[list[int], list[list[str]]]]:
    """Gather rows and contents of conversations of roles and contents alone, by roles as the data name them."""
    groups: dict[tuple[str, ...], tuple[list[int], list[list[str]]]] = {}
    for row, messages in enumerate(conversations):
        if type(messages) is not list or not messages:
            continue
        try:
            roles = tuple([message["role"] for message in messages])
            contents = [message["content"] for message in messages]
            if sum(map(len, messages)) != 2 * len(contents):
                continue
            rows, texts = groups.setdefault(roles, ([], []))
        except (KeyError, TypeError):
            continue
        rows.append(row)
        texts.append(contents)
    return groups


def _columns(contents: list[list[str]]) -> list[Column] | None:
    """Return the contents at each place of a conversation; None where some are no texts."""
    try:
        columns = [text_of_strings(column) for column in zip(*contents, strict=True)]
    except (pa.ArrowException, TypeError, UnicodeEncodeError):
        return None
    return None if any(column.null_count for column in columns) else columns


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join spans that touch, as a skeleton does."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


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
        variables = {**named_tokens(files), **chat.template_kwargs}
        variables["add_generation_prompt"] = chat.add_generation_prompt
        self.template: Final = ChatTemplate(
            chat.template,
            variables=variables,
            loss=chat.loss,
            special_tokens=files.special_tokens,
            guarded=special_tokens_in_text == "fail",
            learn_empty_reasoning=chat.learn_empty_reasoning,
            mask_reasoning=chat.mask_reasoning,
        )
        guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self._conversations = Conversations(self.template, self._reader.roles, guard)
        self.control_tokens: Final = True
        fields = tuple(name for name in (chat.messages_field, chat.tools_field) if name is not None)
        self.columns: Final = None if chat.messages_field is None or "." in chat.messages_field else fields

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row of which none can be made is bad, with the reason of what is wrong with it."""
        fields, found, tools = self._given(rows)
        return self._conversations.render(
            found, tools, lambda row: self._read(fields[row], found[row], tools[row])
        )

    def _given(self, rows: Rows) -> tuple[Sequence[str], Sequence[Any], Sequence[Any]]:
        """Return in each row the field of the conversation, and what should be conversation and tools."""
        fields = MESSAGES_FIELDS if self._chat.messages_field is None else (self._chat.messages_field,)
        names, found = [fields[0]] * len(rows), rows.values(fields[0])
        if len(fields) > 1:
            columns = {field: rows.values(field) for field in fields}
            names = [
                next((field for field in fields if columns[field][row] is not None), fields[0])
                for row in range(len(rows))
            ]
            found = [columns[name][row] for row, name in enumerate(names)]
        tools = [None] * len(rows) if self._chat.tools_field is None else rows.values(self._chat.tools_field)
        if not rows.has_objects:
            # In columns every object has every key; a null there says that the row has none.
            found, tools = list(map(without_nulls, found)), list(map(without_nulls, tools))
        return names, found, tools

    def _read(self, field: str, conversation: Any, tools: Any) -> Chat:
        """Return the messages and the tools of a row; BadRecordError where it has none that can be used."""
        with in_field(field):
            messages = self._reader.read(conversation)
        with in_field(str(self._chat.tools_field)):
            return messages, tools_of(tools)


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
        files, own = files_of(tokenizer), getattr(tokenizer, "chat_template", None)
        if isinstance(own, dict):  # an object of transformers with several templates
            template = template or cast("dict[str, str]", own).get(DEFAULT)
        variables = {**named_tokens(files), **(template_kwargs or {})}
        self._template = ChatTemplate(chosen_template(template, files), variables=variables)
        self._guard = SpecialTokenGuard.of(files, special_tokens_in_text)
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
        own = (field, TOOLS_FIELD) if self._tools is None else (field,)
        rest = {name: value for name, value in example.items() if not self._drop or name not in own}
        if self._output in rest:
            raise BadRecordError(
                f"the row has a field {self._output!r} already; give another output_field, or drop it before",
                reason="field_exists",
            )
        messages = example[field]
        tools = example.get(TOOLS_FIELD) if self._tools is None else [*self._tools]
        if self._lean:
            messages, tools = without_nulls(messages), without_nulls(tools)
        with in_field(field):
            turns, schemas = self._reader.read(messages), tools_of(tools)
        for fault in self._guard.faults([(turns, schemas)]).values():
            raise BadRecordError(fault.detail, reason=fault.reason)
        made = self._template.render_whole(turns, schemas, add_generation_prompt=self._prompt)
        return {**rest, self._output: made.text}

    def _field(self, row: Row) -> str | None:
        return next((name for name in self._fields if row.get(name) is not None), None)


@final
class MaybeApplyChatTemplate(Transform):
    """Puts rows that have a conversation through the chat template, and leaves the others as they are.

    It takes the arguments of :class:`ChatTemplateTransform`.
    """

    def __init__(self, tokenizer: Any, *args: Any, **options: Any) -> None:
        self._transform = ChatTemplateTransform(tokenizer, *args, **options)

    def __call__(self, example: Row) -> Row:
        """Return the row, with its text where it has a conversation."""
        return self._transform(example) if self._transform.has_conversation(example) else example
