"""Writes to a storage that keeps conditions on them.

They are create-only puts, replacements by version, copies and uploads.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tokenlake.errors import NotFoundError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.payload import Payload
from tokenlake.runtime.store.url import Url

_T = TypeVar("_T")

# Seconds that a request which sends may take in any case.
_LEAST_SECONDS: Final = 120
# Bytes a second, below which a request that sends counts as stuck.
_SLOWEST: Final = 50_000
_SLOW: Final = 10_000_000  # bytes a second that extra patience allows for


class BucketClient(ObjectClient):
    """Requests to a storage that keeps conditions on writes.

    The parameter `over` is the token of the version that a write replaces; None: the
    object must not exist. Every write raises OtherObjectError if the storage has
    another version than `over`, or any version where none may be. The writer then
    judges the object that is there: an earlier try of its own may have written it,
    whose answer was lost.

    Attributes:
        in_parts: Large objects are sent in parts.
    """

    in_parts: bool = False

    @abstractmethod
    async def put(self, url: Url, payload: Payload, over: str | None) -> None:
        """Write an object with a condition, whole or not at all.

        Raises:
            failures.missing: The version `over` is gone, or there is no such bucket.
        """

    @abstractmethod
    async def copy(
        self,
        source: Url,
        original: objects.RemoteObject,
        url: Url,
        over: str | None,
        *,
        in_one_request: bool = True,
    ) -> None:
        """Copy one version of an object inside the storage.

        Args:
            source: URL of the object, in the same bucket.
            original: Version of it to copy.
            url: URL of the copy.
            over: Token of the version that the copy replaces.
            in_one_request: Copies in one request keep conditions, as a trial has shown.

        Raises:
            SourceChangedError: The source has another version by now.
        """

    @abstractmethod
    async def delete(self, url: Url) -> None:
        """Remove the object, if it exists."""

    @abstractmethod
    def other_token(self, token: str) -> str:
        """Return a token that no version of an object has whose token is `token`."""

    async def uploads(self, url: Url) -> list[tuple[objects.RemoteObject, str]]:
        """Return the unfinished uploads to paths that begin with that of `url`.

        Returns:
            For each the object that it was to become, with the begin of the upload as
            `modified`, and the storage's name of the upload. Empty for storages without
            unfinished uploads.
        """
        return []

    async def abort(self, url: Url, upload: str) -> bool:
        """End an unfinished upload to `url`; return False if it does not exist."""
        return False

    async def _write(
        self,
        url: Url,
        request: Callable[[], Awaitable[_T]],
        size: int = 0,
        done: str = "written",
    ) -> _T:
        """Send a request that writes `size` bytes, until it succeeds."""

        # A request that sends has no timeout of its own: its limit grows with the
        # bytes.
        async def send() -> _T:
            async with asyncio.timeout(_LEAST_SECONDS + size / _SLOWEST):
                return await request()

        # The progress of a request that sends is unknown: patience grows with its size
        # instead.
        return await self.ask(url, send, done=done, extra_seconds=size / _SLOW)

    async def _copy(
        self,
        source: Url,
        original: objects.RemoteObject,
        url: Url,
        request: Callable[[], Awaitable[_T]],
    ) -> _T:
        """Send a request that copies a version of `source`, until it succeeds."""
        try:
            return await self._write(url, request)
        except (NotFoundError, objects.OtherObjectError):
            # The storage answers with the same status for the source and for the
            # target. The source is looked at to tell which of them changed.
            try:
                current = await self.stat(source)
            except NotFoundError:
                raise objects.SourceChangedError("it is gone") from None
            if current.token != original.token:
                raise objects.SourceChangedError(
                    f"{current.token}, read was {original.token}"
                ) from None
            raise
