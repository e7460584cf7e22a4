"""Whole objects: in memory, on the local disk, or into a target in pieces, all of their bytes of one version."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.store.base import ByteTarget
from tokenlake.store.local_files import HashingTarget
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import NoRangesError, ObjectClient, OtherObjectError, RemoteObject
from tokenlake.store.remote.url import Url

_PIECE_BYTES: Final = 8 << 20
_AT_ONCE: Final = 4  # pieces under way or waiting to be written: at most 32 MiB
_TRIES: Final = 8  # of reading an object that is replaced meanwhile


def read_version(client: ObjectClient, url: Url, target: ByteTarget) -> RemoteObject:
    """Read an object into `target`, and return which version it was.

    A small one is one answer, checked as a whole where the storage has checksums.

    Raises:
        failures.missing: there is none.
        failures.failed: it cannot be had, or is replaced all the time.
    """
    for _ in range(_TRIES):
        found = on_loop(client.stat(url))
        try:
            if found.size <= _PIECE_BYTES:
                on_loop(client.download(url, found, target))
            else:
                fetch_whole(client, url, found, target)
            return found
        except OtherObjectError:
            continue
    raise client.failures.failed(
        f"{url}: it was replaced {_TRIES} times while it was read; another process writes it", url=str(url)
    )


def fetch_whole(client: ObjectClient, url: Url, planned: RemoteObject, target: ByteTarget) -> None:
    """Write a whole object to `target`, several ranges under way at once; `write` is called in this thread.

    From a server without ranges it comes in one answer, and `write` is called in another thread.

    Raises:
        OtherObjectError: it is not the planned one.
    """
    under_way: deque[Future[bytearray]] = deque()
    target.restart()
    try:
        for start in range(0, planned.size, _PIECE_BYTES):
            piece = client.fetch(url, planned, start, min(_PIECE_BYTES, planned.size - start))
            under_way.append(asyncio.run_coroutine_threadsafe(piece, get_loop()))
            if len(under_way) == _AT_ONCE:
                target.write(under_way.popleft().result())
        while under_way:
            target.write(under_way.popleft().result())
    except NoRangesError:
        on_loop(client.download(url, planned, target))
    finally:
        for piece in under_way:
            piece.cancel()


def spooled(client: ObjectClient, url: Url, planned: RemoteObject) -> BinaryIO:
    """Fetch a whole object to a nameless file on the local disk, from a server that knows no ranges.

    Raises:
        failures.failed: the disk has no room for it, or the object cannot be had.
        OtherObjectError: it is not the planned one.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if planned.size > free:
        raise client.failures.failed(
            f"{url}: the server sends whole files only, and {folder} has {free} bytes free for the {planned.size} "
            "of this one. Set TMPDIR to a larger disk.",
            url=str(url),
        )
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked closes it
    try:
        on_loop(client.download(url, planned, HashingTarget(spool)))
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return spool


@final
class MemoryTarget:
    """Keeps what comes in memory."""

    def __init__(self, check: Callable[[int], None] = lambda size: None) -> None:
        """`check`: called with the number of bytes while they come; what it raises ends the request."""
        self._data, self._check = bytearray(), check

    @property
    def data(self) -> bytes:
        """What came since the last start."""
        return bytes(self._data)

    def restart(self) -> None:
        self._data.clear()

    def write(self, data: bytes | bytearray, /) -> None:
        self._check(len(self._data) + len(data))
        self._data += data
