"""What is written: bytes that are hashed on their way, and how they become an object.

Compare-and-swap is the one way in which an object is made or changed, a file or an object in a bucket. Objects are
judged by their hash, whatever the storage: what is there ends it, may be replaced, or is a conflict. Writers hash while
they write, so that publishing needs one more pass over the bytes (the re-read), not two.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Protocol, TypeAlias, final

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.runtime.store.ledger import FileEntry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


Outcome: TypeAlias = Literal["created", "equal", "replaced"]

Orphan: TypeAlias = bool | Callable[[], bool]
"""Whether an unequal object that is there may be replaced; see :meth:`tokenlake.runtime.store.base.Store.publish`."""

_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """What is to become an object, and what it may take the place of.

    Attributes:
        data: the bytes, or a written temporary file of :meth:`Store.temp`, whose name is gone after.
        sha256: hex, of the bytes.
        expected: hex, of the bytes that it replaces; None: there must be no object.
        orphan: an unequal object that is there is replaced all the same.
    """

    key: str
    data: bytes | Path
    sha256: str
    expected: str | None = None
    orphan: Orphan = False

    def judge(self, found: str | None) -> Outcome | None:
        """Judge what is there, by its hash (None: nothing): None where it may be replaced.

        Raises:
            VersionConflictError: it may not; names both hashes.
        """
        if found == self.sha256:
            return "equal"
        if found == self.expected:
            return None
        if found is not None and (self.orphan() if callable(self.orphan) else self.orphan):
            return None
        got = "it is not there" if found is None else f"it exists already with other bytes: sha256 {found}"
        if self.expected is not None:
            got += f", expected {self.expected}, which was to be replaced"
        raise VersionConflictError(
            f"{self.key}: {got}; ours is {self.sha256}. Another writer or release made or changed it; "
            "nothing was written. Let that process finish, and run again.",
            key=self.key,
            expected=self.sha256,
            got=found,
        )

    def require_written(self, found: str) -> None:
        """Raise StoreError unless what was read back has the sha256 (hex) of what was written."""
        if found != self.sha256:
            raise StoreError(
                f"{self.key}: read back is not what was written: sha256 {found}, expected {self.sha256}. "
                "Nothing was published. Check the disk and the memory of this machine.",
                key=self.key,
            )


def compare_and_swap(
    put: Put,
    look: Callable[[], tuple[str, str] | None],
    send: Callable[[str | None], object],
    refused: type[Exception],
    *,
    look_first: bool = True,
) -> Outcome:
    """Make or change an object until that is through, or until what is there says that it need not or must not be.

    A conflict is believed when two looks agree: a damaged answer must not look like another object.

    Args:
        look: reads what is there: its hash, and the token of its version; None where there is nothing.
        send: puts it in the place of the version of a token, or of none.
        refused: what `send` raises where there is another version than it was to replace.
        look_first: before the first try; else that is one to create.

    Raises:
        VersionConflictError: as :meth:`Put.judge` says.
        StoreError: it appears and vanishes, or the storage fails.
    """
    doubted: list[str | None] = []
    for attempt in range(_TRIES):
        there = look() if look_first or attempt else None
        found, token = (None, None) if there is None else there
        try:
            outcome = put.judge(found)
        except VersionConflictError:
            if found in doubted:
                raise
            doubted.append(found)
            continue
        if outcome is not None:
            return outcome
        try:
            send(token)
            return "created" if token is None else "replaced"
        except refused:
            continue
        except NotFoundError:
            if token is None:
                raise
    raise StoreError(
        f"cannot publish {put.key}: it appears, changes and vanishes; other processes write it", key=put.key
    )


class ByteTarget(Protocol):
    """Takes the bytes of one object, piece by piece and in order."""

    def restart(self) -> None:
        """Forget what came: the object comes again, from its beginning."""
        ...

    def write(self, data: bytes | bytearray, /) -> object:
        """Take the next bytes."""
        ...


class CopyError(StoreError):
    """A copy cannot be written to this machine's disk."""


@final
class HashingTarget:
    """Hashes the bytes of an object that come in pieces, and writes them to a file where there is one."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file
        self._hash, self._bytes = hashlib.sha256(), 0

    def restart(self) -> None:
        self._hash, self._bytes = hashlib.sha256(), 0
        if self._file is not None:
            self._file.seek(0)

    def write(self, data: bytes | bytearray, /) -> None:
        self._hash.update(data)
        view = memoryview(data)
        with self._writing():
            while self._file is not None and len(view):  # one call may write less
                done = self._file.write(view)
                self._bytes, view = self._bytes + done, view[done:]
        self._bytes += len(view)

    def finish(self) -> FileEntry:
        """Return what came since the last start; the file holds that and nothing else."""
        if self._file is not None:
            with self._writing():
                self._file.flush()
                self._file.truncate()
        return FileEntry(bytes=self._bytes, sha256=self._hash.hexdigest())

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise CopyError(f"cannot write a copy: {error.strerror} after {self._bytes} bytes") from error


_HINTS = {
    errno.ENOSPC: " Free space on that file system and run again: finished work is kept.",
    errno.EDQUOT: " The quota is used up; free space and run again: finished work is kept.",
    errno.EROFS: " The file system is mounted read-only.",
    errno.EACCES: " Check the owner and the permissions.",
    errno.EPERM: " Check the permissions, and that the file system has hard links.",
    errno.ENOTSUP: " The store needs a file system with hard links.",
    errno.EFBIG: " The file-size limit (`ulimit -f`) is lower than this file, or the file system's largest is: "
    "raise it, or make `save.max_shard_size` smaller, and run again.",
    errno.EIO: " The disk failed: look at the system's log; if it was for once, run again: finished work is kept.",
}


def hint_on(error: OSError) -> str:
    """Return a sentence on what can be done, with a space before it; "" where none is known."""
    return _HINTS.get(error.errno or 0, "")


def write_all(descriptor: int, view: memoryview, path: str, before: int = 0) -> None:
    """Write all bytes of `view` to an open file that has got so many before; StoreError says how far it came."""
    done = 0
    try:
        while done < view.nbytes:  # one call may write less: at most 2 GiB, or up to a limit
            done += os.write(descriptor, view[done:])
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror} after {before + done} bytes.{hint_on(error)}"
        ) from error


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
        write_all(self._fd, view, self._path, self.bytes)
        self.bytes += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if not self.closed and self._fd >= 0:
            os.close(self._fd)
        super().close()
