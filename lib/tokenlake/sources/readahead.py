"""Which pieces of an object are fetched: few large ones, the next ones early, in bounded memory.

A reader asks for what it needs: 16 MB at a time, or 64 KiB at a time, or now here and now there. What continues
earlier pieces is fetched in pieces that grow with the length of the run, up to 8 MiB; and once a reader goes on
and on, the next two are on their way before it asks. At most as much is fetched in vain as was used.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final, final

from tokenlake.sources.inputs import InputBytes, InputFile

PIECE_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 256 << 10  # an object up to this size is fetched at once
_BUDGET: Final = 40 << 20  # of all pieces together, those on their way included
_AHEAD: Final = 2
_TURNS: Final = (
    4  # pieces of a column that are held while columns take turns, and are looked at ahead of decoding
)
_GAP: Final = 64 << 10  # not worth a request of its own

Fetch = Callable[[int, int], Future[Any]]
"""Begins to fetch so many bytes (second) from an offset on (first)."""


@final
class _Piece:
    """A stretch of the object, here or on its way."""

    __slots__ = ("data", "run", "sequential", "size", "spent", "start")

    def __init__(self, start: int, size: int, data: Future[Any], run: int, *, sequential: bool) -> None:
        self.start, self.size, self.data = start, size, data
        self.run = run + size  # bytes that follow each other without a gap, up to its end
        self.sequential = sequential  # it continues a piece of an earlier read
        self.spent = False  # its last byte was asked for

    @property
    def stop(self) -> int:
        return self.start + self.size


_STRETCH: Final = 16 << 20  # a larger read is done in such steps, so that pieces do not pile up


class ReadAheadBytes(InputBytes):
    """An object that is read by ranges; usable from threads, one read at a time."""

    def __init__(self, file: InputFile, fetch: Fetch) -> None:
        self.file, self._size, self._request = file, file.size, fetch
        self._pieces: list[_Piece] = []  # the least recently used first
        self._stretches, self._turn = [(0, 0)], PIECE_BYTES
        self._lock = threading.Lock()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        """See :meth:`InputBytes.expect`: these are fetched in large pieces at once, and nothing beyond their ends."""
        joined = [(0, 0)]
        for start, stop in sorted(stretches):
            if start <= joined[-1][1] + _GAP:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((start, stop))
        with self._lock:
            self._stretches = joined
            self._turn = min(max(_BUDGET // (_TURNS * max(columns, 1)), _SMALL_BYTES), PIECE_BYTES)

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        while at < len(view):
            spans = self.spans(offset + at, min(len(view) - at, _STRETCH))
            if not spans:
                break
            for span in spans:
                view[at : at + len(span)] = span
                at += len(span)
        return at

    def pread(self, size: int, offset: int) -> bytes:
        return b"".join(self.spans(offset, size)) if size <= _STRETCH else super().pread(size, offset)

    def close(self) -> None:
        """Forget all pieces, and stop those on their way."""
        with self._lock:
            self._clear()

    def spans(self, start: int, size: int) -> list[memoryview]:
        """Return the bytes from `start` on, at most up to the end of the object, in consecutive stretches.

        Raises:
            Exception: what fetching raised; the next read tries again.
        """
        stop = min(start + size, self._size)
        with self._lock:
            pieces = self._covering(start, stop)
            for piece in pieces:
                piece.spent = piece.spent or piece.stop <= stop
            if pieces:
                self._look_ahead(pieces[-1], stop)
            self._evict(keep=pieces)
            try:
                return [
                    memoryview(piece.data.result())[max(start - piece.start, 0) : stop - piece.start]
                    for piece in pieces
                ]
            except BaseException:
                self._clear()
                raise

    def _clear(self) -> None:
        for piece in self._pieces:
            piece.data.cancel()
        self._pieces.clear()

    def _left(self, offset: int) -> int:
        """Return how much of an expected stretch lies behind `offset`."""
        _, stop = self._stretches[max(bisect_right(self._stretches, (offset, self._size)) - 1, 0)]
        return max(stop - offset, 0)

    def _covering(self, start: int, stop: int) -> list[_Piece]:
        known = len(self._pieces)
        earlier = set(self._pieces[:known])
        found: list[_Piece] = []
        at = start
        while at < stop:
            piece = self._at(at)
            if piece is None:
                before = next((one for one in self._pieces if one.stop == at), None)
                piece = self._begin(at, stop - at, before, sequential=before in earlier)
            found.append(piece)
            at = piece.stop
        for piece in found:  # now the most recently used ones
            self._pieces.remove(piece)
            self._pieces.append(piece)
        return found

    def _at(self, offset: int) -> _Piece | None:
        return next((one for one in self._pieces if one.start <= offset < one.stop), None)

    def _begin(self, start: int, wanted: int, before: _Piece | None, *, sequential: bool) -> _Piece:
        """Begin a piece, up to the next one that is known."""
        run = before.run if before else 0
        if self._size <= _SMALL_BYTES:
            start, wanted = 0, self._size
        later = min((one.start for one in self._pieces if one.start > start), default=self._size)
        likely = min(self._left(start), self._turn) or max(run, _LEAST_BYTES)
        size = min(max(wanted, likely), PIECE_BYTES, later - start)
        piece = _Piece(start, size, self._request(start, size), run, sequential=sequential)
        self._pieces.append(piece)
        return piece

    def _look_ahead(self, last: _Piece, used: int) -> None:
        """Begin the pieces after `last`, which is used up to offset `used`."""
        limit = used + last.run - (last.stop - used)
        for _ in range(_AHEAD):
            if (
                not last.sequential
                or (self._left(last.start) and not self._left(last.stop))
                or last.stop >= self._size
                or last.stop + min(last.run, PIECE_BYTES) > limit
            ):
                return
            last = self._at(last.stop) or self._begin(last.stop, 1, last, sequential=True)

    def _evict(self, keep: list[_Piece]) -> None:
        total = sum(piece.size for piece in self._pieces)
        ahead = {piece.stop for piece in keep}
        for piece in sorted(self._pieces, key=lambda one: not one.spent):  # spent ones first, then by age
            if total <= _BUDGET:
                return
            if piece not in keep and piece.start not in ahead:
                piece.data.cancel()
                self._pieces.remove(piece)
                total -= piece.size
