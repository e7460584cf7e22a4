"""Which failures of a storage are worth another try, for how long, and the errors that people see in the end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Mapping
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


class DamagedBodyError(ConnectionError):
    """Other bytes came than were sent, as a checksum shows."""


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
