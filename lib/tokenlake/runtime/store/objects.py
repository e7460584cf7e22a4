"""Objects of a remote storage: versions, ranges of bytes, and errors of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from tokenlake.runtime.store.rates import RateFloor

CHUNK: Final = 1 << 20  # bytes of a body that are read at a time

Write = Callable[[bytes], object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """One version of an object in a storage.

    Attributes:
        path: Path, as in :class:`Url`; objects that are listed together have the same
            root.
        size: Stored bytes.
        token: Token of the version.
        packed: Compression that the storage states (``Content-Encoding``); "" if none.
        modified: Time of the last change by the storage's clock, in seconds since the
            epoch; None if unknown.
    """

    path: str
    size: int
    token: str
    packed: str = ""
    modified: float | None = None


ListPage: TypeAlias = tuple[list[RemoteObject], str | None]
"""Objects of one page of a listing, and the mark of the next page.

The mark is None after the last page.
"""


class OtherObjectError(Exception):
    """The object has another version than planned; the message names both."""


class SourceChangedError(Exception):
    """The source of a copy has another version by now."""


class NoRangesError(Exception):
    """The server ignores ranges, and sends the whole object."""


@final
class RangeBuffer:
    """A range of an object that is filled piece by piece.

    Attributes:
        start: Offset of the range in the object.
        data: The range; its first `got` bytes are filled.
        got: Number of bytes filled.
    """

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.data = bytearray(size)
        self.got = 0

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
        """Value of the header ``Range`` for the missing rest."""
        return f"bytes={self.at}-{self.stop - 1}"

    async def fill(
        self, read: Callable[[int], Awaitable[bytes]], stop: int | None = None
    ) -> None:
        """Read a body into the buffer; surplus bytes are dropped.

        Args:
            read: Function that returns the next bytes of the body.
            stop: Offset at which to stop; None: the end of the range.

        Raises:
            ShortBodyError: The body ended early.
            SlowServerError: The body comes too slowly.
        """
        if stop is None:
            stop = self.stop
        floor = RateFloor()
        while self.at < stop and (chunk := await floor.read(read, CHUNK)):
            # A server may send more than was requested.
            chunk_bytes = min(len(chunk), self.stop - self.at)
            if chunk_bytes < len(chunk):
                chunk = chunk[:chunk_bytes]
            self.data[self.got : self.got + chunk_bytes] = chunk
            self.got += chunk_bytes
        # A later request continues from here: the bytes so far are kept.
        if self.at < stop:
            raise ShortBodyError(
                f"the body ended at byte {self.at}, {stop - self.at} before its end"
            )


async def pour(
    read: Callable[[int], Awaitable[bytes]],
    write: Write,
    stated: int | None,
    planned: RemoteObject | None,
) -> None:
    """Hand a body to `write`, piece by piece, and check its length.

    Args:
        read: Function that returns the next bytes of the body.
        write: Receiver of the bytes.
        stated: Length that the answer states; None if it states none.
        planned: Version that the object must have; None: any.

    Raises:
        OtherObjectError: The body has another length than planned.
        ShortBodyError: The body ended early.
        SlowServerError: The body comes too slowly.
    """
    # The stated length is compared before the body is read, and its own length after.
    require_size(stated, planned)
    expected_bytes = stated if planned is None else planned.size
    received_bytes = 0
    floor = RateFloor()
    while chunk := await floor.read(read, CHUNK):
        received_bytes += len(chunk)
        if expected_bytes is not None and received_bytes > expected_bytes:
            raise OtherObjectError(
                f"it has more than the {expected_bytes} bytes that were expected"
            )
        write(chunk)
    if expected_bytes is not None and received_bytes < expected_bytes:
        raise ShortBodyError(
            f"the body ended at byte {received_bytes}, {expected_bytes - received_bytes} before its end"
        )


def require_size(stated: int | None, planned: RemoteObject | None) -> None:
    """Raise OtherObjectError if an answer states another size than planned."""
    if planned is not None and stated not in (None, planned.size):
        raise OtherObjectError(f"it has {stated} bytes, expected {planned.size}")


class HttpStatusError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        status: Status of the answer.
        wait: Seconds that the server asks to wait; None if it does not ask.
    """

    def __init__(self, status: int, reason: str, wait: float | None = None) -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status = status
        self.wait = wait


class ShortBodyError(ConnectionError):
    """A body ended before all of it had come."""


class DamagedBodyError(ConnectionError):
    """Other bytes came than were sent, as a checksum shows."""
