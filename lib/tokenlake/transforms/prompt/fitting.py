"""From the ids of a prompt to a row of a fixed length: BOS and EOS, truncation, padding, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Example = dict[str, Int32]

IGNORED: Final = -100
"""The label of a token that is not learned."""


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
        prefix, suffix: what the tokenizer's post-processor puts around a text.
        eos_id: what a prompt ends with beyond that; None for nothing.
        max_length: most tokens, all special ones included.
        truncation_side: where what is too long is cut; BOS stays, and EOS goes with the end of the answer: who learns
            from half an answer must not learn to stop there.
        pad_id: of padding.
        padding_side: where padding goes.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    eos_id: int | None
    max_length: int
    truncation_side: Literal["left", "right"]
    pad_id: int
    padding_side: Literal["left", "right"]

    def finished(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """Return BOS, and the rest with EOS; what the template spelled already is not put there again."""
        ids, learned = tokens.ids, tokens.learned
        size = len(self.prefix)
        if tuple(ids[:size].tolist()) == self.prefix:
            head = Tokens(ids[:size], learned[:size])
            ids, learned = ids[size:], learned[size:]
        else:
            head = Tokens(np.array(self.prefix, np.int32), np.zeros(size, np.bool_))
        tail = self._tail(ids)
        marks = np.full(len(tail), bool(learned.any()))
        return head, Tokens(np.concatenate([ids, tail]), np.concatenate([learned, marks]))

    def fitted(self, tokens: Tokens) -> Tokens:
        """Return a whole prompt, cut to `max_length` where it is longer."""
        head, rest = self.finished(tokens)
        room = max(0, self.max_length - len(head))
        cut = slice(0, room) if self.truncation_side == "right" else slice(max(0, len(rest) - room), None)
        ids = np.concatenate([head.ids, rest.ids[cut]])[: self.max_length]
        learned = np.concatenate([head.learned, rest.learned[cut]])[: self.max_length]
        return Tokens(ids, learned)

    def example(self, tokens: Tokens, length: int) -> Example:
        """Return `tokens` padded to `length`: input_ids, attention_mask, labels, each int32[length]."""
        padding = length - len(tokens)
        at = slice(padding, length) if self.padding_side == "left" else slice(0, len(tokens))
        ids, mask, labels = (np.full(length, value, np.int32) for value in (self.pad_id, 0, IGNORED))
        ids[at], mask[at] = tokens.ids, 1
        labels[at] = np.where(tokens.learned, tokens.ids, np.int32(IGNORED))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def _tail(self, ids: Int32) -> Int32:
        suffix = self.suffix
        if suffix and tuple(ids[-len(suffix) :].tolist()) == suffix:
            suffix = ()
        last = suffix[-1] if suffix else (int(ids[-1]) if len(ids) else None)
        end = () if self.eos_id is None or last == self.eos_id else (self.eos_id,)
        return np.array((*suffix, *end), np.int32)


def stacked(examples: Sequence[Example]) -> Example:
    """Return examples of one length L as a batch, int32[n, L] each."""
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
