"""BOS and EOS of rendered documents: a template spells some of them itself, so each document is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.packing.marks import LEARNED, learned, plain

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Finished:
    """Whole documents: ids (marked), offsets, and how many BOS and EOS were put around them."""

    ids: Int32
    offsets: Int64
    bos: int
    eos: int
    eos_existing: int


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """What every document must begin and end with.

    Attributes:
        prefix, suffix: what the tokenizer's post-processor puts around a document (BOS, EOS).
        eos_id: what a packed document ends with, None where documents are not packed.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    eos_id: int | None

    def lacks(self, ids: Int32, offsets: Int64) -> tuple[Bools, Bools]:
        """Return which of n documents lack the prefix, and which the suffix: bool[n] each; some id there must be."""
        none = np.zeros(len(offsets) - 1, np.bool_)
        head = ~_begins(ids, offsets, self.prefix) if self.prefix else none
        tail = ~_ends(ids, offsets, self.suffix) if self.suffix else none
        return head, tail

    def apply(self, ids: Int32, offsets: Int64, ends: Bools | None = None) -> Finished:
        """Put around each of n documents what it lacks; none may be empty.

        An EOS put after a document bears loss where the document's last token does: who learns the last word of an
        answer must learn to stop after it, but not where the answer was cut off.

        Args:
            ends: bool[n], False for a document whose end was cut away; None where all are whole.
        """
        size = np.diff(offsets)
        head, tail = self.lacks(ids, offsets)
        closed = plain(ids[offsets[1:] - 1]) == self.eos_id
        if self.suffix and self.eos_id is not None:
            closed = np.where(tail, self.suffix[-1] == self.eos_id, closed)
        last = ~closed if self.eos_id is not None else np.zeros(len(size), np.bool_)
        bos, eos = int(head.sum()) * len(self.prefix), int(tail.sum()) * len(self.suffix) + int(last.sum())
        if not bos and not eos:
            return Finished(ids, offsets, 0, 0, int((~last).sum()) if self.eos_id is not None else 0)
        around = head * len(self.prefix) + tail * len(self.suffix) + last
        whole = np.concatenate([np.zeros(1, np.int64), np.cumsum(size + around)])
        out = np.empty(int(whole[-1]), np.int32)
        begin = whole[:-1] + head * len(self.prefix)
        out[np.repeat(begin - offsets[:-1], size) + np.arange(int(offsets[0]), int(offsets[-1]))] = ids[
            offsets[0] : offsets[-1]
        ]
        for index, token in enumerate(self.prefix):
            out[whole[:-1][head] + index] = token
        bears_loss = learned(ids[offsets[1:] - 1])
        mark = (bears_loss if ends is None else bears_loss & ends).astype(np.int32) * np.int32(LEARNED)
        after = begin + size
        for index, token in enumerate(self.suffix):
            out[after[tail] + index] = token | mark[tail]
        if self.eos_id is not None:
            out[whole[1:][last] - 1] = self.eos_id | mark[last]
        existing = int((~last).sum()) if self.eos_id is not None else 0
        return Finished(out, whole, bos, eos, existing)


def _begins(ids: Int32, offsets: Int64, prefix: tuple[int, ...]) -> Bools:
    size = np.diff(offsets)
    same = size >= len(prefix)
    for index, token in enumerate(prefix):
        at = np.minimum(offsets[:-1] + index, len(ids) - 1)
        same &= plain(ids[at]) == token
    return same


def _ends(ids: Int32, offsets: Int64, suffix: tuple[int, ...]) -> Bools:
    size = np.diff(offsets)
    same = size >= len(suffix)
    for index, token in enumerate(suffix):
        at = np.maximum(offsets[1:] - len(suffix) + index, 0)
        same &= plain(ids[at]) == token
    return same
