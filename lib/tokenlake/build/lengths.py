"""What becomes of documents with more than ``max_length`` tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.errors import NotAvailableError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Fitted:
    """Documents after the policy.

    Attributes:
        ids, offsets: int32[total], int64[m + 1].
        origin: int64[m], ascending: index of the document that each is, or is a piece of.
        dropped: tokens that are gone, by reason.
        left_out: documents that are gone whole, by reason.
    """

    ids: Int32
    offsets: Int64
    origin: Int64
    dropped: dict[str, int]
    left_out: dict[str, int]


@final
class Lengths:
    """The policy of one source.

    Args:
        settings: the policy and ``max_length``, which counts special tokens.
        around: special tokens that are put around every document afterwards.
    """

    def __init__(self, settings: ResolvedTokenizer, around: int) -> None:
        if settings.long_documents in ("split", "drop"):
            raise NotAvailableError(f"long_documents: {settings.long_documents!r} is not available yet")
        self._policy = settings.long_documents
        self._limit = max(0, settings.max_length - around)

    @property
    def keeps_all(self) -> bool:
        """Whether no document is ever changed, so that a long one need not be whole in memory."""
        return self._policy == "keep"

    def apply(self, ids: Int32, offsets: Int64) -> Fitted:
        """Fit n documents: ids int32[total] (marked or not), offsets int64[n + 1]."""
        origin = np.arange(len(offsets) - 1)
        lengths = np.diff(offsets)
        short = np.minimum(lengths, self._limit)
        gone = 0 if self.keeps_all else int((lengths - short).sum())
        if not gone:
            return Fitted(ids, offsets, origin, {}, {})
        at = np.concatenate([[0], np.cumsum(short)])
        inside = np.arange(at[-1]) - np.repeat(at[:-1], short)
        return Fitted(ids[np.repeat(offsets[:-1], short) + inside], at, origin, {"truncated": gone}, {})
