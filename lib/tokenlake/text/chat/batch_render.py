"""Conversations rendered many at a time: their contents, as columns, between the words of a skeleton.

Only plain conversations are: a role and a text in every message, no text blank, none that spells a special token. All
others, and those for which a template has no skeleton, are left to the template itself, which takes 20 to 40 times as
long. Of the conversations rendered here one in :data:`CHECKED` is rendered by the template as well, and a difference
ends the build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, TemplateMismatchError
from tokenlake.ragged import Bools, Int64
from tokenlake.text.chat.template import LEFT, RIGHT, ChatTemplate, RenderedChat, Skeleton
from tokenlake.text.rendering import Column, Rendered, join_pieces
from tokenlake.tokenizers.arrays import Span, byte_spans
from tokenlake.tokenizers.encoder import SpecialScan

CHECKED: Final = 997
"""Conversations of which one is rendered both ways; a prime, so that it does not beat with an order in the data."""

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
class BatchRenderer:
    """Renders plain conversations of the same roles together.

    Args:
        roles: {name in the data: role in the template}.
        scan: finds special tokens, which a content may not spell; None allows them.
    """

    def __init__(self, template: ChatTemplate, roles: Mapping[str, str], scan: SpecialScan | None) -> None:
        self._template, self._roles, self._scan = template, roles, scan
        self._skeletons: dict[tuple[str, ...], Skeleton | None] = {}
        self._seen = 0

    def render(self, conversations: Sequence[Any]) -> list[Rendered]:
        """Return what could be rendered together, a part for each sequence of roles; the others are left.

        Raises:
            TemplateMismatchError: a skeleton and the template differ, which would be a bug.
        """
        found: list[Rendered] = []
        for names, (rows, contents) in _by_roles(conversations).items():
            roles = tuple(self._roles.get(name, "") for name in names)
            skeleton = self._skeleton(roles) if len(rows) >= _FEW else None
            columns = None if skeleton is None else _columns(contents)
            if skeleton is not None and columns is not None:
                found.append(self._rendered(roles, skeleton, np.array(rows), columns))
        return found

    def _skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        if len(roles) > _TURNS or "" in roles:
            return None
        if roles not in self._skeletons and len(self._skeletons) < _SKELETONS:
            self._skeletons[roles] = self._template.skeleton(roles)
        return self._skeletons.get(roles)

    def _rendered(
        self, roles: tuple[str, ...], skeleton: Skeleton, rows: Int64, columns: list[Column]
    ) -> Rendered:
        usable = self._usable(columns)
        if not usable.all():
            rows, columns = rows[usable], [column.filter(_ARROW.array(usable)) for column in columns]
        pieces = [
            part if isinstance(part, str) else _stripped(columns[part[0]], part[1]) for part in skeleton.parts
        ]
        text, spans = join_pieces(pieces, skeleton.loss, len(rows))
        made = Rendered(text=text, origin=rows, spans=spans)
        self._check(made, roles, columns)
        return made

    def _usable(self, columns: list[Column]) -> Bools:
        """Mark the conversations in which no content is blank, and none spells a special token."""
        usable = np.ones(len(columns[0]), np.bool_)
        for column in columns:
            usable &= np.asarray(_COMPUTE.binary_length(_COMPUTE.utf8_ltrim(column, _BLANKS))) > 0
            if self._scan is not None:
                usable[self._scan.count(column)[0]] = False
        return usable

    def _check(self, made: Rendered, roles: tuple[str, ...], columns: list[Column]) -> None:
        first = -self._seen % CHECKED
        self._seen += len(made.origin)
        for row in range(first, len(made.origin), CHECKED):
            pairs = zip(roles, columns, strict=True)
            expected = self._by_template(
                [{"role": role, "content": str(column[row])} for role, column in pairs]
            )
            assert made.spans is not None
            text, spans = str(made.text[row]), made.spans.slice(row, row + 1)
            got = list(zip(spans.start.tolist(), spans.stop.tolist(), strict=True))
            if (expected.text, byte_spans(expected.text, _joined(expected.loss))) != (text, got):
                raise TemplateMismatchError(
                    f"the chat template gives {expected.text[:400]!r} for a conversation, and its skeleton gives "
                    f"{text[:400]!r}, with loss on {expected.loss} and {got} (bytes). Expected the same; this is a "
                    "bug, please report the template. Nothing was committed"
                )

    def _by_template(self, messages: list[dict[str, str]]) -> RenderedChat:
        (made,) = self._template.render_all([(messages, None)])
        if isinstance(made, BadRecordError):
            return RenderedChat(f"the error {made}")
        if not isinstance(made, RenderedChat):
            raise made
        return made


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
        columns: list[Any] = [
            _ARROW.array(column, pa.large_string()) for column in zip(*contents, strict=True)
        ]
    except (pa.ArrowException, TypeError, UnicodeEncodeError):
        return None
    return None if any(column.null_count for column in columns) else columns


def _stripped(column: Column, sides: int) -> Column:
    return _STRIP[sides](column, _BLANKS) if sides else column


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join spans that touch, as a skeleton does."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
