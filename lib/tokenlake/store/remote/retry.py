"""What is worth another try at a storage, and how long it is tried.

Whose a failure is: an input's or a store's. The requests are the same, the errors are not.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tokenlake.config.references import scrub
from tokenlake.errors import ConfigError, NotFoundError, StoreError, TokenlakeError

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
_TRANSIENT_CODES: Final = frozenset(
    {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "ThrottlingException", "Throttling"}
    | {
        "RequestThrottled",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
    }
    # Of two writes at once one may be told to come again; a damaged body is sent again.
    | {"ConditionalRequestConflict", "OperationAborted", "BadDigest", "IncompleteBody"}
)
_DENIED: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"}
)
_UNREACHABLE: Final = frozenset({"ClientConnectorError", "EndpointConnectionError", "gaierror"})
# By name, because their packages are optional: of aiohttp, botocore, aiobotocore, requests, urllib3 and Azure.
_TRANSIENT: Final = frozenset(
    {"ClientPayloadError", "ClientConnectionError", "ServerDisconnectedError", "ServerTimeoutError"}
    | {"ClientConnectionResetError", "TransferEncodingError", "ContentLengthError", "FSTimeoutError"}
    | {"ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError", "ResponseStreamingError"}
    | {"AioReadTimeoutError", "IncompleteReadError", "HTTPClientError", "ChunkedEncodingError", "ReadTimeout"}
    | {"ProtocolError", "ServiceRequestError", "ServiceResponseError", "IncompleteRead", "RemoteDisconnected"}
    # Of bodies that were damaged or cut on their way down.
    | {"FlexibleChecksumError", "ResponseParserError", "JSONDecodeError"}
)


class HttpStatusError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        status: of the answer.
        wait: seconds that the server asks to wait, None if it does not.
    """

    def __init__(self, status: int, reason: str, wait: float | None = None) -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status, self.wait = status, wait


class ShortBodyError(ConnectionError):
    """A body ended before all of it had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request is tried again.

    Attributes:
        seconds: without any progress, after which it is given up.
        tries: without any progress, after which it is given up.
        first, most: pauses between tries, in seconds; each is up to double the one before.
    """

    seconds: float = 120.0
    tries: int = 30
    first: float = 0.1
    most: float = 8.0


def patience() -> Patience:
    """Return the patience that the environment asks for; ConfigError for something that is no number."""
    text = os.environ.get(SECONDS_VARIABLE, "")
    try:
        return Patience(seconds=max(float(text), 0.0)) if text else Patience()
    except ValueError:
        raise ConfigError(f"{SECONDS_VARIABLE}: got {text!r}, expected a number of seconds") from None


@final
class Trouble:
    """The failures of one request so far, since it last made progress.

    Attributes:
        tries: how many in all.
        last: the last one.
    """

    def __init__(self, patience: Patience, *, reached: bool) -> None:
        """`reached`: the storage has answered before, so that a refused connection is a passing thing."""
        self._patience, self._reached = patience, reached
        self._since, self._failures = time.monotonic(), 0
        self.tries = 0
        self.last: BaseException | None = None

    async def wait(self, error: Exception, *, progressed: bool) -> bool:
        """Wait before another try; return False where none is worth it."""
        self.tries, self.last = self.tries + 1, error
        if progressed:
            self._since, self._failures = time.monotonic(), 0
        self._failures += 1
        kind = verdict(error)
        if kind not in ("transient", "unreachable"):
            return False
        pause = self._pause(error)
        share = 1.0 if kind == "transient" or self._reached else 0.1
        if self._failures >= self._patience.tries:
            return False
        if time.monotonic() + pause - self._since > self._patience.seconds * share:
            return False
        await asyncio.sleep(pause)
        return True

    def _pause(self, error: Exception) -> float:
        # Jitter: a hundred workers that failed together must not come back together.
        exponent = min(self._failures - 1, 20)
        pause = random.uniform(0.5, 1.0) * min(self._patience.first * 2**exponent, self._patience.most)
        asked = getattr(error, "wait", None)
        return max(pause, min(asked, self._patience.most)) if isinstance(asked, float) else pause


def verdict(error: BaseException) -> Verdict:
    """Say what a failure of another library means."""
    for cause in _chain(error):
        if found := _of_status(cause):
            return found
    for cause in _chain(error):
        if found := _of_class(cause):
            return found
    return "permanent"


def told(error: BaseException) -> str:
    """Return a failure as one line for a message of ours, without secrets."""
    deepest = next((cause for cause in _chain(error) if _of_status(cause)), error)
    # Scrubbed before it is cut: a part of a secret would not be known for one.
    text = scrub(" ".join(str(deepest).split()))[:500]
    return f"{type(deepest).__name__}: {text}" if text else type(deepest).__name__


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


def _of_class(error: BaseException) -> Verdict | None:
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, ssl.SSLCertVerificationError) or "ClientConnectorCertificateError" in names:
        return "permanent"
    if isinstance(error, ConnectionRefusedError) or names & _UNREACHABLE:
        return "unreachable"
    if isinstance(error, PermissionError) or names & _DENIED:
        return "denied"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, ConnectionError | TimeoutError | EOFError) or names & _TRANSIENT:
        return "transient"
    return None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How what goes wrong at a storage is told.

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
    advice="go on from the last checkpoint",
)

OF_WRITERS: Final = Failures(
    option="store",
    failed=StoreError,
    missing=NotFoundError,
    advice="run again: what is finished is kept",
)
