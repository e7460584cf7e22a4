"""The ends of the values in an array or object of JSON, found without parsing them.

Only three things matter for the end of a value: quotes that are not escaped, brackets
outside strings, and commas outside strings on the array's own level. Whether a value is
valid is checked later.

The scan of a window, as steps over numpy arrays. Example: ``{"a":[1,2]},3]`` behind the
opening bracket of an array:

1. Quotes that are not escaped: bytes 1 and 3.
2. Brackets, braces and commas: ``{ [ , ] } , ]`` at bytes 0, 5, 7, 9, 10, 11 and 13.
   One before which an odd number of quotes stands lies in a string, and is dropped.
3. Depth behind each of them, 1 for the array itself: 2, 3, 3, 2, 1, 1, 0.
4. The array closes where the depth is 0: byte 13. The commas at depth 1 separate its
   elements: byte 11.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np

from tokenlake.base.arrays import Int64s

WINDOW_BYTES: Final = 1 << 19
"""Number of bytes to scan together: the arrays that are made of them stay in the
processor's cache.
"""

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_OPEN_BRACE: Final = ord("{")
_CLOSE_BRACE: Final = ord("}")
# The bit that makes a brace of a bracket, and of no other byte.
_BRACKET_TO_BRACE: Final = 0x20
# Byte to the change of depth.
_DEPTH_CHANGE: Final = np.zeros(256, np.int8)
_DEPTH_CHANGE[[ord("["), ord("{")]] = 1
_DEPTH_CHANGE[[ord("]"), ord("}")]] = -1


class Borders(NamedTuple):
    """Ends of the values in a stretch of an array or object.

    Attributes:
        commas: Offsets of the commas between elements or members, int64[n], from 0 at
            the first byte of the stretch.
        close: Offset of the bracket or brace that closes the array or object; None if
            it is not in the stretch.
    """

    commas: Int64s
    close: int | None


@final
class BorderScanner:
    """Scans the bytes of one array or object, stretch by stretch.

    It begins behind the opening bracket.
    """

    def __init__(self) -> None:
        """Begin behind the opening bracket."""
        self._depth = 1
        self._is_in_string = False
        self._is_escaped = False  # the first of the next bytes

    def feed(self, data: bytes) -> Borders:
        """Scan the next stretch, of at least one byte.

        No stretch may follow one that has the end.
        """
        # 1. Quotes that are not escaped. Without escaped backslashes a backslash
        #    escapes the byte behind it.
        if self._is_escaped:
            data = b" " + data[1:]
        if rb"\\" in data:
            data = data.replace(rb"\\", b"  ")
        self._is_escaped = data.endswith(b"\\")
        view = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(view == _QUOTE)
        quotes = quotes[(view[quotes - 1] != _BACKSLASH) | (quotes == 0)]

        # 2. Brackets, braces and commas outside of strings.
        folded = view | _BRACKET_TO_BRACE
        is_mark = (folded == _OPEN_BRACE) | (folded == _CLOSE_BRACE) | (view == _COMMA)
        marks = np.flatnonzero(is_mark)
        quotes_before = np.searchsorted(quotes, marks)
        # A string that began in an earlier stretch adds one quote to all counts.
        if self._is_in_string:
            quotes_before += 1
        marks = marks[quotes_before % 2 == 0]
        if len(quotes) % 2:
            self._is_in_string = not self._is_in_string

        # 3. The depth behind each mark.
        depths = self._depth + np.cumsum(_DEPTH_CHANGE[view[marks]], dtype=np.int64)
        if len(depths):
            self._depth = int(depths[-1])

        # 4. The end, and the commas before it on the level of the array.
        ends = np.flatnonzero(depths == 0)
        close: int | None = None
        if len(ends):
            close = int(marks[ends[0]])
            marks = marks[: ends[0]]
            depths = depths[: ends[0]]
        commas = marks[(depths == 1) & (view[marks] == _COMMA)]
        return Borders(commas, close)
