"""Whole objects: in memory, on the local disk where a server knows no ranges, or into a target in pieces."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.store.remote.asking import download, fetch_range
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import Found, NoRangesError, Objects
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.target import Bytes, Target
from tokenlake.store.remote.url import Url

_PIECE_BYTES: Final = 8 << 20
_AT_ONCE: Final = 4  # pieces under way or waiting to be written: at most 32 MiB


def read_whole(objects: Objects, url: Url, patience: Patience, check: Callable[[int], None]) -> bytes:
    """Return an object's bytes; one request where nothing fails.

    Args:
        check: called with the number of bytes while they come; what it raises ends the request.
    """
    target = _Memory(check)
    on_loop(download(objects, url, None, target, patience))
    return bytes(target.data)


def spooled(objects: Objects, url: Url, planned: Found, patience: Patience) -> BinaryIO:
    """Fetch a whole object to a nameless file on the local disk.

    Raises:
        failures.failed: the disk has no room for it, or the object cannot be had.
        OtherObjectError: it is not the planned one.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if planned.size > free:
        raise objects.failures.failed(
            f"{url}: the server sends whole files only, and {folder} has {free} bytes free for the {planned.size} "
            "of this one. Set TMPDIR to a larger disk.",
            url=str(url),
        )
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked closes it
    try:
        on_loop(download(objects, url, planned, _Spool(spool), patience))
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return spool


def fetch_whole(objects: Objects, url: Url, planned: Found, target: Target, patience: Patience) -> None:
    """Write a whole object to `target`, several ranges under way at once; `write` is called in this thread.

    From a server without ranges it comes in one answer, and `write` is called in another thread.

    Raises:
        OtherObjectError: it is not the planned one.
    """
    try:
        _fetch_pieces(objects, url, planned, target, patience)
    except NoRangesError:
        on_loop(download(objects, url, planned, target, patience))


def _fetch_pieces(objects: Objects, url: Url, planned: Found, target: Target, patience: Patience) -> None:
    def begin(start: int) -> Future[bytearray]:
        size = min(_PIECE_BYTES, planned.size - start)
        work = fetch_range(objects, url, planned, start, size, patience)
        return asyncio.run_coroutine_threadsafe(work, get_loop())

    target.restart()
    _in_order(range(0, planned.size, _PIECE_BYTES), begin, target)


def _in_order(starts: range, begin: Callable[[int], Future[bytearray]], target: Target) -> None:
    under_way: deque[Future[bytearray]] = deque()
    try:
        for start in starts:
            under_way.append(begin(start))
            if len(under_way) == _AT_ONCE:
                target.write(under_way.popleft().result())
        while under_way:
            target.write(under_way.popleft().result())
    finally:
        for piece in under_way:
            piece.cancel()


@final
class _Memory:
    def __init__(self, check: Callable[[int], None]) -> None:
        self.data, self._check = bytearray(), check

    def restart(self) -> None:
        self.data.clear()

    def write(self, data: Bytes) -> None:
        self._check(len(self.data) + len(data))
        self.data += data


@final
class _Spool:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()

    def write(self, data: Bytes) -> None:
        self._file.write(data)
