"""Copies of remote shards in a folder of this machine.

The folder is bounded, its files are verified, and all processes of the machine share
it.

A copy is a file named after its sha256. It is written under a temporary name and then
renamed, so that a file with the final name is whole. Processes agree by locks on files,
which the kernel releases when a process dies, however it dies:

- The process that fetches a shard locks the temporary file exclusively. Other processes
  wait until the copy exists, or until they get that lock themselves because the
  fetching process failed or died.
- A process that reads a copy locks it shared. Making room removes the least recently
  opened copies that nobody has locked: removing an open one would free no byte. (It
  would harm nobody either: a file without a name stays readable to those who have it
  open. So a damaged copy is dropped at once.)
- A process that makes room and reserves it for a shard locks the folder, and so does
  one that renames a file. The temporary file has its full size from then on, so that
  the sum of all file sizes is the space that the cache takes or will take.

Bytes are compared with their sha256 when they are fetched. When a copy is opened later,
only its size is checked: pages have checksums, and a reader that finds a wrong one
discards the copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, final

from tokenlake.errors import IntegrityError, StoreError
from tokenlake.runtime.store.file_locks import is_still, lock, locked
from tokenlake.runtime.store.ledger import FileEntry
from tokenlake.runtime.store.writes import ByteTarget, CopyError, HashingTarget

# A copy has the hash of its content as its name, so that versions which share a shard
# share its copy.
COPY_NAME: Final = re.compile(r"[0-9a-f]{64}")
PART: Final = ".part-"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Errors of file systems that cannot reserve space; a later write says then that the
# disk is full.
_NO_RESERVE: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
)


def open_copy(copy: Path, size: int) -> BinaryIO | None:
    """Open a copy, lock it shared, and record its use; drop one of a wrong size.

    Args:
        copy: Path of the copy.
        size: Size that it must have.

    Returns:
        None if there is no such copy.
    """
    # O_NOFOLLOW: a symlink in a shared folder must not lead elsewhere. O_NONBLOCK:
    # opening a pipe of this name must not wait for its writer.
    try:
        descriptor = os.open(
            copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except FileNotFoundError:
        return None
    try:
        # Another process may have it locked to remove it: it is open here, and stays
        # readable.
        _try_lock(descriptor, fcntl.LOCK_SH, copy)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size == size:
            with contextlib.suppress(PermissionError):  # another user's copy
                os.utime(descriptor)
            stream = os.fdopen(descriptor, "rb")
            descriptor = -1  # the stream closes it
            return stream
        # The file is damaged or not a regular one. It is fetched again.
        copy.unlink(missing_ok=True)
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def holds_alone(descriptor: int, path: Path) -> bool:
    """Lock a file exclusively, without waiting.

    The result is True if the file is locked, and is still the file at `path`.
    """
    return _try_lock(descriptor, fcntl.LOCK_EX, path) and is_still(descriptor, path)


def take_room(folder: Path, part_fd: int, size: int, max_bytes: int) -> str | None:
    """Reserve the full size of a temporary file, removing old copies for it.

    Args:
        folder: Folder of the cache.
        part_fd: Descriptor of the temporary file.
        size: Bytes to reserve.
        max_bytes: Bytes of all files of the cache together.

    Returns:
        The reason why there is no room, for a message; None if the size is reserved.
    """
    # No removal can help.
    if size > max_bytes:
        return f"it has {size} bytes, and cache_bytes is {max_bytes}"
    os.ftruncate(part_fd, 0)  # bytes that a dead process left in it would be counted
    with locked(folder):
        files = _cache_files(folder)
        # Files that are being fetched have their full size already, and are counted.
        used = sum(file_size for _, file_size, _ in files)
        fits = used + size <= max_bytes
        if fits and _reserved(part_fd, size):
            return None
        # The least recently opened copies go first, until the size fits in the cache
        # and on the disk.
        for _, file_size, path in files:
            if _removed(path):
                used -= file_size
            fits = used + size <= max_bytes
            if fits and _reserved(part_fd, size):
                return None
    # All copies that nobody has open are removed now.
    if fits:
        return "the disk is full"
    return f"the {max_bytes} bytes of cache_bytes are used by open shards"


def _cache_files(folder: Path) -> list[tuple[int, int, Path]]:
    """Return the copies and the files being fetched.

    Temporary files of dead processes are removed.

    Returns:
        Modification time (ns), size and path of each file, ascending. :func:`open_copy`
        sets the time of a copy at each use, so that the least recently used comes first.
    """
    files: list[tuple[int, int, Path]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            is_part = entry.name.startswith(PART)
            if is_part and _removed(path):
                # Its process is dead: nobody holds the lock.
                continue
            if not is_part and not COPY_NAME.fullmatch(entry.name):
                continue  # not ours
            # Another process may remove a copy meanwhile.
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime_ns, status.st_size, path))
    return sorted(files)


def _try_lock(descriptor: int, kind: int, path: Path) -> bool:
    """Lock an open file without waiting; return whether it is locked."""
    # EWOULDBLOCK: another process has the lock, which is not an error here.
    with contextlib.suppress(BlockingIOError):
        lock(descriptor, kind | fcntl.LOCK_NB, path)
        return True
    return False


def _removed(path: Path) -> bool:
    """Remove a file that nobody has locked; return whether it is gone."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        # Another user's file cannot be locked or removed.
        with contextlib.suppress(PermissionError):
            if holds_alone(descriptor, path):
                path.unlink(missing_ok=True)
                return True
        return False
    finally:
        os.close(descriptor)


def _reserved(descriptor: int, size: int) -> bool:
    """Give an empty file its size, and reserve the space on the disk if possible.

    Returns:
        False if the disk has no room.
    """
    # posix_fallocate fails now if the disk is full, not in the middle of a download.
    # macOS lacks it.
    try:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno in _NO_RESERVE:
            os.ftruncate(descriptor, size)
            return True
        if error.errno not in _NO_ROOM:
            raise
        os.ftruncate(descriptor, 0)
        return False
    return True


DEFAULT_BYTES: Final = 64 << 30
"""Default bound of a cache."""
STALL_SECONDS: Final = 300.0
"""Seconds without progress of another process after which its shard is read remotely.

It is more than the time for which a failing request is repeated.
"""

# Seconds between looks at another process's progress; doubled each time.
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1
_TRIES: Final = 2  # downloads of a shard: a bit that flipped on its way is right later


@final
class ShardCache:
    """Copies of shards by their sha256.

    Threads and processes may share the folder, and use it at once.

    Args:
        folder: Folder of the copies; it is created if it is missing. Other files in it
            are left alone.
        max_bytes: Bytes of all copies together. Processes should agree: each keeps to
            its own bound when it adds a copy.
        stall_seconds: Seconds without progress of the process that fetches a shard,
            after which the shard is read without a copy.

    Raises:
        StoreError: The folder cannot be created or written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int = DEFAULT_BYTES,
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        # An absolute path: the process may change its folder later.
        self._folder = Path(folder).expanduser().resolve()
        self._max_bytes = max_bytes
        self._stall_seconds = stall_seconds
        self._has_warned = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the cache folder {self._folder} cannot be created: {error.strerror}"
            ) from error
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise StoreError(
                f"the cache folder {self._folder} cannot be written to; give another as `cache`"
            )

    def open(
        self,
        sha256: str,
        size: int,
        fetch: Callable[[ByteTarget], None],
        shard_name: str,
    ) -> BinaryIO | None:
        """Open the copy of a shard; fetch it first if there is none.

        Args:
            sha256: Hash of the shard, hex, as its manifest states it.
            size: Size of the shard in bytes, as its manifest states it.
            fetch: Function that writes the shard to a target. Its errors are passed on,
                and leave no file behind.
            shard_name: Name of the shard, for messages.

        Returns:
            None if no copy can be kept; the first time with a RuntimeWarning that gives
            the reason.

        Raises:
            IntegrityError: The fetched bytes have another sha256, twice.
        """
        copy = self._folder / _checked(sha256, shard_name)
        # A cache that does not work must not stop a training run: the shard is then
        # read from its store.
        try:
            stream = open_copy(copy, size)
            if stream is None:
                stream = self._fetched(copy, size, fetch, shard_name)
        except CopyError as error:
            return self._without(shard_name, str(error))
        except OSError as error:
            return self._without(shard_name, error.strerror or str(error))
        return stream

    def discard(self, sha256: str) -> bool:
        """Drop a damaged copy; readers that have it open keep their file.

        Returns:
            False if there was no such copy.
        """
        with contextlib.suppress(OSError):
            (self._folder / _checked(sha256, "a copy")).unlink()
            return True
        return False

    def _fetched(
        self,
        copy: Path,
        size: int,
        fetch: Callable[[ByteTarget], None],
        shard_name: str,
    ) -> BinaryIO | None:
        """Fetch a copy, or wait for the process or thread that fetches it.

        Repeat until the copy can be opened:

        1. Try to lock the temporary file. With the lock, fetch the shard.
        2. Else another process fetches it. If its file has not changed for too long,
           give up.
        3. Pause, and look for the copy.
        """
        part_path = self._folder / f"{PART}{copy.name}"
        pause = _FIRST_PAUSE
        last_state: tuple[int, int] | None = None
        last_change = time.monotonic()
        # 1. Try to get the right to fetch.
        while True:
            descriptor = os.open(
                part_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
            )
            if holds_alone(descriptor, part_path):
                return self._fill(descriptor, part_path, copy, size, fetch, shard_name)
            # 2. Another process fetches the shard. Its file changes as long as it makes
            # progress.
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            state = (status.st_ino, status.st_mtime_ns)
            if state != last_state:
                last_state = state
                last_change = time.monotonic()
            if time.monotonic() - last_change > self._stall_seconds:
                return self._without(
                    shard_name,
                    f"the process that fetches it has made no progress for {self._stall_seconds:g} s",
                )
            # 3. Pause, and look for the copy.
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            stream = open_copy(copy, size)
            if stream is not None:
                return stream

    def _fill(
        self,
        part_fd: int,
        part: Path,
        copy: Path,
        size: int,
        fetch: Callable[[ByteTarget], None],
        shard_name: str,
    ) -> BinaryIO | None:
        """Fetch a shard into a locked temporary file, and publish it as the copy.

        The descriptor is closed, or belongs to the stream that is returned.
        """
        stream: BinaryIO | None = None
        try:
            # Another process may have published the copy after we looked, and before we
            # locked its next temporary file.
            published = open_copy(copy, size)
            if published is not None:
                return published
            # Reserve the space, fetch, and make the bytes durable before they get their
            # name.
            problem = take_room(self._folder, part_fd, size, self._max_bytes)
            if problem is not None:
                return self._without(shard_name, problem)
            with os.fdopen(part_fd, "r+b", buffering=0, closefd=False) as file:
                _fetch(file, FileEntry(bytes=size, sha256=copy.name), fetch, shard_name)
            os.fsync(part_fd)
            os.fchmod(part_fd, 0o444)
            # A process that counts must not miss the file between its two names.
            with locked(self._folder):
                part.rename(copy)
            # From an exclusive lock to a shared one, so that other readers can lock the
            # copy, and making room cannot remove it.
            fcntl.flock(part_fd, fcntl.LOCK_SH)
            stream = os.fdopen(part_fd, "rb")
            stream.seek(0)
            return stream
        finally:
            # A failed fetch leaves no file, and frees its space.
            if stream is None:
                part.unlink(missing_ok=True)
                os.close(part_fd)

    def _without(self, shard_name: str, problem: str) -> None:
        """Warn, the first time, that a shard is read without a copy."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{shard_name}: the cache {self._folder} stores no copy: {problem}. Shards without a copy are read in "
                "pieces from their store; this warning is shown once.",
                RuntimeWarning,
                stacklevel=5,
            )


def _checked(sha256: str, shard_name: str) -> str:
    """Return a sha256; StoreError for another text, which would be a path."""
    if not COPY_NAME.fullmatch(sha256):
        raise StoreError(
            f"{shard_name}: {sha256!r} is not a sha256; expected 64 of 0-9 and a-f"
        )
    return sha256


def _fetch(
    file: BinaryIO,
    expected: FileEntry,
    fetch: Callable[[ByteTarget], None],
    shard_name: str,
) -> None:
    """Fetch a shard into a file; once more if its hash is wrong.

    Raises:
        IntegrityError: The hash stays wrong.
    """
    # Each try overwrites the bytes of the one before.
    got = FileEntry.of(b"")
    for _ in range(_TRIES):
        target = HashingTarget(file)
        fetch(target)
        got = target.finish()
        if got == expected:
            return
    raise IntegrityError(
        f"{shard_name}: fetched {_TRIES} times, and its sha256 is {got.sha256}; expected {expected.sha256}, as its "
        "manifest states. Verify the version where it is stored.",
        file=shard_name,
        expected=expected.sha256,
        got=got.sha256,
    )
