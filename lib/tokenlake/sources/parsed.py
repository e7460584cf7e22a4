"""What a line format's parser hands over: texts and faults, before the policy has its say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.sources.strict import Fault


class BadLine(NamedTuple):
    """A record that cannot be used: where, why, and its first bytes.

    `line` is 0-based and counts from the beginning of the block, None where there are no lines.
    """

    position: int
    line: int | None
    fault: Fault
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block; fields as in :class:`tokenlake.sources.batch.TextBatch`.

    Attributes:
        lines: how many lines the block had, blank ones included.
    """

    text: pa.LargeStringArray
    positions: npt.NDArray[np.int64]
    bad: tuple[BadLine, ...]
    normalized: dict[str, int]
    bytes_read: int
    lines: int = 0
