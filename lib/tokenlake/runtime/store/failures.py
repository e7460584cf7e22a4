"""Failures of requests to remote storages: their meaning, and the errors for people.

A failure comes from another library (aiohttp, botocore, requests, a file system of
fsspec). :func:`verdict` classifies it by its HTTP status, its error code or its class;
:func:`refusal` turns it into an error with a remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tokenlake.base.secrets import scrub
from tokenlake.errors import NotFoundError, StoreError, TokenlakeError

SECONDS_VARIABLE: Final = "TOKENLAKE_RETRY_SECONDS"
"""Environment variable: seconds without progress after which a request is given up.

The default is 120.
"""

Verdict = Literal[
    "transient", "unreachable", "missing", "denied", "changed", "permanent"
]
"""Meaning of a failure.

``transient`` and ``unreachable`` ones are worth another try; ``changed`` means that the
storage has another version of the object.
"""

# Statuses of overload and of faults on the way, those of proxies included (509, 520 to
# 529, 598, 599).
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


def _names(words: str) -> frozenset[str]:
    """Return the words of a text, for tables of many names."""
    return frozenset(words.split())


# S3 rejects one of two writes at once with ConditionalRequestConflict; a damaged body
# is sent again.
_TRANSIENT_CODES: Final = _names(
    "SlowDown InternalError ServiceUnavailable RequestTimeout ThrottlingException Throttling RequestThrottled "
    "TooManyRequestsException RequestLimitExceeded BandwidthLimitExceeded EC2ThrottledException "
    "ConditionalRequestConflict OperationAborted BadDigest IncompleteBody"
)
# Classes by name, because their packages are optional: aiohttp, botocore, aiobotocore,
# requests, urllib3 and Azure. The last three are of bodies that were damaged or cut on
# their way down.
_CLASSES: Final[Mapping[Verdict, frozenset[str]]] = {
    "permanent": _names("SSLCertVerificationError ClientConnectorCertificateError"),
    "unreachable": _names(
        "ConnectionRefusedError ClientConnectorError EndpointConnectionError gaierror"
    ),
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
_MOST_TEXT: Final = 500  # characters of a failure in a message


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Error classes of one use of remote storages: inputs, or stores.

    Attributes:
        option: Option that holds the URL, for messages about the URL itself.
        failed: Error class for an object that cannot be read or written.
        missing: Error class for an object that does not exist.
        advice: Clause that ends the message of a network failure.
    """

    option: str
    failed: type[TokenlakeError]
    missing: type[TokenlakeError]
    advice: str


OF_STORES: Final = Failures(
    option="store",
    failed=StoreError,
    missing=NotFoundError,
    advice="run again: finished units are kept, and training resumes from its last checkpoint",
)


def verdict(error: BaseException) -> Verdict:
    """Classify a failure of another library."""
    # A status says most. A library may have wrapped the error that has it.
    for cause in _chain(error):
        status_verdict = _verdict_of_status(cause)
        if status_verdict is not None:
            return status_verdict
    # Without a status, the class of the error or a base of it decides.
    for cause in _chain(error):
        class_names = {base.__name__ for base in type(cause).__mro__}
        for class_verdict, known_names in _CLASSES.items():
            if class_names & known_names:
                return class_verdict
    return "permanent"


def told(error: BaseException) -> str:
    """Return a failure as one line for a message of ours, without secrets."""
    # The error with the status has the message of the storage.
    deepest = error
    for cause in _chain(error):
        if _verdict_of_status(cause) is not None:
            deepest = cause
            break
    # Scrub before cutting: a part of a secret would not be recognized.
    message = scrub(" ".join(str(deepest).split()))[:_MOST_TEXT]
    class_name = type(deepest).__name__
    return f"{class_name}: {message}" if message else class_name


def refusal(
    url: object,
    error: Exception,
    tries: int,
    done: str,
    failures: Failures,
    credentials: str,
) -> TokenlakeError:
    """Return the error of a request that is not tried again.

    Args:
        url: URL of the object.
        error: Last failure.
        tries: Number of tries.
        done: Participle of the action that failed, such as ``read``.
        failures: Error classes of the caller.
        credentials: Sentences on the credentials that were tried, and how to give
            others.
    """
    # Each kind of failure has its own remedy.
    failure_kind = verdict(error)
    cause = told(error)
    if failure_kind == "missing":
        return failures.missing(
            f"{url}: there is no such object ({cause}).", url=str(url)
        )
    if failure_kind == "denied":
        return failures.failed(
            f"{url}: access is denied ({cause}). {credentials}.", url=str(url)
        )
    if failure_kind == "permanent":
        return failures.failed(f"{url}: it cannot be {done}: {cause}.", url=str(url))
    reason = (
        "cannot be reached" if failure_kind == "unreachable" else f"cannot be {done}"
    )
    times = "once" if tries == 1 else f"{tries} times"
    return failures.failed(
        f"{url}: it {reason}: tried {times}, the last failure was {cause}. Check the network and the storage and "
        f"{failures.advice}. {SECONDS_VARIABLE} sets the duration of retries.",
        url=str(url),
        tries=tries,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _verdict_of_status(error: BaseException) -> Verdict | None:
    """Classify an error by its HTTP status or error code; None if neither decides."""
    # Libraries name the status differently: `status` (aiohttp), `status_code` (Azure),
    # `code` (fsspec, urllib), or inside `response` (botocore, requests).
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
    if status in _TRANSIENT_STATUS:
        return "transient"
    return _VERDICTS.get(status)
