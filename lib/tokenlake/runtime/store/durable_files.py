"""Local files that survive a crash: written, synced, and moved to their final names."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.runtime.store.writes import hint_on, write_all

_PIECE: Final = 1 << 20  # bytes hashed at a time

NO_LOCKS = frozenset(
    {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
)
"""Error numbers of file systems that do not have a call."""

PUBLISH = "publish"


@final
class os_errors:  # noqa: N801 - it stands where contextlib's functions stand, at a fifth of their time
    """Turn OSError into StoreError, or NotFoundError for a missing file.

    The error has the key and a hint.
    """

    __slots__ = ("_action", "_key")

    def __init__(self, action: str, key: str) -> None:
        self._action = action
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A file that vanishes while it is published was removed by gc: no object is
        # missing.
        if isinstance(error, FileNotFoundError) and self._action == PUBLISH:
            raise StoreError(
                f"cannot publish {self._key}: the file was removed while it was written ({error.filename}). `gc` "
                "with a short grace period removes files of a running build; run the build again",
                key=self._key,
            ) from error
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


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading.

    A symlink, folder, pipe or device is a StoreError.
    """
    return os.fdopen(_opened(path)[0], "rb")


def _opened(path: Path) -> tuple[int, int]:
    """Return the descriptor of a regular file, open for reading, and its bytes."""
    # O_NONBLOCK: opening a pipe that nobody writes would wait for ever.
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    file_status = os.fstat(descriptor)
    if not stat.S_ISREG(file_status.st_mode):
        os.close(descriptor)
        raise StoreError(
            f"{path} is not a regular file; a store contains only regular files"
        )
    return descriptor, file_status.st_size


def hash_regular(path: Path) -> str:
    """Return the sha256 (hex) of a regular file, read in pieces."""
    descriptor, file_bytes = _opened(path)
    try:
        # hashlib.file_digest clears a quarter of a megabyte for every file; most files
        # are smaller than one page of it.
        content_hash = hashlib.sha256()
        # One byte more than the file has: the read that finds the end is the first one
        # for most files.
        chunk_bytes = min(file_bytes, _PIECE) + 1
        while chunk := os.read(descriptor, chunk_bytes):
            content_hash.update(chunk)
        return content_hash.hexdigest()
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make the entries of a folder durable; StoreError if its file system cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise unfit_folder(path, "fsync of a folder", error) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def made_final(temp: Path) -> str:
    """Make a written file durable and read-only.

    The result is the sha256 (hex) of its content, read back.
    """
    # Committed bytes must not be changed by accident, so that the file loses its write
    # permission.
    descriptor = os.open(temp, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o444)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # Opened again, so that a network file system asks its server.
    return hash_regular(temp)


def write_new(path: Path, data: bytes) -> None:
    """Create a file of some bytes that only its owner may read yet.

    Raises:
        FileExistsError, FileNotFoundError: The file exists, or its folder does not.
        StoreError: It cannot be written whole; nothing of it stays.
    """
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        write_all(descriptor, memoryview(data), str(path))
    except BaseException:
        # Also after Ctrl-C: half a file must not stay.
        remove_temp(path)
        raise
    finally:
        os.close(descriptor)


def remove_temp(temp: Path) -> None:
    """Remove a temporary name.

    If the disk refuses, the published object stands, and a later sweep removes the
    name.
    """
    with contextlib.suppress(OSError):
        temp.unlink()


def unfit_folder(path: Path, call: str, error: OSError) -> StoreError:
    """Return the error for a folder whose file system lacks a call."""
    return StoreError(
        f"{path}: its file system has no {call} ({error.strerror}), which safe writes need. Use a folder on a disk "
        "of this machine or on NFS mounted with locks (without `nolock`), or a bucket (s3://, gs://)"
    )
