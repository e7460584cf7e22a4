"""Numbers of lines in a file, for those who must name one."""

from __future__ import annotations

from typing import Final, final

from tokenlake.sources.blocks import count_lines
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.ranges import FileRange

_COUNTED_BYTES: Final = 1 << 30


@final
class LineNumbers:
    """The line numbers of one range's blocks.

    The lines before a range are counted only when the first number is asked for, and, unless
    `always`, only within the first GiB: a unit at the end of a file of a terabyte would else read it all.
    """

    def __init__(self, part: FileRange, data: InputBytes, *, always: bool) -> None:
        self._part, self._data, self._always = part, data, always
        self._passed = 0
        self._before: int | None = None if part.file.compression is None else 0

    def pass_over(self, lines: int) -> None:
        """Note that a block of so many lines is done with."""
        self._passed += lines

    def number(self, line: int, position: int) -> int | None:
        """Return the 1-based number of line `line` of the block at hand, which starts at byte `position`."""
        if self._before is None:
            if not self._always and self._part.start > _COUNTED_BYTES:
                return None
            self._before = count_lines(self._data, position) - self._passed - line
        return self._before + self._passed + line + 1
