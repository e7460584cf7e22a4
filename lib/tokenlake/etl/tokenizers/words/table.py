"""Table of words: each distinct word is encoded once and looked up from then on.

Words that a block of text brings for the first time are encoded together: by the merges
of the tokenizer where they decide alone, else by the reference. The table is bounded:
when it is full it is emptied, and the words that come next are encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int32, Int64, UInt8, UInt64
from tokenlake.etl.tokenizers.words.merging import Merger

AskForIds = Callable[[list[str]], tuple[Int64, Int32]]
"""Texts to (offsets, ids): int64[n + 1] and int32[total]."""

# Slots of a new table.
_FIRST_CAPACITY: Final = 1 << 14
_MOST_CAPACITY: Final = 1 << 21
"""Slots of the largest table, 16 bytes each; half of them are used."""
_MOST_POOL_ENTRIES: Final = 1 << 24
"""Entries of the pool, 4 bytes each, from which on the table is emptied."""
_BYTES_PER_ENTRY: Final = 4


@final
class WordTable:
    """Words and their ids.

    Args:
        loops: Compiled loops, see :func:`tokenlake.etl.tokenizers.words.native.loops`.
        merger: Merges of the tokenizer; None where the reference encodes all words.
        ask: Function that encodes words by the reference.
    """

    def __init__(self, loops: Any, merger: Merger | None, ask: AskForIds) -> None:
        self._loops = loops
        self._merger = merger
        self._ask_for_ids = ask
        self._results: UInt64 = np.empty(0, np.uint64)
        self._new: Int64 = np.empty(0, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all words."""
        self._slots: UInt64 = np.zeros((_FIRST_CAPACITY, 2), np.uint64)
        self._word_count = 0
        self.ids: Int32 = np.empty(1 << 16, np.int32)
        """The pool, in which the ids of words lie."""
        self._used = 0

    def find(self, laid: UInt8, cuts: Int64, count: int) -> tuple[UInt64, int]:
        """Find the ids of words.

        Args:
            laid: Texts, with at least eight bytes behind the last word.
            cuts: int64[count + 1], the edges of the words.
            count: Number of words.

        Returns:
            uint64[count] for :func:`tokenlake.etl.tokenizers.words.kernels.write_ids`,
            valid until the next call; and the total number of ids.
        """
        try:
            return self._find(laid, cuts, count)
        except BaseException:
            # New words are in the table before their ids are known.
            self.clear()
            raise

    def _find(self, laid: UInt8, cuts: Int64, word_count: int) -> tuple[UInt64, int]:
        is_full = self._word_count * 2 >= _MOST_CAPACITY
        if is_full or self._used > _MOST_POOL_ENTRIES:
            self.clear()
        if word_count > len(self._results):
            self._results = np.empty(word_count, np.uint64)
            self._new = np.empty(word_count, np.int64)

        # 1. Look the words up; grow the table whenever half of it is used.
        next_word = 0
        new_count = 0
        while True:
            free_words = len(self._slots) // 2 - self._word_count
            new_before = new_count
            next_word, new_count = self._loops.look_up(
                laid,
                cuts,
                next_word,
                word_count,
                self._slots,
                free_words,
                self.ids.view(np.uint8),
                self.ids,
                self._results,
                self._new,
                new_count,
            )
            # Words that are too long for the table count as well, which does no harm.
            self._word_count += new_count - new_before
            if next_word == word_count:
                break
            self._grow()

        # 2. Encode the new ones together, and replace their numbers by their ids.
        new_results = np.empty(new_count, np.uint64)
        if new_count:
            self._add(laid, cuts, new_count, new_results)
        total = self._loops.settle(self._results, word_count, new_results)
        return self._results, total

    def _grow(self) -> None:
        """Move the words to a table of twice the size.

        One block may need more than :data:`_MOST_CAPACITY` slots, so nothing limits it.
        """
        larger = np.zeros((2 * len(self._slots), 2), np.uint64)
        self._loops.move_words(self._slots, larger)
        self._slots = larger

    def _add(
        self, laid: UInt8, cuts: Int64, new_count: int, new_results: UInt64
    ) -> None:
        """Encode the new words of a block, and record the places of their ids."""
        new = self._new[:new_count]
        encoded = None
        if self._merger is not None:
            encoded = self._merger.encode(laid, cuts, new)
        if encoded is None:
            encoded = self._ask(laid, cuts, new)
        offsets, word_ids = encoded
        # The bytes of a word fill whole entries, so each word may need one more.
        total_size = int((cuts[new + 1] - cuts[new]).sum())
        self._make_room(total_size // _BYTES_PER_ENTRY + new_count + len(word_ids))
        self._used = self._loops.add_words(
            laid,
            cuts,
            self._new,
            new_count,
            offsets,
            word_ids,
            self._slots,
            self.ids.view(np.uint8),
            self.ids,
            self._used,
            new_results,
        )

    def _ask(self, laid: UInt8, cuts: Int64, new: Int64) -> tuple[Int64, Int32]:
        """Encode words by the reference."""
        begins = cuts[new].tolist()
        ends = cuts[new + 1].tolist()
        words: list[str] = []
        for word_begin, word_end in zip(begins, ends, strict=True):
            words.append(laid[word_begin:word_end].tobytes().decode())
        return self._ask_for_ids(words)

    def _make_room(self, entries: int) -> None:
        """Make the pool large enough for a number of additional entries."""
        # Two more, because the loops read eight bytes at once.
        needed = self._used + entries + 2
        if needed > len(self.ids):
            larger = np.empty(max(2 * len(self.ids), needed), np.int32)
            larger[: self._used] = self.ids[: self._used]
            self.ids = larger
