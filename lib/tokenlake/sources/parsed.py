"""What a format's reader hands over: records and faults, before the policy has its say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.rows import Rows


def _none() -> dict[str, int]:
    return {}


class BadLine(NamedTuple):
    """A record that cannot be used: where, why, and its first bytes.

    `line` is 0-based and counts from the beginning of the block, None where there are no lines.
    """

    position: int
    line: int | None
    fault: Fault
    raw: bytes


def _without_bytes(position: int, fault: Fault) -> BadLine:
    return BadLine(position, None, fault, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block, as asked for by a :class:`tokenlake.sources.want.Want`.

    Attributes:
        text: large_string of the records, None where no text was wanted; null for those in `doubtful`.
        rows: the wanted columns of the same records, None where none were wanted. Those of JSON are objects, with
            all fields, until somebody asks for columns.
        positions: int64, one per record, as in :class:`tokenlake.sources.batch.BadRecord`.
        bad: what could not be read as a record, or (where no columns are wanted) has no text; in order.
        doubtful: records that were read but have no usable text, in order; only where columns are wanted,
            because a predicate may still leave them out on purpose.
        normalized: how often something harmless was mended.
        skipped: records never looked at, by reason (``pruned``).
        bytes_read: input bytes consumed since the block before.
        lines: how many lines the block had, blank ones included.
        as_bad: makes a bad one of the record at a position, and why it is.
    """

    text: pa.LargeStringArray | None
    positions: npt.NDArray[np.int64]
    bad: tuple[BadLine, ...]
    bytes_read: int
    rows: Rows | None = None
    doubtful: tuple[BadLine, ...] = ()
    normalized: dict[str, int] = field(default_factory=_none)
    skipped: dict[str, int] = field(default_factory=_none)
    lines: int = 0
    as_bad: Callable[[int, Fault], BadLine] = _without_bytes

    def __len__(self) -> int:
        """How many records were read, bad ones left out."""
        return len(self.positions)
