"""Rows of a group of cells, against a walk from source to source and cell to cell."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake import WeightScheduler
from tokenlake.runtime.mixing import Deal, Int64, constant

Rows = list[list[int]]  # of each source and lane


def walked_group(
    rows_before: Rows, shares: Rows, wanted: Rows, size: int
) -> list[Rows]:
    """Return the rows that each lane has taken before each cell, by the rules of the
    spread, one source, cell and row at a time.
    """
    lanes = len(shares[0])
    free_slots = [[size] * lanes for _ in wanted]
    rows_taken = [[list(row) for row in rows_before] for _ in wanted]
    by_weight = sorted(range(len(shares)), key=lambda source: sum(shares[source]))
    for source in by_weight[:-1]:
        missing = list(shares[source])
        owed = 0
        for cell, wanted_rows in enumerate(wanted):
            rows_taken[cell][source] = [
                before + share - left
                for before, share, left in zip(
                    rows_before[source], shares[source], missing, strict=True
                )
            ]
            owed += wanted_rows[source]
            rows = walked_cell(missing, free_slots[cell:], owed)
            for lane in range(lanes):
                missing[lane] -= rows[lane]
                free_slots[cell][lane] -= rows[lane]
            owed -= sum(rows)
    heaviest = by_weight[-1]
    for cell in range(1, len(wanted)):
        for lane in range(lanes):
            rows_taken[cell][heaviest][lane] = (
                rows_taken[cell - 1][heaviest][lane] + free_slots[cell - 1][lane]
            )
    return rows_taken


def walked_cell(missing: list[int], free_slots: Rows, owed: int) -> list[int]:
    """Return the rows of a source that each lane takes in the first of some cells."""
    lanes = range(len(missing))
    spare = [
        sum(slots[lane] for slots in free_slots[1:]) - missing[lane] for lane in lanes
    ]
    lower = [max(0, -slots) for slots in spare]
    upper = [min(missing[lane], free_slots[0][lane]) for lane in lanes]
    exact = [missing[lane] * owed for lane in lanes]  # times `divisor`
    divisor = max(1, sum(missing))
    rows = [
        min(max(exact[lane] // divisor, lower[lane]), upper[lane]) for lane in lanes
    ]
    while sum(rows) != owed:
        step = 1 if sum(rows) < owed else -1
        limits = upper if step == 1 else lower
        candidates = [lane for lane in lanes if rows[lane] != limits[lane]]
        if not candidates:
            break
        candidates.sort(
            key=lambda lane: (
                step * spare[lane],
                step * (rows[lane] * divisor - exact[lane]),
                lane,
            )
        )
        for lane in candidates[: abs(owed - sum(rows))]:
            rows[lane] += step
    return rows


def constant_deal(
    ratios: list[int], lanes: int, size: int, *, scatters_lanes: bool
) -> Deal:
    """Return a deal of constant weights, `size` slots of each lane in a cell."""
    weights = {f"s{number}": float(ratio) for number, ratio in enumerate(ratios)}
    return Deal(
        constant(weights),
        lanes=lanes,
        batch_size=size * lanes,
        block_size=50,
        step_rows=size * lanes,
        seed=3,
        scatters_lanes=scatters_lanes,
    )


@given(
    st.lists(st.integers(1, 30) | st.integers(1, 2), min_size=1, max_size=7),
    st.sampled_from([2, 3, 5]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 1, 70_000]),
)
@settings(max_examples=40, deadline=None)
def test_a_group_is_dealt_as_a_walk_from_cell_to_cell_deals_it(
    ratios: list[int], lanes: int, size: int, group: int
) -> None:
    deal = constant_deal(ratios, lanes, size, scatters_lanes=False)
    cells = range(group * deal.cells, (group + 1) * deal.cells)
    rows_taken = np.stack([deal.bounds(lane, cells) for lane in range(lanes)], axis=2)
    counts = [
        deal.counts.draws_before(cell * size * lanes)
        for cell in range(cells.start, cells.stop + 1)
    ]
    expected = walked_group(
        rows_taken[0].tolist(),
        (rows_taken[-1] - rows_taken[0]).tolist(),
        np.diff(np.array(counts), axis=0).tolist(),
        size,
    )
    assert rows_taken[:-1].tolist() == expected


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([1, 4]),
    st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_scattered_lanes_have_the_counts_of_the_stream_and_of_their_groups(
    ratios: list[int], lanes: int, size: int, group: int
) -> None:
    """Lanes are permuted inside a group; its ends and the counts stay."""
    bounds_of_deals: list[Int64] = []
    for scatters_lanes in (False, True):
        deal = constant_deal(ratios, lanes, size, scatters_lanes=scatters_lanes)
        cells = range(group * deal.cells, (group + 1) * deal.cells)
        bounds = [deal.bounds(lane, cells) for lane in range(lanes)]
        bounds_of_deals.append(np.stack(bounds, axis=2))
    unscattered, scattered = bounds_of_deals
    assert np.array_equal(scattered[0], unscattered[0])
    assert np.array_equal(scattered[-1], unscattered[-1])
    # Cells of one slot cannot always have the counts of many sources.
    if size > 1 or len(ratios) <= 3:
        assert np.array_equal(scattered.sum(axis=2), unscattered.sum(axis=2))
    # Each lane fills its slots of every cell, and takes nothing back.
    taken = np.diff(scattered, axis=0)
    assert (taken >= 0).all() and (taken.sum(axis=1) == size).all()


def moving_deal() -> Deal:
    """Return a deal of 5 sources in 4 lanes; the heaviest source changes."""
    points = [
        {"step": 0, "weights": {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 90.0}},
        {"step": 700, "weights": {"a": 90.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}},
    ]
    return Deal(
        WeightScheduler(points, "linear"),
        lanes=4,
        batch_size=8,
        block_size=100,
        step_rows=8,
        seed=5,
    )


MOVING_CELLS = 900


@pytest.fixture(scope="module")
def rows_in_order() -> Int64:
    """Return the rows before all cells of the moving deal, int64[cells, J, lanes].

    Each lane is read from its beginning.
    """
    deal = moving_deal()
    cells = range(MOVING_CELLS)
    return np.stack([deal.bounds(lane, cells)[:-1] for lane in range(4)], axis=2)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, MOVING_CELLS - 60), st.integers(1, 60)
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_cells_have_the_same_rows_in_whichever_order_they_are_read(
    rows_in_order: Int64, reads: list[tuple[int, int, int]]
) -> None:
    """A group is computed up to the last cell that was read, and continued from it."""
    deal = moving_deal()
    for lane, first, count in reads:
        bounds = deal.bounds(lane, range(first, first + count))
        assert np.array_equal(
            bounds[:-1], rows_in_order[first : first + count, :, lane]
        )
        assert deal.before(lane, first) == tuple(rows_in_order[first, :, lane].tolist())


def test_threads_read_the_same_group_at_the_same_time(rows_in_order: Int64) -> None:
    deal = moving_deal()

    def read(number: int) -> Int64:
        lane = number % 4
        cells = range(0, 100, 7)
        return np.stack([deal.bounds(lane, range(cell, cell + 1))[0] for cell in cells])

    with ThreadPoolExecutor(8) as threads:
        for number, rows in enumerate(threads.map(read, range(16))):
            assert np.array_equal(rows, rows_in_order[0:100:7, :, number % 4])


@pytest.mark.parametrize("has_small_keys", [True, False])
@pytest.mark.parametrize(
    ("interpolation", "scatters_lanes", "digest"),
    [
        ("linear", False, "a12787560169cf59"),
        ("cosine", False, "fa8e70fece5c82a8"),
        ("step", False, "6f31d88f588d29b5"),
        ("linear", True, "f4a6015d8c1ce8b9"),
        ("cosine", True, "710f21af6e4f72d6"),
        ("step", True, "bbfe61d147978077"),
    ],
)
def test_many_sources_in_many_lanes_are_dealt_as_ever(
    interpolation: str,
    scatters_lanes: bool,
    digest: str,
    has_small_keys: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first releases of both orders wrote these rows; versions depend on them.

    Keys that do not fit into 64 bits take another way to the same rows.
    """
    if not has_small_keys:
        monkeypatch.setattr("tokenlake.runtime.mixing.spread._LARGEST", 0)
    names = [f"source-{number}" for number in range(24)]
    ascending = {name: float(1 + number) for number, name in enumerate(names)}
    descending = {name: float(24 - number) for number, name in enumerate(names)}
    points = [
        {"step": 0, "weights": ascending},
        {"step": 5000, "weights": descending},
    ]
    deal = Deal(
        WeightScheduler(points, interpolation),
        lanes=16,
        batch_size=64,
        block_size=1000,
        step_rows=64,
        seed=1,
        scatters_lanes=scatters_lanes,
    )
    digests = hashlib.sha256()
    for first_cell in (0, 2300, 4900, 10**7):
        for lane in (0, 5, 15):
            bounds = deal.bounds(lane, range(first_cell, first_cell + 300))
            digests.update(bounds.astype("<i8").tobytes())
    assert digests.hexdigest()[:16] == digest
