"""Locks on folders of this machine, and temporary names that say which process holds
them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import secrets
import socket
from collections.abc import Generator
from pathlib import Path

from tokenlake.runtime.store.durable_files import NO_LOCKS, unfit_folder
from tokenlake.runtime.store.layout import TEMP_MARK


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
        if error.errno in NO_LOCKS:
            raise unfit_folder(path, "flock", error) from error
        raise


def is_still(descriptor: int, path: Path) -> bool:
    """Say whether an open file or folder is the one that is at a path now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def new_temp_name() -> str:
    """Return ``.tmp-<machine>-<pid>-<random>``."""
    return f"{TEMP_MARK}{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_abandoned(name: str) -> bool:
    """Say whether a temporary file was left by a process of this machine that is dead.

    A process of another machine, or of another container (its pids mean nothing here),
    counts as alive.
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
    # A zombie is dead, too. The name, in brackets, may hold anything; the state is the
    # first word after it.
    with contextlib.suppress(OSError, IndexError):
        return (
            Path(f"/proc/{rest}/stat").read_bytes().rpartition(b")")[2].split()[0]
            == b"Z"
        )
    return False


@functools.cache  # asked for each temporary name
def _machine() -> str:
    host = re.sub(r"[^\w.]", "_", socket.gethostname())[:100]
    try:
        return f"{host}.{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:  # no /proc, as on macOS
        return host
