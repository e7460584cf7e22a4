"""Compare-and-swap, the one way in which an object of a store changes: of a file, and of an object in a bucket.

What a writer is told who finds another object than it may replace has the same words for every storage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.store.base import Outcome
from tokenlake.store.local_files import fsync_directory, hash_regular, locked, open_regular

Send = Callable[[str | None], None]
"""Puts an object, in the place of the version of a token, or of none."""

_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever
_SHOWN: Final = 400  # characters of an object that a message quotes


def create_conflict(key: str, found: str, sha256: str) -> VersionConflictError:
    """Return the error of creating an object of `sha256` where one of the hash `found` is."""
    return VersionConflictError(
        f"{key} is there with other bytes: sha256 {found}, ours is {sha256}. Another writer or release "
        "made it; nothing was changed. Let that build finish, or build under another name.",
        key=key,
        expected=sha256,
        got=found,
    )


def swap_conflict(key: str, expected: bytes | None, found: bytes | None) -> VersionConflictError:
    """Return the error of a swap that finds other bytes than were expected; None stands for no object."""
    wanted, got = _text(expected), _text(found)
    return VersionConflictError(
        f"{key} holds {_short(got)}; expected {_short(wanted)}. Another writer changed it meanwhile; nothing was "
        "written. Look at what is there, and run again if it is still to be replaced.",
        key=key,
        expected=wanted,
        got=got,
    )


def replace_conflict(key: str, found: str | None, there: str | None) -> VersionConflictError:
    """Return the error of replacing an object of the hash `found` where there is one of the hash `there`."""
    return VersionConflictError(
        f"{key} has the sha256 {there}; expected {found}, which was to be replaced. Another process changed it "
        "meanwhile; nothing was written. Verify the version again.",
        key=key,
        expected=found,
        got=there,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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


def settle(
    key: str,
    send: Send,
    look: Callable[[], tuple[_Seen, str] | None],
    judge: Callable[[_Seen | None], Outcome | None],
    refused: type[Exception],
    *,
    look_first: bool,
) -> Outcome:
    """Send an object until it is through, or until what is there says that it need not or must not be.

    A conflict is believed when two looks agree: a damaged answer must not look like another object.

    Args:
        look: reads what is there, and its token; None where there is nothing.
        judge: says that what is there ends it, or that it may be replaced (None); VersionConflictError if it may not.
        refused: what `send` raises where the storage has another version than it was to replace.
        look_first: before the first try; else that is one to create.

    Raises:
        VersionConflictError: as `judge` says.
        StoreError: it appears and vanishes, or the storage fails.
    """
    doubted: list[_Seen | None] = []
    for attempt in range(_TRIES):
        there = look() if look_first or attempt else None
        found, token = (None, None) if there is None else there
        try:
            outcome = judge(found)
        except VersionConflictError:
            if found in doubted:
                raise
            doubted.append(found)
            continue
        if outcome is not None:
            return outcome
        try:
            send(token)
            return "created" if token is None else "replaced"
        except refused:
            continue
        except NotFoundError:
            if token is None:
                raise
    raise StoreError(
        f"cannot publish {key}: it appears, changes and vanishes; other processes write it", key=key
    )
