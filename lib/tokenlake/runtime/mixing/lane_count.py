"""Number of lanes that an order has by default.

A lane reads each source in an order of its own, row group by row group, so that all
lanes together hold about two row groups of each source at a time. The number of lanes
of a mixture is the largest divisor of the batch size that is at most 64 and leaves

- each source a row for each lane,
- two decoded row groups for each lane and source within 256 MiB,
- a stream of at least six times the row groups of all sources for each lane.

The number is part of the order. A longer stream may get more lanes; to make a mixture
longer later, state its number of lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Self, final

MOST_LANES: Final = 64
"""Largest number of lanes of a mixture, and of a dataset whose batches are small."""

MOST_HOSTS: Final = 512
"""Largest number of lanes of a dataset whose batches are large."""

MOST_BYTES: Final = 256 << 20
"""Most bytes of decoded row groups that all lanes hold."""

_LANE_ROWS: Final = 4  # rows of a large batch in each lane
_OPEN_GROUPS: Final = 2  # row groups that a lane holds of each source
_GROUPS_PER_STREAM: Final = 6
_DOCUMENT_BYTES: Final = 24  # file, position and the offset of a decoded row, roughly


@final
@dataclass(frozen=True, slots=True)
class SourceSize:
    """Size of a source.

    Attributes:
        rows: Number of rows.
        groups: Number of row groups.
        decoded_bytes: Mean number of bytes of a decoded row group, roughly.
    """

    rows: int
    groups: int
    decoded_bytes: int

    @classmethod
    def of(
        cls, *, rows: int, groups: int, tokens: int, documents: int, width: int
    ) -> Self:
        """Return the size of a split.

        Args:
            rows: Number of rows.
            groups: Number of row groups.
            tokens: Number of ids that are not padding.
            documents: Number of documents.
            width: Number of ids in a packed row; 0 where rows are documents.
        """
        ids = rows * width or tokens
        decoded_bytes = 4 * ids + _DOCUMENT_BYTES * documents
        return cls(rows, groups, decoded_bytes // max(1, groups))

    def shortened(self, rows: int | None) -> Self:
        """Return the size of some of the rows, in as many row groups as they fill.

        Args:
            rows: Number of rows; None for all.
        """
        if rows is None:
            return self
        groups = -(-self.groups * rows // max(1, self.rows))
        return replace(self, rows=rows, groups=max(1, groups))


def most_lanes(batch_size: int) -> int:
    """Return the largest number of lanes of a training run on one dataset.

    Hosts that share a lane each decode all of it, but each lane of a host holds a row
    group. Therefore the limit is higher where batches are so large that many hosts are
    likely: 512 from 2,048 rows on.

    Args:
        batch_size: Number of rows in a global batch.
    """
    return min(MOST_HOSTS, max(MOST_LANES, batch_size // _LANE_ROWS))


def choose_lanes(
    sizes: Mapping[str, SourceSize],
    weights: Iterable[Mapping[str, float]],
    *,
    batch_size: int,
    step_rows: int | None,
    rows: int | None,
) -> int:
    """Return the number of lanes of a mixture.

    Args:
        sizes: Size of each source.
        weights: Weights per row of each source, at each point of the schedule.
        batch_size: Number of rows in a global batch.
        step_rows: Number of rows in a step, which the lanes must divide too; None if
            weights do not change.
        rows: Number of rows of the whole stream; None if it never ends.
    """
    dividend = batch_size
    if step_rows is not None:
        dividend = math.gcd(batch_size, step_rows)
    # Limits of the number of lanes: rows of the smallest source, memory of open row
    # groups, and the length of the stream.
    smallest_source = min(size.rows for size in sizes.values())
    bytes_per_lane = _OPEN_GROUPS * sum(size.decoded_bytes for size in sizes.values())
    rows_per_lane = _GROUPS_PER_STREAM * group_rows(sizes, weights)
    # The largest number that fits all limits; one lane always does.
    chosen = 1
    for lanes in range(2, min(MOST_LANES, smallest_source, dividend) + 1):
        is_divisor = dividend % lanes == 0
        fits_memory = lanes * bytes_per_lane <= MOST_BYTES
        is_long_enough = rows is None or lanes * rows_per_lane <= rows
        if is_divisor and fits_memory and is_long_enough:
            chosen = lanes
    return chosen


def group_rows(
    sizes: Mapping[str, SourceSize], weights: Iterable[Mapping[str, float]]
) -> Fraction:
    """Return the rows of the mixture that take the bytes of a row group per source.

    Together they take as many bytes as one row group of each source.

    The bytes of a row are those of a mean row of the mixture, at the point of the
    schedule where they are fewest.

    Args:
        sizes: Size of each source.
        weights: Weights per row of each source, at each point of the schedule.
    """
    # Bytes of a mean row of each source, then of a mean row of the mixture at each
    # point.
    row_bytes: dict[str, Fraction] = {}
    for name, size in sizes.items():
        row_bytes[name] = Fraction(size.decoded_bytes * max(1, size.groups), size.rows)
    mean_row_bytes: list[Fraction] = []
    for point in weights:
        mean = Fraction(0)
        for name, weight in point.items():
            mean += Fraction(weight) * row_bytes[name]
        mean_row_bytes.append(mean)
    group_bytes = sum(size.decoded_bytes for size in sizes.values())
    return Fraction(group_bytes) / min(mean_row_bytes)
