"""When the steps of a unit began and ended, how long each was busy, and which one
failed.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.etl.step_clock import (
    STEPS,
    StepClock,
    StepName,
    StepTime,
    countable,
    step_of_mark,
    step_times,
)


class Seconds:
    """A clock that stands still until it is moved; the wall clock is 1,000 seconds
    ahead.
    """

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now * 10**9

    def time_ns(self) -> int:
        return (self.now + 1000) * 10**9


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr("tokenlake.etl.step_clock.clock.time", seconds)
    return seconds


def test_steps_that_interleave_have_a_first_begin_a_last_end_and_a_busy_time(
    seconds: Seconds,
) -> None:
    clock = StepClock()
    for _ in range(2):
        clock.begin("load")
        seconds.now += 2
        clock.begin("pack")
        seconds.now += 1
        with clock.saving():  # a row group is written in the midst of packing
            seconds.now += 4
        clock.end()
        seconds.now += 10  # of no step
    assert countable(clock.fields() | {"bytes": 7}) == {
        "load": 4_000_000,
        "pack": 2_000_000,
        "save": 8_000_000,
        "bytes": 7,
    }
    assert step_times(clock.fields()) == (
        StepTime(step_name="load", began=1000, ended=1019, busy=4),
        StepTime(step_name="pack", began=1002, ended=1024, busy=2),
        StepTime(step_name="save", began=1003, ended=1024, busy=8),
    )


def test_the_step_that_raises_is_the_one_that_failed(seconds: Seconds) -> None:
    clock = StepClock()
    clock.begin("load")
    seconds.now += 1
    clock.begin("tokenize")
    seconds.now += 1
    clock.fail()
    assert [
        step.step_name for step in step_times(clock.fields()) if step.has_failed
    ] == ["tokenize"]
    clock.clear()
    assert step_times(clock.fields()) == ()
    clock.begin("pack")
    with pytest.raises(OSError, match="no space"), clock.saving():
        raise OSError("no space")
    clock.fail()
    assert [
        step.step_name for step in step_times(clock.fields()) if step.has_failed
    ] == ["save"]


@given(first=st.sampled_from(STEPS), saves=st.booleans(), more=st.sampled_from(STEPS))
def test_a_process_that_ends_leaves_word_of_the_step_it_was_in(
    first: StepName, saves: bool, more: StepName
) -> None:
    marks: list[bytes] = [b""]
    assert step_of_mark(marks[-1], 0.0) is None
    assert step_of_mark(bytes(9), 0.0) is None
    clock = StepClock()
    clock.on_begin = marks.append
    began = time.time()
    clock.begin(first)
    if saves:
        with clock.saving():
            inside = step_of_mark(marks[-1], began)
            assert inside is not None and inside.step_name == "save"
    clock.begin(more)
    ended = time.time()
    step = step_of_mark(marks[-1], ended)
    assert step is not None
    assert (step.step_name, step.has_failed, step.ended) == (more, True, ended)
    assert began - 0.01 <= step.began <= ended + 0.01
    assert StepTime(**step.to_json()) == step
