"""An object of a remote storage, read by ranges that are fetched ahead of the reader.

A *piece* is a stretch of the object that one request fetches. The steps of a read:

1. The pieces that cover it are found, and begun where they are missing
   (:meth:`ReadAheadBytes._covering`). A piece that continues another one is as long as
   the run of pieces before it, up to 8 MiB: pieces grow as long as a reader goes on (64
   KiB, 128 KiB, 256 KiB, ...). Within stretches that the reader has announced they are
   large at once.
2. If the reader goes on, the next two pieces are begun before it asks
   (:meth:`ReadAheadBytes._look_ahead`), but only as much as was used already: at most
   as many bytes are fetched in vain as were used.
3. Pieces beyond 40 MiB are dropped, those first whose last byte was read
   (:meth:`ReadAheadBytes._evict`).
"""

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
"""Size of the largest piece."""

# A larger read is done in these steps, so that pieces do not pile up.
_STEP_BYTES: Final = 16 << 20
# A reader that jumps needs little: the first piece behind a jump is small.
_MIN_PIECE_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 256 << 10  # an object up to this size is fetched at once
_BUDGET_BYTES: Final = 40 << 20  # of all pieces together, those on their way included
_PIECES_AHEAD: Final = 2
# Held while columns take turns, and read ahead of decoding.
_PIECES_PER_COLUMN: Final = 4
_GAP_BYTES: Final = 64 << 10  # not worth a request of its own

Fetch = Callable[[int, int], Future[Any]]
"""Function of (offset, size) that begins to fetch bytes."""


@final
@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of the object, fetched or on its way.

    Attributes:
        start: Offset of the first byte.
        size: Number of bytes.
        data: The bytes.
        run: Number of bytes that follow each other without a gap, up to the end of the
            piece.
        is_sequential: Whether it continues a piece of an earlier read.
        is_spent: Whether its last byte was read.
    """

    start: int
    size: int
    data: Future[Any]
    run: int
    is_sequential: bool
    is_spent: bool = False

    @property
    def stop(self) -> int:
        """Offset behind the last byte."""
        return self.start + self.size


class ReadAheadBytes(InputBytes):
    """An object that is read by ranges; usable from threads, one read at a time."""

    def __init__(self, file: InputFile, fetch: Fetch) -> None:
        """Prepare reading, without a request.

        Args:
            file: The planned file.
            fetch: Function that begins to fetch bytes.
        """
        self.file = file
        self._size = file.size
        self._request = fetch
        self._pieces: list[_Piece] = []  # the least recently used first
        # Start and stop of what is announced, in order.
        self._stretches: list[tuple[int, int]] = [(0, 0)]
        self._stretch_piece_bytes = PIECE_BYTES  # size of a piece in these stretches
        self._lock = threading.Lock()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        """Fetch announced stretches in large pieces, and nothing beyond their ends.

        Args:
            stretches: Start and stop of each stretch in bytes.
            columns: Number of columns that are read side by side.
        """
        # Stretches with a small gap are one: another request would take longer than the
        # gap.
        joined = [(0, 0)]
        for start, stop in sorted(stretches):
            last_start, last_stop = joined[-1]
            if start <= last_stop + _GAP_BYTES:
                joined[-1] = (last_start, max(stop, last_stop))
            else:
                joined.append((start, stop))
        # All columns together must stay within the budget, each with its pieces.
        share = _BUDGET_BYTES // (_PIECES_PER_COLUMN * max(columns, 1))
        with self._lock:
            self._stretches = joined
            self._stretch_piece_bytes = min(max(share, _SMALL_BYTES), PIECE_BYTES)

    def read_into(self, view: memoryview, offset: int) -> int:
        filled = 0
        while filled < len(view):
            spans = self.spans(offset + filled, min(len(view) - filled, _STEP_BYTES))
            if not spans:
                break
            for span in spans:
                view[filled : filled + len(span)] = span
                filled += len(span)
        return filled

    def pread(self, size: int, offset: int) -> bytes:
        if size > _STEP_BYTES:
            return super().pread(size, offset)
        return b"".join(self.spans(offset, size))

    def close(self) -> None:
        with self._lock:
            self._clear()

    def spans(self, start: int, size: int) -> list[memoryview]:
        """Return `size` bytes from `start` on, in stretches.

        Errors of fetching are raised.
        """
        stop = min(start + size, self._size)
        with self._lock:
            pieces = self._covering(start, stop)
            for piece in pieces:
                if piece.stop <= stop:
                    piece.is_spent = True
            if pieces:
                self._look_ahead(pieces[-1], stop)
            self._evict(keep=pieces)
            # Requests are under way by now, and are waited for one by one.
            try:
                spans: list[memoryview] = []
                for piece in pieces:
                    piece_bytes = memoryview(piece.data.result())
                    span_start = max(start - piece.start, 0)
                    spans.append(piece_bytes[span_start : stop - piece.start])
            except BaseException:
                self._clear()
                raise
        return spans

    def _clear(self) -> None:
        """Drop all pieces."""
        for piece in self._pieces:
            piece.data.cancel()
        self._pieces.clear()

    def _announced_after(self, offset: int) -> int:
        """Return the bytes behind `offset` in its announced stretch, 0 outside of all."""
        stretch_index = bisect_right(self._stretches, (offset, self._size)) - 1
        _, stretch_end = self._stretches[max(stretch_index, 0)]
        return max(stretch_end - offset, 0)

    def _covering(self, start: int, stop: int) -> list[_Piece]:
        """Return the pieces that cover some bytes, begun where they are missing.

        Args:
            start: Offset of the first byte.
            stop: Offset behind the last byte.
        """
        earlier_pieces = set(self._pieces)
        covering: list[_Piece] = []
        position = start
        while position < stop:
            piece = self._piece_at(position)
            if piece is None:
                previous_piece = self._piece_before(position)
                is_sequential = previous_piece in earlier_pieces
                piece = self._begin(
                    position,
                    stop - position,
                    previous_piece,
                    is_sequential=is_sequential,
                )
            covering.append(piece)
            position = piece.stop
        for piece in covering:  # now the most recently used ones
            self._pieces.remove(piece)
            self._pieces.append(piece)
        return covering

    def _piece_at(self, offset: int) -> _Piece | None:
        """Return the piece that holds the byte at `offset`."""
        for piece in self._pieces:
            if piece.start <= offset < piece.stop:
                return piece
        return None

    def _piece_before(self, offset: int) -> _Piece | None:
        """Return the piece that ends at `offset`."""
        for piece in self._pieces:
            if piece.stop == offset:
                return piece
        return None

    def _begin(
        self,
        start: int,
        wanted_bytes: int,
        previous_piece: _Piece | None,
        *,
        is_sequential: bool,
    ) -> _Piece:
        """Begin a piece, which ends at the next one that is known at the latest.

        Args:
            start: Offset of its first byte.
            wanted_bytes: Number of bytes that the reader wants.
            previous_piece: Piece that it continues.
            is_sequential: Whether that is a piece of an earlier read.
        """
        # 1. A small object is one piece.
        run = previous_piece.run if previous_piece else 0
        if self._size <= _SMALL_BYTES:
            start = 0
            wanted_bytes = self._size
        # 2. The size: as much as the reader asked for or is likely to read next, and no
        #    byte that another piece has.
        later_starts = [piece.start for piece in self._pieces if piece.start > start]
        free_bytes = min(later_starts, default=self._size) - start
        likely_bytes = min(self._announced_after(start), self._stretch_piece_bytes)
        if not likely_bytes:
            likely_bytes = max(run, _MIN_PIECE_BYTES)
        piece_size = min(max(wanted_bytes, likely_bytes), PIECE_BYTES, free_bytes)
        piece = _Piece(
            start,
            piece_size,
            self._request(start, piece_size),
            run + piece_size,
            is_sequential,
        )
        self._pieces.append(piece)
        return piece

    def _look_ahead(self, last_piece: _Piece, used_until: int) -> None:
        """Begin the next pieces, if the reader goes on.

        Args:
            last_piece: Last piece of the read.
            used_until: Offset behind the last byte of the read.
        """
        # As many bytes may be fetched ahead as the run has used: pieces before the
        # reader's place count, the rest of the last piece does not.
        ahead_limit = used_until + last_piece.run - (last_piece.stop - used_until)
        for _ in range(_PIECES_AHEAD):
            is_announced = self._announced_after(last_piece.start) > 0
            ends_stretch = is_announced and not self._announced_after(last_piece.stop)
            is_end = last_piece.stop >= self._size
            next_piece_bytes = min(last_piece.run, PIECE_BYTES)
            is_too_early = last_piece.stop + next_piece_bytes > ahead_limit
            if not last_piece.is_sequential or ends_stretch or is_end or is_too_early:
                return
            following = self._piece_at(last_piece.stop)
            if following is None:
                following = self._begin(
                    last_piece.stop, 1, last_piece, is_sequential=True
                )
            last_piece = following

    def _evict(self, keep: list[_Piece]) -> None:
        """Drop pieces beyond the budget: spent ones first, then those used longest ago.

        Args:
            keep: Pieces of the present read; those that follow them stay, too.
        """
        total_bytes = sum(piece.size for piece in self._pieces)
        # A piece that continues the present read was begun ahead, and is read next.
        next_starts = {piece.stop for piece in keep}
        for piece in sorted(self._pieces, key=lambda piece: not piece.is_spent):
            if total_bytes <= _BUDGET_BYTES:
                return
            if piece not in keep and piece.start not in next_starts:
                piece.data.cancel()
                self._pieces.remove(piece)
                total_bytes -= piece.size
