"""Errors of the Hub, as errors of this library with a remedy.

The status of the answer decides: the Hub uses it for the same causes in all requests.
Only a lack of space has several, and is known by its words.
"""

from __future__ import annotations

from typing import Any, Final

from tokenlake.base.secrets import scrub
from tokenlake.errors import (
    ConfigError,
    StoreError,
    TokenlakeError,
    VersionConflictError,
)
from tokenlake.etl.sources.hub_client import offline

_LONGEST_QUOTE: Final = 300  # characters of the Hub's own message
# Words of answers that refuse files for their size, in lower case.
_NO_ROOM_WORDS: Final = ("quota", "storage limit", "exceeded your", "payment required")
# A push is visible only after its commit, so that it can always be repeated.
_RETRY: Final = "run the same command again: what was uploaded is not sent again, and nothing is visible yet"


def is_offline(error: BaseException) -> bool:
    """Return True if `huggingface_hub` was configured to stay offline."""
    # By the name of the class, so that the package need not be imported.
    return "offline" in type(error).__name__.lower()


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or of the error that caused it.

    It is None without an answer of the server.
    """
    # `huggingface_hub` wraps errors of its HTTP library in its own.
    current: BaseException | None = error
    while current is not None:
        response: Any = getattr(current, "response", None)
        if response is not None:
            return int(response.status_code)
        current = current.__cause__
    return None


def hub_error(error: Exception, repo: str, action: str) -> TokenlakeError:
    """Return the error to raise for one of `huggingface_hub` or its HTTP library.

    Args:
        error: Error of a request.
        repo: Repository, as ``org/name``.
        action: Purpose of the request, such as ``uploading
            data/train-00000-00.parquet``.
    """
    # 1. Causes that no status tells: no request was sent, or there is no space.
    if is_offline(error):
        return offline(f"{repo} on the Hub")
    status = status_of(error)
    quote = _quoted(error)
    details = {"repo": repo, "status": status}
    if any(word in quote.lower() for word in _NO_ROOM_WORDS):
        return StoreError(
            f"{repo}: the Hub has no space for it ({quote}); free private storage of the account or raise its limit, "
            f"and {_RETRY}",
            **details,
        )
    # 2. Causes by the status of the answer.
    match status:
        case 401:
            return ConfigError(
                f"{repo}: the Hub does not accept the token; it may be expired, revoked or mistyped. Log in again with "
                "`hf auth login`, set HF_TOKEN, or name the variable that holds it: --token-env NAME",
                **details,
            )
        case 403:
            return ConfigError(
                f"{repo}: the token does not permit this ({action}; the Hub says {quote!r}). It needs write access "
                "to the repository, and to its organization where it is new: https://huggingface.co/settings/tokens",
                **details,
            )
        case 404:
            return ConfigError(
                f"{repo}: the Hub has no such repository, organization or branch, or the token may not see it "
                f"({action}); check the spelling, and whose token it is",
                **details,
            )
        case 409 | 412:
            return VersionConflictError(
                f"{repo}: somebody else changed the repository meanwhile ({action}); nothing of this push is visible. "
                "Look at what they pushed, and run the same command again",
                **details,
            )
        case _:
            return StoreError(
                f"{repo}: the Hub could not be reached or failed while {action} ({quote}); {_RETRY}",
                **details,
            )


def _quoted(error: BaseException) -> str:
    """Return the Hub's own message on one line, without addresses and secrets."""
    message = getattr(error, "server_message", None)
    cause = error.__cause__
    # A wrapper has a text of its own, which says nothing about the cause.
    if not message and cause is not None and isinstance(error, RuntimeError):
        return _quoted(cause)
    message_text = str(message or error).strip() or type(error).__name__
    # A message may repeat the token of the request.
    message_line = scrub(" ".join(message_text.split()))
    if len(message_line) > _LONGEST_QUOTE:
        message_line = f"{message_line[:_LONGEST_QUOTE]}..."
    return message_line
