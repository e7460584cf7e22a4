"""What takes the documents of one split of a unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.manifest import ShardEntry

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


class Sink(Protocol):
    """Takes documents, writes parts, and counts what became of every token.

    ``counts`` holds documents, content, bos, eos, eos_existing, pad, sequences and slots.
    """

    @property
    def counts(self) -> Counter[str]: ...

    def add(
        self,
        ids: Int32,
        offsets: Int64,
        file: Int64,
        position: Int64,
        around: Around = NOTHING_AROUND,
        again: Bools | None = None,
        kept: pa.RecordBatch | None = None,
    ) -> None:
        """Add documents: ids int32[total], offsets int64[n + 1], file and position int64[n].

        In a build with a loss mask ids are marked, see :mod:`tokenlake.packing.marks`. `again`, bool[n], is True for
        a further piece of the document before; None where all are whole. `kept` are the n rows of fields kept beside
        the ids.
        """
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
