"""The result of cleaning for each document: it stays, or is left out for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int64

KEPT_COLUMNS: Final = ("kept_file", "kept_position")


class Fate(IntEnum):
    """Outcome for a document: it is kept, or the reason it is left out."""

    KEPT = 0
    # Left out by itself (a filter, an evaluation set), or by a list of the user's.
    OWN_REASON = 1
    EXCLUDED = 2
    # Left out for another document.
    DUPLICATE = 3
    NEAR_DUPLICATE = 4
    # In an earlier list: the same document, kept there, and one that it left out.
    KEPT_BEFORE = 5
    GONE_BEFORE = 6


REASONS: Final[Mapping[Fate, str]] = {
    Fate.EXCLUDED: "excluded",
    Fate.DUPLICATE: "duplicate",
    Fate.NEAR_DUPLICATE: "near_duplicate",
}
"""Reasons of documents that have no reason of their own in their signature."""


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Places of the documents that are kept while their duplicates are left out.

    Attributes:
        numbers: Numbers of the documents, ascending, int64[k].
        file: Id of each document's file, int64[k].
        position: Position of each document in its file, int64[k].
    """

    numbers: Int64
    file: Int64
    position: Int64


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Documents of a unit that are left out.

    Attributes:
        file: Id of each document's file, int64[m].
        position: Position of each document in its file, int64[m].
        reason: Reason of each document.
        is_duplicate: True for a document that is left out for another one, bool[m].
        kept_file: File of that other document, for each duplicate, int64.
        kept_position: Position of that other document, for each duplicate, int64.
    """

    file: Int64
    position: Int64
    reason: list[str]
    is_duplicate: Bools
    kept_file: Int64
    kept_position: Int64

    def __len__(self) -> int:
        return len(self.reason)

    def to_columns(self) -> dict[str, Any]:
        """Return the columns of the list.

        Those of the kept document are null where there is none.
        """
        columns: dict[str, Any] = {
            "file": self.file,
            "position": self.position,
            "reason": self.reason,
        }
        kept_values = (self.kept_file, self.kept_position)
        for name, places in zip(KEPT_COLUMNS, kept_values, strict=True):
            # The places of kept documents have one entry for each duplicate.
            values = np.zeros(len(self), np.int64)
            values[self.is_duplicate] = places
            columns[name] = pa.array(values, mask=~self.is_duplicate)
        return columns
