"""Objects at a URL: S3, GCS, HTTP(S), the Hub, and what else fsspec has installed.

Which pieces of an object are asked for: few large ones, the next ones early, in bounded memory.

A reader asks for what it needs: 16 MB at a time, or 64 KiB at a time, or now here and now there. What continues
earlier pieces is fetched in pieces that grow with the length of the run, up to 8 MiB; and once a reader goes on
and on, the next two are on their way before it asks. At most as much is fetched in vain as was used.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.errors import SourceNotFoundError
from tokenlake.sources.inputs import InputBytes, InputFile, InputReader, changed
from tokenlake.sources.remote.failures import OF_INPUTS
from tokenlake.store.remote.connection import client_at
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import NoRangesError, OtherObjectError, RemoteObject
from tokenlake.store.remote.transfer import spooled
from tokenlake.store.remote.url import parse_url

PIECE_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 256 << 10  # an object up to this size is fetched at once
_BUDGET: Final = 40 << 20  # of all pieces together, those on their way included
_AHEAD: Final = 2

Fetch = Callable[[int, int], "Future[bytearray]"]
"""Begins to fetch so many bytes (second) from an offset on (first)."""


@final
class _Piece:
    """A stretch of the object, here or on its way."""

    __slots__ = ("data", "run", "sequential", "size", "spent", "start")

    def __init__(self, start: int, size: int, data: Future[bytearray], run: int, *, sequential: bool) -> None:
        self.start, self.size, self.data = start, size, data
        self.run = run + size  # bytes that follow each other without a gap, up to its end
        self.sequential = sequential  # it continues a piece of an earlier read
        self.spent = False  # its last byte was asked for

    @property
    def stop(self) -> int:
        return self.start + self.size


@final
class ReadAhead:
    """The pieces of one object of `size` bytes. Not safe for threads."""

    def __init__(self, size: int, fetch: Fetch) -> None:
        self._size, self._fetch = size, fetch
        self._pieces: list[_Piece] = []  # the least recently used first

    def spans(self, start: int, size: int) -> list[memoryview]:
        """Return the bytes from `start` on, at most up to the end of the object, in consecutive stretches.

        Raises:
            Exception: what fetching raised; the next read tries again.
        """
        stop = min(start + size, self._size)
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
            self.clear()
            raise

    def clear(self) -> None:
        """Forget all pieces, and stop those on their way."""
        for piece in self._pieces:
            piece.data.cancel()
        self._pieces.clear()

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
        size = min(max(wanted, run, _LEAST_BYTES), PIECE_BYTES, later - start)
        piece = _Piece(start, size, self._fetch(start, size), run, sequential=sequential)
        self._pieces.append(piece)
        return piece

    def _look_ahead(self, last: _Piece, used: int) -> None:
        """Begin the pieces after `last`, which is used up to offset `used`."""
        limit = used + last.run - (last.stop - used)
        for _ in range(_AHEAD):
            if (
                not last.sequential
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


_STRETCH: Final = 16 << 20  # a larger read is done in such steps, so that pieces do not pile up


@final
class RemoteBytes(InputBytes):
    """An object at a URL, read by ranges; usable from threads, one read at a time.

    Every answer must be of the planned version: by a condition on each request where the protocol has
    one, else by a look before the first read; and by a look after the last one.
    """

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        """Open `file`; see :func:`tokenlake.sources.opening.opened` for what it raises."""
        self.file = file
        self._url = parse_url(file.url)
        self._planned = RemoteObject(path=self._url.path, size=file.size, token=file.token)
        self._client = client_at(self._url, storage_options, OF_INPUTS)
        self._ahead = ReadAhead(file.size, self._fetch)
        self._spool: BinaryIO | None = None
        self._lock = threading.Lock()
        if not self._client.pins(file.token):
            self.check_unchanged()

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        while at < len(view):
            spans = self._spans(offset + at, min(len(view) - at, _STRETCH))
            if not spans:
                break
            for span in spans:
                view[at : at + len(span)] = span
                at += len(span)
        return at

    def pread(self, size: int, offset: int) -> bytes:
        return b"".join(self._spans(offset, size)) if size <= _STRETCH else super().pread(size, offset)

    def for_arrow(self) -> Any:
        return InputReader(self)

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""
        try:
            found = on_loop(self._client.stat(self._url))
        except SourceNotFoundError:
            raise changed(self.file, "the object is gone") from None
        if found.size != self.file.size:
            raise changed(self.file, f"it has {found.size} bytes, expected {self.file.size}")
        # A commit of the Hub is in the URL. Tokens of different kinds cannot be compared.
        if (
            self._url.scheme != "hf"
            and _kind(found) == _kind(self._planned)
            and found.token != self.file.token
        ):
            raise changed(self.file, f"its version is {found.token}, expected {self.file.token}")

    def close(self) -> None:
        """Release what is open."""
        with self._lock:
            self._ahead.clear()
            if self._spool is not None:
                self._spool.close()

    def _fetch(self, start: int, size: int) -> Future[bytearray]:
        work = self._client.fetch(self._url, self._planned, start, size)
        return asyncio.run_coroutine_threadsafe(work, get_loop())

    def _spans(self, offset: int, size: int) -> list[memoryview]:
        with self._lock:
            if self._spool is None:
                try:
                    with _planned_only(self.file):
                        return self._ahead.spans(offset, size)
                except NoRangesError:
                    self._spool = self._downloaded()
            data = os.pread(self._spool.fileno(), size, offset)
            return [memoryview(data)] if data else []

    def _downloaded(self) -> BinaryIO:
        """Fetch the whole object to a nameless file on the local disk, because the server knows no ranges."""
        with _planned_only(self.file):
            return spooled(self._client, self._url, self._planned)


@contextmanager
def _planned_only(file: InputFile) -> Generator[None]:
    """Turn failures that mean another object into InputChangedError."""
    try:
        yield
    except OtherObjectError as error:
        raise changed(file, str(error)) from None
    except SourceNotFoundError:
        raise changed(file, "the object is gone") from None


def _kind(found: RemoteObject) -> str:
    return found.token.partition(":")[0]
