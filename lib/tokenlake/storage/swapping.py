"""Compare-and-swap of a file: the one way in which an object of a store changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tokenlake.errors import VersionConflictError
from tokenlake.storage.base import Outcome
from tokenlake.storage.durable import fsync_directory, hash_regular, locked, open_regular

_SHOWN: Final = 400  # characters of an object that a message quotes


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
            raise _conflict(key, expected, found)
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
            raise VersionConflictError(
                f"{key} has the sha256 {there}; expected {found}, which was to be replaced. Another process changed it "
                "meanwhile; nothing was written. Verify the version again.",
                key=key,
                expected=found,
                got=there,
            )
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


def _conflict(key: str, expected: bytes | None, found: bytes | None) -> VersionConflictError:
    wanted, got = _text(expected), _text(found)
    return VersionConflictError(
        f"{key} holds {_short(got)}; expected {_short(wanted)}. Another writer changed it meanwhile; nothing was "
        "written. Look at what is there, and run again if it is still to be replaced.",
        key=key,
        expected=wanted,
        got=got,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
