"""Requests to the Hub, with its retries, its limits of rate, and its errors.

`huggingface_hub` provides the connection, the proxy, the certificates and the chain of
tokens (``HF_TOKEN``, then the saved login). Its own listing follows links with the
token, to any host, and its own retries log URLs. The requests, the retries and the
messages are therefore implemented here.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final
from urllib.parse import urljoin
from urllib.request import getproxies

from tokenlake.base.secrets import resolve_options, scrub
from tokenlake.base.threads import start_thread
from tokenlake.errors import (
    ConfigError,
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl.sources.hub_id import HubId
from tokenlake.runtime.store import rates
from tokenlake.runtime.store.rates import NoAnswerError, RateFloor
from tokenlake.runtime.store.redirects import (
    MOST_REDIRECTS,
    HttpOrigin,
    RedirectRefusedError,
    private_kind,
    require_allowed_addresses,
)

RETRIES: Final = 4
"""Number of times that a request is tried again."""

# Request timeout, too many requests, and faults of servers and gateways: the same
# request may succeed later.
_PASSING_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_WAIT: Final = 0.25  # seconds; each wait is twice the one before
# Seconds that an answer may ask for, the length of the Hub's own window.
_LONGEST_WAIT: Final = 300.0
# No request remaining, and the seconds until there is one again.
_SPENT: Final = re.compile(r"\br=0;t=(\d+)")
_TIMEOUT: Final = 30.0  # seconds without a byte
# Headers that are sent to another host, too; a token never is.
_SAFE_HEADERS: Final = ("accept", "accept-encoding", "range", "user-agent")
_TRUE_VALUES: Final = frozenset({"1", "on", "yes", "true"})


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the Hub.

    Attributes:
        status: HTTP status.
        headers: Headers, their names in lower case.
        body: Body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """The Hub refused a request.

    The caller knows the meaning; the exception never leaves the library.

    Attributes:
        status: HTTP status.
        code: Code of the Hub, such as ``GatedRepo`` or ``RevisionNotFound``; "" for
            none.
        said: Message of the Hub.
    """

    def __init__(self, status: int, code: str, said: str) -> None:
        super().__init__(f"{status} {code} {said}")
        self.status = status
        self.code = code
        self.said = said


@final
class HubClient:
    """A Hub, as one user sees it; threads may share it.

    Attributes:
        endpoint: Its URL, without a slash at the end.
        with_token: Whether requests carry a token.
    """

    def __init__(
        self, options: Mapping[str, Any] | None = None, *, retries: int = RETRIES
    ) -> None:
        """Prepare requests, without making one.

        Args:
            options: `storage_options`: ``token`` (a text, a reference to one, or false
                for none at all) and ``endpoint``; without them ``HF_ENDPOINT`` and the
                chain of `huggingface_hub`.
            retries: Number of times that a request is tried again after a passing
                fault.

        Raises:
            MissingExtraError: `huggingface_hub` is not installed.
            ConfigError: An option cannot be used, or its environment variable is not
                set.
        """
        try:
            from huggingface_hub import constants, get_session
            from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
        except ImportError as error:
            raise MissingExtraError(
                "reading datasets of the Hub needs huggingface_hub: pip install 'tokenlake[etl]'"
            ) from error
        # Options: a token and an endpoint, each with a default of `huggingface_hub`.
        options = resolve_options(options or {})
        unknown = sorted(set(options) - {"token", "endpoint"})
        if unknown:
            raise ConfigError(
                f"storage_options: {', '.join(unknown)}: not an option of the Hub; expected token or endpoint"
            )
        # Read now, not when huggingface_hub was imported.
        default = os.environ.get("HF_ENDPOINT") or cast("str", constants.ENDPOINT)
        self.endpoint = str(options.get("endpoint") or default).rstrip("/")
        self._token = options.get("token")
        if not (self._token is None or isinstance(self._token, bool | str)):
            raise ConfigError(
                f"storage_options.token: got a {type(self._token).__name__}, must be {{env: NAME}} or {{block: NAME}}; "
                "leave it out for HF_TOKEN and the saved login"
            )
        self._headers = _headers(self._token)
        self.with_token = any(name.lower() == "authorization" for name in self._headers)
        self._session: Callable[[], Any] = get_session
        self._offline: type[Exception] = OfflineModeIsEnabled
        # Releases of huggingface_hub differ in their HTTP library; the root of its
        # errors is a base of theirs.
        self._faults = (cast("type[Exception]", HfHubHTTPError.__bases__[0]), OSError)
        self._retries = retries

    def get(
        self, path: str, *, what: str, span: tuple[int, int] | None = None
    ) -> Answer:
        """Request a path below the endpoint, several times after passing faults.

        Waits between attempts grow.

        Args:
            path: Path below the endpoint.
            what: Subject of the request, with which a message begins.
            span: First byte and end of the part that is wanted, which must not be
                empty; None for all.

        Raises:
            Refused: The Hub refuses the request (4xx); not a passing fault.
            SourceError: The Hub is offline, or still fails after the retries.
        """
        last_problem = ""
        for attempt in range(self._retries + 1):
            headers: Mapping[str, str] = {}
            try:
                # An answer that is no passing fault ends the attempts.
                if _is_offline():
                    raise self._offline
                answer = self._request(path, span)
                headers = answer.headers
                last_problem = f"status {answer.status}"
                if answer.status not in _PASSING_STATUS:
                    _require_success(answer, is_part=span is not None)
                    return answer
            except self._offline as error:
                raise offline(what) from error
            except RedirectRefusedError as error:
                raise SourceError(f"{what}: {error}", endpoint=self.endpoint) from None
            except self._faults as error:
                # In URLs of storage hosts, queries are signatures.
                last_problem = scrub(f"{type(error).__name__}: {error}")
            if attempt < self._retries:
                time.sleep(_wait(attempt, headers))
        raise SourceError(
            f"{what}: the Hub at {self.endpoint} could not be reached or did not respond correctly, after "
            f"{self._retries + 1} attempts ({last_problem}). Check the connection and HF_ENDPOINT, "
            "and run again later.",
            endpoint=self.endpoint,
        )

    def _request(self, path: str, span: tuple[int, int] | None) -> Answer:
        """Send a request once, and follow its redirects.

        Raises:
            RedirectRefusedError: A redirect leads to a place that is not allowed.
        """
        # Ranges are those of the stored bytes, not of bytes that a server compresses on
        # the way.
        headers = {**self._headers, "accept-encoding": "identity"}
        if span:
            headers["range"] = f"bytes={span[0]}-{span[1] - 1}"
        url = self.endpoint + path
        answer_headers: dict[str, str] = {}
        for _ in range(MOST_REDIRECTS + 1):
            request = self._session().stream(
                "GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=False
            )
            with _answering(request) as response:
                # The Hub describes a file in the headers of the redirect to its
                # content.
                for name, value in response.headers.items():
                    answer_headers[name.lower()] = value
                if not response.is_redirect:
                    # A server that ignores ranges would send the whole file, however
                    # large it is.
                    is_whole_file = span is not None and response.status_code == 200
                    body_bytes = b"" if is_whole_file else _body(response)
                    return Answer(response.status_code, answer_headers, body_bytes)
            redirect_url = urljoin(url, answer_headers.pop("location", ""))
            _require_redirect(url, redirect_url)
            # Another host gets neither the token nor a cookie.
            if HttpOrigin.of(redirect_url) != HttpOrigin.of(url):
                headers = {
                    name: value
                    for name, value in headers.items()
                    if name.lower() in _SAFE_HEADERS
                }
            url = redirect_url
        raise RedirectRefusedError(
            f"the server redirects more than {MOST_REDIRECTS} times"
        )

    def download(self, dataset: HubId, path: str, cache_dir: str | Path | None) -> Path:
        """Return a file of a dataset in the cache of `huggingface_hub`.

        It is downloaded if it is not in the cache yet.

        Args:
            dataset: The dataset.
            path: Path of the file in it.
            cache_dir: Folder of the cache, None for the default one.

        Raises:
            SourceError: The file is not in the cache and cannot be downloaded.
        """
        from huggingface_hub import hf_hub_download

        if _is_offline():
            raise offline(f"{dataset}: {path}")
        download: Any = hf_hub_download  # its stub does not know all types of a token
        try:
            cached_path = download(
                dataset.repo,
                path,
                repo_type="dataset",
                revision=dataset.revision,
                cache_dir=cache_dir,
                token=self._token,
                endpoint=self.endpoint,
            )
            return Path(cached_path)
        except self._faults as error:
            raise SourceError(
                f"{dataset}: {path} cannot be downloaded ({type(error).__name__}: {scrub(str(error))})",
                repo=dataset.repo,
            ) from error


@contextmanager
def _answering(request: AbstractContextManager[Any]) -> Generator[Any]:
    """Send a request and yield its response.

    Its headers must come within :data:`rates.ANSWER_SECONDS`.

    The HTTP library bounds only the time without a byte. A thread therefore waits for
    the headers, and is left behind with the connection of a server that sends them byte
    by byte.
    """
    response: Future[Any] = Future()
    given_up = threading.Event()

    def send() -> None:
        try:
            answer = request.__enter__()
        except BaseException as error:
            response.set_exception(error)
            return
        response.set_result(answer)
        # The caller does not take an answer after it gave up, so it is closed here.
        if given_up.is_set():
            request.__exit__(None, None, None)

    start_thread(send, end=given_up.set, name="hub-headers")
    try:
        answer = response.result(rates.ANSWER_SECONDS)
    except TimeoutError:
        given_up.set()
        raise NoAnswerError(rates.ANSWER_SECONDS) from None
    try:
        yield answer
    finally:
        request.__exit__(None, None, None)


def _require_success(answer: Answer, *, is_part: bool) -> None:
    """Raise Refused unless the Hub sent the file, or the requested part of it."""
    if answer.status >= 400:
        code = answer.headers.get("x-error-code", "")
        raise Refused(answer.status, code, answer.headers.get("x-error-message", ""))
    if is_part and answer.status != 206:
        raise Refused(
            answer.status,
            "NoRanges",
            "the server ignores requests for a part of a file",
        )


def _body(response: Any) -> bytes:
    """Return the body of an answer; SlowServerError where it comes too slowly."""
    body_bytes = bytearray()
    floor = RateFloor()
    chunk_start = time.monotonic()
    # The rate is measured for each chunk, so that a server that trickles bytes is given
    # up, however long the time without a byte may be.
    for chunk in response.iter_bytes():
        chunk_end = time.monotonic()
        floor.add(len(chunk), chunk_end - chunk_start)
        body_bytes += chunk
        chunk_start = chunk_end
    return bytes(body_bytes)


def _require_redirect(source: str, target: str) -> None:
    """Refuse a redirect of a public Hub to an address that is not public.

    A private Hub may keep files anywhere.

    The hosts that hold the Hub's files are not in the list of allowed inputs, which
    names datasets.
    """
    before = HttpOrigin.of(source)
    after = HttpOrigin.of(target)
    is_downgrade = before.scheme == "https" and after.scheme == "http"
    if after.scheme not in ("http", "https") or is_downgrade:
        raise RedirectRefusedError(
            f"the server redirects from {before.scheme} to {after.scheme}"
        )
    if before.host == after.host or getproxies():
        return  # a proxy resolves names itself, and guards its network
    addresses_before = _addresses(before)
    addresses_after = _addresses(after)
    is_private_hub = any(private_kind(address) for address in addresses_before)
    if not is_private_hub:
        require_allowed_addresses(addresses_before, addresses_after, after)


def _addresses(origin: HttpOrigin) -> list[str]:
    """Return the addresses of a host."""
    results = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return [str(result[4][0]) for result in results]


def offline(what: str) -> SourceError:
    """Return the error for a request while ``HF_HUB_OFFLINE`` is set."""
    return SourceError(
        f"{what}: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so no request was sent to the Hub. Unset it, or "
        "download the files and list the local files in data_files."
    )


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in _TRUE_VALUES for name in names)


def _headers(token: str | bool | None) -> Mapping[str, str]:
    """Return the headers of every request.

    Args:
        token: Token; None for the usual chain, False for no token, True for the saved
            login.

    Raises:
        ConfigError: The token cannot be used, or no login is saved.
    """
    from huggingface_hub.utils import build_hf_headers

    try:
        headers = build_hf_headers(token=token, library_name="tokenlake")
    except OSError as error:
        raise ConfigError(
            "storage_options.token: true requires a saved login, but there is none"
        ) from error
    for value in headers.values():
        if value.isascii() and value.isprintable():
            continue
        # The HTTP library would name the header's value in its own message.
        raise ConfigError(
            "the token for the Hub contains characters that tokens never have (perhaps a line end)"
        )
    return headers


def _wait(attempt: int, headers: Mapping[str, str]) -> float:
    """Return the seconds to wait before the next attempt.

    Args:
        attempt: Number of attempts before this one.
        headers: Headers of the answer, which may ask for a time.
    """
    # The answer may state the seconds in two ways. Otherwise the wait doubles, with
    # some chance in it, so that many workers do not come back at once.
    seconds = headers.get("retry-after", "")
    if not seconds.isdigit():
        spent_match = _SPENT.search(headers.get("ratelimit", ""))
        seconds = spent_match.group(1) if spent_match else ""
    if seconds:
        return min(float(seconds), _LONGEST_WAIT)
    return _FIRST_WAIT * 2**attempt * random.uniform(0.75, 1.25)


def refusal(
    error: Refused,
    dataset: HubId,
    *,
    with_token: bool,
    near: Callable[[], str] = lambda: "",
) -> SourceError:
    """Return the error for a refused request.

    Args:
        error: The refusal.
        dataset: Dataset that was requested.
        with_token: Whether the request carried a token.
        near: Function that returns a clause about the revisions that exist.
    """
    # The codes are more exact than the status: the Hub answers 401 for a dataset that
    # does not exist, too.
    page = f"https://huggingface.co/datasets/{dataset.repo}"
    if error.code == "RevisionNotFound":
        return SourceNotFoundError(
            f"{dataset} has no revision {dataset.revision!r}{near()}",
            repo=dataset.repo,
            revision=dataset.revision,
        )
    if error.code == "GatedRepo":
        access_clause = "no token was given"
        if with_token:
            access_clause = "this token has no access"
        message = (
            f"{dataset} is gated: its files are only for users with granted access, and {access_clause}. "
            f"Request access at {page}, then log in with `hf auth login` or set HF_TOKEN."
        )
    elif error.status == 401 and with_token and error.code != "RepoNotFound":
        message = (
            f"{dataset}: the Hub does not accept the token; it may be expired or mistyped. Log in again with `hf "
            "auth login`, or correct HF_TOKEN or storage_options.token."
        )
    elif error.code == "RepoNotFound" or error.status in (401, 404):
        access_clause = "no token was given"
        if with_token:
            access_clause = "the token may have no access to it"
        return SourceNotFoundError(
            f"the Hub has no {dataset}, or it is private and {access_clause}. Check the spelling at {page}; for a "
            "private dataset log in with `hf auth login` or set HF_TOKEN. (Local files are read without `type: "
            "huggingface`.)",
            repo=dataset.repo,
        )
    else:
        hub_message = f", {error.said!r}" if error.said else ""
        message = (
            f"{dataset}: the Hub refuses it "
            f"(status {error.status} {error.code}{hub_message})"
        )
    return SourceError(message, repo=dataset.repo)
