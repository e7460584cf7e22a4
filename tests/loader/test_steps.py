"""Which rows each step has: a function of the step, however far away, and of nothing that came before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.buckets import Bucket
from tokenlake.runtime.loader.pass_steps import PassSteps
from tokenlake.runtime.loader.steps import BatchStep, Position

SCHEDULES = st.dictionaries(st.integers(1, 12), st.integers(1, 9), max_size=3).flatmap(
    lambda later: st.integers(1, 9).map(lambda first: {0: first, **later})
)


def walk(steps: PassSteps, count: int) -> list[BatchStep]:
    """The first batches, one after the other."""
    place, found = Position(0, 0, 0), list[BatchStep]()
    while len(found) < count:
        batch = steps.next(place)
        if batch is None:
            place = Position(place.step, place.passes + 1, 0)
            continue
        found.append(batch)
        place = batch.after
    return found


def steps_of(asked: dict[int, int], rows: int | None, drop_last: bool) -> PassSteps:
    """Those of passes of so many rows, which are put into no buckets."""
    changes = [(step, (size,)) for step, size in BatchSizes.of(asked).points]
    whole = Bucket(
        0, changes[0][1][0], 1.0, lambda passes: cast("Any", SimpleNamespace(length=rows)), np.arange(1)
    )
    return PassSteps(None, [whole], changes, np.arange(1), seed=0, drop_last=drop_last)


@given(SCHEDULES, st.integers(9, 60), st.booleans(), st.integers(0, 50))
@example({0: 1, 1: 4, 3: 1}, 10, True, 3)  # what a stretch leaves, the next one's smaller batches hold
def test_a_place_is_where_a_walk_arrives(asked: dict[int, int], rows: int, drop_last: bool, step: int):
    steps = steps_of(asked, rows, drop_last)
    batch = walk(steps, step + 1)[step]
    assert steps.position(step) == Position(step, batch.passes, batch.start)
    assert steps.next(steps.position(step)) == batch


@given(SCHEDULES, st.integers(9, 60), st.booleans(), st.integers(0, 5))
def test_a_pass_has_as_many_batches_as_it_says(
    asked: dict[int, int], rows: int, drop_last: bool, passes: int
):
    steps = steps_of(asked, rows, drop_last)
    batches = [batch for batch in walk(steps, 400) if batch.passes == passes]
    assert steps.begin(passes) == batches[0].step
    assert steps.batches(batches[0].step) == len(batches)
    assert sum(batch.rows for batch in batches) == (rows if not drop_last else sum(b.size for b in batches))


def test_a_pass_without_end_has_no_number_of_batches():
    steps = steps_of({0: 8, 100: 16}, None, drop_last=False)
    assert steps.batches(0) is None
    assert steps.position(10**15) == Position(10**15, 0, 800 + 16 * (10**15 - 100))


def test_far_steps_are_found_at_once():
    steps = steps_of({0: 4, 10: 8}, 1001, drop_last=False)
    far = steps.position(10**15)
    assert 0 <= far.rows < 1001
    assert steps.begin(far.passes) <= 10**15 < steps.begin(far.passes + 1)


def test_sizes_that_do_not_change_are_one_size():
    assert BatchSizes.of({0: 8, 3: 8, 5: 4}) == BatchSizes.of({0: 8, 5: 4})
    assert BatchSizes.of({0: 8, 3: 8}) == BatchSizes.of(8)
    assert BatchSizes.from_json(BatchSizes.of({0: 8, 5: 12}).to_json()).points == ((0, 8), (5, 12))
    assert BatchSizes.of({0: 8, 5: 12}).common == 4


@pytest.mark.parametrize("wrong", [0, -1, True, {}, {0: 0}, {1: 4}, {0: 4, -1: 4}, {0: 2.5}, {"0": 4}])
def test_other_sizes_are_refused(wrong: object):
    with pytest.raises(ConfigError, match="batch_size: got"):
        BatchSizes.of(wrong)  # type: ignore[arg-type]
