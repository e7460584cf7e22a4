"""Compare-and-swap, the one way in which an object is made or changed: of a file, and of an object in a bucket.

A judge looks at what is there and says whether that ends it, or may be replaced. The words for a writer who finds
another object than it may replace are the same for every storage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.store.base import Orphan, Outcome
from tokenlake.store.local_files import hash_regular, locked, open_regular

_Seen = TypeVar("_Seen", bytes, str)

Judge: TypeAlias = Callable[[_Seen | None], Outcome | None]
"""Takes what is there, None for nothing, and returns the outcome where it is what was to be written, or None where it
may be replaced; VersionConflictError where it may not. Objects are judged by their hash, small ones by their bytes."""

_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever
_SHOWN: Final = 400  # characters of an object that a message quotes


def judge_create(key: str, sha256: str, replace_orphan: Orphan) -> Judge[str]:
    """Judge what is there instead of a new object of `sha256`; an orphan is replaced."""

    def judge(found: str | None) -> Outcome | None:
        if found == sha256:
            return "equal"
        if found is None or replace_orphan is True or (callable(replace_orphan) and replace_orphan()):
            return None
        raise VersionConflictError(
            f"{key} already exists with other bytes: sha256 {found}, ours is {sha256}. Another writer or release "
            "made it; nothing was changed. Let that build finish, or build under another name.",
            key=key,
            expected=sha256,
            got=found,
        )

    return judge


def judge_swap(key: str, data: bytes, expected: bytes | None) -> Judge[bytes]:
    """Judge what `data` is to replace, which must be what was expected; None: no object."""

    def judge(found: bytes | None) -> Outcome | None:
        if found == data:
            return "equal"
        if found == expected:
            return None
        wanted, got = _text(expected), _text(found)
        raise VersionConflictError(
            f"{key} holds {_short(got)}; expected {_short(wanted)}. Another writer changed it meanwhile; nothing was "
            "written. Look at what is there, and run again if it is still to be replaced.",
            key=key,
            expected=wanted,
            got=got,
        )

    return judge


def judge_replace(key: str, sha256: str, expected: str | None) -> Judge[str]:
    """Judge what an object of `sha256` is to replace, which must have the hash that was expected; None: no object."""

    def judge(found: str | None) -> Outcome | None:
        if found == sha256:
            return "equal"
        if found == expected:
            return None
        raise VersionConflictError(
            f"{key} has the sha256 {found}; expected {expected}, which was to be replaced. Another process changed it "
            "meanwhile; nothing was written. Verify the version again.",
            key=key,
            expected=expected,
            got=found,
        )

    return judge


def put_file(
    temp: Path,
    path: Path,
    key: str,
    look: Callable[[Path], _Seen | None],
    judge: Judge[_Seen],
    sync: Callable[[Path], object],
) -> Outcome:
    """Put ``temp``, which is durable, in the place of ``path``, if that holds what the judge lets be replaced.

    Writers that replace or delete in one folder of this machine take turns; a reader keeps the inode that it opened.

    Args:
        sync: makes the folder durable. Also after "equal": the other writer, or we before we lost its answer, may have
            died before that.

    Raises:
        VersionConflictError: as `judge` says; nothing was changed.
        StoreError: it appears and vanishes.
    """
    with locked(path.parent):
        for _ in range(_TRIES):
            found = look(path)
            outcome = judge(found)
            if outcome is None and found is None:
                try:
                    os.link(temp, path)  # and not replace: who creates an object takes no lock
                except FileExistsError:
                    continue
                outcome = "created"
            elif outcome is None:
                temp.replace(path)  # a new inode
                outcome = "replaced"
            sync(path.parent)
            return outcome
    raise StoreError(f"cannot publish {key}: it appears and vanishes; another process deletes it", key=key)


def hash_of(path: Path) -> str | None:
    """Return the hash of a file, None where there is none."""
    try:
        return hash_regular(path)
    except FileNotFoundError:
        return None


def bytes_of(path: Path) -> bytes | None:
    """Return the bytes of a file, None where there is none."""
    try:
        with open_regular(path) as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def put_object(
    key: str,
    send: Callable[[str | None], None],
    look: Callable[[], tuple[_Seen, str] | None],
    judge: Judge[_Seen],
    refused: type[Exception],
    *,
    look_first: bool = True,
) -> Outcome:
    """Send an object until it is through, or until what is there says that it need not or must not be.

    A conflict is believed when two looks agree: a damaged answer must not look like another object.

    Args:
        send: puts it in the place of the version of a token, or of none.
        look: reads what is there, and its token; None where there is nothing.
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


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
