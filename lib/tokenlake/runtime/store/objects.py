"""Objects of a remote storage: their versions, ranges of their bytes, and errors of requests for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from tokenlake.runtime.store.rates import RateFloor

CHUNK: Final = 1 << 20

Write = Callable[[bytes], object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """An object that is there.

    Attributes:
        path: as in :class:`Url`, of which `root` is the same for all that are listed together.
        size: bytes as they are stored.
        token: of its version.
        packed: compression that the storage itself names (``Content-Encoding``), "" if none.
        modified: seconds since the epoch, by the storage's clock; None where it does not say.
    """

    path: str
    size: int
    token: str
    packed: str = ""
    modified: float | None = None


ListPage: TypeAlias = tuple[list[RemoteObject], str | None]
"""Some objects of a listing, and the mark of the page that follows, None after the last one."""


class OtherObjectError(Exception):
    """The object is not the planned one; the message says how it differs."""


class SourceChangedError(Exception):
    """What is copied is not any more what it was."""


class NoRangesError(Exception):
    """The server sends the whole object whatever range is asked for."""


@final
class RangeBuffer:
    """Where a range of bytes goes, piece by piece.

    Attributes:
        start: of the range in the object.
        data: the range, its first `got` bytes filled.
    """

    def __init__(self, start: int, size: int) -> None:
        self.start, self.data, self.got = start, bytearray(size), 0

    @property
    def at(self) -> int:
        """Offset in the object of the next byte."""
        return self.start + self.got

    @property
    def stop(self) -> int:
        """Offset in the object behind the last byte."""
        return self.start + len(self.data)

    @property
    def header(self) -> str:
        """The value of ``Range`` that asks for what is missing."""
        return f"bytes={self.at}-{self.stop - 1}"

    async def fill(self, read: Callable[[int], Awaitable[bytes]], stop: int | None = None) -> None:
        """Take the bytes of a body up to `stop`, all that are missing by default; what is too much is dropped.

        Raises:
            ShortBodyError: it ended early.
            SlowServerError: it comes too slowly.
        """
        stop = self.stop if stop is None else stop
        floor = RateFloor()
        while self.at < stop and (chunk := await floor.read(read, CHUNK)):
            taken = min(len(chunk), self.stop - self.at)
            self.data[self.got : self.got + taken] = chunk if taken == len(chunk) else chunk[:taken]
            self.got += taken
        if self.at < stop:
            raise ShortBodyError(f"the body ended at byte {self.at}, {stop - self.at} before its end")


async def pour(
    read: Callable[[int], Awaitable[bytes]], write: Write, stated: int | None, planned: RemoteObject | None
) -> None:
    """Hand a body to `write`, piece by piece; it must be as long as its answer stated and as was planned.

    Raises:
        OtherObjectError: it has another length than planned.
        ShortBodyError: it ended early.
        SlowServerError: it comes too slowly.
    """
    require_size(stated, planned)
    size, got = stated if planned is None else planned.size, 0
    floor = RateFloor()
    while chunk := await floor.read(read, CHUNK):
        got += len(chunk)
        if size is not None and got > size:
            raise OtherObjectError(f"it has more than the {size} bytes that were expected")
        write(chunk)
    if size is not None and got < size:
        raise ShortBodyError(f"the body ended at byte {got}, {size - got} before its end")


def require_size(stated: int | None, planned: RemoteObject | None) -> None:
    """Raise OtherObjectError if an answer speaks of an object of another size than planned."""
    if planned is not None and stated not in (None, planned.size):
        raise OtherObjectError(f"it has {stated} bytes, expected {planned.size}")


class HttpStatusError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        status: of the answer.
        wait: seconds that the server asks to wait, None if it does not.
    """

    def __init__(self, status: int, reason: str, wait: float | None = None) -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status, self.wait = status, wait


class ShortBodyError(ConnectionError):
    """A body ended before all of it had come."""


class DamagedBodyError(ConnectionError):
    """Other bytes came than were sent, as a checksum shows."""
