"""Locks on folders of this machine, and temporary names.

A temporary name says which process holds it.
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
    # A lock on a descriptor ends with it, also if the process dies.
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
        BlockingIOError: Another process holds it, and `kind` does not wait.
        StoreError: Its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise unfit_folder(path, "flock", error) from error
        raise


def is_still(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is the one that is at a path now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def new_temp_name() -> str:
    """Return ``.tmp-<machine>-<pid>-<random>``."""
    return f"{TEMP_MARK}{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_abandoned(name: str) -> bool:
    """Return whether a dead process of this machine left a temporary file.

    A process of another machine, or of another container (its pids mean nothing here),
    counts as alive.
    """
    # The name is .tmp-MACHINE-PID-RANDOM, and MACHINE may have hyphens.
    machine_and_pid = name.removeprefix(TEMP_MARK).rpartition("-")[0]
    machine, _, pid = machine_and_pid.rpartition("-")
    is_own = name.startswith(TEMP_MARK) and machine == _machine()
    if not is_own or not pid.isdecimal():
        return False
    # Signal 0 is not sent: the system only checks that the process exists.
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # the process of another user
    # A zombie is dead, too. The name, in brackets, may hold anything; the state is the
    # first word after it.
    with contextlib.suppress(OSError, IndexError):
        stat_line = Path(f"/proc/{pid}/stat").read_bytes()
        state = stat_line.rpartition(b")")[2].split()[0]
        return state == b"Z"
    return False


@functools.cache  # asked for each temporary name
def _machine() -> str:
    """Return the name of this machine, or of the container with its own pids."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname())[:100]
    try:
        # Containers may share a host name. The namespace of their pids differs.
        return f"{host}.{Path('/proc/self/ns/pid').stat().st_ino:x}"
    except OSError:  # no /proc, as on macOS
        return host
