"""Whole objects of remote storages.

They are read into memory, to a target piece by piece, or to a nameless file on the
disk.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.runtime.store import objects
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.sessions import on_loop
from tokenlake.runtime.store.url import Url
from tokenlake.runtime.store.writes import ByteTarget, HashingTarget

_PIECE: Final = 8 << 20  # bytes of a request; a smaller object is one request
_UNDER_WAY: Final = 4  # pieces that are requested or wait to be written: at most 32 MiB
_TRIES: Final = 8  # tries to read an object that is replaced meanwhile


def read_version(
    client: ObjectClient, url: Url, target: ByteTarget
) -> objects.RemoteObject:
    """Read the current version of an object.

    A small object is one answer, which is checked as a whole if the storage has
    checksums.

    Args:
        client: Client of the storage.
        url: URL of the object.
        target: Receiver of the bytes.

    Returns:
        The version that was read.

    Raises:
        failures.missing: The object does not exist.
        failures.failed: The object cannot be read, or is replaced all the time.
    """
    for _ in range(_TRIES):
        # The version is known first, and every request names it: the bytes are then of
        # one version.
        planned = on_loop(client.stat(url))
        try:
            if planned.size <= _PIECE:
                on_loop(client.download(url, planned, target))
            else:
                fetch_whole(client, url, planned, target)
            return planned
        except objects.OtherObjectError:
            continue
    raise client.failures.failed(
        f"{url}: it was replaced {_TRIES} times while it was read; another process writes it",
        url=str(url),
    )


def fetch_whole(
    client: ObjectClient, url: Url, planned: objects.RemoteObject, target: ByteTarget
) -> None:
    """Write a whole object to `target`, in order, with several ranges under way.

    `target.write` is called in this thread. A server without ranges sends the object in
    one answer, and `target.write` is called in another thread.

    Raises:
        OtherObjectError: The object has another version than `planned`.
    """
    under_way: deque[Future[bytearray]] = deque()
    # Ranges are requested ahead. The oldest one is written when the queue is full, so
    # that memory is bounded and the order is kept.
    target.restart()
    try:
        for range_start in range(0, planned.size, _PIECE):
            range_request = client.fetch(
                url, planned, range_start, min(_PIECE, planned.size - range_start)
            )
            under_way.append(
                asyncio.run_coroutine_threadsafe(range_request, get_loop())
            )
            if len(under_way) == _UNDER_WAY:
                target.write(under_way.popleft().result())
        while under_way:
            target.write(under_way.popleft().result())
    except objects.NoRangesError:
        on_loop(client.download(url, planned, target))
    finally:
        # After a failure nobody waits for the other ranges.
        for pending in under_way:
            pending.cancel()


def spooled(client: ObjectClient, url: Url, planned: objects.RemoteObject) -> BinaryIO:
    """Download an object of a server without ranges to a nameless file of this machine.

    Returns:
        The open file; the caller closes it.

    Raises:
        failures.failed: The disk has no room for it, or the object cannot be read.
        OtherObjectError: The object has another version than `planned`.
    """
    # The size is checked before: a disk that fills up would hurt other processes.
    folder = tempfile.gettempdir()
    free_bytes = shutil.disk_usage(folder).free
    if planned.size > free_bytes:
        raise client.failures.failed(
            f"{url}: the server sends only whole files, and {folder} has {free_bytes} bytes free for the "
            f"{planned.size} of this one. Set TMPDIR to a larger disk.",
            url=str(url),
        )
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        on_loop(client.download(url, planned, HashingTarget(spool)))
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return spool


@final
class MemoryTarget:
    """A target that keeps the bytes in memory."""

    def __init__(self, check: Callable[[int], None] = lambda size: None) -> None:
        """
        Args:
            check: Function of the number of bytes so far; an error that it raises ends
                the request.
        """
        self._data = bytearray()
        self._check = check

    @property
    def data(self) -> bytes:
        """Bytes since the last restart."""
        return bytes(self._data)

    def restart(self) -> None:
        """Forget the bytes so far: the object is sent again from its beginning."""
        self._data.clear()

    def write(self, data: bytes | bytearray, /) -> None:
        """Keep the next bytes."""
        self._check(len(self._data) + len(data))
        self._data += data
