"""The files of a shard cache: who holds which, and room for more. The rules are those of :mod:`.shardcache`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

from tokenlake.storage.durable import lock, locked

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
    if not _hold(descriptor, fcntl.LOCK_EX, path):
        return False
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def take_room(folder: Path, part_fd: int, size: int, max_bytes: int) -> str | None:
    """Give the temporary file its size, removing old copies for it; return why that cannot be, or None."""
    if size > max_bytes:
        return f"it has {size} bytes, and cache_bytes is {max_bytes}"
    os.ftruncate(part_fd, 0)  # of what a dead process left in it, it would be counted as well
    with locked(folder):
        kept = _kept(folder)
        used, fits = sum(one.size for one in kept), False
        for one in [*kept, None]:
            fits = used + size <= max_bytes
            if fits and _reserved(part_fd, size):
                return None
            if one is None:
                break
            if _removed(one.path):
                used -= one.size
    if fits:
        return "the disk is full"
    return f"the {max_bytes} bytes of cache_bytes are taken by shards that are open"


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """A file of the cache: when it was opened last (ns), its bytes, its path."""

    opened: int
    size: int
    path: Path


def _kept(folder: Path) -> list[_Kept]:
    """Return copies and what is being fetched, the least recently opened first; sweeps what dead processes left."""
    found: list[_Kept] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            part = entry.name.startswith(PART)
            if not part and not COPY_NAME.fullmatch(entry.name):
                continue
            if part and _removed(Path(entry.path)):
                continue
            with contextlib.suppress(FileNotFoundError):
                there = entry.stat(follow_symlinks=False)
                found.append(_Kept(there.st_mtime_ns, there.st_size, Path(entry.path)))
    return sorted(found, key=lambda one: one.opened)


def _hold(descriptor: int, kind: int, path: Path) -> bool:
    """Lock an open file without waiting; say whether that went."""
    try:
        lock(descriptor, kind | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True


def _removed(path: Path) -> bool:
    """Remove a file that nobody holds; say whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not holds_alone(descriptor, path):
            return False
        path.unlink(missing_ok=True)
        return True
    except PermissionError:
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
