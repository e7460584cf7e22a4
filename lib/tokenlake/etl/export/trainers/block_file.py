"""A file that a thread of its own hashes and writes, in blocks.

Writes are collected in a block. The thread hashes and writes a full block, while the
caller fills the other one::

    caller   fill A | fill B           | fill A           | fill B
    thread          | hash and write A | hash and write B | hash and write A

Blocks are larger than row groups, because each call that releases the interpreter's
lock may have to wait for it afterwards: with a call for each row group an export is as
slow as without a thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from tokenlake.etl.export.trainers.early_sync import EarlySync
from tokenlake.runtime.store.writes import HashingFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BLOCK_BYTES: Final = 1 << 20
"""Bytes of a block. A file has two blocks, and an export by value up to 256 files."""


@final
class BlockFile:
    """A file while it is written; a file object for writing.

    Args:
        path: Path of the file; it is created, or emptied.
        begin: Number of bytes of an existing file that stay; writing continues after
            them.

    Attributes:
        bytes: Size so far, including bytes that wait in a block.
    """

    def __init__(self, path: Path, *, begin: int = 0) -> None:
        self._file = HashingFile(path, begin=begin)
        self._early_sync = EarlySync(self._file.fileno(), path, self._file.bytes)
        self.bytes = self._file.bytes
        # The block that is filled, and the number of its bytes so far. Blocks are
        # allocated when they are needed: many files are small.
        self._block = bytearray()
        self._block_bytes = 0
        # The block that the thread has or had last.
        self._other_block = bytearray()
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    @property
    def sha256(self) -> str:
        """The hex sha256 of everything so far, all of which is in the file."""
        self.flush()
        return self._file.sha256

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`, and return its size in bytes.

        Data of at least a block is not copied; it must not change until the next call.

        Raises:
            StoreError: An earlier block cannot be written.
        """
        view = memoryview(data).cast("B")
        self.bytes += view.nbytes
        if view.nbytes >= BLOCK_BYTES:
            self._end_block()
            self._write_in_thread(view)
            return view.nbytes
        # Smaller data is copied into the block, and its rest into the next one.
        position = 0
        while position < view.nbytes:
            if not self._block:
                self._block = bytearray(BLOCK_BYTES)
            free_bytes = BLOCK_BYTES - self._block_bytes
            part = view[position : position + free_bytes]
            block_end = self._block_bytes + part.nbytes
            self._block[self._block_bytes : block_end] = part
            self._block_bytes = block_end
            position += part.nbytes
            if block_end == BLOCK_BYTES:
                self._end_block()
        return view.nbytes

    def flush(self) -> None:
        """Write the bytes that wait in a block.

        Raises:
            StoreError: They cannot be written.
        """
        self._finish_writing()
        # These bytes are few, and the caller waits for them: a thread would gain
        # nothing.
        if self._block_bytes:
            last_bytes = memoryview(self._block)[: self._block_bytes]
            self._block_bytes = 0
            self._file.write(last_bytes)

    def close(self) -> None:
        """Write the bytes that wait, and close the file."""
        self.flush()
        self._early_sync.finish()
        self.discard()

    def discard(self) -> None:
        """Close the file without the bytes that wait."""
        # Threads end before the file is closed: its descriptor may be that of another
        # file afterwards.
        if self._thread is not None:
            self._thread.shutdown()
        self._early_sync.discard()
        self._file.discard()
        self._block = bytearray()
        self._block_bytes = 0
        self._other_block = bytearray()

    def _end_block(self) -> None:
        """Give the block to the thread, and begin the other one."""
        if not self._block_bytes:
            return
        full_block = self._block
        self._write_in_thread(memoryview(full_block)[: self._block_bytes])
        self._block = self._other_block
        self._other_block = full_block
        self._block_bytes = 0

    def _write_in_thread(self, view: memoryview) -> None:
        """Let the thread write bytes, once it has written those before them."""
        # One block at a time: the other one is free when this returns.
        self._finish_writing()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tokenlake-export")
        self._writing = self._thread.submit(self._write, view)

    def _finish_writing(self) -> None:
        """Wait until the thread has written its block, and raise its error."""
        if self._writing is not None:
            writing = self._writing
            self._writing = None
            writing.result()

    def _write(self, view: memoryview) -> None:
        """Hash and write bytes, in the thread."""
        self._file.write(view)
        self._early_sync.reach(self._file.bytes)
