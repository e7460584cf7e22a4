"""Object of a remote store as a seekable file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, final

from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.downloads import spooled
from tokenlake.runtime.store.sessions import on_loop
from tokenlake.runtime.store.url import Url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@final
class RemoteFile(io.RawIOBase):
    """A seekable file over an object of a remote store.

    :meth:`read_at` may be called by any number of threads at once, every other method
    by one at a time. A server without ranges sends the whole object once; a nameless
    file on the local disk then holds it.
    """

    def __init__(
        self,
        client: Callable[[], ObjectClient],
        url: Url,
        planned: objects.RemoteObject,
    ) -> None:
        """
        Args:
            client: Function that returns the client of the storage in this process.
            url: URL of the object.
            planned: Its size; and its version, if every answer must be of that version.
        """
        super().__init__()
        self._client = client
        self._url = url
        self._planned = planned
        self._position = 0
        # Local copy of an object whose server has no ranges.
        self._spool: BinaryIO | None = None
        self._lock = Lock()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only at the end of the object.

        Raises:
            NotFoundError: The object does not exist.
            IntegrityError: The object has another size or version than when it was
                opened.
            StoreError: The storage cannot be reached, after retries.
        """
        if self.closed:
            raise ValueError(f"{self._url} is closed")
        if offset < 0 or size < 0:
            raise ValueError(
                f"{self._url}: {size} bytes from {offset} on is not a range of a file"
            )
        # The size was known before the file was opened, so that the end needs no
        # request.
        length = min(size, self._planned.size - offset)
        if length <= 0:
            return b""
        client = self._client()
        try:
            # Without ranges the object is downloaded once, and read from this machine
            # from then on.
            if self._spool is None:
                with suppress(objects.NoRangesError):
                    return bytes(
                        on_loop(client.fetch(self._url, self._planned, offset, length))
                    )
            return os.pread(self._spooled(client).fileno(), length, offset)
        except objects.OtherObjectError as error:
            raise IntegrityError(
                f"{self._url}: it changed after it was opened: {error}. Verify the version where it is stored.",
                file=str(self._url),
            ) from None

    def _spooled(self, client: ObjectClient) -> BinaryIO:
        """Return the local file that holds the whole object.

        The first call downloads it.
        """
        with self._lock:
            if self._spool is None:
                self._spool = spooled(client, self._url, self._planned)
            return self._spool

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset from the beginning, the current position or the end.

        No request is made.
        """
        origins = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._planned.size,
        }
        position = origins[whence] + offset
        if position < 0:
            raise ValueError(f"{self._url}: cannot seek to {position}")
        self._position = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the object.

        The size None or -1 means all that is left.
        """
        if size is None or size < 0:
            size = max(self._planned.size - self._position, 0)
        data = self.read_at(self._position, size)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        with self._lock:
            if self._spool is not None:
                self._spool.close()
        super().close()

    def __repr__(self) -> str:
        return f"RemoteFile({str(self._url)!r})"
