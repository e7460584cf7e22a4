"""JSON records lying in a buffer: where each is, and what is told of them when they are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.sources.arrays import Int64s, binary_over
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.json.strict import at_the_end
from tokenlake.sources.parsed import BadLine, Parsed

PIECE_BYTES: Final = 2 << 20
"""Of records that become Python objects together: these can take 25 times as much."""
_PIECE_RECORDS: Final = 1 << 15  # a bad one of two bytes takes 500
_T = TypeVar("_T")


def _none() -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Consecutive records of a block.

    Attributes:
        data: the block's bytes.
        starts, stops: int64[n], where each record lies in `data`.
        positions: int64[n], as in :class:`tokenlake.sources.batch.BadRecord`.
        numbers: int64[n], the lines on which they stand, counted from the first line of these records; None
            where there are no lines.
        lines: how many lines there are, blank ones included.
        open_end: the file ends with the last of these records, without an end of line.
        bytes_read, normalized: as in :class:`tokenlake.sources.parsed.Parsed`.
    """

    data: bytes
    starts: Int64s
    stops: Int64s
    positions: Int64s
    bytes_read: int
    numbers: Int64s | None = None
    lines: int = 0
    open_end: bool = False
    normalized: dict[str, int] = field(default_factory=_none)

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def pieces(self) -> Iterator[Spans]:
        """Yield the records in pieces that are small enough to become Python objects."""
        at, size = 0, len(self)
        while at < size:
            end = int(np.searchsorted(self.stops, self.starts[at] + PIECE_BYTES, side="right"))
            end = min(max(end, at + 1), at + _PIECE_RECORDS)
            yield self.part(at, end)
            at = end
        if not size:
            yield self

    def halves(self) -> tuple[Spans, Spans]:
        """Return the first and the second half of at least two records."""
        return self.part(0, len(self) // 2), self.part(len(self) // 2, len(self))

    def part(self, start: int, stop: int) -> Spans:
        """Return the records from `start` to `stop`; parts that make up the whole account for all of it."""
        size, last = len(self), stop == len(self)
        numbers, first, after = self.numbers, 0, 0
        if numbers is not None:
            first = 0 if start == 0 else int(numbers[start])
            after = self.lines if last else int(numbers[stop])
            numbers = numbers[start:stop] - first
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            positions=self.positions[start:stop],
            numbers=numbers,
            lines=after - first,
            open_end=self.open_end and last,
            bytes_read=self.bytes_read * stop // size - self.bytes_read * start // size,
            normalized=self.normalized if start == 0 else {},
        )

    def each(self) -> pa.LargeBinaryArray:
        """Return every record as a byte string, with what stands before the next."""
        edges = np.append(self.starts, self.stops[-1:] if len(self) else 0)
        return binary_over(edges, pa.py_buffer(self.data))

    def judged(
        self, judge: Callable[[int, bytes], _T | Fault]
    ) -> tuple[list[_T], list[int], tuple[BadLine, ...]]:
        """Return what `judge` makes of (index, bytes) of the records, the indices of these, and bad ones."""
        good: list[_T] = []
        indices: list[int] = []
        bad: list[BadLine] = []
        for index, (start, stop) in enumerate(zip(self.starts.tolist(), self.stops.tolist(), strict=True)):
            found = judge(index, self.data[start:stop])
            if isinstance(found, Fault):
                bad.append(self.bad(index, found))
            else:
                good.append(found)
                indices.append(index)
        return good, indices, tuple(bad)

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return record `index` as one that has `fault`."""
        if self.open_end and index == len(self) - 1:
            fault = at_the_end(fault)
        start, stop = int(self.starts[index]), int(self.stops[index])
        number = None if self.numbers is None else int(self.numbers[index])
        return BadLine(
            int(self.positions[index]), number, fault, self.data[start : min(stop, start + RAW_LIMIT)]
        )

    def parsed(self, indices: list[int] | slice, bad: tuple[BadLine, ...], **found: Any) -> Parsed:
        """Return what was found in the records `indices`, in order, with the account of all of them."""
        return Parsed(
            positions=self.positions[indices],
            bad=bad,
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            **found,
        )
