"""The bytes of an open input file, wherever it is stored.

Formats read through :class:`InputBytes` alone: a local file and an object in a bucket look the same to them.
:class:`LocalBytes` reads a file of this machine; :mod:`tokenlake.etl.sources.ranged_bytes` reads an object by ranges.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, final

from tokenlake.base.arrays import RandomAccessFile
from tokenlake.etl.sources.file_stat import state
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import InputFile


class InputBytes(ABC):
    """An open input. Whoever opened it has checked that it is the planned one, and checks again at the end.

    Attributes:
        file: what was planned.
        max_expansion: how many times its stored bytes a compressed input may unfold to.
        read_ahead: bytes of a compressed input that are read at once; its decompressor asks for 64 KiB, which may be
            a request each.
    """

    file: InputFile
    max_expansion: float = 1000.0
    read_ahead: int = 1 << 20

    @abstractmethod
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from byte `offset` on; return how many bytes came, fewer only at the end.

        Raises:
            InputChangedError: the object is gone or another one.
            SourceError: it cannot be read, after retries.
        """

    def as_file(self) -> RandomAccessFile:
        """Return a new file of these bytes."""
        return RandomAccessFile(self.file.size, self.pread)

    def for_arrow(self) -> Any:
        """Return what Arrow's readers take: a path, or a new random-access file of their own."""
        return self.as_file()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:  # noqa: B027
        """Note the stretches [start, stop) that will be read through, of so many columns side by side."""

    def check_unchanged(self) -> None:  # noqa: B027 - most inputs need it not
        """Raise InputChangedError unless it is still the planned one; nothing to do where every read makes sure."""

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""

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
        self._check(os.fstat(self._descriptor))
        if os.stat(self.file.url).st_ino != self.file.stat[0]:  # noqa: PTH116 - no Path per file
            raise changed(self.file, "another file has taken its name")

    def close(self) -> None:
        os.close(self._descriptor)

    def _check(self, stat: os.stat_result) -> None:
        if stat.st_size != self.file.size:
            raise changed(self.file, f"it has {stat.st_size} bytes, planned were {self.file.size}")
        if state(stat) != tuple(self.file.stat):
            what = f"(inode, mtime, ctime) is {state(stat)}, planned was {tuple(self.file.stat)}"
            raise changed(self.file, what)
