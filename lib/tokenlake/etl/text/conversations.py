"""Conversations become texts by a chat template, plain ones of the same roles together.

Plain conversations have a role and a text in every message, no text blank, and none
that spells a special token. Their contents, as columns, are put between the words of a
skeleton. All others, and those for which a template has no skeleton, are left to the
template itself, which takes 20 to 40 times as long::

    roles     ("user", "assistant")
    skeleton  "<|user|>"  content 0  "<|end|><|assistant|>"  content 1 (loss)  "<|end|>"
    rows      ["Hi", "Hello"], ["Why?", "So."]
    texts     "<|user|>Hi<|end|><|assistant|>Hello<|end|>", ...

Of the conversations rendered together one in :data:`CHECKED` is rendered by the
template as well, and a difference ends the build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int64, select, taken, text_of_strings
from tokenlake.errors import BadRecordError, TemplateMismatchError, TokenlakeError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.text.chat_messages import Turn
from tokenlake.etl.text.chat_protocol import LEFT, RIGHT, RenderedChat, Skeleton
from tokenlake.etl.text.chat_template import ChatTemplate
from tokenlake.etl.text.renderer import Rendered, byte_sizes, join_pieces
from tokenlake.etl.text.special_token_guard import SpecialTokenGuard
from tokenlake.etl.text.transform import Column, called, fault_of
from tokenlake.etl.tokenizers.offsets import Span, Spans, byte_spans

CHECKED: Final = 997
"""Number of conversations of which one is rendered both ways; a prime, so that it does
not beat with an order in the data.
"""

Chat = tuple[list[Turn], list[Any] | None]
"""The messages of a conversation, and its tools."""

Roles = tuple[str, ...]
"""The roles of a conversation's messages, in order."""

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
# Exactly the blanks that Python strips; Arrow's own blanks are others.
_BLANKS: Final = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_STRIP: Final[Mapping[int, Any]] = {
    LEFT: _COMPUTE.utf8_ltrim,
    RIGHT: _COMPUTE.utf8_rtrim,
    LEFT | RIGHT: _COMPUTE.utf8_trim,
}
_LEAST_CONVERSATIONS: Final = 8
"""Number of conversations of the same roles that are worth the calls of a skeleton."""
_MOST_SKELETONS: Final = 4096
"""Number of skeletons in memory; further roles are left to the template."""
_MOST_TURNS: Final = 64
"""Number of turns in a skeleton; longer conversations seldom have the same roles."""


@final
@dataclass(slots=True)
class _RoleGroup:
    """Conversations of the same roles.

    Attributes:
        rows: Indices of the conversations.
        contents: Contents of the messages of each.
    """

    rows: list[int] = field(default_factory=list[int])
    contents: list[list[str]] = field(default_factory=list[list[str]])


@final
class Conversations:
    """Renders conversations, plain ones of the same roles together.

    The others are rendered one by one.

    Args:
        template: Chat template.
        roles: {role in the data: role in the template}.
        guard: Guard that finds special tokens, which no text of a conversation may
            spell.
    """

    def __init__(
        self, template: ChatTemplate, roles: Mapping[str, str], guard: SpecialTokenGuard
    ) -> None:
        self._template = template
        self._roles = roles
        self._guard = guard
        self._skeletons: dict[Roles, Skeleton | None] = {}
        self._rendered_together = 0

    def render(
        self, messages: Sequence[Any], tools: Sequence[Any], read: Callable[[int], Chat]
    ) -> Rendered:
        """Render n conversations.

        Args:
            messages: Messages of each, as they are in the data.
            tools: Tools of each, as they are in the data.
            read: Function of an index that checks a conversation that is not plain and
                returns it in the form of the template; it raises BadRecordError for one
                that cannot be used.

        Raises:
            TemplateMismatchError: A skeleton and the template differ, which would be a
                bug.
        """
        # 1. Plain conversations, together. One with tools is none: the template may
        #    print them anywhere.
        parts: list[Rendered] = []
        # A scan of whole columns finds no special tokens in normalized texts.
        if not self._guard.normalizes:
            conversations: list[Any] = []
            for turns, row_tools in zip(messages, tools, strict=True):
                conversations.append(None if row_tools else turns)
            parts = self.together(conversations)
        # 2. All others, one by one.
        is_pending = np.ones(len(messages), np.bool_)
        for part in parts:
            is_pending[part.origin] = False
        pending = self._one_by_one(np.flatnonzero(is_pending).tolist(), read)
        parts = [part for part in (*parts, pending) if len(part.origin)]
        if not parts:
            return pending
        if len(parts) == 1:
            return replace(parts[0], bad=pending.bad)
        # 3. Back into the order of the rows.
        origin = np.concatenate([part.origin for part in parts])
        text: Any = _ARROW.concat_arrays([part.text for part in parts])
        spans_of_parts: list[Spans] = []
        for part in parts:
            if part.spans is not None:
                spans_of_parts.append(part.spans)
        spans = Spans.concat(spans_of_parts)
        order = np.argsort(origin)
        return Rendered(
            text=taken(text, order),
            origin=origin[order],
            spans=spans.take(order),
            bad=pending.bad,
        )

    def together(self, conversations: Sequence[Any]) -> list[Rendered]:
        """Return the plain conversations, a part for each sequence of roles.

        The others are left out.
        """
        parts: list[Rendered] = []
        for role_names, group in _groups_by_roles(conversations).items():
            # An unknown role is an error of its row, which the reader reports.
            roles = tuple([self._roles.get(name, "") for name in role_names])
            if len(group.rows) < _LEAST_CONVERSATIONS:
                continue
            if len(roles) > _MOST_TURNS or "" in roles:
                continue
            skeleton = self._skeleton(roles)
            if skeleton is None:
                continue
            columns = _columns(group.contents)
            if columns is None:
                continue
            rows = np.array(group.rows)
            parts.append(self._rendered(roles, skeleton, rows, columns))
        return parts

    def _skeleton(self, roles: Roles) -> Skeleton | None:
        """Return the skeleton of conversations of some roles; None where it has none."""
        if roles not in self._skeletons and len(self._skeletons) < _MOST_SKELETONS:
            self._skeletons[roles] = self._template.skeleton(roles)
        return self._skeletons.get(roles)

    def _one_by_one(self, rows: Sequence[int], read: Callable[[int], Chat]) -> Rendered:
        """Render conversations of any form, each by the template.

        Those that cannot be rendered are bad.
        """
        # 1. Read them. Faults have numbers in `rows`, not indices of rows.
        results, faults = called(read, rows)
        bad = {rows[row_number]: fault for row_number, fault in faults}
        chats = dict(zip(rows, results, strict=True))
        for row in bad:
            del chats[row]
        # 2. Find special tokens.
        read_rows = list(chats)
        for row_number, fault in self._guard.faults(list(chats.values())).items():
            bad[read_rows[row_number]] = fault
        # 3. Render the others.
        good_rows = [row for row in read_rows if row not in bad]
        rendered = self._template.render_all(chats[row] for row in good_rows)
        texts: dict[int, RenderedChat] = {}
        for row, result in zip(good_rows, rendered, strict=True):
            if isinstance(result, RenderedChat):
                texts[row] = result
            elif isinstance(result, BadRecordError):
                bad[row] = fault_of(result)
            else:
                # A template that ends its process, or needs a date, fails for every
                # row.
                raise result
        return rendered_chats(texts, bad)

    def _rendered(
        self, roles: Roles, skeleton: Skeleton, rows: Int64, columns: list[Column]
    ) -> Rendered:
        """Render conversations by a skeleton.

        Those with a blank content, or a special token in one, are left out.

        Args:
            roles: Roles of the conversations.
            skeleton: Skeleton for these roles.
            rows: int64[n]: indices of the conversations.
            columns: Contents of each message, n texts each.
        """
        # A blank content may be rendered in another way, as the skeleton assumes that
        # it is none.
        is_plain = self._are_plain(columns)
        if not is_plain.all():
            rows = rows[is_plain]
            columns = [select(column, is_plain) for column in columns]
        # The contents, stripped as the template strips them, between the words of the
        # skeleton.
        pieces: list[str | Column] = []
        for part in skeleton.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            message, sides = part
            content: Any = columns[message]
            pieces.append(_STRIP[sides](content, _BLANKS) if sides else content)
        text, spans = join_pieces(pieces, skeleton.loss, len(rows))
        rendered = Rendered(text=text, origin=rows, spans=spans)
        self._check(rendered, roles, columns)
        return rendered

    def _are_plain(self, columns: Sequence[Column]) -> Bools:
        """Return which conversations have no blank content and no special token.

        Args:
            columns: Contents of each message, n texts each.

        Returns:
            bool[n].
        """
        is_plain = np.ones(len(columns[0]), np.bool_)
        for column in columns:
            is_plain &= byte_sizes(_COMPUTE.utf8_ltrim(column, _BLANKS)) > 0
            special_rows, _counts = self._guard.scan.count(column)
            is_plain[special_rows] = False
        return is_plain

    def _check(self, rendered: Rendered, roles: Roles, columns: list[Column]) -> None:
        """Compare every :data:`CHECKED`-th conversation with its rendering.

        Raises:
            TemplateMismatchError: They differ.
        """
        # The count goes on over all blocks: small blocks are checked as often as large
        # ones.
        first = -self._rendered_together % CHECKED
        self._rendered_together += len(rendered.origin)
        for row in range(first, len(rendered.origin), CHECKED):
            assert rendered.spans is not None
            messages: list[Turn] = []
            for role, column in zip(roles, columns, strict=True):
                messages.append({"role": role, "content": str(column[row])})
            # The template, and the bytes of its spans, against the skeleton.
            (expected,) = self._template.render_all([(messages, None)])
            if isinstance(expected, TokenlakeError):
                expected = RenderedChat(f"the error {expected}")
            text = str(rendered.text[row])
            rendered_spans = rendered.spans.slice(row, row + 1)
            starts = rendered_spans.start.tolist()
            stops = rendered_spans.stop.tolist()
            spans = list(zip(starts, stops, strict=True))
            # A skeleton joins the spans that touch.
            expected_spans = byte_spans(expected.text, _joined(expected.loss))
            if (text, spans) != (expected.text, expected_spans):
                raise TemplateMismatchError(
                    f"the chat template gives {expected.text[:400]!r} for a conversation, and its skeleton gives "
                    f"{text[:400]!r}, with loss on {expected.loss} and {spans} (bytes). Expected the same; this is a "
                    "bug, please report the template. Nothing was committed"
                )


def rendered_chats(
    texts: Mapping[int, RenderedChat], bad: Mapping[int, Fault]
) -> Rendered:
    """Return the texts and the faults of rows, both by their indices.

    The indices of texts ascend.
    """
    all_texts: list[str] = []
    all_spans: list[Any] = []
    for chat in texts.values():
        all_texts.append(chat.text)
        all_spans.append(byte_spans(chat.text, chat.loss))
    return Rendered(
        text=text_of_strings(all_texts),
        origin=np.array(list(texts), np.int64),
        spans=Spans.of(all_spans),
        bad=tuple(sorted(bad.items())),
    )


def _groups_by_roles(conversations: Sequence[Any]) -> dict[Roles, _RoleGroup]:
    """Return the conversations whose messages have roles and contents alone.

    They are grouped by their roles in the data.
    """
    groups: dict[Roles, _RoleGroup] = {}
    for row, messages in enumerate(conversations):
        if type(messages) is not list or not messages:
            continue
        # Lists and tuples are built without a check for each message: most
        # conversations are plain, and an error shows the others.
        try:
            roles = tuple([message["role"] for message in messages])
            contents = [message["content"] for message in messages]
            field_count = sum(map(len, messages))
            if field_count != 2 * len(contents):
                continue
            group = groups.get(roles)
        # A message is no object, lacks a field, or has a role that is none.
        except (KeyError, TypeError):
            continue
        if group is None:
            group = _RoleGroup()
            groups[roles] = group
        group.rows.append(row)
        group.contents.append(contents)
    return groups


def _columns(contents: list[list[str]]) -> list[Column] | None:
    """Return the contents of the first message of each conversation, the second, ...

    None where some contents are no texts.
    """
    try:
        columns = [text_of_strings(column) for column in zip(*contents, strict=True)]
    except (pa.ArrowException, TypeError, UnicodeEncodeError):
        return None
    # Arrow takes None for a null, not for an error.
    if any(column.null_count for column in columns):
        return None
    return columns


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans of which those that touch are joined, as in a skeleton."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
