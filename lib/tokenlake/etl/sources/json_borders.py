"""Where the values in an array or object of JSON end, found without parsing them."""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np

from tokenlake.base.arrays import Int64s

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_STEP: Final = np.array(
    [{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(byte), 0) for byte in range(256)], np.int8
)
WINDOW_BYTES: Final = 1 << 19
"""Bytes to scan together: what is made of them stays in the processor's cache."""


class Borders(NamedTuple):
    """Where the values in a stretch of an array or object end.

    Attributes:
        commas: int64[n], offsets of the commas between elements or members.
        close: offset of the bracket or brace that closes the array or object; None for none.
    """

    commas: Int64s
    close: int | None


@final
class BorderScanner:
    """Goes through the bytes of one array or object, from behind its opening bracket on, without parsing its values.

    Only three things matter for where a value ends: quotes that are not escaped, brackets outside strings, and commas
    outside strings on the array's own level. Whether a value is valid is another's question.
    """

    def __init__(self) -> None:
        self._depth = 1
        self._inside = 0  # 1 in a string
        self._escaped = False  # the first of the next bytes

    def feed(self, data: bytes) -> Borders:
        """Scan the next stretch, of at least a byte; nothing may follow one that has the end."""
        plain = b" " + data[1:] if self._escaped else data
        plain = plain.replace(rb"\\", b"  ") if rb"\\" in plain else plain
        self._escaped = plain.endswith(b"\\")
        view = np.frombuffer(plain, np.uint8)
        quotes = np.flatnonzero(view == _QUOTE)
        quotes = quotes[(view[quotes - 1] != _BACKSLASH) | (quotes == 0)]
        lower = view | 0x20  # makes braces of brackets, and nothing else
        at = np.flatnonzero((lower == ord("{")) | (lower == ord("}")) | (view == _COMMA))
        at = at[(np.searchsorted(quotes, at) + self._inside) % 2 == 0]
        self._inside ^= len(quotes) % 2
        depth = self._depth + np.cumsum(_STEP[view[at]], dtype=np.int64)
        closes = np.flatnonzero(depth == 0)
        end = int(closes[0]) if len(closes) else len(at)
        self._depth = int(depth[-1]) if len(depth) else self._depth
        commas = at[:end][(depth[:end] == 1) & (view[at[:end]] == _COMMA)]
        return Borders(commas, int(at[end]) if len(closes) else None)
