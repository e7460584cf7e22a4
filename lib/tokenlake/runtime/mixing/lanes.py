"""Lanes: the rows of an epoch cut into equal stretches, and how the stretches make one stream of batches.

A *lane* is one of L equal stretches; a *place* is an index in a lane; a *position* is an index in the stream of all
lanes. Lanes never depend on how many machines read: with H of them, each takes L / H neighbouring lanes, which are its
rows of every batch.

**How many lanes** a mixture has by default: a lane reads each source in an order of its own, row group by row
group, so that all lanes together hold about two row groups of each source at a time. The number is the largest divisor
of the batch size that is at most 64 and leaves

- each source a row for each lane,
- two decoded row groups for each lane and source within 256 MiB,
- a stream that ends at least six times the row groups of all sources for each lane.

It is part of the order. A longer stream may get more lanes; who wants to make a mixture longer writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError

_ENDLESS: Final = (1 << 63) - 1


def lane_bounds(rows: int, lanes: int) -> Int64:
    """Return where each lane begins and the last ends: ``floor(l * rows / lanes)``, int64[lanes + 1].

    Exact for all rows below 2^63: the product is taken apart into what divides evenly and what is left.
    """
    if lanes < 1 or rows < 0:
        raise ConfigError(f"{rows} rows in {lanes} lanes; expected 0 rows or more and 1 lane or more")
    even, left = divmod(rows, lanes)
    lane = np.arange(lanes + 1, dtype=np.int64)
    return lane * even + lane * left // lanes


@final
@dataclass(frozen=True, eq=False)
class LaneLayout:
    """Position <-> (lane, place).

    As long as every lane has rows, they go out batch by batch, in a batch lane by lane, ``batch_size / lanes`` places
    of each; where the shortest lane ends inside a batch, that batch takes fewer places of each. Then follows what is
    left of the longer lanes, in lane order.

    Attributes:
        lengths: rows of each lane, int64[lanes]; None where lanes are endless.
        lanes: how many there are.
        batch_size: rows of a batch, divisible by `lanes`.

    Raises:
        ConfigError: any of them does not fit the others.
    """

    lengths: Int64 | None
    lanes: int
    batch_size: int

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.batch_size < 1 or self.batch_size % self.lanes:
            raise ConfigError(
                f"a batch of {self.batch_size} rows cannot take as many of each of {self.lanes} lanes; "
                "expected a batch size that the number of lanes divides"
            )
        if self.lengths is not None and (len(self.lengths) != self.lanes or (self.lengths < 0).any()):
            raise ConfigError(
                f"lane lengths {self.lengths.tolist()}; expected {self.lanes} numbers that are not negative"
            )
        if self.rows is not None and self.rows >= _ENDLESS:
            raise ConfigError(f"{self.rows} rows in all lanes; expected fewer than 2^63")

    @cached_property
    def rows(self) -> int | None:
        """How many positions there are; None where lanes are endless."""
        return None if self.lengths is None else sum(self.lengths.tolist())

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of each position, int64[n] both; ConfigError where there is none."""
        start = positions // self.batch_size * self.batch_size
        return self.locate_in(start, np.array([self.batch_size]), positions - start)

    def locate_in(self, start: Int64, size: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of rows of batches of any sizes, one after the other.

        As :meth:`locate`, where batches may have other sizes than :attr:`batch_size`: a batch takes ``size / lanes``
        places of each lane, so that after any number of batches all lanes stand at the same place.

        Args:
            start: rows before the batch, int64[n]; as long as all lanes have rows, divisible by their number.
            size: rows of the batch, int64[n], divisible by the number of lanes.
            row: in the batch, int64[n].

        Returns:
            int64[n] both.
        """
        self._check(start + row, self.rows, "positions")
        before = np.minimum(start // self.lanes, self._even)
        share = np.minimum(size // self.lanes, self._even - before)
        lane = row // np.maximum(share, 1)
        place = before + row - lane * share
        late = np.flatnonzero(row >= share * self.lanes)
        if len(late):
            rest = start[late] + row[late] - self._even * self.lanes
            lane[late] = np.searchsorted(self._rest, rest, side="right") - 1
            place[late] = self._even + rest - self._rest[lane[late]]
        return lane, place

    def beside(self, lane: Int64, place: Int64) -> Int64:
        """Return a position that lies in the same batch as each place, int64[n], whatever sizes batches have.

        A batch takes the same places of every lane, so that this is where lanes of one place each would be.
        """
        return self._apart(lane, place, place * self.lanes)

    def row_in(self, start: Int64, size: Int64, lane: Int64, place: Int64) -> Int64:
        """Return the row of each (lane, place) in its batch, int64[n]; the inverse of :meth:`locate_in`.

        Args:
            start: rows before the batch that holds the place (see :meth:`beside`), int64[n].
            size: rows of that batch, int64[n].
            lane, place: int64[n].
        """
        before = np.minimum(start // self.lanes, self._even)
        share = np.minimum(size // self.lanes, self._even - before)
        return self._apart(lane, place, start + lane * share + place - before) - start

    def places_before(self, position: int) -> Int64:
        """Return how many places of each lane lie before a position: int64[lanes]; they sum to it."""
        if position < 0 or (self.rows is not None and position > self.rows):
            end = "" if self.rows is None else f" to {self.rows}"
            raise ConfigError(f"position {position} is not in the stream; expected 0{end or ' or more'}")
        inside = position % self.batch_size
        return self.places_in(position - inside, self.batch_size, inside)

    def places_in(self, start: int, size: int, rows: int) -> Int64:
        """Return how many places of each lane lie before a row of a batch: int64[lanes]; they sum to ``start + rows``.

        As :meth:`places_before`, where batches may have other sizes than :attr:`batch_size`; see :meth:`locate_in`.
        """
        before = min(start // self.lanes, self._even)
        share = min(size // self.lanes, self._even - before)
        even = before + np.clip(rows - np.arange(self.lanes) * share, 0, share)
        late = max(0, start + rows - self._even * self.lanes)
        return even + np.clip(late - self._rest[:-1], 0, np.diff(self._rest))

    @cached_property
    def _even(self) -> int:
        """Places that every lane has."""
        return _ENDLESS if self.lengths is None else int(self.lengths.min())

    @cached_property
    def _rest(self) -> Int64:
        """Where the rest of each lane begins behind the even part, and the last ends: int64[lanes + 1]."""
        return offsets_of(np.zeros(self.lanes) if self.lengths is None else self.lengths - self._even)

    def _apart(self, lane: Int64, place: Int64, positions: Int64) -> Int64:
        """Check places; return the positions given, and of places behind the even part their own ones."""
        self._check(lane, self.lanes, "lanes")
        self._check(place, None if self.lengths is None else self.lengths[lane], "places")
        late = np.flatnonzero(place >= self._even)
        if len(late):
            positions[late] = self._even * self.lanes + self._rest[lane[late]] + place[late] - self._even
        return positions

    def _check(self, values: Int64, limit: Int64 | int | None, what: str) -> None:
        wrong = values < 0 if limit is None else (values < 0) | (values >= limit)
        if not wrong.any():
            return
        first = int(np.argmax(wrong))
        end = limit if limit is None or isinstance(limit, int) else int(limit[first])
        expected = "0 or more" if end is None else f"0 to {end - 1}" if end else "none, for it is empty"
        raise ConfigError(f"{what}: {values[first]} is not in the stream; expected {expected}")


MOST_LANES: Final = 64
"""Of a mixture, and where batches are small."""
MOST_HOSTS: Final = 512
_LANE_ROWS: Final = 4  # of a large batch, in each lane

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
    def of(cls, *, rows: int, groups: int, tokens: int, documents: int, width: int) -> Self:
        """Return the size of a split.

        Args:
            tokens: ids that are not padding.
            width: ids of a packed row; 0 where rows are documents.
        """
        ids = rows * width or tokens
        return cls(rows, groups, (4 * ids + _DOCUMENT_BYTES * documents) // max(1, groups))

    def shortened(self, rows: int | None) -> Self:
        """Return the size of so many of the rows, of as many row groups as these fill; None: of all."""
        if rows is None:
            return self
        return replace(self, rows=rows, groups=max(1, -(-self.groups * rows // max(1, self.rows))))


def most_lanes(batch_size: int) -> int:
    """Return how many lanes a training run on one dataset has at most.

    Hosts that share a lane each decode all of it; but each lane of a host holds a row group. So there are more of them
    where batches are so large that many hosts are likely: 512 from 2,048 rows on.
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
