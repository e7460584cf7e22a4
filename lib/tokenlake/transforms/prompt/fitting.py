"""From the ids of a prompt to a row: BOS and EOS, truncation, padding, labels; as builds do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from tokenlake.lengths.padding import IGNORED

Int32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Example = dict[str, Int32]
Cut = Callable[[int], tuple[int, int]]
"""Most tokens to keep, to the tokens that are kept: (first, last)."""

NAMES: Final = ("input_ids", "attention_mask", "labels")


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one prompt, int32[k], and which of them are learned, bool[k]."""

    ids: Int32
    learned: Bools

    def __len__(self) -> int:
        return len(self.ids)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What is put around a prompt's ids, and how long the whole may be.

    Attributes:
        prefix, suffix: what a prompt begins and ends with (BOS, EOS); what it spells itself is not put there again.
        max_length: most tokens, all special ones included.
        truncation_side: where what is too long is cut.
        pad_id: of padding.
        padding_side: where padding goes.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    truncation_side: Literal["left", "right"]
    pad_id: int
    padding_side: Literal["left", "right"]

    def length(self, tokens: Tokens) -> int:
        """Return how many tokens a prompt has with what is put around it."""
        before, after = self._lacking(tokens.ids)
        return len(before) + len(tokens) + len(after)

    def fitted(self, tokens: Tokens, cut: Cut) -> Tokens:
        """Return a whole prompt of at most `max_length` tokens.

        On the side where it is cut, what it spelled itself is gone, and is put there; an EOS after half an answer is
        not learned: nobody is to learn to stop there.
        """
        before, after = self._lacking(tokens.ids)
        whole = True
        if len(before) + len(tokens) + len(after) > self.max_length:
            if self.truncation_side == "right":
                whole, after = False, self.suffix
            else:
                before = self.prefix
            first, last = cut(max(0, self.max_length - len(before) - len(after)))
            tokens = Tokens(tokens.ids[first:last], tokens.learned[first:last])
        ids = [np.array(before, np.int32), tokens.ids, np.array(after, np.int32)]
        marks = np.full(len(after), whole and bool(tokens.learned.any()))
        learned = np.concatenate([np.zeros(len(before), np.bool_), tokens.learned, marks])
        return Tokens(np.concatenate(ids)[: self.max_length], learned[: self.max_length])

    def example(self, tokens: Tokens, length: int) -> Example:
        """Return `tokens` padded to `length`: input_ids, attention_mask, labels, each int32[length]."""
        padding = length - len(tokens)
        at = slice(padding, length) if self.padding_side == "left" else slice(0, len(tokens))
        ids, mask, labels = (np.full(length, value, np.int32) for value in (self.pad_id, 0, IGNORED))
        ids[at], mask[at] = tokens.ids, 1
        labels[at] = np.where(tokens.learned, tokens.ids, np.int32(IGNORED))
        return dict(zip(NAMES, (ids, mask, labels), strict=True))

    def _lacking(self, ids: Int32) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, after = self.prefix, self.suffix
        begins = tuple(ids[: len(before)].tolist()) == before
        ends = bool(after) and tuple(ids[-len(after) :].tolist()) == after
        return () if begins else before, () if ends else after


def stacked(examples: Sequence[Example]) -> Example:
    """Return examples of one length L as a batch, int32[n, L] each."""
    return {name: np.stack([example[name] for example in examples]) for name in NAMES}
