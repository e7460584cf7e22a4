"""An object that is read here and there, as readers of Parquet do: one request for each read, nothing ahead."""

from __future__ import annotations

import io
import os
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, final

from tokenlake.errors import IntegrityError
from tokenlake.store.remote.asking import fetch_range
from tokenlake.store.remote.connection import Connection
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import Found, NoRangesError, OtherObjectError
from tokenlake.store.remote.url import Url
from tokenlake.store.remote.wholes import spooled

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@final
class RemoteFile(io.RawIOBase):
    """An object of a remote store, of a known size; seekable.

    :meth:`read_at` may be used by any number of threads at once, everything else by one at a time. A server
    without ranges sends the whole object, once, which then lies in a nameless file on the local disk.
    """

    def __init__(self, connection: Connection, url: Url, planned: Found) -> None:
        """`planned`: its size, and its version where every answer must be of that one."""
        super().__init__()
        self._connection, self._url, self._planned = connection, url, planned
        self._at = 0
        self._spool: BinaryIO | None = None
        self._lock = Lock()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only where the object ends.

        Raises:
            NotFoundError: the object is gone, or never was.
            IntegrityError: it is not the one that was opened: it has another size or version.
            StoreError: it cannot be reached, after retries.
        """
        if self.closed:
            raise ValueError(f"{self._url} is closed")
        if offset < 0 or size < 0:
            raise ValueError(f"{self._url}: {size} bytes from {offset} on are no stretch of a file")
        wanted = min(size, self._planned.size - offset)
        if wanted <= 0:
            return b""
        try:
            return self._fetched(offset, wanted)
        except OtherObjectError as error:
            raise IntegrityError(
                f"{self._url}: it is not what was opened: {error}. Verify the version where it is stored.",
                file=str(self._url),
            ) from None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset from the beginning, from here or from the end; no request is made."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._planned.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self._url}: cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, all that are left for None or -1; fewer only where the object ends."""
        left = max(self._planned.size - self._at, 0)
        data = self.read_at(self._at, left if size is None or size < 0 else size)
        self._at += len(data)
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

    def _fetched(self, offset: int, size: int) -> bytes:
        objects, patience = self._connection.objects(), self._connection.patience
        if self._spool is None:
            try:
                return bytes(on_loop(fetch_range(objects, self._url, self._planned, offset, size, patience)))
            except NoRangesError:
                with self._lock:
                    if self._spool is None:
                        self._spool = spooled(objects, self._url, self._planned, patience)
        return os.pread(self._spool.fileno(), size, offset)
