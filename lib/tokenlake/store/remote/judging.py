"""The one way in which an object of a bucket is made or replaced: send, and where that is refused look and judge."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.store.base import Outcome
from tokenlake.store.remote.filesystems import on_loop_to_its_end
from tokenlake.store.remote.objects import OtherObjectError

_T = TypeVar("_T")
_TRIES: Final = 8  # an object that vanishes between "exists" and read-back is created again, but not for ever

Send = Callable[[str | None], Coroutine[Any, Any, None]]
"""Puts an object, in the place of the version of a token, or of none."""

Look = Callable[[], tuple[_T, str] | None]
"""Reads what is there, and its token; None where there is nothing."""

Judge = Callable[[_T | None], Outcome | None]
"""Says that what is there ends it, or that it may be replaced (None); VersionConflictError if it may not."""


def settle(key: str, send: Send, look: Look[_T], judge: Judge[_T], *, look_first: bool) -> Outcome:
    """Send until it is through, or until what is there says that it need not or must not be.

    A conflict is believed when two looks agree: a damaged answer must not look like another object.

    Args:
        look_first: before the first try; else that is one to create.

    Raises:
        VersionConflictError: as `judge` says.
        StoreError: it appears and vanishes, or the storage fails.
    """
    doubted: list[_T | None] = []
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
            on_loop_to_its_end(send(token))
            return "created" if token is None else "replaced"
        except OtherObjectError:
            continue
        except NotFoundError:
            if token is None:
                raise
    raise StoreError(
        f"cannot publish {key}: it appears, changes and vanishes; other processes write it", key=key
    )
