"""The bytes of one input, at any place, wherever they are stored.

Formats read through this door alone: a local file and an object in a bucket look the same to them.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, final

from tokenlake.sources.inputs import InputFile, changed


class InputBytes(ABC):
    """An open input. Whoever opened it has checked that it is the planned one, and checks again at the end.

    Attributes:
        file: what was planned.
        max_expansion: how many times its stored bytes a compressed input may unfold to.
    """

    file: InputFile
    max_expansion: float = 1000.0

    @abstractmethod
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from byte `offset` on; return how many bytes came, fewer only at the end.

        Raises:
            InputChangedError: the object is gone or another one.
            SourceError: it cannot be read, after retries.
        """

    @abstractmethod
    def for_arrow(self) -> Any:
        """Return what Arrow's readers take: a path, or a new random-access file of their own."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer only at the end."""
        data = bytearray(size)
        with memoryview(data) as view:
            got = self.read_into(view, offset)
        return bytes(data[:got]) if got < size else bytes(data)


@final
class LocalBytes(InputBytes):
    """A file of this machine."""

    def __init__(self, file: InputFile) -> None:
        """Open `file`; InputChangedError if it is gone or not the planned one."""
        try:
            self._descriptor = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise changed(file, "the file is gone") from error
        self.file = file
        try:
            self._check(os.fstat(self._descriptor))
        except BaseException:
            self.close()
            raise

    def read_into(self, view: memoryview, offset: int) -> int:
        # A signal, a network file system or the 2 GiB of one call may cut a read short.
        at = 0
        while at < len(view) and (got := os.preadv(self._descriptor, [view[at:]], offset + at)):
            at += got
        return at

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def for_arrow(self) -> Any:
        return self.file.url

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the file is still the planned one, under its name."""
        self._check(os.fstat(self._descriptor))
        if Path(self.file.url).stat().st_ino != self.file.stat[0]:
            raise changed(self.file, "another file has taken its name")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _check(self, stat: os.stat_result) -> None:
        if stat.st_size != self.file.size:
            raise changed(self.file, f"it has {stat.st_size} bytes, planned were {self.file.size}")
        if state(stat) != tuple(self.file.stat):
            what = f"(inode, mtime, ctime) is {state(stat)}, planned was {tuple(self.file.stat)}"
            raise changed(self.file, what)


def state(stat: os.stat_result) -> tuple[int, int, int]:
    """Return what tells two states of a local file apart: (inode, mtime_ns, ctime_ns)."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


@final
class InputReader(io.RawIOBase):
    """An input as Python's own raw file with random access; each reader has a place of its own."""

    def __init__(self, data: InputBytes) -> None:
        super().__init__()
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the size of the input; Arrow asks for it."""
        return self._data.file.size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._data.file.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._data.file.size - self._at, 0)
        data = self._data.pread(left if size is None or size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            got = self._data.read_into(target, self._at)
        self._at += got
        return got
