"""CSV cell by cell: the judge of blocks in which a quote stands where none may, and of very long records."""

from __future__ import annotations

import re
from typing import Final, final

import numpy as np

from tokenlake.sources.csv.marks import NEWLINE, QUOTE, Marks

NOT_CLOSED: Final = "is never closed"
_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_LINE_END: Final = (b"\r\n", b"\r")  # the latter at the end of the file: a fault, but none of the quote


@final
class Scan:
    """Reads quotes as RFC 4180 does, in bytes that may still grow at their end.

    A quote opens a cell only as its first byte. In an unquoted cell it is stray. After a quote that closes a
    cell a delimiter or a newline must follow; if anything else does, that quote is stray, and the cell goes
    on, unquoted. But where such a cell began on an earlier line, nobody knows where records end: its
    quote counts as unclosed.

    Attributes:
        ends, stray, unclosed: as in :class:`tokenlake.sources.csv.marks.Marks`.
        reason: what is wrong with the quote at `unclosed`.
    """

    def __init__(self, delimiter: int, max_cell_bytes: int) -> None:
        self.ends: list[int] = []
        self.stray: list[int] = []
        self.unclosed: int | None = None
        self.reason = NOT_CLOSED
        self._edge = re.compile(b"[" + re.escape(bytes([delimiter])) + b"\n]")
        self._stops = (delimiter, NEWLINE)
        self._limit = max_cell_bytes
        self._cell, self._at, self._quoted = 0, 0, False

    def run(self, data: bytes | bytearray, size: int, *, final: bool) -> None:
        """Go on through ``data[:size]``; `final`: nothing will follow."""
        while self._at < size and self.unclosed is None:
            if not self._quoted and self._at == self._cell and data[self._at] == QUOTE:
                self._quoted, self._at = True, self._at + 1
            elif not self._quoted:
                self._unquoted(data, size)
            elif not self._in_quotes(data, size, final=final):
                break
        if self._quoted and self.unclosed is None:
            if self._at - self._cell - 1 > self._limit:
                self._give_up(f"is not closed within max_record_bytes = {self._limit}")
            elif final:
                self._give_up(NOT_CLOSED)

    def forget(self) -> int:
        """Make what is needed no more disappear from the positions; return how many bytes to drop."""
        at_edge = self._quoted or self._at == self._cell
        drop = self._cell if at_edge else self._at - 1  # a carriage return may be needed yet
        self.ends, self.stray = [], []
        self._at -= drop
        self._cell = 0 if at_edge else -1
        return drop

    def marks(self, data: bytes | bytearray, size: int) -> Marks:
        """Return what was found in ``data[:size]``."""
        return Marks(
            ends=np.array(self.ends, np.int64),
            doubled=None,
            stray=np.array(self.stray, np.int64),
            unclosed=self.unclosed,
            newlines=data.count(b"\n", 0, size),
        )

    def _unquoted(self, data: bytes | bytearray, size: int) -> None:
        found = self._edge.search(data, self._at, size)
        stop = size if found is None else found.start()
        quote = data.find(b'"', self._at, stop)
        if quote >= 0:
            self.stray.append(quote)
        self._at = stop
        if found is not None:
            self.ends.append(stop)
            self._cell = self._at = stop + 1

    def _in_quotes(self, data: bytes | bytearray, size: int, *, final: bool) -> bool:
        """Go to the quote that closes the cell; False if it is not there, or what follows it is not yet."""
        quote = self._at = _in_cell(data, self._at, size)
        if quote == size:
            return False
        after = data[quote + 1 : min(quote + 3, size)]
        if not final and (not after or after == b"\r"):
            return False
        self._close(data, quote, allowed=not after or after[0] in self._stops or after in _LINE_END)
        return True

    def _close(self, data: bytes | bytearray, quote: int, *, allowed: bool) -> None:
        if quote - self._cell - 1 > self._limit:
            self._give_up(f"is not closed within max_record_bytes = {self._limit}")
        elif not allowed and data.find(b"\n", self._cell, quote) >= 0:
            self._give_up("is closed on a later line, in the middle of a cell")
        elif not allowed:
            self.stray.append(quote)
        self._quoted, self._at = False, quote + 1

    def _give_up(self, reason: str) -> None:
        self.unclosed, self.reason = self._cell, reason


def _in_cell(data: bytes | bytearray, start: int, size: int) -> int:
    """Return where the first quote that is not doubled stands, `size` if there is none."""
    found = _CONTENT.match(data, start, size)
    return start if found is None else found.end()
