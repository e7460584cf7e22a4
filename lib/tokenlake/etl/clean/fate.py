"""The result of cleaning for each document: it stays, or it is left out for a reason."""

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
    """What becomes of a document."""

    KEPT = 0
    OWN_REASON = 1
    EXCLUDED = 2
    DUPLICATE = 3
    NEAR_DUPLICATE = 4
    KEPT_BEFORE = 5
    GONE_BEFORE = 6


REASONS: Final[Mapping[Fate, str]] = {
    Fate.EXCLUDED: "excluded",
    Fate.DUPLICATE: "duplicate",
    Fate.NEAR_DUPLICATE: "near_duplicate",
}
"""Why a document is left out that has no reason of its own in its signature."""


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Documents that others are left out for.

    Attributes:
        numbers: int64[k], ascending.
        file, position: int64[k].
    """

    numbers: Int64
    file: Int64
    position: Int64


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Documents of a unit that are left out.

    Attributes:
        file, position: int64[m].
        reason: of each.
        twice: bool[m], whether it is for another document, which stays.
        kept_file, kept_position: int64, of these.
    """

    file: Int64
    position: Int64
    reason: list[str]
    twice: Bools
    kept_file: Int64
    kept_position: Int64

    def __len__(self) -> int:
        return len(self.reason)

    def to_columns(self) -> dict[str, Any]:
        """Return the columns of a list; null where no other document stays for this one."""
        kept = np.zeros((2, len(self)), np.int64)
        kept[:, self.twice] = self.kept_file, self.kept_position
        found = {
            name: pa.array(values, mask=~self.twice) for name, values in zip(KEPT_COLUMNS, kept, strict=True)
        }
        return {"file": self.file, "position": self.position, "reason": self.reason, **found}
