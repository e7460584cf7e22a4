"""What a storage does that can be written to: create-only puts, compare-and-swap, copies, unfinished uploads.

The writing side of :mod:`tokenlake.store.remote.objects`: one class per protocol. These methods try again by
themselves, because some of what they do takes several requests. Whoever calls them judges what is there when
one is refused: it may be what an earlier try of theirs has written, whose answer was lost.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar, final

from tokenlake.store.remote.asking import ask
from tokenlake.store.remote.content import Content, content_of
from tokenlake.store.remote.objects import Found, Objects
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.url import Url

_T = TypeVar("_T")

AT_ONCE: Final = 4
"""Parts of one object that are under way at once."""

_SLOWEST: Final = 50_000  # bytes a second, below which a request that sends counts as stuck
_SLOW: Final = 10_000_000  # bytes a second, for which patience allows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An upload in parts that was begun and not finished.

    Attributes:
        path: of the object that it was to become.
        id: the storage's name for it.
        begun: seconds since the epoch, by the storage's clock.
    """

    path: str
    id: str
    begun: float


class Writes(ABC):
    """Writes to one storage. `over`: the token of the version that is replaced; None: there must be no object.

    Everything raises OtherObjectError where another version is there than `over`, or one where none may be;
    and the failures of the storage.

    Attributes:
        parts: large objects are sent in parts.
        whole_copies: copies in one request keep conditions, as a trial has shown; of interest where there are parts.
    """

    parts: bool = False
    whole_copies: bool = False

    def __init__(self, objects: Objects, patience: Patience) -> None:
        self.objects, self._patience = objects, patience

    @abstractmethod
    async def put(self, url: Url, content: Content, over: str | None) -> None:
        """Make the content the object at `url`, whole or not at all.

        Raises:
            failures.missing: `over` is gone, or there is no such bucket.
        """

    @abstractmethod
    async def copy(self, source: Url, found: Found, url: Url, over: str | None) -> None:
        """Make a copy, inside the storage, of the version `found` of another object of the same bucket.

        Raises:
            SourceChangedError: the source is another one by now.
        """

    @abstractmethod
    async def delete(self, url: Url) -> None:
        """Remove the object, if there is one."""

    @abstractmethod
    def wrong(self, token: str) -> str:
        """Return a token that no version of an object has that has this one."""

    async def put_in_parts(self, url: Url, data: bytes, over: str | None) -> None:
        """Put something small in the way of a large object, in parts where there are any; for a trial."""
        await self.put(url, content_of(data), over)

    async def uploads(self, url: Url) -> list[Upload]:
        """Return the unfinished uploads of objects whose path begins with that of `url`; none where none are kept."""
        return []

    async def abort(self, url: Url, upload: str) -> bool:
        """End an unfinished upload to `url`; return False if there is none."""
        return False

    async def _ask(
        self, url: Url, request: Callable[[], Awaitable[_T]], size: int = 0, done: str = "written"
    ) -> _T:
        """Send a request that writes, with `size` bytes, until it is through."""

        async def once() -> _T:
            async with asyncio.timeout(120 + size / _SLOWEST):
                return await request()

        # Of what is sent nothing tells how far it came, and a long way is no reason to give up at its end.
        patience = replace(self._patience, seconds=self._patience.seconds + size / _SLOW)
        return await ask(self.objects, url, patience, once, done=done)
