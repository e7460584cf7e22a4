"""How the rows of a mixture are dealt to its lanes: exact for the whole stream, and a closed form for each lane.

The counts of :mod:`tokenlake.runtime.mixing.counts` say how many rows of each source come before a position
of the whole stream. A lane may take a row of its own stretch of a source only, so that each of these rows
goes to one lane, and each lane gets one row for each of its places::

    cell    slots of each lane in which the counts are exact: at its ends the stream has what the counts say
    group   cells that are dealt together: at its ends each lane's own counts are a closed form
    span    groups that one version of the weights deals; each change of the weights begins one

At the end of a group the n-th row of a source has gone to lane ``order[n mod L]``, which makes a lane's count a
quotient; the heaviest source alone, the *absorber*, takes what is left of each lane's slots. It always can: its slots
in a group are more than the other sources are (:meth:`Deal._check`). Inside a group the cells are dealt one after the
other, each lane's share spread evenly over them. Between two *eras*, where another source is the heaviest, some groups
are dealt row by row, and the count goes on from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, final

import numpy as np
import xxhash

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.counts import Counts, Tallies, counts_of
from tokenlake.runtime.mixing.dealt import Dealt, first_true
from tokenlake.runtime.mixing.random import key_of, shuffled
from tokenlake.runtime.mixing.schedule import SchedulePiece, WeightScheduler

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
        heaviest: The heaviest source.
    """

    first: int
    base: Int64
    counts: Tallies
    rank: Int64
    absorber: int | None
    heaviest: int


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
class _Span:
    """Groups that are dealt by one version of the weights, several lanes of them.

    Attributes:
        first: Number of the first cell.
        cells: Cells of a group. The groups of a span begin with its first cell.
        names: The sources.
        base: What each lane has taken of each source before the first cell, int64[J, L]. None: not known yet.
        eras: The rows of the version, in order.
        cell: Slots of a lane in a cell.
        at: The counts of this version, also behind the row at which the next version takes effect.
    """

    def __init__(
        self,
        *,
        first: int,
        cells: int,
        cell: int,
        lanes: int,
        seed: int,
        names: tuple[str, ...],
        counts: Counts,
        eras: tuple[Era, ...],
    ) -> None:
        self.first = first
        self.cells = cells
        self.cell = cell
        self.names = names
        self.eras = eras
        self.at = lru_cache(_BORDERS)(counts.draws_before)
        self._is_change = counts.before is not None
        self.base = None if self._is_change else np.zeros((len(names), lanes), np.int64)
        self._lanes = lanes
        self._seed = seed
        self._cell_rows = cell * lanes

    def taken(self, cell: int) -> Int64:
        """Return what each lane has taken of each source before a cell, int64[J, L]."""
        group, inside = divmod(cell - self.first, self.cells)
        return self.dealt(group)[inside] if inside else self.border(group)

    def border(self, group: int) -> Int64:
        """Return what each lane has taken before a group, int64[J, L]."""
        run = self._run_of(group)
        return run.base if group == run.first else self._regular(run, group)

    def dealt(self, group: int) -> Int64:
        """Return what is taken before each cell of a group, int64[cells, J, L]."""
        run = self._run_of(group)
        if run.absorber is None:
            stretches = list(self._settling(run))
        else:
            cells = range(self._cell_of(group), self._cell_of(group + 1))
            stretches = [(cells, self.border(group + 1))]
        parts = [self.border(group)[None]]
        for cells, after in stretches:
            counts = [self.at(cell * self._cell_rows) for cell in range(cells.start, cells.stop + 1)]
            before = parts[-1][-1]
            shares = spread(after - before, np.diff(np.array(counts, np.int64), axis=0), self.cell)
            parts.append(before + np.cumsum(shares, axis=0))
        return np.concatenate(parts)[:-1]

    @cached_property
    def runs(self) -> list[_Run]:
        """All groups, in runs; the last one never ends."""
        assert self.base is not None
        runs: list[_Run] = []
        base = self.base
        group = 0
        for era, following in pairwise([*self.eras, None]):
            assert era is not None
            settled = 0 if era.settled == 0 else self._group_after(era.settled)
            while group < settled and (following is None or self._row_of(group) < following.start):
                runs.append(self._run(group, base, None, era.absorber))
                *_, (_, base) = self._settling(runs[-1])
                group += 1
            end = None if following is None else self._group_before(following.start)
            if end is None or group < end:
                runs.append(self._run(group, base, era.absorber, era.absorber))
            if end is not None and group < end:
                group, base = end, self._regular(runs[-1], end)
        return runs

    def _cell_of(self, group: int) -> int:
        return self.first + group * self.cells

    def _row_of(self, group: int) -> int:
        return self._cell_of(group) * self._cell_rows

    def _group_before(self, row: int) -> int:
        """Return the group that a row is in."""
        return (row // self._cell_rows - self.first) // self.cells

    def _group_after(self, row: int) -> int:
        """Return the first group that begins at a row or behind it."""
        cell = -(-row // self._cell_rows)
        return -(-(cell - self.first) // self.cells)

    def _run_of(self, group: int) -> _Run:
        return self.runs[bisect_right(self.runs, group, key=lambda run: run.first) - 1]

    def _regular(self, run: _Run, group: int) -> Int64:
        """Return what each lane has taken before a group behind the first of a run with an absorber, int64[J, L]."""
        counts = self.at(self._row_of(group))
        more = [now - then for now, then in zip(counts, run.counts, strict=True)]
        whole, rest = np.divmod(np.array(more, np.int64)[:, None], self._lanes)
        taken = run.base + whole + (run.rank < rest)
        assert run.absorber is not None
        taken[run.absorber] = 0
        taken[run.absorber] = self._cell_of(group) * self.cell - taken.sum(axis=0)
        return taken

    def _run(self, group: int, base: Int64, absorber: int | None, heaviest: int) -> _Run:
        words = [xxhash.xxh3_64_intdigest(name.encode()) for name in self.names]
        by_chance = np.stack([shuffled(self._lanes, key_of(self._seed, _DEALT, word)) for word in words])
        order = np.lexsort((by_chance, base), axis=1)
        return _Run(group, base, self.at(self._row_of(group)), np.argsort(order, axis=1), absorber, heaviest)

    def _settling(self, run: _Run) -> Iterator[tuple[range, Int64]]:
        """Yield the stretches of a group in which no source can absorb, and what is taken after each.

        A stretch ends before and behind the cell in which an era starts.
        """
        taken = run.base
        cell = self._cell_of(run.first)
        stop = self._cell_of(run.first + 1)
        starts = {era.start // self._cell_rows for era in self.eras}
        cuts = {start + more for start in starts for more in (0, 1)} & set(range(cell + 1, stop))
        for end in [*sorted(cuts), stop]:
            counts = np.array([self.at(cut * self._cell_rows) for cut in (cell, end)], np.int64)
            drawn = counts[1] - counts[0]
            shares = None
            if self._is_change:
                shares = _evened(taken, drawn, run, (end - cell) * self.cell)
            if shares is None:
                shares = _row_by_row(drawn, self._lanes)
            taken = taken + shares
            yield range(cell, end), taken
            cell = end


def _row_by_row(drawn: Int64, lanes: int) -> Int64:
    """Return how many rows of each source each lane takes where the next row goes to the next lane, int64[J, L].

    Args:
        drawn: Rows of each source, int64[J].
        lanes: Number of lanes.
    """
    ends = np.cumsum([0, *drawn])
    lane = np.arange(lanes)
    return np.diff((ends[:, None] + lanes - 1 - lane) // lanes, axis=0)


def _evened(taken: Int64, drawn: Int64, run: _Run, slots: int) -> Int64 | None:
    """Return how many rows of each source each lane takes, int64[J, L], so that afterwards all have taken alike.

    A change of the weights comes inside a group, where a lane may have taken a row more of a source than another. Over
    many changes such rows would add up. Lanes that have the fewest rows of a source take the next ones; of the heaviest
    source each lane takes what is left of its slots.

    Args:
        taken: What each lane has taken of each source so far, int64[J, L].
        drawn: Rows of each source that are dealt, int64[J].
        run: Whose heaviest source absorbs, and whose ranks decide between lanes that are alike.
        slots: Slots of each lane.

    Returns:
        None where a lane would take more than its slots.
    """
    shares = np.zeros_like(taken)
    for source, rows in enumerate(drawn.tolist()):
        if source != run.heaviest:
            shares[source] = _levelled(taken[source], run.rank[source], rows)
    left = slots - shares.sum(axis=0)
    if (left < 0).any():
        return None
    shares[run.heaviest] = left
    return shares


def _levelled(levels: Int64, rank: Int64, rows: int) -> Int64:
    """Return what each level grows by where `rows` are added one by one, each to the lowest level, int64[L].

    Args:
        levels: int64[L].
        rank: Which of equal levels comes first, int64[L].
        rows: How many are added.
    """
    order = np.lexsort((rank, levels))
    ascending = levels[order]
    number = np.arange(1, len(levels) + 1)
    # Rows that raise the first n levels to the n-th one.
    cost = number * ascending - np.cumsum(ascending)
    raised = int(np.searchsorted(cost, rows, side="right"))
    whole, rest = divmod(rows - int(cost[raised - 1]), raised)
    growth = np.zeros_like(levels)
    growth[order[:raised]] = ascending[raised - 1] - ascending[:raised] + whole
    growth[order[:rest]] += 1
    return growth


@final
class Deal(Dealt):
    """What each lane has taken of each source, at the ends of cells.

    The first span of groups is dealt by the first weights. Each change of the weights begins another span, in the cell
    in which it takes effect, with what the lanes have taken by then.

    Args:
        scheduler: the weights.
        lanes, batch_size, block_size, step_rows, seed: as
            :class:`tokenlake.runtime.mixing.mixture.SourceMixture` takes them.

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
        self.seed = seed
        self._lanes = lanes
        self.counts = counts_of(scheduler, step_rows=step_rows, batch_rows=batch_size)
        self._at = lru_cache(_BORDERS)(self.counts.draws_before)
        self._spans = self._spans_of(scheduler, step_rows)
        if lanes > 1:
            for span in self._spans:
                self._check(span, block_size)
        self._firsts = [span.first for span in self._spans]
        self._cells_of = lru_cache(_KEPT)(self._dealt)

    def before(self, lane: int, cell: int) -> Tallies:
        if self._lanes == 1:
            return self._at(cell * self.cell)
        return tuple(self._taken(cell)[:, lane].tolist())

    def bounds(self, lane: int, cells: range) -> Int64:
        if self._lanes == 1:
            return _clamped([self.before(lane, cell) for cell in range(cells.start, cells.stop + 1)])
        stretches = list[Int64]()
        cell = cells.start
        while cell <= cells.stop:
            number = self._number(cell)
            span = self._settled(number)
            # As many borders as lie in this group and span.
            group, inside = divmod(cell - span.first, span.cells)
            group_end = cell - inside + span.cells
            if number + 1 < len(self._spans):
                group_end = min(group_end, self._firsts[number + 1])
            stop = min(cells.stop + 1, group_end)
            if inside == 0 and stop == cell + 1:
                stretches.append(span.border(group)[None, :, lane])
            else:
                stretches.append(self._cells_of(number, group)[inside : inside + stop - cell, :, lane])
            cell = stop
        return np.concatenate(stretches)

    def ceiling(self, source: int) -> int | None:
        most = self.counts.ceiling(source)
        if most is None or self._lanes == 1:
            return most
        last = self._settled(len(self._spans) - 1).runs[-1]
        return int(last.base[source].min()) + (most - last.counts[source]) // self._lanes

    def first_cell(self, holds: Callable[[int], bool]) -> int:
        # First the span, then the group in it, then the cell.
        last = len(self._spans) - 1
        number = first_true(0, lambda at: at == last or holds(self._firsts[at + 1]), last)
        span = self._spans[number]
        group = first_true(0, lambda at: holds(span.first + at * span.cells))
        if group == 0:
            return span.first
        group_start = span.first + (group - 1) * span.cells
        return first_true(group_start, holds, group_start + span.cells)

    def _spans_of(self, scheduler: WeightScheduler, step_rows: int) -> list[_Span]:
        """Return the spans of groups in order, the first from cell 0 on."""
        versions = [self.counts]
        while versions[-1].before is not None:
            versions.append(versions[-1].before)
        cell_rows = self.cell * self._lanes
        spans = list[_Span]()
        for counts, version in zip(reversed(versions), scheduler.versions(), strict=True):
            first = counts.start // cell_rows
            # A change before an earlier one takes its place.
            while spans and spans[-1].first > first:
                spans.pop()
            eras = tuple(_eras(version, counts, step_rows))
            cells = self.cells
            if version.before is not None:
                # Smaller groups where they do: what lanes have taken is known at the end of a group, and each change
                # has to deal the group that it comes in.
                needed = max(_LEAST_GROUP, *(era.group for era in eras))
                cells = min(cells, -(-needed // self.cell))
            spans.append(
                _Span(
                    first=first,
                    cells=cells,
                    cell=self.cell,
                    lanes=self._lanes,
                    seed=self.seed,
                    names=version.names,
                    counts=counts,
                    eras=eras,
                )
            )
        return spans

    def _number(self, cell: int) -> int:
        """Return the number of the span that a cell is in."""
        return bisect_right(self._firsts, cell) - 1

    def _settled(self, number: int) -> _Span:
        """Return a span that knows what the lanes have taken before it."""
        # Oldest first, so that no span asks the one before it, and that one the next.
        for at in range(1, number + 1):
            span = self._spans[at]
            if span.base is None:
                earlier = self._spans[at - 1]
                span.base = earlier.taken(span.first)
                earlier.at.cache_clear()  # thousands of counts, of which few are needed again
        return self._spans[number]

    def _taken(self, cell: int) -> Int64:
        """Return what each lane has taken of each source before a cell, int64[J, L]."""
        number = self._number(cell)
        span = self._settled(number)
        group, inside = divmod(cell - span.first, span.cells)
        return self._cells_of(number, group)[inside] if inside else span.border(group)

    def _dealt(self, number: int, group: int) -> Int64:
        """Return what is taken before each cell of a group of a span, int64[cells, J, L]."""
        return self._settled(number).dealt(group)

    def _check(self, span: _Span, block_size: int) -> None:
        sources = len(span.names)
        if span.cells * self._lanes * sources > _MOST_DEALT:
            raise ConfigError(
                f"block_size {block_size}: too many slots of {self._lanes} lanes and {sources} sources to "
                "deal together; expected a smaller block_size, or fewer lanes"
            )
        most = max(span.eras, key=lambda era: era.group)
        if most.group > span.cells * span.cell:
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
    """Yield the eras of a version of the weights, from the row on at which it takes effect."""
    first = counts.start
    settled_change = 0
    if counts.before is not None:
        # A source that is ahead of its weight waits: see tokenlake.runtime.mixing.counts.
        sources = len(scheduler.names)
        settled_change = first + sources * (2 * sources + 1)
    seen: set[int] = set()
    ends = [*(piece.start for piece in scheduler.pieces[1:]), None]
    for piece, end in zip(scheduler.pieces, ends, strict=True):
        if end is not None and counts.before is not None and end * step_rows <= first:
            continue
        for begin, stop, weights in _halves(piece, end):
            seen |= {at for at, pair in enumerate(weights) if any(pair)}
            start = -int(-begin * step_rows // 1)
            after = None if stop is None else -int(-stop * step_rows // 1)
            if after is not None and after <= max(first, start):
                continue
            # A count is that of a time at most half a row for each source away.
            settled = max(start, first) + len(seen) if start or first else 0
            weight, absorber = max((min(pair), -at) for at, pair in enumerate(weights))
            active = sum(any(pair) for pair in weights)
            yield Era(max(first, start), max(settled, settled_change), -absorber, active, weight)


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
