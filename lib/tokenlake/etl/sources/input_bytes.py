"""The bytes of an open input file, wherever it is stored.

Formats read through :class:`InputBytes` alone: a local file and an object in a bucket
look the same to them. :class:`LocalBytes` reads a file of this machine;
:mod:`tokenlake.etl.sources.ranged_bytes` reads an object by ranges.
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
    """An open input.

    :func:`tokenlake.etl.sources.opening.opened` checks that it is, and stays, the
    planned file.

    Attributes:
        file: The planned file.
        max_expansion: Largest size that a compressed input may unfold to, in multiples
            of its stored bytes.
        read_ahead: Number of bytes of a compressed input that are read at once; its
            decompressor asks for 64 KiB, which may be a request each.
    """

    file: InputFile
    max_expansion: float = 1000.0
    read_ahead: int = 1 << 20

    @abstractmethod
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from a byte offset on and return the number of bytes read.

        Fewer bytes are read only at the end of the file.

        Raises:
            InputChangedError: The object is gone or another one.
            SourceError: It cannot be read, after retries.
        """

    def as_file(self) -> RandomAccessFile:
        """Return a new file of these bytes."""
        return RandomAccessFile(self.file.size, self.pread)

    def for_arrow(self) -> Any:
        """Return an argument for Arrow's readers: a path, or a new random-access file."""
        return self.as_file()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:  # noqa: B027
        """Announce the stretches that will be read.

        Args:
            stretches: Start and stop of each stretch in bytes.
            columns: Number of columns that are read side by side.
        """

    def check_unchanged(self) -> None:  # noqa: B027 - most inputs need no check
        """Raise InputChangedError unless it is still the planned file.

        It does nothing where every read checks the file.
        """

    def close(self) -> None:  # noqa: B027
        """Release the file and its connections."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer only at the end."""
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            byte_count = self.read_into(view, offset)
        if byte_count < size:
            return bytes(buffer[:byte_count])
        return bytes(buffer)


@final
class LocalBytes(InputBytes):
    """A file of this machine."""

    def __init__(self, file: InputFile) -> None:
        """Open `file`; InputChangedError if it is gone or not the planned one."""
        try:
            self._descriptor = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise changed(file, "the file no longer exists") from error
        self.file = file
        # A descriptor that was opened is closed, also if the file is not the planned
        # one.
        try:
            self._check(os.fstat(self._descriptor))
        except BaseException:
            self.close()
            raise

    def read_into(self, view: memoryview, offset: int) -> int:
        # A signal, a network file system or the 2 GiB of one call may cut a read short.
        filled = 0
        while filled < len(view):
            byte_count = os.preadv(self._descriptor, [view[filled:]], offset + filled)
            if not byte_count:
                break
            filled += byte_count
        return filled

    def pread(self, size: int, offset: int) -> bytes:
        # Small reads are the common case. `pread` needs no buffer of its own, unlike
        # `preadv`.
        chunk = os.pread(self._descriptor, size, offset)
        while len(chunk) < size:
            next_chunk = os.pread(
                self._descriptor, size - len(chunk), offset + len(chunk)
            )
            if not next_chunk:
                break
            chunk += next_chunk
        return chunk

    def for_arrow(self) -> Any:
        return self.file.url

    def check_unchanged(self) -> None:
        self._check(os.fstat(self._descriptor))
        # The open descriptor still reads the old file after another one was put in its
        # place.
        if os.stat(self.file.url).st_ino != self.file.stat[0]:  # noqa: PTH116 - no Path per file
            raise changed(self.file, "it was replaced by another file")

    def close(self) -> None:
        os.close(self._descriptor)

    def _check(self, stat: os.stat_result) -> None:
        """Raise InputChangedError unless the file is in the planned state."""
        if stat.st_size != self.file.size:
            raise changed(
                self.file, f"it has {stat.st_size} bytes, planned were {self.file.size}"
            )
        planned_state = tuple(self.file.stat)
        if state(stat) != planned_state:
            problem = (
                f"(inode, mtime, ctime) is {state(stat)}, planned was {planned_state}"
            )
            raise changed(self.file, problem)
