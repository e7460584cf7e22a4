"""Objects of a remote storage: what there is, which version, and the bytes of a range.

One class per protocol speaks to its storage; each method is one request, tried once. Whoever calls them
does it through :mod:`tokenlake.store.remote.asking`, which tries again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from tokenlake.store.remote.retry import Failures, ShortBodyError
from tokenlake.store.remote.url import Url

CHUNK: Final = 1 << 20
Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a listing, and the mark of the page that follows, None after the last one."""

    found: list[Found]
    following: str | None = None


class OtherObjectError(Exception):
    """The object is not the planned one; the message says how it differs."""


class SourceChangedError(Exception):
    """What is copied is not any more what it was."""


class NoRangesError(Exception):
    """The server sends the whole object whatever range is asked for."""


@final
class Sink:
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
    def left(self) -> int:
        """Bytes still missing."""
        return len(self.data) - self.got

    def put(self, chunk: bytes) -> None:
        """Take the next bytes; what is too much is dropped."""
        taken = min(len(chunk), self.left)
        self.data[self.got : self.got + taken] = chunk if taken == len(chunk) else chunk[:taken]
        self.got += taken


class Objects(ABC):
    """The objects of one storage.

    Attributes:
        reached: the storage has answered at least once.
        credentials: sentences for the message of a refusal: what was tried, and how to give others.
        failures: what errors of this storage are to whoever asks.
    """

    credentials: str = ""

    def __init__(self, failures: Failures) -> None:
        self.failures, self.reached = failures, False

    @abstractmethod
    async def stat(self, url: Url) -> Found:
        """Return what is known of one object; fails as for a missing file where there is none."""

    @abstractmethod
    async def page(self, url: Url, *, flat: bool, mark: str | None) -> Page:
        """Return objects whose path begins with that of `url`; only those of its folder if `flat`.

        Folders may be among them: their path ends with a slash.

        Args:
            mark: what the page before gave as `following`.
        """

    @abstractmethod
    async def fetch(self, url: Url, sink: Sink, planned: Found) -> None:
        """Fill what is missing in `sink`, as far as it goes in one request.

        Raises:
            OtherObjectError: the answer is of another version than `planned`.
            NoRangesError: see there.
            Exception: what the library raises; what had come until then is in `sink`.
        """

    def pins(self, token: str) -> bool:
        """Say whether every answer to :meth:`fetch` is checked to be of the version `token`."""
        return False

    @abstractmethod
    async def download(self, url: Url, write: Write, planned: Found | None) -> None:
        """Hand the whole object to `write`, in one request.

        Args:
            planned: what it must be; None for whatever is there.

        Raises:
            OtherObjectError: the answer is of another version than `planned`.
            Exception: what the library raises; some may have been written by then.
        """


async def pour(
    read: Callable[[int], Awaitable[bytes]], write: Write, stated: int | None, planned: Found | None
) -> None:
    """Hand a body to `write`, piece by piece; it must be as long as its answer stated and as was planned.

    Raises:
        OtherObjectError: it has another length than planned.
        ShortBodyError: it ended early.
    """
    if planned is not None and stated not in (None, planned.size):
        raise OtherObjectError(f"it has {stated} bytes, planned were {planned.size}")
    size, got = stated if planned is None else planned.size, 0
    while chunk := await read(CHUNK):
        got += len(chunk)
        if size is not None and got > size:
            raise OtherObjectError(f"it has more than the {size} bytes that were expected")
        write(chunk)
    if size is not None and got < size:
        raise ShortBodyError(f"the body ended at byte {got}, {size - got} before its end")
