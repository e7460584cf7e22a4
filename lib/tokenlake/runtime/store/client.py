"""Requests to a remote storage, repeated while their failures are passing ones.

One class for each protocol (S3, GCS, HTTP, other file systems of fsspec) sends its
requests: each method with an underscore sends one of them, once. The public methods
repeat them: they decide which failures are worth another try, and for how long. Inputs
and stores use the same clients with other error classes
(:class:`tokenlake.runtime.store.failures.Failures`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, final

from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.failures import (
    SECONDS_VARIABLE,
    Failures,
    refusal,
    verdict,
)
from tokenlake.runtime.store.rates import SlowServerError, answered_in_time
from tokenlake.runtime.store.url import Url
from tokenlake.runtime.store.writes import ByteTarget

_T = TypeVar("_T")

_SECONDS: Final = 120.0  # default of the patience
_TRIES: Final = 30  # tries without any progress
# Seconds of the first pause; each pause is up to double the one before.
_FIRST: Final = 0.1
_MOST: Final = 8.0  # seconds of the longest pause
# Of the patience, for a storage that refuses and has never answered.
_UNREACHED_SHARE: Final = 0.1


def patience() -> float:
    """Return the seconds without progress after which a request is given up.

    The environment may set them.

    Raises:
        ConfigError: The variable holds no number.
    """
    seconds_text = os.environ.get(SECONDS_VARIABLE, "")
    if not seconds_text:
        return _SECONDS
    try:
        return max(float(seconds_text), 0.0)
    except ValueError:
        raise ConfigError(
            f"{SECONDS_VARIABLE}: got {seconds_text!r}, expected a number of seconds"
        ) from None


@final
class Trouble:
    """The failures of one request since it last made progress.

    Attributes:
        tries: Number of tries in all.
    """

    def __init__(self, seconds: float, *, reached: bool) -> None:
        """
        Args:
            seconds: Seconds without any progress after which the request is given up.
            reached: The storage has answered before, so that a refused connection is
                likely to pass.
        """
        self._seconds = seconds
        self._reached = reached
        self._since = time.monotonic()
        self._failures = 0
        self.tries = 0

    async def wait(self, error: Exception, *, progressed: bool) -> bool:
        """Wait before another try.

        Args:
            error: The failure.
            progressed: The request made progress before it failed.

        Returns:
            False, at once, if another try is not worth it.
        """
        self.tries += 1
        if progressed:
            self._since = time.monotonic()
            self._failures = 0
        self._failures += 1
        # Failures that another try cannot help end the request at once.
        failure_kind = verdict(error)
        if failure_kind not in ("transient", "unreachable") or self._failures >= _TRIES:
            return False
        pause_seconds = self._pause(error)
        # A storage that has never answered is probably a wrong address: waiting long
        # for it would only hide that.
        allowed_seconds = self._seconds
        if failure_kind == "unreachable" and not self._reached:
            allowed_seconds *= _UNREACHED_SHARE
        # A pause that ends after the patience is not begun.
        if time.monotonic() + pause_seconds - self._since > allowed_seconds:
            return False
        await asyncio.sleep(pause_seconds)
        return True

    def _pause(self, error: Exception) -> float:
        """Return the seconds to wait before another try.

        They are doubled with each failure; a server may ask for more.
        """
        # The exponent is bounded, so that the power of 2 stays a small number.
        exponent = min(self._failures - 1, 20)
        # Jitter: a hundred workers that failed together must not come back together.
        pause_seconds = random.uniform(0.5, 1.0) * min(_FIRST * 2**exponent, _MOST)
        requested = getattr(error, "wait", None)
        if isinstance(requested, float):
            pause_seconds = max(pause_seconds, min(requested, _MOST))
        return pause_seconds


class ObjectClient(ABC):
    """Requests to one storage.

    Attributes:
        page_seconds: Time limit of a page of a listing; None: that of other small
            answers.
        pinned: Beginnings of the tokens that a request can name as its condition.
        credentials: Sentences for the message of a refusal: credentials that were
            tried, and how to give others.
        failures: Error classes of the user of this storage.
        reached: The storage has answered at least once.
        trials: Results of trials before the first write, by their subject.
    """

    page_seconds: float | None = None
    pinned: tuple[str, ...] = ()
    credentials: str = ""

    def __init__(
        self, filesystem: Any, options: Mapping[str, Any], failures: Failures
    ) -> None:
        """
        Args:
            filesystem: File system of fsspec.
            options: Its options, with secrets resolved.
            failures: Error classes of the user.
        """
        self._fs = filesystem
        self._options = options
        self._session: Any = None
        self.failures = failures
        self.reached = False
        self.trials: dict[str, bool] = {}

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the file system for the options of a user."""
        return dict(options)

    async def session(self) -> Any:
        """Return the HTTP session, or the S3 client; the first use opens it."""
        self._session = await self._fs.set_session()
        return self._session

    async def close(self) -> None:
        """Close the session; a later request opens another one."""
        # A client of botocore ends like a context manager, and has `meta`.
        if hasattr(self._session, "meta"):
            await self._session.__aexit__(None, None, None)
        elif self._session is not None:
            await self._session.close()

    async def stat(self, url: Url) -> objects.RemoteObject:
        """Return the size and version of an object.

        Raises:
            failures.missing: The object does not exist.
        """

        async def request() -> objects.RemoteObject:
            async with answered_in_time():
                return await self._stat(url)

        return await self.ask(url, request)

    async def list(
        self, url: Url, *, flat: bool, limit: int | None = None
    ) -> list[objects.RemoteObject]:
        """Return the objects whose path begins with that of `url`.

        Folders may be among them: their path ends with a slash.

        Args:
            url: URL with the beginning of the paths.
            flat: List only the objects of its folder.
            limit: Number of objects after which no further page is requested.
        """
        remote_objects: list[objects.RemoteObject] = []
        page_mark: str | None = None

        async def request() -> objects.ListPage:
            async with answered_in_time(self.page_seconds):
                return await self._page(url, flat, page_mark)

        # Each page is a request of its own, so that a failure repeats one page only.
        while True:
            page, page_mark = await self.ask(url, request)
            remote_objects += page
            is_enough = limit is not None and len(remote_objects) >= limit
            if page_mark is None or is_enough:
                return remote_objects

    async def fetch(
        self, url: Url, planned: objects.RemoteObject, start: int, size: int
    ) -> bytearray:
        """Return a range of an object.

        After a failure only the missing rest is requested again.

        Args:
            url: URL of the object.
            planned: Version that the answer must have.
            start: Offset of the first byte.
            size: Number of bytes.

        Raises:
            OtherObjectError: The answer is of another version than `planned`.
            NoRangesError: The server sends whole objects only.
        """
        # The buffer outlives a failed request, and keeps the bytes that came.
        buffer = objects.RangeBuffer(start, size)
        await self.ask(
            url, lambda: self._fetch(url, buffer, planned), lambda: buffer.got
        )
        return buffer.data

    async def download(
        self, url: Url, planned: objects.RemoteObject | None, target: ByteTarget
    ) -> None:
        """Write a whole object to `target` in one request.

        After a failure it is sent again from the beginning.

        Args:
            url: URL of the object.
            planned: Version that it must have; None: any.
            target: Receiver of the bytes.
        """

        async def request() -> None:
            target.restart()
            await self._download(url, target.write, planned)

        await self.ask(url, request)

    def pins(self, token: str) -> bool:
        """Return whether each answer to :meth:`fetch` has the version of this token."""
        return token.startswith(self.pinned)

    async def ask(
        self,
        url: Url,
        request: Callable[[], Awaitable[_T]],
        progress: Callable[[], int] = lambda: 0,
        *,
        done: str = "read",
        extra_seconds: float = 0.0,
    ) -> _T:
        """Return the result of a request, sending it again after passing failures.

        Args:
            url: URL of the object, for messages.
            request: Function that sends the request.
            progress: Function that returns the number of bytes that have come so far.
            done: Participle of the action, for messages.
            extra_seconds: Seconds in addition to :func:`patience`.

        Raises:
            failures.missing: The object does not exist.
            failures.failed: The request failed, after retries where they may help.
            OtherObjectError, SourceChangedError, NoRangesError: At once.
        """
        trouble = Trouble(patience() + extra_seconds, reached=self.reached)
        while True:
            bytes_before = progress()
            # Errors of ours are final: repeating the request would not change them.
            try:
                return await request()
            except (
                objects.OtherObjectError,
                objects.SourceChangedError,
                objects.NoRangesError,
                TokenlakeError,
            ):
                raise
            except Exception as error:
                if verdict(error) == "changed":
                    raise objects.OtherObjectError(
                        "the storage now has another version of it"
                    ) from None
                # A server that is too slow makes progress, and would otherwise be tried
                # again for ever.
                is_slow = isinstance(error, SlowServerError)
                has_progressed = progress() > bytes_before and not is_slow
                if not await trouble.wait(error, progressed=has_progressed):
                    raise refusal(
                        url, error, trouble.tries, done, self.failures, self.credentials
                    ) from None

    @abstractmethod
    async def _stat(self, url: Url) -> objects.RemoteObject:
        """Request the size and version of an object."""

    @abstractmethod
    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        """Request a page of a listing.

        Args:
            url: URL with the beginning of the paths.
            flat: List only the objects of its folder.
            mark: Mark of the page; None: the first page.
        """

    @abstractmethod
    async def _fetch(
        self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        """Request the missing rest of `buffer`, and fill it from the answer."""

    @abstractmethod
    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        """Request a whole object, and hand its bytes to `write`."""
