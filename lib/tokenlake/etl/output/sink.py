"""What takes the documents of one split of a unit, in one file or dealt to several, one document after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Bools, Int32, Int64
from tokenlake.etl.unit.documents import taken
from tokenlake.ragged import Ragged
from tokenlake.schema import ROW_GROUP_TOKENS
from tokenlake.store.entries import ShardEntry


@final
@dataclass(frozen=True, slots=True)
class AddedIds:
    """How many of the ids given to a sink are BOS and EOS put there already, and how many documents had an EOS."""

    bos: int = 0
    eos: int = 0
    eos_existing: int = 0


NOTHING_ADDED: Final = AddedIds()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocuments:
    """n documents, or pieces of documents, as ids.

    Attributes:
        ids: int32[total]; in a build with a loss mask they are marked, see :mod:`tokenlake.packing.loss_mask`.
        offsets: int64[n + 1] into `ids`.
        file, position: int64[n], where each comes from.
        around: what of the ids was put around the documents.
        again: bool[n], True for a further piece of the document before; None where all are whole.
        kept: n rows of the fields kept beside the ids; None where none are.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    around: AddedIds = NOTHING_ADDED
    again: Bools | None = None
    kept: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def content(self) -> int:
        """Ids that are the documents' own."""
        return int(self.offsets[-1] - self.offsets[0]) - self.around.bos - self.around.eos

    @property
    def further(self) -> int:
        """Pieces that are not their document's first."""
        return 0 if self.again is None else int(self.again.sum())

    def take(self, rows: Int64) -> TokenDocuments:
        """Return the documents `rows` (int64[m]); `around`, a sum over all, is left out."""
        found = Ragged.taken(self.ids, self.offsets[rows], self.offsets[rows + 1])
        return TokenDocuments(
            ids=found.ids,
            offsets=found.offsets,
            file=self.file[rows],
            position=self.position[rows],
            again=None if self.again is None else self.again[rows],
            kept=taken(self.kept, rows),
        )


class Sink(Protocol):
    """Takes documents, writes parts, and counts what became of every token.

    ``counts`` holds documents, content, bos, eos, eos_existing, pad, sequences and slots.
    """

    @property
    def counts(self) -> Counter[str]: ...

    def add(self, documents: TokenDocuments) -> None:
        """Add documents, or pieces of them; none is empty."""
        ...

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Add one document whose ids come in windows."""
        ...

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        ...

    def discard(self) -> None:
        """Give up: remove temporary files."""
        ...


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
