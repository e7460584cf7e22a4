"""Compare-and-swap of a file: the one way in which an object of a store changes."""

from __future__ import annotations

import os
from pathlib import Path

from tokenlake.storage.base import Outcome
from tokenlake.storage.conflicts import replace_conflict, swap_conflict
from tokenlake.storage.durable import fsync_directory, hash_regular, locked, open_regular


def swap_file(temp: Path, path: Path, key: str, data: bytes, expected: bytes | None) -> Outcome:
    """Put ``temp``, which holds ``data`` and is durable, in the place of ``path`` if that holds ``expected``.

    Swapping and deleting processes of one machine take turns; a reader keeps the inode that it opened.
    """
    with locked(path.parent):
        found = _content(path)
        if found is None and expected is None:
            try:
                os.link(temp, path)  # and not replace: who creates an object takes no lock
            except FileExistsError:
                found = _content(path)
            else:
                fsync_directory(path.parent)
                return "created"
        if found == data:
            # The other writer, or we before we lost its answer, may have died before the fsync.
            fsync_directory(path.parent)
            return "equal"
        if found is None or found != expected:
            raise swap_conflict(key, expected, found)
        temp.replace(path)
        fsync_directory(path.parent)
        return "replaced"


def replace_file(temp: Path, path: Path, key: str, sha256: str, found: str | None) -> Outcome:
    """Put ``temp``, which has ``sha256`` and is durable, in the place of ``path`` if that has the hash ``found``.

    Both hex; ``found`` None: there is no file. As for swaps, writers of one machine take turns.
    """
    with locked(path.parent):
        there = _hash(path)
        if there is None and found is None:
            try:
                os.link(temp, path)
            except FileExistsError:
                there = _hash(path)
            else:
                fsync_directory(path.parent)
                return "created"
        if there == sha256:
            fsync_directory(path.parent)
            return "equal"
        if there is None or there != found:
            raise replace_conflict(key, found, there)
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
