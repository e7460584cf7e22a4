"""What takes the documents of one split of a unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.build.documents import taken
from tokenlake.manifest import ShardEntry
from tokenlake.ragged import Ragged

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Around:
    """How many of the ids given to a sink are BOS and EOS put there already, and how many documents had an EOS."""

    bos: int = 0
    eos: int = 0
    eos_existing: int = 0


NOTHING_AROUND: Final = Around()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocuments:
    """n documents, or pieces of documents, as ids.

    Attributes:
        ids: int32[total]; in a build with a loss mask they are marked, see :mod:`tokenlake.packing.marks`.
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
    around: Around = NOTHING_AROUND
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
