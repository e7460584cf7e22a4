"""Files of this machine: what makes them durable, who holds them, and writers that hash what they write.

Writers hash while they write, so that publishing needs one more pass over the bytes (the re-read), not two.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import os
import re
import secrets
import socket
import stat
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.store.layout import TEMP_MARK

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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

_PIECE: Final = 1 << 20  # bytes that are hashed at a time

_NOT_THERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
"""What a file system says of a call that it does not have."""


@final
class os_errors:  # noqa: N801 - it stands where contextlib's functions stand, at a fifth of their time
    """Turn OSError into StoreError (NotFoundError where nothing is there) with the key and a hint."""

    __slots__ = ("_action", "_key")

    def __init__(self, action: str, key: str) -> None:
        self._action, self._key = action, key

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(
                f"cannot {self._action} {self._key}: there is no such object ({error.filename})",
                key=self._key,
            ) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"cannot {self._action} {self._key}: {error.strerror} ({error.filename}).{hint_on(error)}",
                key=self._key,
            ) from error


def hint_on(error: OSError) -> str:
    """Return a sentence on what can be done, with a space before it; "" where none is known."""
    return _HINTS.get(error.errno or 0, "")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; a symlink, folder, pipe or device is a StoreError."""
    return os.fdopen(_opened(path)[0], "rb")


def _opened(path: Path) -> tuple[int, int]:
    """Return the descriptor of a regular file, open for reading, and its size in bytes."""
    # O_NONBLOCK: opening a pipe that nobody writes would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not a regular file; the store reads no others")
    return descriptor, found.st_size


def hash_regular(path: Path) -> str:
    """Return the sha256 (hex) of a regular file, read in pieces."""
    descriptor, size = _opened(path)
    try:
        # hashlib.file_digest clears a quarter of a megabyte for every file, and most are smaller than one page of it.
        found, wanted = hashlib.sha256(), min(size, _PIECE) + 1
        while piece := os.read(descriptor, wanted):
            found.update(piece)
        return found.hexdigest()
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make a folder's entries durable; StoreError where its file system cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise _unfit(path, "fsync of a folder", error) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def made_final(temp: Path) -> str:
    """Make a written file durable and read-only; return the sha256 (hex) of what it holds then."""
    descriptor = os.open(temp, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o444)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return hash_regular(temp)  # opened again: what a network file system keeps elsewhere is asked for


def write_new(path: Path, data: bytes) -> None:
    """Create a file of `data`, which nobody but its owner may read yet.

    Raises:
        FileExistsError, FileNotFoundError: there is such a file, or no such folder.
        StoreError: it cannot be written whole; nothing of it stays.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, memoryview(data), str(path))
    except BaseException:
        remove_temp(path)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, view: memoryview, path: str, before: int = 0) -> None:
    """Write all bytes of `view` to an open file that has got so many before; StoreError says how far it came."""
    done = 0
    try:
        while done < view.nbytes:  # one call may write less: at most 2 GiB, or up to a limit
            done += os.write(descriptor, view[done:])
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror} after {before + done} bytes.{hint_on(error)}"
        ) from error


def remove_temp(temp: Path) -> None:
    """Remove a temporary name; where the disk refuses, what was published stands, and a later sweep removes it."""
    with contextlib.suppress(OSError):
        temp.unlink()


@contextlib.contextmanager
def locked(directory: Path) -> Generator[None]:
    """Hold the folder's advisory lock: replacing writers of one machine take turns."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock(descriptor, fcntl.LOCK_EX, directory)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, kind: int, path: Path) -> None:
    """Lock an open file or folder (``fcntl.LOCK_*``).

    Raises:
        BlockingIOError: somebody else holds it, and `kind` does not wait.
        StoreError: its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise _unfit(path, "flock", error) from error
        raise


def is_still(descriptor: int, path: Path) -> bool:
    """Say whether an open file or folder is the one that is at a path now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _unfit(path: Path, call: str, error: OSError) -> StoreError:
    return StoreError(
        f"{path}: its file system has no {call} ({error.strerror}), which writing safely needs. Use a folder on a disk "
        "of this machine or on NFS mounted with locks (without `nolock`), or a bucket (s3://, gs://)"
    )


def new_temp_name() -> str:
    """Return ``.tmp-<machine>-<pid>-<random>``."""
    return f"{TEMP_MARK}{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_abandoned(name: str) -> bool:
    """Say whether a temporary file was left by a process of this machine that is dead.

    A process of another machine, or of another container (its pids mean nothing here), counts as alive.
    """
    machine, _, rest = name.removeprefix(TEMP_MARK).rpartition("-")[0].rpartition("-")
    if not name.startswith(TEMP_MARK) or machine != _machine() or not rest.isdecimal():
        return False
    try:
        os.kill(int(rest), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    # A zombie is dead, too. The name, in brackets, may hold anything; the state is the first word after it.
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{rest}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    return False


@functools.cache  # asked for each temporary name
def _machine() -> str:
    host = re.sub(r"[^\w.]", "_", socket.gethostname())[:100]
    try:
        return f"{host}.{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:  # no /proc, as on macOS
        return host


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
        _write_all(self._fd, view, self._path, self.bytes)
        self.bytes += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if not self.closed and self._fd >= 0:
            os.close(self._fd)
        super().close()
