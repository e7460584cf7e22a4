"""Whose a failure is: an input's or a store's. The requests are the same, the errors are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import NotFoundError, StoreError, TokenlakeError


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
