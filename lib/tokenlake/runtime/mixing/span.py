"""Groups of cells of one version of the weights, and each lane's rows before them.

**Between groups**, while one source is the heaviest, the rows that lanes have taken are
a closed form. From the counts ``n_j`` of a source since the first of these groups, lane
l has taken

- of each other source: ``n_j // L`` rows, and one more if ``rank_j[l] < n_j mod L``;
- of the heaviest source: the slots that are left. There always are: see
  :meth:`Era.group_slots <tokenlake.runtime.mixing.eras.Era>`.

Ranks follow from the seed and the name of the source. Lanes that had taken fewer rows
of it come first.

Example: 4 lanes, weights 0.5, 0.3 and 0.2, groups of 128 slots. The first group has 512 rows, of which the counts are
256, 154 and 102. Since 154 = 4 * 38 + 2, the lanes of ranks 0 and 1 take 39 rows of the second source::

    source   rank      rows taken by lanes 0 to 3
    0                  64 64 65 63                  128 less the other two
    1        3 1 2 0   38 39 38 39
    2        0 3 2 1   26 25 25 26

**Where another source becomes the heaviest**, and after a change of the weights, counts
may not have settled. Groups there are dealt one by one: row by row in turn, or so that
all lanes have taken alike afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Final, final

import numpy as np
import xxhash

from tokenlake.base.arrays import Int64
from tokenlake.runtime.mixing.counts import Counts, Tallies
from tokenlake.runtime.mixing.eras import Era
from tokenlake.runtime.mixing.random import key_of, shuffled
from tokenlake.runtime.mixing.slot_deal import MOST_BORDERS
from tokenlake.runtime.mixing.spread import Spread

_RANKS: Final = 0xDEA1  # first word of the keys of ranks
_SCATTER: Final = 0xDEA2  # first word of the keys that permute the lanes of a group


@final
@dataclass(frozen=True, slots=True)
class _GroupRun:
    """Neighbouring groups that are dealt in the same way.

    Attributes:
        first: Number of the first group.
        base: Rows that each lane has taken of each source before it, int64[J, L].
        counts: Rows of each source before it, all lanes together.
        rank: Rank of each lane for each source, int64[J, L].
        heaviest: Index of the heaviest source.
        has_closed_form: False for a single group in which counts have not settled.
    """

    first: int
    base: Int64
    counts: Tallies
    rank: Int64
    heaviest: int
    has_closed_form: bool


@final
@dataclass(frozen=True, slots=True)
class DealtGroup:
    """Rows of the lanes inside a group of cells.

    Attributes:
        parts: Cells of each part of the group, in order.
        spreads: Rows of each part.
        spread_lane: Number of each lane in the spreads, int64[L].
    """

    parts: Sequence[range]
    spreads: Sequence[Spread]
    spread_lane: Int64

    def taken_before(self, lane: int, cells: range) -> Int64:
        """Return the rows of a lane before each of n cells of the group, int64[n, J]."""
        rows_taken: list[Int64] = []
        spread_lane = int(self.spread_lane[lane])
        for part, spread in zip(self.parts, self.spreads, strict=True):
            begin = max(cells.start, part.start)
            end = min(cells.stop, part.stop)
            if begin < end:
                cells_of_part = range(begin - part.start, end - part.start)
                rows_taken.append(spread.taken_before(spread_lane, cells_of_part))
        if len(rows_taken) == 1:
            return rows_taken[0]
        return np.concatenate(rows_taken)


@final
class Span:
    """Groups that are dealt by one version of the weights, for several lanes.

    The first group begins at the first cell.

    Args:
        first: Number of the first cell.
        cells: Number of cells in a group.
        cell: Number of slots of a lane in a cell.
        lanes: Number of lanes.
        seed: Seed of the ranks.
        names: Names of the sources.
        counts: Counts of this version.
        eras: Eras of this version.
        scatters_lanes: True to permute the lanes of each group before its rows are
            spread. Otherwise lanes side by side mostly take the same source.

    Attributes:
        first: Number of the first cell.
        cells: Number of cells in a group.
        cell: Number of slots of a lane in a cell.
        names: Names of the sources.
        eras: Eras of this version, in order.
        draws_before: Counts of this version before a row, also after the row at which
            the next version takes effect.
        base: Rows that each lane has taken of each source before the first cell,
            int64[J, L]; None while unknown.
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
        scatters_lanes: bool,
    ) -> None:
        self.first = first
        self.cells = cells
        self.cell = cell
        self.names = names
        self.eras = eras
        self.draws_before = lru_cache(MOST_BORDERS)(counts.draws_before)
        self.base: Int64 | None = None
        self._is_change = counts.before is not None
        if not self._is_change:
            self.base = np.zeros((len(names), lanes), np.int64)
        self._lanes = lanes
        self._seed = seed
        self._scatters_lanes = scatters_lanes
        self._cell_rows = cell * lanes

    def taken_before(self, cell: int) -> Int64:
        """Return each lane's rows of each source before a cell, int64[J, L]."""
        group, cell_of_group = divmod(cell - self.first, self.cells)
        if cell_of_group == 0:
            return self.taken_before_group(group)
        cells = range(cell, cell + 1)
        dealt_group = self.group(group)
        rows_of_lanes = [
            dealt_group.taken_before(lane, cells) for lane in range(self._lanes)
        ]
        return np.concatenate(rows_of_lanes).T

    def taken_before_group(self, group: int) -> Int64:
        """Return each lane's rows of each source before a group, int64[J, L]."""
        run = self._run_of(group)
        if group == run.first:
            return run.base
        return self._closed_form(run, group)

    def group(self, group: int) -> DealtGroup:
        """Return the rows of the lanes inside a group; they are computed when needed."""
        run = self._run_of(group)
        if run.has_closed_form:
            cells = range(self._cell_of(group), self._cell_of(group + 1))
            parts = [(cells, self.taken_before_group(group + 1))]
        else:
            parts = list(self._unsettled_parts(run))

        # The shares of each part are spread over its cells, so that every cell has the
        # counts of the stream. Of lanes with equal claims those with low numbers come
        # first.
        lane_at = self._lanes_to_spread(group)
        taken_before = self.taken_before_group(group)
        spreads: list[Spread] = []
        for cells, taken_after in parts:
            spreads.append(
                Spread(
                    taken_before[:, lane_at],
                    (taken_after - taken_before)[:, lane_at],
                    partial(self._rows_of_cells, cells.start),
                    cells=len(cells),
                    size=self.cell,
                )
            )
            taken_before = taken_after
        spread_lane = np.argsort(lane_at)
        return DealtGroup([cells for cells, _ in parts], spreads, spread_lane)

    def _lanes_to_spread(self, group: int) -> Int64:
        """Return the lanes of a group in the order in which they are spread."""
        if self._scatters_lanes:
            return shuffled(
                self._lanes, key_of(self._seed, _SCATTER, self._cell_of(group))
            )
        return np.arange(self._lanes)

    def _rows_of_cells(self, first: int, cells: range) -> Int64:
        """Return the rows of each source in n cells, all lanes together, int64[n, J].

        Args:
            first: Number of the cell from which the cells are counted.
            cells: Cells, counted from there.
        """
        borders = range(first + cells.start, first + cells.stop + 1)
        counts = [self.draws_before(cell * self._cell_rows) for cell in borders]
        return np.diff(np.array(counts, np.int64), axis=0)

    @cached_property
    def runs(self) -> list[_GroupRun]:
        """All groups as runs, in order; the last run never ends."""
        assert self.base is not None
        runs: list[_GroupRun] = []
        base = self.base
        group = 0
        for era, next_era in pairwise([*self.eras, None]):
            assert era is not None
            # 1. Single groups until the counts have settled.
            settled_group = 0
            if era.settled:
                settled_group = self._first_group_from(era.settled)
            while group < settled_group and (
                next_era is None or self._row_of(group) < next_era.start
            ):
                run = self._run_from(group, base, era.heaviest, has_closed_form=False)
                runs.append(run)
                *_, (_, base) = self._unsettled_parts(run)
                group += 1
            # 2. A run with a closed form up to the group in which the next era starts.
            if next_era is None:
                runs.append(
                    self._run_from(group, base, era.heaviest, has_closed_form=True)
                )
                break
            end = self._group_with(next_era.start)
            if group < end:
                run = self._run_from(group, base, era.heaviest, has_closed_form=True)
                runs.append(run)
                group = end
                base = self._closed_form(run, end)
        return runs

    def _cell_of(self, group: int) -> int:
        """Return the first cell of a group."""
        return self.first + group * self.cells

    def _row_of(self, group: int) -> int:
        """Return the first row of a group in the stream."""
        return self._cell_of(group) * self._cell_rows

    def _group_with(self, row: int) -> int:
        """Return the group that contains a row."""
        return (row // self._cell_rows - self.first) // self.cells

    def _first_group_from(self, row: int) -> int:
        """Return the first group that begins at a row or after it."""
        cell = -(-row // self._cell_rows)
        return -(-(cell - self.first) // self.cells)

    def _run_of(self, group: int) -> _GroupRun:
        """Return the run that contains a group."""
        return self.runs[bisect_right(self.runs, group, key=lambda run: run.first) - 1]

    def _closed_form(self, run: _GroupRun, group: int) -> Int64:
        """Return each lane's rows before a group of a settled run, int64[J, L].

        Settled counts have a closed form.
        """
        counts = self.draws_before(self._row_of(group))
        # Counts may be larger than int64; their differences are not.
        rows_dealt = [
            count_now - count_before
            for count_now, count_before in zip(counts, run.counts, strict=True)
        ]
        rows_of_sources = np.array(rows_dealt, np.int64)[:, None]
        for_each_lane, remainder = np.divmod(rows_of_sources, self._lanes)
        rows_taken = run.base + for_each_lane + (run.rank < remainder)
        rows_taken[run.heaviest] = 0
        rows_taken[run.heaviest] = self._cell_of(group) * self.cell - rows_taken.sum(
            axis=0
        )
        return rows_taken

    def _run_from(
        self, group: int, base: Int64, heaviest: int, *, has_closed_form: bool
    ) -> _GroupRun:
        """Return the run that begins at a group, with the ranks of its lanes."""
        chances: list[Int64] = []
        for name in self.names:
            word = xxhash.xxh3_64_intdigest(name.encode())
            chances.append(shuffled(self._lanes, key_of(self._seed, _RANKS, word)))
        # Lanes sorted by the rows that they have taken, equal ones by chance; the
        # inverse has their ranks.
        lane_at_rank = np.lexsort((np.stack(chances), base), axis=1)
        rank_of_lane = np.argsort(lane_at_rank, axis=1)
        counts = self.draws_before(self._row_of(group))
        return _GroupRun(group, base, counts, rank_of_lane, heaviest, has_closed_form)

    def _unsettled_parts(self, run: _GroupRun) -> Iterator[tuple[range, Int64]]:
        """Yield the parts of a group in which counts have not settled.

        Each part has its cells, and the rows taken after each of them.

        A group is cut before and after the cells in which eras start.
        """
        rows_taken = run.base
        cell = self._cell_of(run.first)
        group_end = self._cell_of(run.first + 1)
        # Before and after the cell in which an era starts, counts grow differently.
        cuts = {group_end}
        for era in self.eras:
            start_cell = era.start // self._cell_rows
            cuts.update(
                cut for cut in (start_cell, start_cell + 1) if cell < cut < group_end
            )
        for end in sorted(cuts):
            # Rows of each source between the two cuts.
            counts_before = np.array(
                self.draws_before(cell * self._cell_rows), np.int64
            )
            counts_after = np.array(self.draws_before(end * self._cell_rows), np.int64)
            rows_dealt = counts_after - counts_before
            # After a change of the weights lanes are levelled, if their slots suffice.
            shares: Int64 | None = None
            if self._is_change:
                shares = _levelling_shares(
                    rows_taken, rows_dealt, run, (end - cell) * self.cell
                )
            if shares is None:
                shares = _shares_in_turn(rows_dealt, self._lanes)
            rows_taken = rows_taken + shares
            yield range(cell, end), rows_taken
            cell = end


def _shares_in_turn(rows_dealt: Int64, lanes: int) -> Int64:
    """Return each lane's rows of each source if lanes take rows in turn, int64[J, L].

    The rows of all sources lie end to end; lane l takes the rows l, l + L, l + 2 L, ...

    Args:
        rows_dealt: Rows of each source, int64[J].
        lanes: Number of lanes.
    """
    ends = np.cumsum([0, *rows_dealt])
    lane = np.arange(lanes)
    rows_of_lane_before_ends = (ends[:, None] + lanes - 1 - lane) // lanes
    return np.diff(rows_of_lane_before_ends, axis=0)


def _levelling_shares(
    rows_taken: Int64, rows_dealt: Int64, run: _GroupRun, slots: int
) -> Int64 | None:
    """Return each lane's rows of each source that level the lanes, int64[J, L].

    All lanes have taken alike afterwards.

    A change of the weights comes inside a group, where a lane may have taken a row more
    of a source than another lane. Over many changes these rows would add up. Lanes that
    have taken the fewest rows of a source get the next ones; of the heaviest source
    each lane takes the slots that are left.

    Args:
        rows_taken: Rows that each lane has taken of each source so far, int64[J, L].
        rows_dealt: Rows of each source to deal, int64[J].
        run: Group with its heaviest source and its ranks.
        slots: Number of slots of each lane.

    Returns:
        None if a lane would take more than its slots.
    """
    # 1. All sources but the heaviest are levelled over the lanes.
    shares = np.zeros_like(rows_taken)
    for source, rows in enumerate(rows_dealt.tolist()):
        if source != run.heaviest:
            shares[source] = _raised(rows_taken[source], run.rank[source], rows)
    # 2. The heaviest source takes the slots that are left.
    free_slots = slots - shares.sum(axis=0)
    if (free_slots < 0).any():
        return None
    shares[run.heaviest] = free_slots
    return shares


def _raised(levels: Int64, rank: Int64, rows: int) -> Int64:
    """Return the growth of each level if each row goes to the lowest one, int64[L].

    Example: 4 rows raise the levels 5, 3, 4 by 0, 3, 1: three rows make all of them 5,
    and the fourth goes to the level that was the lowest.

    Args:
        levels: Rows that each lane has, int64[L].
        rank: Order of equal levels, int64[L].
        rows: Number of rows to add.
    """
    order = np.lexsort((rank, levels))
    ascending = levels[order]
    # 1. Rows that raise the lowest n levels to the n-th one, for each n.
    number = np.arange(1, len(levels) + 1)
    cost = number * ascending - np.cumsum(ascending)
    # 2. As many levels as the rows suffice for become equal; the rest is shared out
    #    among them.
    raised = int(np.searchsorted(cost, rows, side="right"))
    for_each_level, remainder = divmod(rows - int(cost[raised - 1]), raised)
    growth = np.zeros_like(levels)
    growth[order[:raised]] = ascending[raised - 1] - ascending[:raised] + for_each_level
    growth[order[:remainder]] += 1
    return growth
