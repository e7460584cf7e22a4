"""How the rows of a mixture are dealt to its lanes: exact for the whole stream, and a closed form for each lane.

The counts of :mod:`tokenlake.mixing.counts` say how many rows of each source come before a position of the whole
stream. A lane may take a row of its own stretch of a source only, so that each of these rows goes to one lane, and each
lane gets one row for each of its places::

    cell    slots of each lane in which the counts are exact: at its ends the stream has what the counts say
    group   cells that are dealt together: at its ends each lane's own counts are a closed form

At the end of a group the n-th row of a source has gone to lane ``order[n mod L]``, which makes a lane's count a
quotient; the heaviest source alone, the *absorber*, takes what is left of each lane's slots. It always can: its slots
in a group are more than the other sources are (:meth:`Deal._check`). Inside a group the cells are dealt one after the
other, each lane's share spread evenly over them. Between two *eras*, where another source is the heaviest, some groups
are dealt row by row, and the count goes on from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, final

import numpy as np
import xxhash

from tokenlake.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.mixing.counts import Counts, Tallies
from tokenlake.mixing.random import WORD, extended, key_of, shuffled, splitmix64
from tokenlake.mixing.schedule import SchedulePiece, WeightScheduler

_LEAST_GROUP: Final = 128  # slots of a lane: enough for 8 sources that change, or 11 that do not
_KEPT: Final = 4  # groups whose cells are kept
_MOST_DEALT: Final = 1 << 25  # counts of cells, lanes and sources that are kept of a group: 256 MiB
_BORDERS: Final = 1 << 13  # borders whose counts are kept
_LARGEST: Final = (
    1 << 62
) - 1  # rows of a source that are told apart; beyond, only how many are in a cell counts
_DEALT: Final = 0xDEA1  # the first word of the keys by which lanes are dealt to


@final
@dataclass(frozen=True, slots=True)
class Era:
    """Rows of a schedule in which one source is heavy all the time.

    Attributes:
        start: the first row.
        settled: the row from which on the counts grow as the weights say.
        absorber: index of the source.
        sources: how many have any weight.
        weight: of the absorber, at least.
    """

    start: int
    settled: int
    absorber: int
    sources: int
    weight: Fraction

    @property
    def group(self) -> int:
        """Slots of a lane that a group must have."""
        return 1 if self.sources <= 2 else -int(-self.sources // self.weight)


@final
@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring groups.

    Attributes:
        first: number of the first group.
        base: what each lane has taken of each source before it, int64[J, L].
        counts: what all lanes have.
        rank: which lane is dealt to when, int64[J, L].
        absorber: None: this group alone, dealt row by row.
    """

    first: int
    base: Int64
    counts: Tallies
    rank: Int64
    absorber: int | None


class Dealt(ABC):
    """The slots of all lanes of a mixture: what each lane has taken of each source, at the ends of cells.

    Which slots of a cell are of which source is a shuffle of the cell's own. In the shuffle's order of a cell's slots,
    the first are the first source's, the next ones the second's and so on; each source then gives its rows in the order
    of its slots.

    Attributes:
        cell: slots of a lane in a cell.
        cells: of a group.
        seed: of the shuffles.
    """

    cell: int
    cells: int
    seed: int

    @abstractmethod
    def before(self, lane: int, cell: int) -> Tallies:
        """Return how many slots of a lane before a cell are of each source."""

    @abstractmethod
    def bounds(self, lane: int, cells: range) -> Int64:
        """Return :meth:`before` for each of these cells and for the one behind them, int64[n + 1, J]."""

    @abstractmethod
    def ceiling(self, source: int) -> int | None:
        """Return how many rows of a source each lane gets at least, in all of time; None: there is no end to it."""

    def decided(self, cells: int) -> int:
        """Return the slots of the groups that the first cells are of."""
        return -(-cells // self.cells) * self.cells * self.cell

    def first_cell(self, holds: Callable[[int], bool]) -> int:
        """Return the first cell for which `holds` is true, if it stays true from there on: group by group at first."""
        group = first_true(0, lambda number: holds(number * self.cells))
        return 0 if group == 0 else first_true((group - 1) * self.cells, holds, group * self.cells)

    def rows(self, lane: int, cells: range) -> tuple[Int64, Int64]:
        """Return the source of each slot of neighbouring cells, and which of its rows it takes, int64[n] both."""
        bounds = self.bounds(lane, cells)
        counts = np.diff(bounds, axis=0)
        words = np.array([cell & WORD for cell in cells], np.uint64).view(np.int64)
        keys = extended(key_of(self.seed, lane), words)
        order = np.argsort(splitmix64(keys[:, None] + np.arange(self.cell, dtype=np.uint64)), axis=1)
        sources, lengths = counts.shape[1], counts.ravel()
        kind = np.min_scalar_type(sources)
        dealt = np.repeat(np.tile(np.arange(sources, dtype=kind), len(counts)), lengths)
        source = np.empty(order.shape, kind)
        np.put_along_axis(source, order, dealt.reshape(order.shape), axis=1)
        # A stable sort of small integers is a radix sort: each source's slots, ascending.
        slot = np.argsort(source, axis=1, kind="stable") + np.arange(len(counts))[:, None] * self.cell
        number = np.empty(slot.size, np.int64)
        first = bounds[:-1].ravel() - np.cumsum(lengths) + lengths
        number[slot.ravel()] = np.repeat(first, lengths) + np.arange(slot.size)
        return source.ravel().astype(np.int64), number


def first_true(low: int, holds: Callable[[int], bool], high: int | None = None) -> int:
    """Return the first number from `low` on for which `holds` is true, if it stays true from there on.

    Args:
        high: one for which it is true; None: it is looked for.
    """
    reach = 1
    while high is None:
        if holds(low + reach - 1):
            high = low + reach - 1
        else:
            low, reach = low + reach, reach * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


@final
class EvenDeal(Dealt):
    """Orders before version 3: each lane has the counts of one lane, in blocks, so that all lanes come to a rare source
    at once. Versions that were written so are read, checked and rebuilt so.

    Args:
        counts: of a lane.
        block_size: its slots.
        seed: of the shuffles.
    """

    def __init__(self, counts: Counts, block_size: int, seed: int) -> None:
        self.cell, self.cells, self.seed = block_size, 1, seed
        self._counts = counts
        self._at = lru_cache(_BORDERS)(counts.draws_before)

    def before(self, lane: int, cell: int) -> Tallies:
        return self._at(cell * self.cell)

    def bounds(self, lane: int, cells: range) -> Int64:
        return _clamped([self.before(lane, cell) for cell in range(cells.start, cells.stop + 1)])

    def ceiling(self, source: int) -> int | None:
        return self._counts.ceiling(source)


@final
class Deal(Dealt):
    """What each lane has taken of each source, at the ends of cells.

    Args:
        scheduler: the weights.
        lanes, batch_size, block_size, step_rows, seed: as :class:`tokenlake.mixing.mixture.SourceMixture` takes them.

    Raises:
        ConfigError: a group is too small for so many sources.
    """

    def __init__(
        self,
        scheduler: WeightScheduler,
        *,
        lanes: int,
        batch_size: int,
        block_size: int,
        step_rows: int,
        seed: int,
    ) -> None:
        width = batch_size // lanes
        self.cell = max(size for size in range(1, min(width, block_size) + 1) if width % size == 0)
        group = self.cell if lanes == 1 else max(block_size, _LEAST_GROUP)
        self.cells = -(-group // self.cell)
        self._lanes, self.seed, self._names = lanes, seed, scheduler.names
        self._cell_rows = self.cell * lanes
        self._rows = self.cells * self._cell_rows
        self.counts = Counts(scheduler, step_rows=step_rows, block_size=self._rows, batch_rows=batch_size)
        self._eras = tuple(_eras(scheduler, self.counts, step_rows))
        if lanes > 1:
            self._check(block_size)
        self._at = lru_cache(_BORDERS)(self.counts.draws_before)
        self._cells_of = lru_cache(_KEPT)(self._dealt)

    def before(self, lane: int, cell: int) -> Tallies:
        if self._lanes == 1:
            return self._at(cell * self.cell)
        return tuple(self._taken(cell)[:, lane].tolist())

    def bounds(self, lane: int, cells: range) -> Int64:
        if self._lanes == 1:
            return _clamped([self.before(lane, cell) for cell in range(cells.start, cells.stop + 1)])
        found, cell = list[Int64](), cells.start
        while cell <= cells.stop:
            group, inside = divmod(cell, self.cells)
            stop = min(cells.stop + 1 - group * self.cells, self.cells)
            found.append(
                self._cells_of(group)[inside:stop, :, lane]
                if stop > 1
                else self._border(group)[None, :, lane]
            )
            cell = group * self.cells + stop
        return np.concatenate(found)

    def ceiling(self, source: int) -> int | None:
        most = self.counts.ceiling(source)
        if most is None or self._lanes == 1:
            return most
        return int(self._runs[-1].base[source].min()) + (most - self._runs[-1].counts[source]) // self._lanes

    def _taken(self, cell: int) -> Int64:
        """What each lane has taken of each source before a cell, int64[J, L]."""
        group, inside = divmod(cell, self.cells)
        return self._cells_of(group)[inside] if inside else self._border(group)

    def _border(self, group: int) -> Int64:
        """What each lane has taken before a group, int64[J, L]."""
        run = self._run_of(group)
        return run.base if group == run.first else self._regular(run, group)

    def _run_of(self, group: int) -> _Run:
        return self._runs[bisect_right(self._runs, group, key=lambda run: run.first) - 1]

    def _regular(self, run: _Run, group: int) -> Int64:
        """What each lane has taken before a group behind the first of a run with an absorber, int64[J, L]."""
        more = [now - then for now, then in zip(self._at(group * self._rows), run.counts, strict=True)]
        whole, rest = np.divmod(np.array(more, np.int64)[:, None], self._lanes)
        taken = run.base + whole + (run.rank < rest)
        assert run.absorber is not None
        taken[run.absorber] = 0
        taken[run.absorber] = group * self.cells * self.cell - taken.sum(axis=0)
        return taken

    @cached_property
    def _runs(self) -> list[_Run]:
        """All groups, in runs; the last one never ends."""
        runs: list[_Run] = []
        base, group = np.zeros((len(self._names), self._lanes), np.int64), 0
        for era, following in pairwise([*self._eras, None]):
            assert era is not None
            settled = 0 if era.settled == 0 else -(-era.settled // self._rows)
            while group < settled and (following is None or group * self._rows < following.start):
                runs.append(self._run(group, base, None))
                *_, (_, base) = self._row_by_row(runs[-1])
                group += 1
            end = None if following is None else following.start // self._rows
            if end is None or group < end:
                runs.append(self._run(group, base, era.absorber))
            if end is not None and group < end:
                group, base = end, self._regular(runs[-1], end)
        return runs

    def _run(self, group: int, base: Int64, absorber: int | None) -> _Run:
        words = [xxhash.xxh3_64_intdigest(name.encode()) for name in self._names]
        by_chance = np.stack([shuffled(self._lanes, key_of(self.seed, _DEALT, word)) for word in words])
        order = np.lexsort((by_chance, base), axis=1)
        return _Run(group, base, self._at(group * self._rows), np.argsort(order, axis=1), absorber)

    def _dealt(self, group: int) -> Int64:
        """What is taken before each cell of a group, int64[cells, J, L]."""
        run = self._run_of(group)
        if run.absorber is None:
            stretches = list(self._row_by_row(run))
        else:
            stretches = [(range(group * self.cells, (group + 1) * self.cells), self._border(group + 1))]
        found = [self._border(group)[None]]
        for cells, after in stretches:
            counts = [self._at(cell * self._cell_rows) for cell in range(cells.start, cells.stop + 1)]
            dealt = spread(after - found[-1][-1], np.diff(np.array(counts, np.int64), axis=0), self.cell)
            found.append(found[-1][-1] + np.cumsum(dealt, axis=0))
        return np.concatenate(found)[:-1]

    def _row_by_row(self, run: _Run) -> Iterator[tuple[range, Int64]]:
        """Yield the stretches of a group in which no source can absorb, and what is taken after each.

        The next row goes to the next lane. A stretch ends before and behind the cell in which an era starts.
        """
        taken, cell, stop = run.base, run.first * self.cells, (run.first + 1) * self.cells
        starts = {era.start // self._cell_rows for era in self._eras}
        cuts = {start + more for start in starts for more in (0, 1)} & set(range(cell + 1, stop))
        lane = np.arange(self._lanes)
        for end in [*sorted(cuts), stop]:
            ends = np.array([self._at(cut * self._cell_rows) for cut in (cell, end)], np.int64)
            ends = np.cumsum([0, *(ends[1] - ends[0])])
            taken = taken + np.diff((ends[:, None] + self._lanes - 1 - lane) // self._lanes, axis=0)
            yield range(cell, end), taken
            cell = end

    def _check(self, block_size: int) -> None:
        if self.cells * self._lanes * len(self._names) > _MOST_DEALT:
            raise ConfigError(
                f"block_size {block_size}: too many slots of {self._lanes} lanes and {len(self._names)} sources to "
                "deal together; expected a smaller block_size, or fewer lanes"
            )
        most = max(self._eras, key=lambda era: era.group)
        if most.group > self.cells * self.cell:
            raise ConfigError(
                f"block_size {block_size} is too small to deal {most.sources} sources to {self._lanes} lanes; expected "
                f"{most.group} or more, or fewer lanes"
            )


def _clamped(counts: Sequence[Tallies]) -> Int64:
    return np.array([[min(count, _LARGEST) for count in each] for each in counts], np.int64)


def spread(shares: Int64, wanted: Int64, size: int) -> Int64:
    """Return how many slots of each cell and lane are of each source, int64[C, J, L].

    The lightest source chooses first; the heaviest takes what is left.

    Args:
        shares: slots of each source in each lane, int64[J, L]; each lane's are those of all cells.
        wanted: slots of each source in each cell, int64[C, J].
        size: slots of a lane in a cell.
    """
    cells, (sources, lanes) = len(wanted), shares.shape
    free = np.full((cells, lanes), size, np.int64)
    found = np.zeros((cells, sources, lanes), np.int64)
    *lighter, heaviest = np.argsort(shares.sum(axis=1), kind="stable").tolist()
    for source in lighter:
        left, later = shares[source].copy(), free.sum(axis=0)
        owed = 0
        for cell in range(cells) if left.any() else ():
            later -= free[cell]
            owed += int(wanted[cell, source])
            if not owed and (left <= later).all():
                continue
            taken = _even(owed, np.maximum(0, left - later), np.minimum(left, free[cell]), left, later - left)
            found[cell, source] = taken
            free[cell] -= taken
            left -= taken
            owed -= int(taken.sum())
    found[:, heaviest] = free
    return found


def _even(total: int, least: Int64, most: Int64, left: Int64, room: Int64) -> Int64:
    """Return numbers between `least` and `most` that sum to `total`, or as nearly as they can, in proportion to `left`.

    What is left over goes to those first that have the least `room` to take it later.
    """
    whole = max(1, int(left.sum()))
    asked = left * total
    found = np.clip(asked // whole, least, most)
    while missing := total - int(found.sum()):
        able = np.flatnonzero(found < most if missing > 0 else found > least)
        if not len(able):
            break
        behind = found[able] * whole - asked[able]
        order = np.lexsort((behind, room[able]) if missing > 0 else (-behind, -room[able]))
        found[able[order[: abs(missing)]]] += 1 if missing > 0 else -1
    return found


def _eras(scheduler: WeightScheduler, counts: Counts, step_rows: int) -> Iterator[Era]:
    first = late = 0
    if scheduler.before is not None and counts.before is not None:
        first = counts.start
        earlier = [era for era in _eras(scheduler.before, counts.before, step_rows) if era.start < first]
        yield from earlier
        at = scheduler.at
        if any(era.settled > first for era in earlier):
            at = min(at, *(each.at for each in _extended(scheduler)))
        late = first - at * step_rows
    seen: set[int] = set()
    ends = [*(piece.start for piece in scheduler.pieces[1:]), None]
    for piece, end in zip(scheduler.pieces, ends, strict=True):
        for begin, stop, weights in _halves(piece, end):
            seen |= {at for at, pair in enumerate(weights) if any(pair)}
            start, after = (
                -int(-begin * step_rows // 1),
                None if stop is None else -int(-stop * step_rows // 1),
            )
            if after is not None and after <= max(first, start):
                continue
            # A count is that of a time at most half a row for each source away; what an extension found given too much
            # is made up for by waiting, the shorter the heavier a source is.
            settled = max(start, first) + len(seen) if start or first else 0
            if late:
                settled = max(settled, first + len(seen) * (2 * (late + len(seen)) + 1))
            weight, absorber = max((min(pair), -at) for at, pair in enumerate(weights))
            active = sum(any(pair) for pair in weights)
            yield Era(max(first, start), settled, -absorber, active, weight)


def _extended(scheduler: WeightScheduler) -> Iterator[WeightScheduler]:
    """Yield a schedule and those that it extends, but for the first one, which extends none."""
    while scheduler.before is not None:
        yield scheduler
        scheduler = scheduler.before


def _halves(
    piece: SchedulePiece, end: int | None
) -> Iterator[tuple[Fraction, Fraction | None, Sequence[tuple[Fraction, Fraction]]]]:
    """Yield (begin, end, weights at both) of the parts of a piece: in a half of a curve some source stays heavy."""
    stop = None if end is None else Fraction(end)
    begin, first, last = Fraction(piece.start), piece.first.weights, piece.last.weights
    if piece.curve == "step" or stop is None:
        yield begin, stop, list(zip(first, first, strict=True))
        return
    middle = (begin + piece.last.step) / 2
    between = [(a + b) / 2 for a, b in zip(first, last, strict=True)]
    if middle >= stop:
        yield begin, stop, list(zip(first, between, strict=True))
        return
    yield begin, middle, list(zip(first, between, strict=True))
    yield middle, stop, list(zip(between, last, strict=True))
