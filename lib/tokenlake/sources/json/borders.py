"""Where the elements of a JSON array end, found without parsing them.

Only three things matter for that: quotes that are not escaped, brackets outside strings, and commas
outside strings on the array's own level. Whether an element is valid is another's question.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from tokenlake.sources.arrays import Int64s

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_NEWLINE: Final = ord("\n")
_LONG_RUN: Final = 32  # backslashes that are counted step by step
_STEP: Final = np.array(
    [{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(byte), 0) for byte in range(256)], np.int8
)

Bytes = npt.NDArray[np.uint8]


class Borders(NamedTuple):
    """What was found in a stretch of an array.

    Attributes:
        commas: int64[n], offsets of the commas between elements.
        close: offset of the bracket that closes the array, or of a brace in its place; None for none.
        newlines: how many newlines there are outside strings, up to `close`.
    """

    commas: Int64s
    close: int | None
    newlines: int


@final
class BorderScanner:
    """Goes through the bytes of one array, from behind its opening bracket on, stretch by stretch."""

    def __init__(self) -> None:
        self._depth = 1
        self._inside = False  # a string
        self._odd = False  # the bytes so far end in an odd number of backslashes

    def feed(self, data: Bytes) -> Borders:
        """Scan the next stretch; nothing may follow one that has the array's end."""
        outside = self._outside(data)
        found = data[outside]
        steps = _STEP[found]
        at = np.flatnonzero((steps != 0) | (found == _COMMA))
        depth = self._depth + np.cumsum(steps[at], dtype=np.int64)
        closes = np.flatnonzero(depth == 0)
        end = len(at) if not len(closes) else int(closes[0])
        commas = outside[at[:end][(depth[:end] == 1) & (found[at[:end]] == _COMMA)]]
        self._depth = int(depth[-1]) if len(depth) else self._depth
        close = int(outside[at[end]]) if len(closes) else None
        stop = len(outside) if close is None else int(at[end])
        return Borders(commas, close, int(np.count_nonzero(found[:stop] == _NEWLINE)))

    def _outside(self, data: Bytes) -> Int64s:
        """Return the offsets of the bytes that are in no string; quotes count as being in one."""
        quotes = self._quotes(data)
        edges = np.concatenate([[-1], quotes, [len(data)]])
        starts, stops = edges[:-1][self._inside :: 2] + 1, edges[1:][self._inside :: 2]
        self._inside ^= bool(len(quotes) % 2)
        sizes = stops - starts
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        return np.arange(total) + np.repeat(starts - (ends - sizes), sizes)

    def _quotes(self, data: Bytes) -> Int64s:
        """Return the offsets of the quotes that begin or end a string."""
        quotes = np.flatnonzero(data == _QUOTE)
        odd, self._odd = self._odd, self._ends_odd(data)
        doubtful = np.flatnonzero(data[quotes - 1] == _BACKSLASH)
        if len(quotes) and quotes[0] == 0:
            doubtful = np.append(np.zeros(int(odd), np.int64), doubtful[doubtful > 0])
        if not len(doubtful):
            return quotes
        escaped = _runs(data, quotes[doubtful], int(odd)) % 2 == 1
        return np.delete(quotes, doubtful[escaped])

    def _ends_odd(self, data: Bytes) -> bool:
        if not len(data) or data[-1] != _BACKSLASH:
            return bool(self._odd and not len(data))
        return bool(_runs(data, np.array([len(data)]), int(self._odd))[0] % 2)


def _runs(data: Bytes, ends: Int64s, before: int) -> Int64s:
    """Return how many backslashes stand directly before each of `ends`, with `before` before the data."""
    runs = np.zeros(len(ends), np.int64)
    alive = np.arange(len(ends))
    while len(alive) and runs[alive[0]] < _LONG_RUN:
        at = ends[alive] - 1 - runs[alive]
        alive = alive[(at >= 0) & (data[at] == _BACKSLASH)]
        runs[alive] += 1
    if len(alive):
        others = np.append(-1, np.flatnonzero(data != _BACKSLASH))
        runs[alive] = ends[alive] - 1 - others[np.searchsorted(others, ends[alive]) - 1]
    return runs + np.where(runs == ends, before, 0)
