"""An object of a remote storage, read by ranges that are fetched ahead of the reader."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, final

from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import InputFile

PIECE_BYTES: Final = 8 << 20
_STRETCH: Final = 16 << 20  # a larger read is done in such steps, so that pieces do not pile up
_LEAST_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 256 << 10  # an object up to this size is fetched at once
_BUDGET: Final = 40 << 20  # of all pieces together, those on their way included
_AHEAD: Final = 2
_TURNS: Final = 4  # pieces of a column held while columns take turns, and are looked at ahead of decoding
_GAP: Final = 64 << 10  # not worth a request of its own

Fetch = Callable[[int, int], Future[Any]]
"""Begins to fetch so many bytes (second) from an offset on (first)."""


@final
@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of the object, here or on its way."""

    start: int
    size: int
    data: Future[Any]
    run: int  # bytes that follow each other without a gap, up to its end
    sequential: bool  # it continues a piece of an earlier read
    spent: bool = False  # its last byte was asked for

    @property
    def stop(self) -> int:
        return self.start + self.size


class ReadAheadBytes(InputBytes):
    """An object that is read by ranges; usable from threads, one read at a time.

    Few large pieces are fetched, the next ones early, in bounded memory. What continues earlier pieces is fetched in
    pieces that grow with the length of the run, up to 8 MiB; once a reader goes on and on, the next two are on their
    way before it asks. At most as much is fetched in vain as was used.
    """

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
        with self._lock:
            self._clear()

    def spans(self, start: int, size: int) -> list[memoryview]:
        """Return the bytes from `start` on, in stretches; what fetching raised is raised."""
        stop = min(start + size, self._size)
        with self._lock:
            pieces = self._covering(start, stop)
            for piece in pieces:
                piece.spent = piece.spent or piece.stop <= stop
            if pieces:
                self._look_ahead(pieces[-1], stop)
            self._evict(keep=pieces)
            try:
                found = [(memoryview(piece.data.result()), piece.start) for piece in pieces]
                return [data[max(start - first, 0) : stop - first] for data, first in found]
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
        earlier, found, at = set(self._pieces), list[_Piece](), start
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
        piece = _Piece(start, size, self._request(start, size), run + size, sequential)
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
