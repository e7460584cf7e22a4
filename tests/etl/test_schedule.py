"""The schedule of a build's units, asked by an imagined cluster: nothing is lost,
and nobody waits for long.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.schedule import FAILURE_SHARE, MOST_END_RATIO, durations, simulate
from tokenlake.etl import Schedule


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("failures", [0.0, 5 * FAILURE_SHARE, 0.5])
def test_slots_are_busy_to_the_end_whatever_dies(seed: int, failures: float) -> None:
    seconds = durations(10_000, seed)
    seconds[[9_000, 9_999]] *= 50  # files that cannot be split, and come last
    build = simulate(seconds.tolist(), 40, failures, seed)
    assert build.done_units == 10_000
    assert (build.lost_slots > 0) == (failures > 0)
    # A slot that dies is away for a minute.
    end_ratio = build.end_seconds / build.ideal_seconds
    assert 1 <= end_ratio < MOST_END_RATIO + failures / 10


def test_units_come_in_plan_order_but_for_the_largest() -> None:
    schedule = Schedule({0: 10, 1: 11, 2: 100, 3: 9, 4: 300, 5: 10}, 0)
    assert [schedule.take(0.0) for _ in range(7)] == [
        *((unit, 0.0) for unit in (4, 0, 1, 2, 3, 5)),
        None,
    ]


def test_of_several_large_units_the_largest_comes_first() -> None:
    schedule = Schedule(
        {0: 10, 1: 300, 2: 10, 3: 500, 4: 400} | dict.fromkeys(range(5, 20), 10), 0
    )
    assert [schedule.take(0.0) for _ in range(5)] == [
        (unit, 0.0) for unit in (3, 4, 1, 0, 2)
    ]


def test_a_unit_that_fails_is_tried_again_later_and_not_for_ever() -> None:
    schedule = Schedule({0: 1, 1: 1}, 2)
    assert schedule.take(10.0) == (0, 0.0)
    assert schedule.failed(0, 10.0)
    assert schedule.take(10.1) == (1, 0.0)  # nobody waits while there is other work
    unit, pause = schedule.take(10.1) or (None, 0.0)
    assert (unit, pause) == (0, pytest.approx(0.1))
    assert schedule.failed(0, 20.0)
    assert schedule.take(20.0) == (0, pytest.approx(0.4))
    assert not schedule.failed(0, 21.0)
    assert schedule.take(99.0) is None


@given(
    st.lists(st.integers(0, 1 << 40), max_size=30),
    st.integers(0, 3),
    st.lists(st.booleans(), max_size=60),
)
def test_every_unit_is_taken_until_it_is_done_or_given_up(
    sizes: list[int], retries: int, fails: list[bool]
) -> None:
    schedule, taken, ended = (
        Schedule(dict(enumerate(sizes)), retries),
        Counter[int](),
        Counter[int](),
    )
    answers, now = iter(fails), 0.0
    while (found := schedule.take(now)) is not None:
        unit, pause = found
        now, taken[unit] = now + pause, taken[unit] + 1
        if not next(answers, False) or not schedule.failed(unit, now):
            ended[unit] += 1
    assert ended == Counter(range(len(sizes)))
    assert all(1 <= times <= retries + 1 for times in taken.values())
