"""The order of an epoch: every row once, the same for any number of hosts, found
from anywhere, new each time.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import EpochOrder, Int64, Permutation, key_of, lane_bounds
from tokenlake.runtime.mixing import order as order_module

Row = tuple[int, int]

sizes = st.lists(st.sampled_from([0, 0, 1, 2, 3, 9]), max_size=12)
orders = st.tuples(sizes, st.integers(1, 7), st.integers(-5, 2**64), st.integers(1, 5))


def _order(group_rows: list[int], lanes: int, seed: int, window: int = 1) -> EpochOrder:
    return EpochOrder(
        np.array(group_rows, np.int64), lanes=lanes, seed=seed, window=window
    )


def _rows(group: Int64, row: Int64) -> list[Row]:
    return list(zip(group.tolist(), row.tolist(), strict=True))


def _lane(order: EpochOrder, epoch: int, lane: int) -> list[Row]:
    return _rows(*order.at(epoch, lane, np.arange(int(order.lengths[lane]))))


def _epoch(order: EpochOrder, epoch: int) -> list[Row]:
    return [row for lane in range(order.lanes) for row in _lane(order, epoch, lane)]


def _walk(
    group_rows: list[int], lanes: int, seed: int, window: int, epoch: int
) -> list[list[Row]]:
    """The law, step by step: groups permuted and laid end to end, cut into lanes,
    windows permuted.
    """
    groups = (
        Permutation(len(group_rows), key_of(seed, 1, epoch))
        .at(np.arange(len(group_rows)))
        .tolist()
    )
    laid = [
        (number // window, group, row)
        for number, group in enumerate(groups)
        for row in range(group_rows[group])
    ]
    bounds, found = lane_bounds(len(laid), lanes).tolist(), []
    for lane in range(lanes):
        own = laid[bounds[lane] : bounds[lane + 1]]
        found.append([])
        for number, rows in itertools.groupby(own, key=lambda one: one[0]):
            part = [row[1:] for row in rows]
            moved = Permutation(len(part), key_of(seed, 2, epoch, lane, number)).at(
                np.arange(len(part))
            )
            found[lane] += [part[place] for place in moved]
    return found


@given(orders, st.integers(0, 10**9))
def test_an_epoch_is_as_its_law_says(
    order: tuple[list[int], int, int, int], epoch: int
) -> None:
    found, (group_rows, lanes, seed, _) = _order(*order), order
    expected = _walk(group_rows, lanes, seed, found.window, epoch)
    assert [_lane(found, epoch, lane) for lane in range(lanes)] == expected
    assert [int(found.lengths[lane]) for lane in range(lanes)] == [
        len(rows) for rows in expected
    ]
    assert found.lengths.tolist() == [len(rows) for rows in expected]


@given(
    orders,
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 99)), max_size=30
    ),
)
def test_places_of_many_epochs_and_lanes_are_found_together_as_alone(
    order: tuple[list[int], int, int, int], asked: list[tuple[int, int, int]]
) -> None:
    found = _order(*order)
    wanted = [(epoch, lane % found.lanes, place) for epoch, lane, place in asked]
    wanted = [
        (epoch, lane, place % int(found.lengths[lane]))
        for epoch, lane, place in wanted
        if int(found.lengths[lane])
    ]
    epoch, lane, place = np.array(wanted, np.int64).reshape(-1, 3).T
    alone = [_rows(*found.at(a, b, np.array([c])))[0] for a, b, c in wanted]
    assert _rows(*found.at(epoch, lane, place)) == alone


@pytest.mark.parametrize("cells", [1, 10, 70])
def test_many_epochs_of_few_row_groups_are_laid_out_together(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small dataset goes through thousands of epochs while a large one goes
    through one.
    """
    order = _order([3, 0, 4, 2, 1], 2, 5)
    epoch = np.arange(1000) // 5
    expected = [_lane(order, each, 0) for each in range(200)]
    monkeypatch.setattr(order_module, "_MOST_CELLS", cells)
    assert _rows(*order.at(epoch, 0, np.arange(1000) % 5)) == [
        row for rows in expected for row in rows
    ]
    far = np.array([10**12, 3, 10**12, 0])
    assert _rows(*order.at(far, 0, np.full(4, 2)))[1:] == [
        expected[3][2],
        _lane(order, 10**12, 0)[2],
        expected[0][2],
    ]


@given(orders, st.integers(0, 10**9))
def test_place_of_is_the_inverse(
    order: tuple[list[int], int, int, int], epoch: int
) -> None:
    found = _order(*order)
    lane = np.repeat(np.arange(found.lanes), found.lengths)
    place = np.concatenate([np.arange(length) for length in found.lengths])
    back = found.place_of(epoch, *found.at(epoch, lane, place))
    assert [part.tolist() for part in back] == [lane.tolist(), place.tolist()]


def test_orders_are_pinned() -> None:
    """A change here changes what every trainer reads: never change it."""
    order = _order([3, 0, 4, 2], 2, 0)
    assert [_lane(order, 0, lane) for lane in (0, 1)] == EPOCH_0
    assert [_lane(order, 1, lane) for lane in (0, 1)] == EPOCH_1
    large = EpochOrder(np.full(1000, 256), lanes=64, seed=7)
    assert (large.window, large.window_rows) == (1, 256)
    wide = _order([3, 0, 4, 2, 3], 2, 0, 2)
    assert [_lane(wide, 0, lane) for lane in (0, 1)] == WIDE
    assert (
        _rows(*large.at(10**6, np.array([0, 1, 63]), np.array([0, 1000, 3999])))
        == LARGE
    )


WIDE = [
    [(2, 0), (4, 1), (2, 2), (2, 1), (4, 0), (2, 3)],
    [(4, 2), (0, 0), (0, 1), (0, 2), (3, 1), (3, 0)],
]
EPOCH_0 = [[(0, 1), (0, 0), (0, 2), (3, 0)], [(3, 1), (2, 1), (2, 0), (2, 2), (2, 3)]]
EPOCH_1 = [[(2, 3), (2, 1), (2, 2), (2, 0)], [(0, 0), (0, 2), (0, 1), (3, 0), (3, 1)]]
LARGE = [(65, 143), (401, 233), (650, 176)]


def test_there_may_be_fewer_rows_or_groups_than_lanes() -> None:
    assert _epoch(_order([], 3, 0), 5) == []
    assert _order([0, 0], 3, 0).window_rows == 1
    few = _order([2], 5, 0)
    assert few.lengths.tolist() == [0, 0, 1, 0, 1]
    assert sorted(_epoch(few, 0)) == [(0, 0), (0, 1)]


def test_a_million_row_groups_are_laid_out_once_an_epoch() -> None:
    order = EpochOrder(np.full(1_000_000, 256), lanes=64, seed=0)
    order.at(9, 0, np.zeros(1, np.int64))
    begin = time.process_time()
    for place in range(100):
        order.at(9, place % 64, np.array([place * 1000]))
    # Laying it out takes longer than that for ten of them.
    assert time.process_time() - begin < 0.5


def test_what_is_not_there_is_refused() -> None:
    order = _order([3, 0, 4, 2], 2, 0, 3)
    with pytest.raises(ConfigError, match="lane 1 has no place 5: it has 5 rows"):
        order.at(0, np.array([0, 1]), np.array([0, 5]))
    with pytest.raises(ConfigError, match="lane 0 has no place -1"):
        order.at(0, 0, np.array([-1]))
    with pytest.raises(ConfigError, match="there is no lane 2; expected 0 to 1"):
        order.at(0, 2, np.array([0]))
    with pytest.raises(ConfigError, match="there is no lane -1"):
        order.at(0, -1, np.array([0]))
    with pytest.raises(ConfigError, match="epoch -1; expected 0 or more"):
        order.at(-1, 0, np.array([0]))
    with pytest.raises(ConfigError, match="row group 1 has no row 0: it has 0 rows"):
        order.place_of(0, np.array([0, 1]), np.array([0, 0]))
    with pytest.raises(
        ConfigError, match="row groups 0 to 4; expected those of 0 to 3"
    ):
        order.place_of(0, np.array([0, 4]), np.array([0, 0]))
    with pytest.raises(ConfigError, match="a row group of -1 rows"):
        _order([1, -1], 1, 0)
    with pytest.raises(ConfigError, match="a window of 0 row groups"):
        _order([1], 1, 0, 0)
    with pytest.raises(
        ConfigError, match="0 lanes; expected 0 rows or more and 1 lane or more"
    ):
        _order([1], 0, 0)
