"""Documents of ids after the length policy: their ids, loss marks, and the documents they are parts of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Documents after the policy.

    Attributes:
        ids, offsets: int32[total], int64[m + 1].
        origin: int64[m], ascending: index of the document that each is, or is a piece of.
        ends: bool[m], False for one that does not hold its document's end; None where all do.
        dropped: tokens that are gone, by reason.
        left_out: documents that are gone whole, by reason: int64[k], their indices.
        touched: documents that were cut, by what was done.
        tokens: ids of all texts that were not refused.
        special_tokens: occurrences of special-token strings in these texts.
        refused: int64[k], the texts that spell out a special token where they must not.
        bos, eos, eos_existing: ids that were put around rendered documents, and documents that had an EOS already.
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
        """bool[m], True for a piece that is not its document's first; None where none is."""
        found = np.zeros(len(self.origin), np.bool_)
        found[1:] = np.diff(self.origin) == 0
        return found if found.any() else None

    def without_empty(self) -> Fitted:
        """Leave out documents without ids."""
        full = np.diff(self.offsets) > 0
        if full.all():
            return self
        # An empty document has no ids, so the others' stay contiguous.
        return replace(
            self,
            offsets=np.concatenate([self.offsets[:1], self.offsets[1:][full]]),
            origin=self.origin[full],
            ends=None if self.ends is None else self.ends[full],
        )
