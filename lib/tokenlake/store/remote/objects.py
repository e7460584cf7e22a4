"""Objects of a remote storage: what there is, which version, the bytes of a range, and what is to become an object.

One class for each protocol (S3, GCS, HTTP, other file systems of fsspec) sends its requests, each method with an
underscore one of them, once. The public methods send them again where that helps.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, final

from tokenlake.errors import NotFoundError, StoreError, TokenlakeError
from tokenlake.store.base import ByteTarget
from tokenlake.store.local_files import open_regular
from tokenlake.store.remote.retry import Failures, ShortBodyError, Trouble, patience, refusal, verdict
from tokenlake.store.remote.url import Url

LARGE: Final = 32 << 20
"""Bytes from which on an object is sent in parts, where the storage has such; a smaller one is held in memory."""

PIECE: Final = 8 << 20
"""Bytes of a part, and of what is held in memory at once of a file that is sent."""

_MOST_PARTS: Final = 9_000  # S3 takes 10,000
_READ: Final = 1 << 20


@final
class Payload:
    """Bytes that are to be sent.

    Attributes:
        size: of all of them.
        sha256: hex, of all of them.
        in_parts: whether it is sent in parts where the storage has such.
        part_bytes: what is sent at once; the last part may be shorter.
        md5s: base64, of each part.
    """

    def __init__(self, source: bytes | int, size: int, *, in_parts: bool = False) -> None:
        """`source`: the bytes, or the descriptor of a file, which must stay open."""
        self._source, self.size, self.in_parts = source, size, in_parts
        self.part_bytes = max(PIECE, -(-size // _MOST_PARTS)) if in_parts else max(size, 1)
        whole = hashlib.sha256()
        parts: list[str] = []
        for start in range(0, max(size, 1), self.part_bytes):
            part = hashlib.md5(usedforsecurity=False)
            for at in range(start, min(start + self.part_bytes, size), _READ):
                piece = self.read(at, min(_READ, start + self.part_bytes - at))
                whole.update(piece)
                part.update(piece)
            parts.append(base64.b64encode(part.digest()).decode())
        self.sha256: str = whole.hexdigest()
        self.md5s: tuple[str, ...] = tuple(parts)

    @classmethod
    @contextmanager
    def of_file(cls, path: Path, *, in_parts: bool) -> Generator[Payload]:
        """Read a file, and keep it open to be sent.

        Args:
            in_parts: a large one is sent in parts.
        """
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            yield cls(stream.fileno(), size, in_parts=in_parts and size >= LARGE)

    @classmethod
    def of(cls, data: bytes, *, in_parts: bool = False) -> Payload:
        """Return bytes as a payload."""
        return cls(data, len(data), in_parts=in_parts)

    def part(self, index: int) -> bytes:
        """Return the bytes of a part, counted from 0."""
        return self.read(index * self.part_bytes, self.part_bytes)

    def read(self, start: int, size: int) -> bytes:
        """Return so many bytes from `start` on; fewer only at the end of what was there at first.

        Raises:
            StoreError: the file has become shorter.
        """
        wanted = min(size, self.size - start)
        if isinstance(self._source, bytes):
            return self._source if wanted == self.size else self._source[start : start + wanted]
        data = os.pread(self._source, wanted, start)
        while len(data) < wanted and (more := os.pread(self._source, wanted - len(data), start + len(data))):
            data += more
        if len(data) < wanted:
            raise StoreError(
                f"a temporary file has become shorter than its {self.size} bytes; nothing was published"
            )
        return data


CHUNK: Final = 1 << 20

Write = Callable[[bytes], object]
_T = TypeVar("_T")

_SLOWEST: Final = 50_000  # bytes a second, below which a request that sends counts as stuck
_SLOW: Final = 10_000_000  # bytes a second, for which patience allows


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
        """
        stop = self.stop if stop is None else stop
        while self.at < stop and (chunk := await read(CHUNK)):
            taken = min(len(chunk), self.stop - self.at)
            self.data[self.got : self.got + taken] = chunk if taken == len(chunk) else chunk[:taken]
            self.got += taken
        if self.at < stop:
            raise ShortBodyError(f"the body ended at byte {self.at}, {stop - self.at} before its end")


class ObjectClient(ABC):
    """Requests to one storage.

    Attributes:
        pinned: what the tokens begin with that a request can name as its condition.
        reached: the storage has answered at least once.
        credentials: sentences for the message of a refusal: what was tried, and how to give others.
        failures: what errors of this storage are to whoever asks.
        trials: what a trial before the first write has shown, by what was tried.
    """

    pinned: tuple[str, ...] = ()
    credentials: str = ""

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        """`filesystem`: of fsspec; `options`: resolved."""
        self._fs, self._options = filesystem, options
        self._session: Any = None
        self.failures, self.reached = failures, False
        self.trials: dict[str, bool] = {}

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the file system of the storage is opened with."""
        return dict(options)

    async def session(self) -> Any:
        """Return the HTTP session, of S3 the client; it is opened by the first use."""
        self._session = await self._fs.set_session()
        return self._session

    async def close(self) -> None:
        """Close the session; what is asked for later opens another one."""
        if hasattr(self._session, "meta"):  # a client of botocore ends as a context does
            await self._session.__aexit__(None, None, None)
        elif self._session is not None:
            await self._session.close()

    async def stat(self, url: Url) -> RemoteObject:
        """Return what is known of one object; `failures.missing` where there is none."""
        return await self.ask(url, lambda: self._stat(url))

    async def list(self, url: Url, *, flat: bool, limit: int | None = None) -> list[RemoteObject]:
        """Return objects whose path begins with that of `url`; only those of its folder if `flat`.

        Folders may be among them: their path ends with a slash.

        Args:
            limit: no further page is asked for once there are so many.
        """
        found: list[RemoteObject] = []
        mark: str | None = None
        while True:
            some, mark = await self.ask(url, lambda mark=mark: self._page(url, flat, mark))
            found += some
            if mark is None or (limit is not None and len(found) >= limit):
                return found

    async def fetch(self, url: Url, planned: RemoteObject, start: int, size: int) -> bytearray:
        """Return `size` bytes from `start` on; after a failure only what is missing is asked for again.

        Raises:
            OtherObjectError: the answer is of another version than `planned`.
            NoRangesError: see there.
        """
        buffer = RangeBuffer(start, size)
        await self.ask(url, lambda: self._fetch(url, buffer, planned), lambda: buffer.got)
        return buffer.data

    async def download(self, url: Url, planned: RemoteObject | None, target: ByteTarget) -> None:
        """Write the whole object to `target` in one request; after a failure from the beginning.

        Args:
            planned: what it must be; None for whatever is there.
        """

        async def once() -> None:
            target.restart()
            await self._download(url, target.write, planned)

        await self.ask(url, once)

    def pins(self, token: str) -> bool:
        """Say whether every answer to :meth:`fetch` is checked to be of the version `token`."""
        return token.startswith(self.pinned)

    async def ask(
        self,
        url: Url,
        request: Callable[[], Awaitable[_T]],
        progress: Callable[[], int] = lambda: 0,
        *,
        done: str = "read",
        extra_seconds: float = 0.0,
    ) -> _T:
        """Return what `request` does, sending it again while its failures are passing ones.

        Args:
            progress: bytes that have come so far.
            done: what cannot be done to the object, for messages; a participle.
            extra_seconds: of patience.

        Raises:
            failures.missing: there is no such object.
            failures.failed: it cannot be had, after retries where they may help.
            OtherObjectError, SourceChangedError, NoRangesError: at once.
        """
        trouble = Trouble(patience() + extra_seconds, reached=self.reached)
        while True:
            before = progress()
            try:
                return await request()
            except (OtherObjectError, SourceChangedError, NoRangesError, TokenlakeError):
                raise
            except Exception as error:
                if verdict(error) == "changed":
                    raise OtherObjectError("the storage has another version of it now") from None
                if not await trouble.wait(error, progressed=progress() > before):
                    raise refusal(url, error, trouble.tries, done, self.failures, self.credentials) from None

    @abstractmethod
    async def _stat(self, url: Url) -> RemoteObject: ...

    @abstractmethod
    async def _page(self, url: Url, flat: bool, mark: str | None) -> ListPage: ...

    @abstractmethod
    async def _fetch(self, url: Url, buffer: RangeBuffer, planned: RemoteObject) -> None:
        """Fill what is missing in `buffer`, as far as it goes."""

    @abstractmethod
    async def _download(self, url: Url, write: Write, planned: RemoteObject | None) -> None: ...


class BucketClient(ObjectClient):
    """A storage that keeps conditions on writes. `over`: the token of the version that is replaced; None: there must
    be no object.

    Everything raises OtherObjectError where another version is there than `over`, or one where none may be. Whoever
    writes judges what is there then: it may be what an earlier try of theirs has written, whose answer was lost.

    Attributes:
        in_parts: large objects are sent in parts.
    """

    in_parts: bool = False

    @abstractmethod
    async def put(self, url: Url, payload: Payload, over: str | None) -> None:
        """Make the payload the object at `url`, whole or not at all: a conditional put.

        Raises:
            failures.missing: `over` is gone, or there is no such bucket.
        """

    @abstractmethod
    async def copy(
        self, source: Url, found: RemoteObject, url: Url, over: str | None, *, whole: bool = True
    ) -> None:
        """Make a copy, inside the storage, of the version `found` of another object of the same bucket.

        Args:
            whole: a copy in one request keeps conditions, as a trial has shown.

        Raises:
            SourceChangedError: the source is another one by now.
        """

    @abstractmethod
    async def delete(self, url: Url) -> None:
        """Remove the object, if there is one."""

    @abstractmethod
    def other_token(self, token: str) -> str:
        """Return a token that no version of an object has that has this one."""

    async def uploads(self, url: Url) -> list[tuple[RemoteObject, str]]:
        """Return the unfinished uploads of objects whose path begins with that of `url`; none where none are kept.

        Returns:
            For each what it was to become, `modified` being when it was begun, and the storage's name for it.
        """
        return []

    async def abort(self, url: Url, upload: str) -> bool:
        """End an unfinished upload to `url`; return False if there is none."""
        return False

    async def _write(
        self, url: Url, request: Callable[[], Awaitable[_T]], size: int = 0, done: str = "written"
    ) -> _T:
        """Send a request that writes, with `size` bytes, until it is through."""

        async def once() -> _T:
            async with asyncio.timeout(120 + size / _SLOWEST):
                return await request()

        # Of what is sent nothing tells how far it came, and a long way is no reason to give up at its end.
        return await self.ask(url, once, done=done, extra_seconds=size / _SLOW)

    async def _copy(
        self, source: Url, found: RemoteObject, url: Url, request: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Send a request that copies the version `found` of `source`, until it is through."""
        try:
            return await self._write(url, request)
        except (NotFoundError, OtherObjectError):
            # The same status for the source and for the target: a look at the source tells them apart.
            try:
                now = (await self.stat(source)).token
            except NotFoundError:
                raise SourceChangedError("it is gone") from None
            if now != found.token:
                raise SourceChangedError(f"{now}, read was {found.token}") from None
            raise


async def pour(
    read: Callable[[int], Awaitable[bytes]], write: Write, stated: int | None, planned: RemoteObject | None
) -> None:
    """Hand a body to `write`, piece by piece; it must be as long as its answer stated and as was planned.

    Raises:
        OtherObjectError: it has another length than planned.
        ShortBodyError: it ended early.
    """
    require_size(stated, planned)
    size, got = stated if planned is None else planned.size, 0
    while chunk := await read(CHUNK):
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
