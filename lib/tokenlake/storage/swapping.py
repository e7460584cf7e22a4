"""Compare-and-swap of a file: the one way in which an object of a store changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tokenlake.errors import VersionConflictError
from tokenlake.storage.base import Outcome
from tokenlake.storage.conflicts import replace_conflict, swap_conflict
from tokenlake.storage.durable import fsync_directory, hash_regular, locked, open_regular

_Seen = TypeVar("_Seen", bytes, str)


def swap_file(temp: Path, path: Path, key: str, data: bytes, expected: bytes | None) -> Outcome:
    """Put ``temp``, which holds ``data`` and is durable, in the place of ``path`` if that holds ``expected``.

    Swapping and deleting processes of one machine take turns; a reader keeps the inode that it opened.

    Raises:
        VersionConflictError: it holds something else; nothing was changed.
    """
    return _exchange(temp, path, _content, data, expected, lambda there: swap_conflict(key, expected, there))


def replace_file(temp: Path, path: Path, key: str, sha256: str, found: str | None) -> Outcome:
    """Put ``temp``, which has ``sha256`` and is durable, in the place of ``path`` if that has the hash ``found``.

    Both hex; ``found`` None: there is no file. Otherwise as :func:`swap_file`.
    """
    return _exchange(temp, path, _hash, sha256, found, lambda there: replace_conflict(key, found, there))


def _exchange(
    temp: Path,
    path: Path,
    look: Callable[[Path], _Seen | None],
    ours: _Seen,
    expected: _Seen | None,
    conflict: Callable[[_Seen | None], VersionConflictError],
) -> Outcome:
    """Put ``temp`` in the place of ``path`` if a look at that shows what is expected; None: there is no file.

    Args:
        ours: what a look at ``temp`` would show.
        conflict: the error of a look that showed something else.
    """
    with locked(path.parent):
        found = look(path)
        if found is None and expected is None:
            try:
                os.link(temp, path)  # and not replace: who creates an object takes no lock
            except FileExistsError:
                found = look(path)
            else:
                fsync_directory(path.parent)
                return "created"
        if found == ours:
            # The other writer, or we before we lost its answer, may have died before the fsync.
            fsync_directory(path.parent)
            return "equal"
        if found is None or found != expected:
            raise conflict(found)
        temp.replace(path)
        fsync_directory(path.parent)
        return "replaced"


def _hash(path: Path) -> str | None:
    try:
        return hash_regular(path)
    except FileNotFoundError:
        return None


def _content(path: Path) -> bytes | None:
    try:
        with open_regular(path) as stream:
            return stream.read()
    except FileNotFoundError:
        return None
