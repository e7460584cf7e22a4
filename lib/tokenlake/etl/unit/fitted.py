"""Documents of ids after the length policy: ids, loss marks, and their origins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Documents after the length policy, m of them.

    Attributes:
        ids: Ids of all documents, int32[total].
        offsets: Beginnings of the documents in `ids`, and the end of the last one,
            int64[m + 1].
        origin: Index of the document that each is, or is a part of, ascending,
            int64[m].
        ends: False for a part that does not hold its document's end, bool[m]; None if
            all do.
        dropped: Reason -> number of tokens that are dropped.
        left_out: Reason -> indices of documents that are left out as a whole, int64[k].
        touched: Kind of change -> number of documents that were changed.
        tokens: Number of ids of all texts that were not refused.
        special_tokens: Number of special-token strings in these texts.
        refused: Indices of texts that spell a special token although they must not,
            int64[k].
        bos: Number of ids that were put before rendered documents.
        eos: Number of ids that were put after rendered documents.
        eos_existing: Number of rendered documents that had an EOS already.
    """

    ids: Int32
    offsets: Int64
    origin: Int64
    ends: Bools | None = None
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    left_out: dict[str, Int64] = field(default_factory=dict[str, Int64])
    touched: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    special_tokens: int = 0
    refused: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    bos: int = 0
    eos: int = 0
    eos_existing: int = 0

    @property
    def again(self) -> Bools | None:
        """True for a part that is not its document's first, bool[m]; None without one."""
        is_further_part = np.zeros(len(self.origin), np.bool_)
        is_further_part[1:] = np.diff(self.origin) == 0
        if not is_further_part.any():
            return None
        return is_further_part

    def without_empty(self) -> Fitted:
        """Return the documents that have ids."""
        has_ids = np.diff(self.offsets) > 0
        if has_ids.all():
            return self
        # An empty document has no ids, so that the ids of the others stay contiguous.
        return replace(
            self,
            offsets=np.concatenate([self.offsets[:1], self.offsets[1:][has_ids]]),
            origin=self.origin[has_ids],
            ends=None if self.ends is None else self.ends[has_ids],
        )
