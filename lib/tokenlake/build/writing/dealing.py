"""One unit, several files: its documents are dealt out to them one by one, as cards are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.build.writing.sink import Sink, TokenDocuments
from tokenlake.manifest import ShardEntry
from tokenlake.schema import ROW_GROUP_TOKENS

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_FILES: Final = 512
"""That a unit writes at a time, all splits together: each is an open file with a row group in the making."""

_HELD_TOKENS: Final = 1 << 24  # in row groups in the making, of all files of a split together: 64 MiB
_LEAST_TOKENS: Final = 1 << 14  # of a row group


def group_tokens(files: int | None) -> int:
    """Return how many ids a full row group has, where a unit writes so many files (None: one after the other)."""
    return max(_LEAST_TOKENS, min(ROW_GROUP_TOKENS, _HELD_TOKENS // (files or 1)))


@final
class DealingSink:
    """Gives document i of a unit and split to sink i modulo their number.

    Args:
        sinks: one for each file, each of which writes exactly one.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._next = 0
        self._around: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        total = Counter(self._around)
        for sink in self._sinks:
            total.update(sink.counts)
        return total

    def add(self, documents: TokenDocuments) -> None:
        # What is around the documents is a sum over all of them: the sinks take it for content, here it is set right.
        around, again = documents.around, documents.again
        self._around.update(
            content=-around.bos - around.eos,
            bos=around.bos,
            eos=around.eos,
            eos_existing=around.eos_existing,
        )
        whole = np.ones(len(documents), np.bool_) if again is None else ~again
        number = self._next - 1 + np.cumsum(whole)  # of the document that each is, or is a piece of
        for index, sink in enumerate(self._sinks):
            rows = np.flatnonzero(number % len(self._sinks) == index)
            if len(rows):
                sink.add(documents.take(rows))
        self._next = (self._next + int(whole.sum())) % len(self._sinks)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        self._sinks[self._next].add_long(windows, file, position)
        self._next = (self._next + 1) % len(self._sinks)

    def finish(self) -> list[ShardEntry]:
        return [entry for sink in self._sinks for entry in sink.finish()]

    def discard(self) -> None:
        for sink in self._sinks:
            sink.discard()
