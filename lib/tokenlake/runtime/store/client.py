"""Requests to a remote storage, sent again where that helps; the errors that people see in the end.

One class for each protocol (S3, GCS, HTTP, other file systems of fsspec) sends its requests, each method with an
underscore one of them, once. The public methods send them again: which failures are worth another try, and for how
long.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, final

from tokenlake.base.secrets import scrub
from tokenlake.errors import ConfigError, NotFoundError, StoreError, TokenlakeError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.payload import Payload
from tokenlake.runtime.store.rates import SlowServerError, answered_in_time
from tokenlake.runtime.store.url import Url
from tokenlake.runtime.store.writes import ByteTarget

SECONDS_VARIABLE: Final = "TOKENLAKE_RETRY_SECONDS"
"""Environment variable: how many seconds without any progress a request is tried again; 120 by default."""

Verdict = Literal["transient", "unreachable", "missing", "denied", "changed", "permanent"]

_TRANSIENT_STATUS: Final = frozenset(
    {408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529, 598, 599}
)
_VERDICTS: Final[dict[int, Verdict]] = {
    401: "denied",
    403: "denied",
    404: "missing",
    410: "missing",
    412: "changed",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Of two writes at once one may be told to come again; a damaged body is sent again.
_TRANSIENT_CODES: Final = _names(
    "SlowDown InternalError ServiceUnavailable RequestTimeout ThrottlingException Throttling RequestThrottled "
    "TooManyRequestsException RequestLimitExceeded BandwidthLimitExceeded EC2ThrottledException "
    "ConditionalRequestConflict OperationAborted BadDigest IncompleteBody"
)
# By name, because their packages are optional: of aiohttp, botocore, aiobotocore, requests, urllib3 and Azure. The last
# three are of bodies that were damaged or cut on their way down.
_CLASSES: Final[Mapping[Verdict, frozenset[str]]] = {
    "permanent": _names("SSLCertVerificationError ClientConnectorCertificateError"),
    "unreachable": _names("ConnectionRefusedError ClientConnectorError EndpointConnectionError gaierror"),
    "denied": _names(
        "PermissionError NoCredentialsError PartialCredentialsError DefaultCredentialsError RefreshError"
    ),
    "missing": _names("FileNotFoundError"),
    "transient": _names(
        "ConnectionError TimeoutError EOFError ClientPayloadError ClientConnectionError ServerDisconnectedError "
        "ServerTimeoutError ClientConnectionResetError TransferEncodingError ContentLengthError FSTimeoutError "
        "ConnectionClosedError ConnectTimeoutError ReadTimeoutError ResponseStreamingError AioReadTimeoutError "
        "IncompleteReadError HTTPClientError ChunkedEncodingError ReadTimeout ProtocolError ServiceRequestError "
        "ServiceResponseError IncompleteRead RemoteDisconnected FlexibleChecksumError ResponseParserError "
        "JSONDecodeError"
    ),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The errors of one kind of user: of inputs, or of stores. The requests are the same, the errors are not.

    Attributes:
        option: what holds the URL, for messages about the URL itself.
        failed: the error of an object that cannot be had.
        missing: the error of an object that is not there.
        advice: the last words after a failure of the network; a clause.
    """

    option: str
    failed: type[TokenlakeError]
    missing: type[TokenlakeError]
    advice: str


OF_STORES: Final = Failures(
    option="store",
    failed=StoreError,
    missing=NotFoundError,
    advice="run again: what is finished is kept, and training resumes from its last checkpoint",
)


_SECONDS: Final = 120.0
_TRIES: Final = 30  # without any progress
_FIRST, _MOST = 0.1, 8.0  # pauses between tries, in seconds; each is up to double the one before


def patience() -> float:
    """Return the seconds that the environment asks for; ConfigError for something that is no number."""
    text = os.environ.get(SECONDS_VARIABLE, "")
    try:
        return max(float(text), 0.0) if text else _SECONDS
    except ValueError:
        raise ConfigError(f"{SECONDS_VARIABLE}: got {text!r}, expected a number of seconds") from None


@final
class Trouble:
    """The failures of one request so far, since it last made progress.

    Attributes:
        tries: how many in all.
    """

    def __init__(self, seconds: float, *, reached: bool) -> None:
        """
        Args:
            seconds: without any progress, after which the request is given up.
            reached: the storage has answered before, so that a refused connection is a passing thing.
        """
        self._seconds, self._reached = seconds, reached
        self._since, self._failures = time.monotonic(), 0
        self.tries = 0

    async def wait(self, error: Exception, *, progressed: bool) -> bool:
        """Wait before another try; return False where none is worth it."""
        self.tries += 1
        if progressed:
            self._since, self._failures = time.monotonic(), 0
        self._failures += 1
        kind = verdict(error)
        if kind not in ("transient", "unreachable") or self._failures >= _TRIES:
            return False
        # Jitter: a hundred workers that failed together must not come back together.
        exponent = min(self._failures - 1, 20)
        pause = random.uniform(0.5, 1.0) * min(_FIRST * 2**exponent, _MOST)
        asked = getattr(error, "wait", None)
        pause = max(pause, min(asked, _MOST)) if isinstance(asked, float) else pause
        share = 1.0 if kind == "transient" or self._reached else 0.1
        if time.monotonic() + pause - self._since > self._seconds * share:
            return False
        await asyncio.sleep(pause)
        return True


def verdict(error: BaseException) -> Verdict:
    """Say what a failure of another library means."""
    for cause in _chain(error):
        if found := _of_status(cause):
            return found
    for cause in _chain(error):
        names = {cls.__name__ for cls in type(cause).__mro__}
        for kind, classes in _CLASSES.items():
            if names & classes:
                return kind
    return "permanent"


def told(error: BaseException) -> str:
    """Return a failure as one line for a message of ours, without secrets."""
    deepest = next((cause for cause in _chain(error) if _of_status(cause)), error)
    # Scrubbed before it is cut: a part of a secret would not be known for one.
    text = scrub(" ".join(str(deepest).split()))[:500]
    return f"{type(deepest).__name__}: {text}" if text else type(deepest).__name__


def refusal(
    url: object, error: Exception, tries: int, done: str, failures: Failures, credentials: str
) -> TokenlakeError:
    """Return the error for people of a request that is not tried again.

    Args:
        done: what cannot be done to the object; a participle.
        credentials: sentences on what was tried, and how to give others.
    """
    kind, said = verdict(error), told(error)
    if kind == "missing":
        return failures.missing(f"{url}: there is no such object ({said}).", url=str(url))
    if kind == "denied":
        return failures.failed(f"{url}: access is denied ({said}). {credentials}.", url=str(url))
    if kind == "permanent":
        return failures.failed(f"{url}: it cannot be {done}: {said}.", url=str(url))
    reason = "cannot be reached" if kind == "unreachable" else f"cannot be {done}"
    times = "once" if tries == 1 else f"{tries} times"
    return failures.failed(
        f"{url}: it {reason}: tried {times}, the last failure was {said}. Check the network and the "
        f"storage and {failures.advice}. {SECONDS_VARIABLE} sets how long is tried.",
        url=str(url),
        tries=tries,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _of_status(error: BaseException) -> Verdict | None:
    response: Any = getattr(error, "response", None)
    status: Any = getattr(error, "status", None) or getattr(error, "status_code", None)
    if isinstance(response, dict):  # botocore's
        if response.get("Error", {}).get("Code") in _TRANSIENT_CODES:
            return "transient"
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif status is None:
        status = getattr(response, "status_code", None) or getattr(error, "code", None)
    if not isinstance(status, int):
        return None
    return "transient" if status in _TRANSIENT_STATUS else _VERDICTS.get(status)


_T = TypeVar("_T")

_SLOWEST: Final = 50_000  # bytes a second, below which a request that sends counts as stuck
_SLOW: Final = 10_000_000  # bytes a second, for which patience allows


class ObjectClient(ABC):
    """Requests to one storage.

    Attributes:
        pinned: what the tokens begin with that a request can name as its condition.
        reached: the storage has answered at least once.
        credentials: sentences for the message of a refusal: what was tried, and how to give others.
        failures: what errors of this storage are to whoever asks.
        trials: what a trial before the first write has shown, by what was tried.
        page_seconds: for a page of a listing; None: as for other small answers.
    """

    page_seconds: float | None = None
    pinned: tuple[str, ...] = ()
    credentials: str = ""

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        """`filesystem`: of fsspec; `options`: resolved."""
        self._fs, self._options = filesystem, options
        self._session: Any = None
        self.failures, self.reached = failures, False
        self.trials: dict[str, bool] = {}

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the file system of the storage is opened with."""
        return dict(options)

    async def session(self) -> Any:
        """Return the HTTP session, of S3 the client; it is opened by the first use."""
        self._session = await self._fs.set_session()
        return self._session

    async def close(self) -> None:
        """Close the session; what is asked for later opens another one."""
        if hasattr(self._session, "meta"):  # a client of botocore ends as a context does
            await self._session.__aexit__(None, None, None)
        elif self._session is not None:
            await self._session.close()

    async def stat(self, url: Url) -> objects.RemoteObject:
        """Return what is known of one object; `failures.missing` where there is none."""

        async def once() -> objects.RemoteObject:
            async with answered_in_time():
                return await self._stat(url)

        return await self.ask(url, once)

    async def list(self, url: Url, *, flat: bool, limit: int | None = None) -> list[objects.RemoteObject]:
        """Return objects whose path begins with that of `url`; only those of its folder if `flat`.

        Folders may be among them: their path ends with a slash.

        Args:
            limit: no further page is asked for once there are so many.
        """
        found: list[objects.RemoteObject] = []
        mark: str | None = None

        async def page() -> objects.ListPage:
            async with answered_in_time(self.page_seconds):
                return await self._page(url, flat, mark)

        while True:
            some, mark = await self.ask(url, page)
            found += some
            if mark is None or (limit is not None and len(found) >= limit):
                return found

    async def fetch(self, url: Url, planned: objects.RemoteObject, start: int, size: int) -> bytearray:
        """Return `size` bytes from `start` on; after a failure only what is missing is asked for again.

        Raises:
            OtherObjectError: the answer is of another version than `planned`.
            NoRangesError: see there.
        """
        buffer = objects.RangeBuffer(start, size)
        await self.ask(url, lambda: self._fetch(url, buffer, planned), lambda: buffer.got)
        return buffer.data

    async def download(self, url: Url, planned: objects.RemoteObject | None, target: ByteTarget) -> None:
        """Write the whole object to `target` in one request; after a failure from the beginning.

        Args:
            planned: what it must be; None for whatever is there.
        """

        async def once() -> None:
            target.restart()
            await self._download(url, target.write, planned)

        await self.ask(url, once)

    def pins(self, token: str) -> bool:
        """Say whether every answer to :meth:`fetch` is checked to be of the version `token`."""
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
        """Return what `request` does, sending it again while its failures are passing ones.

        Args:
            progress: bytes that have come so far.
            done: what cannot be done to the object, for messages; a participle.
            extra_seconds: of patience.

        Raises:
            failures.missing: there is no such object.
            failures.failed: it cannot be had, after retries where they may help.
            OtherObjectError, SourceChangedError, NoRangesError: at once.
        """
        trouble = Trouble(patience() + extra_seconds, reached=self.reached)
        while True:
            before = progress()
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
                    raise objects.OtherObjectError("the storage has another version of it now") from None
                # A server that is too slow would otherwise be tried again for ever.
                progressed = progress() > before and not isinstance(error, SlowServerError)
                if not await trouble.wait(error, progressed=progressed):
                    raise refusal(url, error, trouble.tries, done, self.failures, self.credentials) from None

    @abstractmethod
    async def _stat(self, url: Url) -> objects.RemoteObject: ...

    @abstractmethod
    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage: ...

    @abstractmethod
    async def _fetch(self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject) -> None:
        """Fill what is missing in `buffer`, as far as it goes."""

    @abstractmethod
    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None: ...


class BucketClient(ObjectClient):
    """A storage that keeps conditions on writes. `over`: the token of the version that is replaced; None: there must
    be no object.

    Everything raises OtherObjectError where another version is there than `over`, or one where none may be. Whoever
    writes judges what is there then: it may be what an earlier try of theirs has written, whose answer was lost.

    Attributes:
        in_parts: large objects are sent in parts.
    """

    in_parts: bool = False

    @abstractmethod
    async def put(self, url: Url, payload: Payload, over: str | None) -> None:
        """Make the payload the object at `url`, whole or not at all: a conditional put.

        Raises:
            failures.missing: `over` is gone, or there is no such bucket.
        """

    @abstractmethod
    async def copy(
        self,
        source: Url,
        found: objects.RemoteObject,
        url: Url,
        over: str | None,
        *,
        whole: bool = True,
    ) -> None:
        """Make a copy, inside the storage, of the version `found` of another object of the same bucket.

        Args:
            whole: a copy in one request keeps conditions, as a trial has shown.

        Raises:
            SourceChangedError: the source is another one by now.
        """

    @abstractmethod
    async def delete(self, url: Url) -> None:
        """Remove the object, if there is one."""

    @abstractmethod
    def other_token(self, token: str) -> str:
        """Return a token that no version of an object has that has this one."""

    async def uploads(self, url: Url) -> list[tuple[objects.RemoteObject, str]]:
        """Return the unfinished uploads of objects whose path begins with that of `url`; none where none are kept.

        Returns:
            For each what it was to become, `modified` being when it was begun, and the storage's name for it.
        """
        return []

    async def abort(self, url: Url, upload: str) -> bool:
        """End an unfinished upload to `url`; return False if there is none."""
        return False

    async def _write(
        self, url: Url, request: Callable[[], Awaitable[_T]], size: int = 0, done: str = "written"
    ) -> _T:
        """Send a request that writes, with `size` bytes, until it is through."""

        async def once() -> _T:
            async with asyncio.timeout(120 + size / _SLOWEST):
                return await request()

        # Of what is sent nothing tells how far it came, and a long way is no reason to give up at its end.
        return await self.ask(url, once, done=done, extra_seconds=size / _SLOW)

    async def _copy(
        self,
        source: Url,
        found: objects.RemoteObject,
        url: Url,
        request: Callable[[], Awaitable[_T]],
    ) -> _T:
        """Send a request that copies the version `found` of `source`, until it is through."""
        try:
            return await self._write(url, request)
        except (NotFoundError, objects.OtherObjectError):
            # The same status for the source and for the target: a look at the source tells them apart.
            try:
                now = (await self.stat(source)).token
            except NotFoundError:
                raise objects.SourceChangedError("it is gone") from None
            if now != found.token:
                raise objects.SourceChangedError(f"{now}, read was {found.token}") from None
            raise
