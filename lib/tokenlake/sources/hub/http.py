"""Requests to the Hub: whose token, where to, tried how often, and what a refusal means.

`huggingface_hub` brings the connection, the proxy, the certificates and the chain of tokens (``HF_TOKEN``,
then the saved login); the retries and the messages are ours.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final
from urllib.parse import quote

from tokenlake.config.references import resolve_options, scrub
from tokenlake.errors import ConfigError, MissingExtraError, SourceError, TokenlakeError

RETRIES: Final = 4
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_WAIT: Final = 0.25  # seconds; doubles
_LONGEST_WAIT: Final = 300.0  # seconds; what an answer may ask for, the length of the Hub's own window
_SPENT: Final = re.compile(r"\br=0;t=(\d+)")  # nothing remaining, and the seconds until there is again
_TIMEOUT: Final = 30.0  # seconds without a byte
_YES: Final = frozenset({"1", "on", "yes", "true"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the Hub answered.

    Attributes:
        headers: with lower-case names.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """The Hub refused a request; whoever asked knows what that means. Never leaves this package.

    Attributes:
        code: the Hub's own word, such as ``GatedRepo`` or ``RevisionNotFound``; "" where it gave none.
        said: the Hub's sentence.
    """

    def __init__(self, status: int, code: str, said: str) -> None:
        super().__init__(f"{status} {code} {said}")
        self.status, self.code, self.said = status, code, said


@final
class HubClient:
    """A Hub, as one user sees it; threads may share it.

    Attributes:
        endpoint: where it is, without a slash at the end.
        with_token: whether requests carry a token.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, *, retries: int = RETRIES) -> None:
        """Prepare requests, without making one.

        Args:
            options: `storage_options`: ``token`` (a text, a reference to one, or false for none at all) and
                ``endpoint``; without them ``HF_ENDPOINT`` and the chain of `huggingface_hub`.
            retries: how often a request is tried again after a passing fault.

        Raises:
            MissingExtraError: `huggingface_hub` is not installed.
            ConfigError: an option is of no use, or its environment variable is not set.
        """
        try:
            from huggingface_hub import constants, get_session
            from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
            from huggingface_hub.utils import build_hf_headers
        except ImportError as error:
            raise MissingExtraError(
                "reading datasets of the Hub needs huggingface_hub: pip install 'tokenlake[etl]'"
            ) from error
        options = resolve_options(options or {})
        unknown = sorted(set(options) - {"token", "endpoint"})
        if unknown:
            raise ConfigError(
                f"storage_options: {', '.join(unknown)}: not an option of the Hub; expected token and endpoint"
            )
        # Read now, not when huggingface_hub was imported.
        default = os.environ.get("HF_ENDPOINT") or cast("str", constants.ENDPOINT)
        self.endpoint = str(options.get("endpoint") or default).rstrip("/")
        self._token = _token(options.get("token"))
        try:
            self._headers = build_hf_headers(token=self._token, library_name="tokenlake")
        except OSError as error:
            raise ConfigError(
                "storage_options.token: true asks for a saved login, and there is none"
            ) from error
        bearer = next((v for name, v in self._headers.items() if name.lower() == "authorization"), "")
        if not bearer.isascii() or not bearer.isprintable():
            # The HTTP library would name the header's value in its own message.
            raise ConfigError(
                "the token for the Hub holds characters that no token has (a line end, perhaps)"
            )
        self.with_token = bool(bearer)
        self._session: Callable[[], Any] = get_session
        self._offline: type[Exception] = OfflineModeIsEnabled
        # Releases of huggingface_hub differ in their HTTP library; the root of its errors is a base of theirs.
        self._faults = (cast("type[Exception]", HfHubHTTPError.__bases__[0]), OSError)
        self._retries = retries

    def get(self, path: str, *, what: str, span: tuple[int, int] | None = None) -> Answer:
        """Ask for `path`, below the endpoint; passing faults are tried again, with growing waits.

        Args:
            what: what is asked for, to begin a message with.
            span: (first byte, one past the last byte) where only a part is wanted; it must not be empty.

        Raises:
            Refused: the Hub said no (4xx); not a passing fault.
            SourceError: offline, or still failing after the retries.
        """
        if _is_offline():
            raise offline(what)
        attempt = 0
        while True:
            answer, why = self._try(path, span, what)
            if answer is not None and answer.status not in _RETRIED:
                return _accepted(answer, span)
            if attempt == self._retries:
                raise self._unreachable(what, why)
            time.sleep(_wait(attempt, answer.headers if answer else {}))
            attempt += 1

    def _try(self, path: str, span: tuple[int, int] | None, what: str) -> tuple[Answer | None, str]:
        """Return the answer, or None and why there is none."""
        try:
            answer = self._once(path, span)
        except self._offline as error:
            raise offline(what) from error
        except self._faults as error:
            return None, scrub(
                f"{type(error).__name__}: {error}"
            )  # where storage hosts are, queries are signatures
        return answer, f"status {answer.status}"

    def _once(self, path: str, span: tuple[int, int] | None) -> Answer:
        headers = dict(self._headers)
        # Ranges are of the bytes as they are stored, not of what a server makes of them on the way.
        headers["accept-encoding"] = "identity"
        if span:
            headers["range"] = f"bytes={span[0]}-{span[1] - 1}"
        with self._session().stream(
            "GET", self.endpoint + path, headers=headers, timeout=_TIMEOUT, follow_redirects=True
        ) as response:
            # What the Hub says of a file comes with its redirect to where the content is.
            found: dict[str, str] = {}
            for step in (*response.history, response):
                found |= {name.lower(): value for name, value in step.headers.items()}
            # A server that ignores ranges would send the whole file, however large it is.
            whole = span is not None and response.status_code == 200
            return Answer(response.status_code, found, b"" if whole else response.read())

    def download(self, repo: str, commit: str, path: str, cache_dir: str | Path | None) -> Path:
        """Return a file of a dataset in the cache of `huggingface_hub`, downloaded if it is not there yet.

        Raises:
            SourceError: it is not in the cache and cannot be downloaded.
        """
        from huggingface_hub import hf_hub_download

        if _is_offline():
            raise offline(f"dataset {repo!r}: {path}")
        try:
            found = hf_hub_download(
                repo,
                path,
                repo_type="dataset",
                revision=commit,
                cache_dir=cache_dir,
                token=self._token,
                endpoint=self.endpoint,
            )
        except self._faults as error:
            raise SourceError(
                f"dataset {repo!r}: {path} cannot be downloaded ({type(error).__name__}: {scrub(str(error))})",
                repo=repo,
            ) from error
        return Path(found)

    def _unreachable(self, what: str, why: str) -> SourceError:
        return SourceError(
            f"{what}: the Hub at {self.endpoint} could not be reached or did not serve it, after "
            f"{self._retries + 1} attempts ({why}). Check the connection and HF_ENDPOINT, and run again later.",
            endpoint=self.endpoint,
        )


def offline(what: str) -> TokenlakeError:
    """Return the error for a request while ``HF_HUB_OFFLINE`` is set."""
    return SourceError(
        f"{what}: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so the Hub is not asked. Unset it, or "
        "download the files and name them in data_files as local files."
    )


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in _YES for name in names)


def _token(option: object) -> str | bool | None:
    """Check the option `token`; None: the usual chain, False: none."""
    if option is None or isinstance(option, bool | str):
        return option
    raise ConfigError(
        f"storage_options.token: got a {type(option).__name__}, must be {{env: NAME}} or {{block: NAME}}; leave it "
        "out for HF_TOKEN and the saved login"
    )


def _wait(attempt: int, headers: Mapping[str, str]) -> float:
    asked = headers.get("retry-after", "")
    if not asked.isdigit():
        limit = _SPENT.search(headers.get("ratelimit", ""))
        asked = limit.group(1) if limit else ""
    if asked:
        return min(float(asked), _LONGEST_WAIT)
    return _FIRST_WAIT * 2**attempt * random.uniform(0.75, 1.25)


def _accepted(answer: Answer, span: tuple[int, int] | None) -> Answer:
    if answer.status >= 400:
        said = answer.headers.get("x-error-message", "")
        raise Refused(answer.status, answer.headers.get("x-error-code", ""), said)
    if span and answer.status != 206:
        raise Refused(answer.status, "NoRanges", "the server ignores requests for a part of a file")
    return answer


def quoted(path: str) -> str:
    """Return a path in a repository as a part of a URL."""
    return quote(path, safe="/")
