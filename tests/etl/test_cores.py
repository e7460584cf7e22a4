"""The simulated schedule of a build on many cores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cores import PartTimes, bare_wall, simulate, unit_sizes

PARTS = PartTimes(
    parent=0.4,
    plan=0.2,
    start=0.3,
    gate=0.6,
    warm=0.4,
    unit=0.001,
    byte=1e-8,
    bare_start=0.3,
    bare_byte=8e-9,
)


@given(st.lists(st.integers(1, 1 << 28), min_size=1, max_size=60), st.integers(1, 64))
def test_no_schedule_is_shorter_than_its_work_or_longer_than_one_worker_takes(
    sizes: list[int], workers: int
) -> None:
    found = simulate(PARTS, sizes, workers)
    work = sum(PARTS.unit + PARTS.byte * size for size in sizes)
    assert found.wall >= found.first + work / workers
    assert found.wall <= simulate(PARTS, sizes, 1).wall + 1e-9
    assert found.wall <= simulate(PARTS, sizes, workers, early=False).wall + 1e-9
    assert 0 <= found.idle < 1


def test_one_worker_does_one_thing_after_the_other() -> None:
    found = simulate(PARTS, [10**8, 10**8], 1)
    # It starts while the plan is made.
    assert found.first == pytest.approx(0.4 + 0.3 + 0.6)
    assert found.wall == pytest.approx(
        found.first + 2 * (1.001 + 0.0006) + 0.02 + 2 * 0.0003
    )


def test_workers_that_load_while_the_engine_is_chosen_begin_with_the_first() -> None:
    early = simulate(PARTS, [10**7] * 16, 16)
    late = simulate(PARTS, [10**7] * 16, 16, early=False)
    assert late.wall - early.wall == pytest.approx(PARTS.warm, abs=0.1)
    # What starts meanwhile is ready when the plan is there.
    slow_plan = replace(PARTS, plan=5.0)
    assert simulate(slow_plan, [10**7], 1).first == pytest.approx(0.4 + 5.0 + 0.6)


def test_units_cover_the_input_and_the_bare_loop_shares_it() -> None:
    assert unit_sizes(80, 4, files=8) == [4, 4, 2] * 8
    assert bare_wall(PARTS, 10**8, 4) == pytest.approx(0.3 + 0.2)
