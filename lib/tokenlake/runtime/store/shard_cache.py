"""Copies of remote shards in a folder of this machine: bounded, verified, shared by all its processes.

A copy is a file named after its sha256. It is written under a temporary name and gets its own by a rename, so
that what has the name is whole. All that processes must agree on is a lock on a file, which the kernel takes
back from a process that dies, however it dies:

- Whoever fetches a shard holds the temporary file exclusively. Others look again until the copy is there, or
  until they get that lock themselves, because the fetching process failed or died.
- Whoever reads a copy holds it shared. Making room removes the copies that were not opened for the longest
  time, of those that nobody holds: removing an open one would free no byte. (It would harm nobody either: a
  file without a name stays readable to those who have it open. So a damaged copy is dropped at once.)
- Whoever makes room, and takes it for a shard, holds the folder, as does whoever renames a file. The temporary
  file has its full size from then on, so that the sizes of all files are what the cache takes or will take.

Bytes are compared with their sha256 when they are fetched. A copy that is opened later is looked at for its
size; pages have checksums, and a reader that finds a wrong one has the copy discarded.
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

COPY_NAME: Final = re.compile(r"[0-9a-f]{64}")
PART: Final = ".part-"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# File systems that cannot set space aside; a write says then that the disk is full.
_NO_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


def open_copy(copy: Path, size: int) -> BinaryIO | None:
    """Open a copy, held shared, and note that it is in use; one of a wrong size is dropped."""
    try:
        descriptor = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Where another process is about to remove it, it does: we have it open, and it stays readable to us.
        _hold(descriptor, fcntl.LOCK_SH, copy)
        there = os.fstat(descriptor)
        if stat.S_ISREG(there.st_mode) and there.st_size == size:
            with contextlib.suppress(PermissionError):  # another user's copy
                os.utime(descriptor)
            stream, descriptor = os.fdopen(descriptor, "rb"), -1
            return stream
        copy.unlink(missing_ok=True)
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def holds_alone(descriptor: int, path: Path) -> bool:
    """Lock a file exclusively, if nobody holds it, and if it still is the one at `path` when it is locked."""
    return _hold(descriptor, fcntl.LOCK_EX, path) and is_still(descriptor, path)


def take_room(folder: Path, part_fd: int, size: int, max_bytes: int) -> str | None:
    """Give the temporary file its size, removing old copies for it; return why that cannot be, or None."""
    if size > max_bytes:
        return f"it has {size} bytes, and cache_bytes is {max_bytes}"
    os.ftruncate(part_fd, 0)  # of what a dead process left in it, it would be counted as well
    with locked(folder):
        # Copies and what is being fetched, each with its time (ns) and bytes, the least recently opened first; what
        # dead processes left is swept.
        kept: list[tuple[int, int, Path]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                part = entry.name.startswith(PART)
                if _removed(Path(entry.path)) if part else not COPY_NAME.fullmatch(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    there = entry.stat(follow_symlinks=False)
                    kept.append((there.st_mtime_ns, there.st_size, Path(entry.path)))
        kept.sort()
        used, fits = sum(bytes_ for _, bytes_, _ in kept), False
        for _, bytes_, path in [*kept, (0, 0, None)]:
            fits = used + size <= max_bytes
            if fits and _reserved(part_fd, size):
                return None
            if path is not None and _removed(path):
                used -= bytes_
    if fits:
        return "the disk is full"
    return f"the {max_bytes} bytes of cache_bytes are taken by shards that are open"


def _hold(descriptor: int, kind: int, path: Path) -> bool:
    """Lock an open file without waiting; say whether that went."""
    with contextlib.suppress(BlockingIOError):
        lock(descriptor, kind | fcntl.LOCK_NB, path)
        return True
    return False


def _removed(path: Path) -> bool:
    """Remove a file that nobody holds; say whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        with contextlib.suppress(PermissionError):
            if holds_alone(descriptor, path):
                path.unlink(missing_ok=True)
                return True
        return False
    finally:
        os.close(descriptor)


def _reserved(descriptor: int, size: int) -> bool:
    """Give an empty file its size, on the disk where the file system can; say whether there is room."""
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
STALL_SECONDS: Final = 300.0  # above the time that a failing request is tried again

_LOOK_SECONDS: Final = (
    0.005,
    0.1,
)  # between looks at another process's work, the first and the longest pause
_TRIES: Final = 2


@final
class ShardCache:
    """Copies of shards, by their sha256; threads and processes may share the folder, and use it at once.

    Args:
        folder: is made where it is missing; other files in it are left alone.
        max_bytes: of all copies together. Processes should agree: each keeps to its own when it adds a copy.
        stall_seconds: after which a shard is read without a copy because the process that fetches it does not
            go on.

    Raises:
        StoreError: the folder cannot be made or written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int = DEFAULT_BYTES,
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._folder = Path(folder).expanduser().resolve()
        self._max_bytes, self._stall_seconds = max_bytes, stall_seconds
        self._warned = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the cache folder {self._folder} cannot be made: {error.strerror}") from error
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise StoreError(f"the cache folder {self._folder} cannot be written to; give another as `cache`")

    def open(self, sha256: str, size: int, fetch: Callable[[ByteTarget], None], what: str) -> BinaryIO | None:
        """Open the copy of a shard, fetching it where there is none; None where none can be kept.

        The first None gives a RuntimeWarning that says why.

        Args:
            sha256, size: of the shard, as its manifest states them; hex, bytes.
            fetch: writes the shard to a target; what it raises is passed on, and leaves nothing behind.
            what: the shard's name for messages.

        Raises:
            IntegrityError: what was fetched has another sha256, twice.
        """
        copy = self._folder / _checked(sha256, what)
        try:
            return open_copy(copy, size) or self._made(copy, size, fetch, what)
        except CopyError as error:
            return self._without(what, str(error))
        except OSError as error:
            return self._without(what, error.strerror or str(error))

    def discard(self, sha256: str) -> bool:
        """Drop a copy that is damaged, and say whether there was one; who has it open keeps what it has."""
        with contextlib.suppress(OSError):
            (self._folder / _checked(sha256, "a copy")).unlink()
            return True
        return False

    def _made(self, copy: Path, size: int, fetch: Callable[[ByteTarget], None], what: str) -> BinaryIO | None:
        """Fetch a copy, or wait for the process or thread that does."""
        part, pause = self._folder / f"{PART}{copy.name}", _LOOK_SECONDS[0]
        seen, since = None, time.monotonic()
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            if holds_alone(descriptor, part):
                return self._filled(descriptor, part, copy, size, fetch, what)
            try:
                there = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if seen != (there.st_ino, there.st_mtime_ns):
                seen, since = (there.st_ino, there.st_mtime_ns), time.monotonic()
            if time.monotonic() - since > self._stall_seconds:
                return self._without(
                    what, f"the process that fetches it has made no progress for {self._stall_seconds:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS[1])
            if (found := open_copy(copy, size)) is not None:
                return found

    def _filled(
        self, part_fd: int, part: Path, copy: Path, size: int, fetch: Callable[[ByteTarget], None], what: str
    ) -> BinaryIO | None:
        """Fetch into a temporary file that this thread holds, and publish it; closes the descriptor or returns it."""
        stream: BinaryIO | None = None
        try:
            if (found := open_copy(copy, size)) is not None:
                return found  # published after we looked and before we held its next temporary file
            if (problem := take_room(self._folder, part_fd, size, self._max_bytes)) is not None:
                return self._without(what, problem)
            with os.fdopen(part_fd, "r+b", buffering=0, closefd=False) as file:
                _fetch(file, FileEntry(bytes=size, sha256=copy.name), fetch, what)
            os.fsync(part_fd)
            os.fchmod(part_fd, 0o444)
            with locked(self._folder):  # who counts must not miss it between two names
                part.rename(copy)
            fcntl.flock(part_fd, fcntl.LOCK_SH)
            stream = os.fdopen(part_fd, "rb")
            stream.seek(0)
            return stream
        finally:
            if stream is None:
                part.unlink(missing_ok=True)
                os.close(part_fd)

    def _without(self, what: str, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{what}: the cache {self._folder} keeps no copy: {problem}. Where that is so, shards are read from "
                "where they are stored, piece by piece; this warning is shown once.",
                RuntimeWarning,
                stacklevel=5,
            )


def _checked(sha256: str, what: str) -> str:
    if not COPY_NAME.fullmatch(sha256):
        raise StoreError(f"{what}: {sha256!r} is not a sha256; expected 64 of 0-9 and a-f")
    return sha256


def _fetch(file: BinaryIO, wanted: FileEntry, fetch: Callable[[ByteTarget], None], what: str) -> None:
    got = FileEntry.of(b"")
    for _ in range(_TRIES):
        target = HashingTarget(file)
        fetch(target)
        if (got := target.finish()) == wanted:
            return
    raise IntegrityError(
        f"{what}: fetched {_TRIES} times, and its sha256 is {got.sha256}; expected {wanted.sha256}, as its manifest "
        "states. Verify the version where it is stored.",
        file=what,
        expected=wanted.sha256,
        got=got.sha256,
    )
