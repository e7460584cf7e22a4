"""Whole objects, all of their bytes of one version, and what they were: their hash, or the bytes themselves."""

from __future__ import annotations

import hashlib
from typing import BinaryIO, Final, final

from tokenlake.errors import StoreError
from tokenlake.store.base import Digest
from tokenlake.store.remote.asking import ask, download
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import Found, Objects, OtherObjectError
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.target import Bytes, Target
from tokenlake.store.remote.url import Url
from tokenlake.store.remote.wholes import fetch_whole

# One answer, checked as a whole where the storage has checksums; larger ones come in several ranges at once.
_ONE_ANSWER: Final = 8 << 20
_TRIES: Final = 8  # of reading an object that is replaced meanwhile


def see(objects: Objects, url: Url, patience: Patience, target: Target) -> Found:
    """Read an object into `target`, and return which version it was.

    Raises:
        failures.missing: there is none.
        failures.failed: it cannot be had, or is replaced all the time.
    """
    for _ in range(_TRIES):
        found = on_loop(ask(objects, url, patience, lambda: objects.stat(url)))
        try:
            if found.size <= _ONE_ANSWER:
                on_loop(download(objects, url, found, target, patience))
            else:
                fetch_whole(objects, url, found, target, patience)
            return found
        except OtherObjectError:
            continue
    raise objects.failures.failed(
        f"{url}: it was replaced {_TRIES} times while it was read; another process writes it", url=str(url)
    )


@final
class Hashed:
    """Hashes what comes, and writes it to a file where there is one."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file
        self._hash, self._bytes = hashlib.sha256(), 0

    @property
    def digest(self) -> Digest:
        """What came since the last start."""
        return Digest(self._bytes, self._hash.hexdigest())

    def restart(self) -> None:
        self._hash, self._bytes = hashlib.sha256(), 0
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()

    def write(self, data: Bytes, /) -> None:
        self._hash.update(data)
        self._bytes += len(data)
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                raise StoreError(
                    f"cannot write a copy to {self._file.name}: {error.strerror} after {self._bytes} bytes"
                ) from error


@final
class Kept:
    """Keeps what comes in memory."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def digest(self) -> Digest:
        """What came since the last start."""
        return Digest(len(self._data), hashlib.sha256(self._data).hexdigest())

    @property
    def data(self) -> bytes:
        """What came since the last start."""
        return bytes(self._data)

    def restart(self) -> None:
        self._data.clear()

    def write(self, data: Bytes, /) -> None:
        self._data += data
