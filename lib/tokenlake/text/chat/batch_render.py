"""Conversations of the same roles, rendered together: their contents as columns between the words of a skeleton.

Only plain conversations are: a role and a text in every message, no text blank, none spelling a special token. All
others, and those that a skeleton cannot be had for, are left to the template. Of the conversations rendered here one
in :data:`CHECKED` is rendered by the template, too, and a difference ends the build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.text.chat.skeletons import Filled, Skeletons
from tokenlake.text.chat.template import LEFT, RIGHT, Skeleton
from tokenlake.tokenizers.arrays import Spans
from tokenlake.tokenizers.encoder import SpecialScan

Int64 = npt.NDArray[np.int64]
Column = pa.LargeStringArray

CHECKED: Final = 997
"""Conversations of which one is rendered both ways; a prime, so that it does not beat with an order in the data."""

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
# Exactly what Python trims: Arrow's own idea of a blank is another.
_BLANKS: Final = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_TRIM: Final[Mapping[int, Any]] = {
    LEFT: _COMPUTE.utf8_ltrim,
    RIGHT: _COMPUTE.utf8_rtrim,
    LEFT | RIGHT: _COMPUTE.utf8_trim,
}
_FEW: Final = 8  # conversations of one shape that are not worth the calls


@final
@dataclass(frozen=True, slots=True)
class Together:
    """Rendered conversations.

    Attributes:
        rows: int64[n], ascending: which of the given ones they are.
        text: large_string[n].
        spans: what bears loss, in bytes.
    """

    rows: Int64
    text: Column
    spans: Spans


@final
class Alike:
    """Renders conversations of equal shape together.

    Args:
        roles: {name in the data: role in the template}.
        scan: finds special tokens that a content may not spell; None allows them.
    """

    def __init__(self, skeletons: Skeletons, roles: Mapping[str, str], scan: SpecialScan | None) -> None:
        self.skeletons: Final = skeletons
        self._roles, self._scan = roles, scan
        self._turned = 0

    def render(self, conversations: Sequence[Any]) -> list[Together]:
        """Return what could be rendered together, a group for each shape; the others are left.

        Raises:
            TemplateMismatchError: a skeleton and the template differ, which would be a bug.
        """
        return [
            made
            for roles, (rows, contents) in self._groups(conversations).items()
            if len(rows) >= _FEW and (made := self._together(roles, rows, contents)) is not None
        ]

    def _groups(
        self, conversations: Sequence[Any]
    ) -> dict[tuple[str, ...], tuple[list[int], list[list[str]]]]:
        """Gather rows and contents by shape, as the rows' own names of roles have it."""
        groups: dict[tuple[str, ...], tuple[list[int], list[list[str]]]] = {}
        for index, messages in enumerate(conversations):
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
            rows.append(index)
            texts.append(contents)
        return groups

    def _together(
        self, names: tuple[str, ...], rows: list[int], contents: list[list[str]]
    ) -> Together | None:
        if not self._roles.keys() >= set(names):
            return None
        roles = tuple(self._roles[name] for name in names)
        skeleton = self.skeletons.of(roles)
        columns = None if skeleton is None else _columns(contents)
        if skeleton is None or columns is None:
            return None
        at = np.array(rows)
        good = self._usable(columns)
        if not good.all():
            at, columns = at[good], [column.filter(_ARROW.array(good)) for column in columns]
        if not len(at):
            return None
        text, spans = _filled(skeleton, columns)
        made = Together(at, text, spans)
        self._compare(made, roles, columns)
        return made

    def _usable(self, columns: list[Column]) -> npt.NDArray[np.bool_]:
        """Mark the conversations in which no content is blank, and none spells a special token."""
        good = np.ones(len(columns[0]), np.bool_)
        for column in columns:
            trimmed = _COMPUTE.utf8_ltrim(column, _BLANKS)
            good &= np.asarray(_COMPUTE.binary_length(trimmed)) > 0
            if self._scan is not None:
                good[self._scan.count(column)[0]] = False
        return good

    def _compare(self, made: Together, roles: tuple[str, ...], columns: list[Column]) -> None:
        first = -self._turned % CHECKED
        self._turned += len(made.rows)
        for row in range(first, len(made.rows), CHECKED):
            text = str(made.text[row])
            one = made.spans.slice(row, row + 1)
            stretches = zip(one.start.tolist(), one.stop.tolist(), strict=True)
            learned = tuple((_characters(text, start), _characters(text, stop)) for start, stop in stretches)
            messages = [
                {"role": role, "content": str(column[row])}
                for role, column in zip(roles, columns, strict=True)
            ]
            self.skeletons.compare(Filled(text, learned), messages)


def _columns(contents: list[list[str]]) -> list[Column] | None:
    """Return the contents at each place of a conversation; None where some are no texts."""
    try:
        columns: list[Any] = [
            _ARROW.array(column, pa.large_string()) for column in zip(*contents, strict=True)
        ]
    except (pa.ArrowException, TypeError, UnicodeEncodeError):
        return None
    return None if any(column.null_count for column in columns) else columns


def _filled(skeleton: Skeleton, columns: list[Column]) -> tuple[Column, Spans]:
    """Put contents between the words."""
    count = len(columns[0])
    parts: list[Any] = []
    lengths = np.empty((len(skeleton.parts), count), np.int64)
    for at, part in enumerate(skeleton.parts):
        if isinstance(part, str):
            parts.append(_ARROW.scalar(part, pa.large_string()))
            lengths[at] = len(part.encode())
        else:
            number, sides = part
            column = _TRIM[sides](columns[number], _BLANKS) if sides else columns[number]
            parts.append(column)
            lengths[at] = np.asarray(_COMPUTE.binary_length(column))
    text = _joined(parts, count)
    edges = np.concatenate([np.zeros((1, count), np.int64), np.cumsum(lengths, axis=0)])
    return text, _spans(skeleton.learned, edges)


def _joined(parts: list[Any], count: int) -> Column:
    if all(isinstance(part, pa.Scalar) for part in parts):
        parts = [_ARROW.array([""] * count, pa.large_string()), *parts]
    return cast("Column", _COMPUTE.binary_join_element_wise(*parts, _ARROW.scalar("", pa.large_string())))


def _spans(learned: Sequence[bool], edges: Int64) -> Spans:
    """Return the stretches of the parts that are learned, neighbours joined; ``edges`` is int64[parts + 1, n]."""
    flags = np.diff(np.array([0, *map(int, learned), 0]))
    begins, ends = np.flatnonzero(flags == 1), np.flatnonzero(flags == -1)
    offsets = np.arange(edges.shape[1] + 1, dtype=np.int64) * len(begins)
    return Spans(offsets, edges[begins].T.ravel(), edges[ends].T.ravel())


def _characters(text: str, size: int) -> int:
    """How many characters the first `size` bytes of a text are."""
    return len(text.encode()[:size].decode())
