"""Documents between reading and encoding, gathered across files: small files would else be encoded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Documents:
    """Texts and where they come from.

    Attributes:
        text: large_string[n], no nulls, valid UTF-8.
        file, position: int64[n], the documents' identities.
    """

    text: pa.LargeStringArray
    file: Int64
    position: Int64

    def __len__(self) -> int:
        return len(self.position)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return int(self.text_sizes.sum())

    @property
    def text_sizes(self) -> Int64:
        """int64[n], UTF-8 bytes of each text."""
        if not len(self):
            return np.empty(0, np.int64)
        buffer: Any = self.text.buffers()[1]
        first = self.text.offset
        return np.diff(np.frombuffer(buffer, np.int64)[first : first + len(self) + 1])

    def slice(self, first: int, last: int) -> Documents:
        """Documents ``first`` to ``last`` (exclusive), nothing copied."""
        return Documents(
            self.text.slice(first, last - first), self.file[first:last], self.position[first:last]
        )

    def select(self, mask: npt.NDArray[np.bool_]) -> Documents:
        """The documents where ``mask`` (bool[n]) is true."""
        return Documents(self.text.filter(pa.array(mask)), self.file[mask], self.position[mask])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Documents:
        """All documents of ``parts`` (at least one) in order; a single part is not copied."""
        if len(parts) == 1:
            return parts[0]
        text: Any = pa.concat_arrays([part.text for part in parts])
        return Documents(
            text,
            np.concatenate([part.file for part in parts]),
            np.concatenate([part.position for part in parts]),
        )
