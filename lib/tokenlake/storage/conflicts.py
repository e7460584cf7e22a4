"""What a writer is told who finds another object than it may replace; the same words for every storage."""

from __future__ import annotations

from typing import Final

from tokenlake.errors import VersionConflictError

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
