"""Which rows each step has: a function of the step, however far away, and of nothing
that came before.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tokenlake as tl
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import BatchPlan, LoaderOptions

SCHEDULES = st.dictionaries(st.integers(1, 12), st.integers(1, 9), max_size=3).flatmap(
    lambda later: st.integers(1, 9).map(lambda first: {0: first, **later})
)


def walk(plan: BatchPlan, count: int) -> list[Any]:
    """The first batches, one after the other."""
    position = plan.begin(0)
    batches: list[Any] = []
    while len(batches) < count:
        batch = plan.steps.next(position)
        if batch is None:
            position = plan.begin(position.passes + 1)
            continue
        batches.append(batch)
        position = batch.after
    return batches


def plan_of(
    dataset: tl.Dataset, sizes: dict[int, int], rows: int | None, drop_last: bool
) -> BatchPlan:
    """The plan of passes of so many rows, which are put into no buckets."""
    mixture = tl.Mixture({"all": dataset}, {"all": 1.0}, rows=rows)
    epochs = 1 if rows is not None else None
    return tl.DataLoader(mixture, sizes, drop_last=drop_last, epochs=epochs).plan


@given(SCHEDULES, st.integers(9, 60), st.booleans(), st.integers(0, 50))
# What a stretch leaves, the next one's smaller batches hold.
@example({0: 1, 1: 4, 3: 1}, 10, True, 3)
def test_a_place_is_where_a_walk_arrives(
    learned: tl.Dataset, sizes: dict[int, int], rows: int, drop_last: bool, step: int
):
    plan = plan_of(learned, sizes, rows, drop_last)
    batch = walk(plan, step + 1)[step]
    position = plan.position(step)
    assert (position.step, position.passes, position.rows) == (
        step,
        batch.passes,
        batch.start,
    )
    assert plan.steps.next(position) == batch


@given(SCHEDULES, st.integers(9, 60), st.booleans(), st.integers(0, 5))
def test_a_pass_has_as_many_batches_as_it_says(
    learned: tl.Dataset, sizes: dict[int, int], rows: int, drop_last: bool, passes: int
):
    plan = plan_of(learned, sizes, rows, drop_last)
    batches = [batch for batch in walk(plan, 400) if batch.passes == passes]
    assert plan.begin(passes).step == batches[0].step
    assert plan.batches_in(passes) == len(batches)
    assert sum(batch.rows for batch in batches) == (
        rows if not drop_last else sum(b.size for b in batches)
    )


def test_a_pass_without_end_has_no_number_of_batches(learned: tl.Dataset):
    plan = plan_of(learned, {0: 8, 100: 16}, None, drop_last=False)
    assert plan.batches_in(0) is None
    position = plan.position(10**12)
    assert (position.passes, position.rows) == (0, 800 + 16 * (10**12 - 100))


def test_far_steps_are_found_at_once(learned: tl.Dataset):
    plan = plan_of(learned, {0: 4, 10: 8}, 1001, drop_last=False)
    far = plan.position(10**12)
    assert 0 <= far.rows < 1001
    assert plan.begin(far.passes).step <= 10**12 < plan.begin(far.passes + 1).step


def test_sizes_that_do_not_change_are_one_size():
    def sizes(batch_size: Any) -> Any:
        return LoaderOptions(batch_size=batch_size).sizes

    assert sizes({0: 8, 3: 8, 5: 4}) == sizes({0: 8, 5: 4})
    assert sizes({0: 8, 3: 8}) == sizes(8)
    stored = sizes({0: 8, 5: 12}).to_json()
    assert type(sizes(8)).from_json(stored).points == ((0, 8), (5, 12))
    assert sizes({0: 8, 5: 12}).common == 4


@pytest.mark.parametrize(
    "wrong", [0, -1, True, {}, {0: 0}, {1: 4}, {0: 4, -1: 4}, {0: 2.5}, {"0": 4}]
)
def test_other_sizes_are_refused(wrong: Any):
    with pytest.raises(ConfigError, match="batch_size: got"):
        _ = LoaderOptions(batch_size=wrong).sizes
