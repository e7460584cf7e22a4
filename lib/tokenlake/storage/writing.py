"""A file that knows its hash when it is closed.

Writers hash while they write, so that publishing needs one more pass over the bytes (the re-read), not two.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING, final

from tokenlake.errors import StoreError
from tokenlake.storage.durable import hint_on

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@final
class HashingFile(io.RawIOBase):
    """A write-only file that computes sha256 and size on the way; a sink for pyarrow as it is.

    ::

        temp = store.temp("corpus/v1")
        with HashingFile(temp) as sink, pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
            writer.write_table(table)
        store.publish(temp, "corpus/v1/data/train-00000-00.parquet", sink.sha256)

    Unbuffered: meant for writes of pages, not of lines. sha256 releases the GIL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._fd = -1
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {self._path}: {error.strerror}.{hint_on(error)}") from error
        self._hash = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        """The hex sha256 of everything written so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``; returns its size in bytes."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self._write_all(view)
        self.bytes += view.nbytes
        return view.nbytes

    def _write_all(self, view: memoryview) -> None:
        done = 0
        try:
            while done < view.nbytes:  # one call may write less: at most 2 GiB, or up to a limit
                done += os.write(self._fd, view[done:])
        except OSError as error:
            raise StoreError(
                f"cannot write {self._path}: {error.strerror} after {self.bytes + done} bytes.{hint_on(error)}"
            ) from error

    def close(self) -> None:
        if not self.closed and self._fd >= 0:
            os.close(self._fd)
        super().close()
