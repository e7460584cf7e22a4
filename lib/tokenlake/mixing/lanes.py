"""How many lanes a mixture has, where nobody says.

A lane reads each source in an order of its own, row group by row group, so that all lanes together hold about two row
groups of each source at a time. The number is the largest divisor of the batch size that is at most 64 and leaves

- each source a row for each lane,
- two decoded row groups for each lane and source within 256 MiB,
- a stream that ends at least six times the row groups of all sources for each lane.

It is part of the order. A longer stream may get more lanes; who wants to make a mixture longer writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self, final

MOST_LANES: Final = 64
MOST_BYTES: Final = 256 << 20
_OPEN_GROUPS: Final = 2
_GROUPS_PER_STREAM: Final = 6
_DOCUMENT_BYTES: Final = 24  # file, position and the offset of a decoded row, roughly


@final
@dataclass(frozen=True, slots=True)
class SourceSize:
    """How large a source is.

    Attributes:
        rows, groups: rows and row groups.
        decoded_bytes: about how many bytes a row group takes in memory, in the mean.
    """

    rows: int
    groups: int
    decoded_bytes: int

    @classmethod
    def of(cls, *, rows: int, groups: int, tokens: int, documents: int, seq_length: int | None) -> Self:
        """Return the size of a split.

        Args:
            tokens: ids that are not padding.
            seq_length: ids of a packed row; None where rows are documents.
        """
        ids = rows * (seq_length or 0) or tokens
        return cls(rows, groups, (4 * ids + _DOCUMENT_BYTES * documents) // max(1, groups))


def choose_lanes(
    sizes: Mapping[str, SourceSize],
    weights: Iterable[Mapping[str, float]],
    *,
    batch_size: int,
    step_rows: int | None,
    rows: int | None,
) -> int:
    """Return the number of lanes.

    Args:
        sizes: of each source.
        weights: per row, at each point of the schedule.
        batch_size: rows of a global batch.
        step_rows: rows of a step, which lanes must divide too; None: weights do not change.
        rows: of the whole stream; None: it has no end.
    """
    whole = batch_size if step_rows is None else math.gcd(batch_size, step_rows)
    smallest = min(size.rows for size in sizes.values())
    held = _OPEN_GROUPS * sum(size.decoded_bytes for size in sizes.values())
    stream = _GROUPS_PER_STREAM * group_rows(sizes, weights)
    return max(
        (
            lanes
            for lanes in range(1, min(MOST_LANES, smallest, whole) + 1)
            if whole % lanes == 0 and lanes * held <= MOST_BYTES and (rows is None or lanes * stream <= rows)
        ),
        default=1,
    )


def group_rows(sizes: Mapping[str, SourceSize], weights: Iterable[Mapping[str, float]]) -> Fraction:
    """Return how many rows of the mixture take as many bytes as a row group of each source.

    The bytes of a row are those of a mean row of the mixture, where they are least along its schedule.
    """
    groups = sum(size.decoded_bytes for size in sizes.values())
    each = {
        name: Fraction(size.decoded_bytes * max(1, size.groups), size.rows) for name, size in sizes.items()
    }
    means = [
        sum((Fraction(weight) * each[name] for name, weight in point.items()), Fraction(0))
        for point in weights
    ]
    return Fraction(groups) / min(means)
