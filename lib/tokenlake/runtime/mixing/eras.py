"""Eras of a schedule: stretches of rows in which one source is the heaviest.

In each half of a curve between two points some source stays heavy: its weight is
bounded from below by the smaller of its weights at both ends. Example: from (0.9, 0.1)
at step 0 to (0.1, 0.9) at step 100, source 0 has at least 0.5 up to step 50, and source
1 at least 0.5 from there on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, final

from tokenlake.runtime.mixing.counts import Counts
from tokenlake.runtime.mixing.schedule import SchedulePiece, WeightScheduler


@final
@dataclass(frozen=True, slots=True)
class Era:
    """Rows of a schedule in which one source has a large weight all the time.

    Attributes:
        start: First row.
        settled: First row from which the counts grow as the weights say.
        heaviest: Index of the source.
        sources: Number of sources with any weight.
        weight: Least weight of the heaviest source.
    """

    start: int
    settled: int
    heaviest: int
    sources: int
    weight: Fraction

    @property
    def group_slots(self) -> int:
        """Least number of slots of a lane in a group."""
        if self.sources <= 2:
            return 1
        return math.ceil(self.sources / self.weight)


class _CurvePart(NamedTuple):
    """Part of a piece of a schedule.

    Attributes:
        begin: First step.
        end: Step after the part; None if it never ends.
        first: Weights at its begin.
        last: Weights at its end.
    """

    begin: Fraction
    end: Fraction | None
    first: tuple[Fraction, ...]
    last: tuple[Fraction, ...]


def eras_of(
    scheduler: WeightScheduler, counts: Counts, step_rows: int
) -> Iterator[Era]:
    """Yield the eras of one version of the weights, from its first row on.

    Args:
        scheduler: Version of the weights.
        counts: Its counts.
        step_rows: Number of rows per step of the schedule.
    """
    effect_row = counts.start
    settled_after_change = 0
    if counts.before is not None:
        # A source that is ahead of its weight waits: see
        # tokenlake.runtime.mixing.counts.
        sources = len(scheduler.names)
        settled_after_change = effect_row + sources * (2 * sources + 1)

    # Sources that had any weight so far: only their counts can be behind.
    weighed_sources: set[int] = set()
    for part in _parts_in_effect(scheduler, counts, step_rows):
        # The heaviest source is the one with the largest weight that it keeps over the
        # whole part.
        least_weights = [min(pair) for pair in zip(part.first, part.last, strict=True)]
        active_sources = [
            index
            for index, pair in enumerate(zip(part.first, part.last, strict=True))
            if any(pair)
        ]
        weighed_sources.update(active_sources)
        start = max(effect_row, math.ceil(part.begin * step_rows))
        if part.end is not None and math.ceil(part.end * step_rows) <= start:
            continue
        # A count is that of a time at most half a row for each source away.
        settled = 0
        if start:
            settled = start + len(weighed_sources)
        weight = max(least_weights)
        yield Era(
            start=start,
            settled=max(settled, settled_after_change),
            heaviest=least_weights.index(weight),
            sources=len(active_sources),
            weight=weight,
        )


def _parts_in_effect(
    scheduler: WeightScheduler, counts: Counts, step_rows: int
) -> Iterator[_CurvePart]:
    """Yield the halves of the pieces of a version that end after it takes effect."""
    for number, piece in enumerate(scheduler.pieces):
        end: int | None = None
        if number + 1 < len(scheduler.pieces):
            end = scheduler.pieces[number + 1].start
        is_over = (
            counts.before is not None
            and end is not None
            and end * step_rows <= counts.start
        )
        if not is_over:
            yield from _halves(piece, end)


def _halves(piece: SchedulePiece, end: int | None) -> Iterator[_CurvePart]:
    """Yield the parts of a piece in each of which some source stays heavy.

    They are the halves of its curve.

    Args:
        piece: Piece of a schedule.
        end: Step at which the next piece begins, which may be before the end of the
            curve; None if there is none.
    """
    begin_step = Fraction(piece.start)
    first = piece.first.weights
    last = piece.last.weights
    if end is None:
        yield _CurvePart(begin_step, None, first, first)
        return
    end_step = Fraction(end)
    if piece.curve == "step":
        yield _CurvePart(begin_step, end_step, first, first)
        return
    # The curve is symmetric about its middle, where each weight is half way.
    middle = (begin_step + piece.last.step) / 2
    between = tuple(
        (first_weight + last_weight) / 2
        for first_weight, last_weight in zip(first, last, strict=True)
    )
    if middle >= end_step:
        yield _CurvePart(begin_step, end_step, first, between)
        return
    yield _CurvePart(begin_step, middle, first, between)
    yield _CurvePart(middle, end_step, between, last)
