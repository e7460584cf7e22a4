"""Compare-and-swap, the one way in which an object is made or changed: of a file, and of an object in a bucket.

Objects are judged by their hash, whatever the storage: what is there ends it, may be replaced, or is a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError

Outcome: TypeAlias = Literal["created", "equal", "replaced"]

Orphan: TypeAlias = bool | Callable[[], bool]
"""Whether an unequal object that is there may be replaced; see :meth:`tokenlake.store.base.Store.publish`."""

_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """What is to become an object, and what it may take the place of.

    Attributes:
        data: the bytes, or a written temporary file of :meth:`Store.temp`, whose name is gone after.
        sha256: hex, of the bytes.
        expected: hex, of the bytes that it replaces; None: there must be no object.
        orphan: an unequal object that is there is replaced all the same.
    """

    key: str
    data: bytes | Path
    sha256: str
    expected: str | None = None
    orphan: Orphan = False

    def judge(self, found: str | None) -> Outcome | None:
        """Judge what is there, by its hash (None: nothing): None where it may be replaced.

        Raises:
            VersionConflictError: it may not; names both hashes.
        """
        if found == self.sha256:
            return "equal"
        if found == self.expected:
            return None
        if found is not None and (self.orphan() if callable(self.orphan) else self.orphan):
            return None
        got = "it is not there" if found is None else f"it exists already with other bytes: sha256 {found}"
        if self.expected is not None:
            got += f", expected {self.expected}, which was to be replaced"
        raise VersionConflictError(
            f"{self.key}: {got}; ours is {self.sha256}. Another writer or release made or changed it; "
            "nothing was written. Let that process finish, and run again.",
            key=self.key,
            expected=self.sha256,
            got=found,
        )

    def require_written(self, found: str) -> None:
        """Raise StoreError unless what was read back has the sha256 (hex) of what was written."""
        if found != self.sha256:
            raise StoreError(
                f"{self.key}: read back is not what was written: sha256 {found}, expected {self.sha256}. "
                "Nothing was published. Check the disk and the memory of this machine.",
                key=self.key,
            )


def compare_and_swap(
    put: Put,
    look: Callable[[], tuple[str, str] | None],
    send: Callable[[str | None], object],
    refused: type[Exception],
    *,
    look_first: bool = True,
) -> Outcome:
    """Make or change an object until that is through, or until what is there says that it need not or must not be.

    A conflict is believed when two looks agree: a damaged answer must not look like another object.

    Args:
        look: reads what is there: its hash, and the token of its version; None where there is nothing.
        send: puts it in the place of the version of a token, or of none.
        refused: what `send` raises where there is another version than it was to replace.
        look_first: before the first try; else that is one to create.

    Raises:
        VersionConflictError: as :meth:`Put.judge` says.
        StoreError: it appears and vanishes, or the storage fails.
    """
    doubted: list[str | None] = []
    for attempt in range(_TRIES):
        there = look() if look_first or attempt else None
        found, token = (None, None) if there is None else there
        try:
            outcome = put.judge(found)
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
        f"cannot publish {put.key}: it appears, changes and vanishes; other processes write it", key=put.key
    )
