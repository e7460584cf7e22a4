"""What it means when the Hub does not take something, in one sentence with what to do."""

from __future__ import annotations

from typing import Any, Final

from tokenlake.config.references import scrub
from tokenlake.errors import ConfigError, StoreError, TokenlakeError, VersionConflictError
from tokenlake.sources.hub.http import offline

PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""

_AGAIN: Final = "run the same command again: what was uploaded is not sent again, and nothing is visible yet"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error, or what caused it, stands for."""
    seen: BaseException | None = error
    while seen is not None:
        response: Any = getattr(seen, "response", None)
        if response is not None:
            return int(response.status_code)
        seen = seen.__cause__
    return None


def explained(error: Exception, repo: str, doing: str) -> TokenlakeError:
    """Return the error for people that stands for one of `huggingface_hub`, or of its HTTP library.

    Args:
        doing: what was being done, such as ``"uploading data/train-00000-00.parquet"``.
    """
    said = _said(error)
    if "offline" in type(error).__name__.lower():
        return offline(f"{repo} on the Hub")
    return meaning(status_of(error), said, repo, doing)


def meaning(status: int | None, said: str, repo: str, doing: str) -> TokenlakeError:
    """Return the error for people that a status stands for.

    Args:
        status: None: there was no answer.
        said: the Hub's own sentence, or that of the connection.
        doing: what was being done.
    """
    details = {"repo": repo, "status": status}
    if any(word in said.lower() for word in ("quota", "storage limit", "exceeded your", "payment required")):
        return StoreError(
            f"{repo}: the Hub has no room for it ({said}); free private storage of the account or raise its limit, "
            f"and {_AGAIN}",
            **details,
        )
    match status:
        case 401:
            return ConfigError(
                f"{repo}: the Hub does not accept the token; it may be expired, revoked or mistyped. Log in again "
                "with `hf auth login`, set HF_TOKEN, or name the variable that holds it: --token-env NAME",
                **details,
            )
        case 403:
            return ConfigError(
                f"{repo}: the token may not do that ({doing}; the Hub says {said!r}). It needs write access to the "
                "repository, and to its organization where it is new: https://huggingface.co/settings/tokens",
                **details,
            )
        case 404:
            return ConfigError(
                f"{repo}: the Hub has no such repository, organization or branch, or the token may not see it "
                f"({doing}); check the spelling, and whose token it is",
                **details,
            )
        case 409 | 412:
            return VersionConflictError(
                f"{repo}: somebody else changed the repository meanwhile ({doing}); nothing of this push is visible. "
                "Look at what they pushed, and run the same command again",
                **details,
            )
        case _:
            return StoreError(
                f"{repo}: the Hub could not be reached or failed while {doing} ({said}); {_AGAIN}", **details
            )


def passing(error: Exception) -> bool:
    """Return whether trying again is worth it."""
    status = status_of(error)
    if status is not None:
        return status in PASSING
    # Without an answer: the connection, and not something that we did wrong.
    return not isinstance(error, ValueError | TypeError) and "offline" not in type(error).__name__.lower()


def _said(error: BaseException) -> str:
    """Return the Hub's own sentence, without addresses and secrets."""
    found = getattr(error, "server_message", None)
    cause = error.__cause__
    if not found and cause is not None and isinstance(error, RuntimeError):
        return _said(cause)
    text = str(found or error).strip() or type(error).__name__
    first = scrub(" ".join(text.split()))
    return first if len(first) <= 300 else f"{first[:300]}..."
