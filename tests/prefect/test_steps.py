"""The steps of units as a run shows them: their times, their number, and which one
failed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds import config_of
from tests.lazily import lazily
from tokenlake import load_config
from tokenlake.errors import BadRecordError, WorkerDiedError, WorkerError
from tokenlake.etl import Event, UnitRetried
from tokenlake.etl.step_clock import STEPS, StepTime

build_runs: Any = lazily("tokenlake.runs.build_run")
groups_of_units: Any = lazily("tokenlake.runs.groups")
steps_of_runs: Any = lazily("tokenlake.runs.step_runs")
step_tasks: Any = lazily("tokenlake_tasks.recorded_steps")


@st.composite
def tries_of(draw: st.DrawFn, units: list[int]) -> list[Any]:
    """Draw tries of some units: some failed, and then one that succeeded."""
    tries: list[Any] = []
    for unit in units:
        failures = draw(st.integers(0, 2))
        for number in range(1, failures + 2):
            is_last = number == failures + 1
            failing = None if is_last else draw(st.sampled_from(STEPS))
            steps: list[StepTime] = []
            for step_name in draw(st.lists(st.sampled_from(STEPS), unique=True)):
                began = draw(st.integers(0, 1000))
                busy = draw(st.integers(0, 100))
                steps.append(
                    StepTime(
                        step_name=step_name,
                        began=began,
                        ended=began + busy,
                        busy=busy,
                        has_failed=step_name == failing,
                    )
                )
            tries.append(
                steps_of_runs.UnitTry(
                    unit, number, tuple(steps), None if is_last else "an error"
                )
            )
    return tries


@given(
    data=st.data(),
    units=st.lists(st.integers(0, 200), min_size=1, max_size=6, unique=True).map(
        sorted
    ),
)
def test_a_group_shows_the_sum_of_what_was_built_and_every_step_that_failed(
    data: st.DataObject, units: list[int]
) -> None:
    tries = data.draw(tries_of(units))
    runs = steps_of_runs.step_runs(units, tries)
    assert [run.began for run in runs] == sorted(run.began for run in runs)
    failed = [
        step
        for attempt in tries
        if attempt.error
        for step in attempt.steps
        if step.has_failed
    ]
    assert len([run for run in runs if run.error]) == len(failed)
    for step_name in STEPS:
        steps = [
            step
            for each in tries
            if each.error is None
            for step in each.steps
            if step.step_name == step_name
        ]
        if len(units) == 1 or not steps:
            continue
        [total] = [
            run for run in runs if run.step_name == step_name and run.error is None
        ]
        assert (total.units, total.busy) == (
            len(steps),
            sum(step.busy for step in steps),
        )
        assert total.began == min(step.began for step in steps)
        assert total.ended == max(step.ended for step in steps)
        assert total.name == f"{step_name} {units[0]:05d}-{units[-1]:05d}"
    if len(units) == 1:
        assert len(runs) == sum(len(attempt.steps) for attempt in tries)


def test_there_is_a_task_for_every_step_and_room_for_every_group() -> None:
    assert tuple(step_tasks.STEP_TASKS) == STEPS
    assert {
        step_name: task.name for step_name, task in step_tasks.STEP_TASKS.items()
    } == {step_name: step_name for step_name in STEPS}
    assert len(STEPS) == groups_of_units.MOST_STEPS
    # Each unit of a small run is shown by itself.
    assert groups_of_units.MAX_GROUPS >= 30
    assert (
        groups_of_units.MAX_GROUPS * (1 + len(STEPS))
        <= groups_of_units.MAX_TASK_RUNS
        == 256
    )


def test_a_step_gives_its_figures_or_its_error() -> None:
    step = steps_of_runs.StepRun(
        step_name="load", name="load 00001", began=10.0, ended=14.0, busy=1.5, units=1
    )
    assert step_tasks.load.fn(step) == {"units": 1, "seconds": 4.0, "busy_seconds": 1.5}
    assert step.summary == "busy 1.5 s of 4.0 s"
    failed = steps_of_runs.StepRun(
        step_name="load",
        name="load 00001",
        began=10.0,
        ended=14.0,
        busy=1.5,
        units=1,
        error="no such file",
    )
    with pytest.raises(WorkerError, match="no such file") as caught:
        step_tasks.load.fn(failed)
    assert caught.value.details["step"] == "load"


def write_units(path: Path, units: int) -> None:
    """Write as much text as makes so many units of 64 KiB."""
    line = json.dumps({"text": "flows to the sea. " * 1800}) + "\n"
    path.write_text(line * (units * 65536 // len(line)))


def test_a_run_of_many_units_has_few_task_runs_and_builds_units_of_a_group_side_by_side(
    tmp_path: Path, tokenizer_dir: Path, pool: Any
) -> None:
    write_units(tmp_path / "many.jsonl", 60)
    config = config_of(tmp_path, tmp_path / "many.jsonl", tokenizer_dir, pack=512)
    config |= {"source": {"unit_size": 65536}}
    with build_runs.BuildRun(load_config(config), pool=pool) as build_run:
        groups = build_run.groups()
        assert len(build_run.session().pending) >= 50
        assert len(groups) == groups_of_units.MAX_GROUPS
        assert build_run.groups_at_once(groups) == 2
        task_runs = len(groups)
        for units in groups:
            built = build_run.build(units, lambda line: None)
            runs = build_run.step_runs(units)
            task_runs += len(runs)
            assert [run.step_name for run in runs] == [
                "load",
                "tokenize",
                "pack",
                "save",
            ]
            assert {run.units for run in runs} == {len(units)}
            assert built["units"] == len(units)
            assert build_run.step_runs(units) == []  # what is shown is not shown again
        assert build_run.groups() == []
        assert task_runs <= 256
        assert build_run.commit().units_built == sum(map(len, groups))


class Failing:
    """A pool whose first jobs fail as if their workers had died."""

    def __init__(self, pool: Any, failures: int) -> None:
        self._pool, self.failures = pool, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def run(self, job: Any, on_progress: Any = None) -> Any:
        if job.op == "unit" and self.failures:
            self.failures -= 1
            step = StepTime(
                step_name="pack", began=1.0, ended=2.0, busy=1.0, has_failed=True
            )
            raise WorkerDiedError("it is gone", step=step.to_json())
        return self._pool.run(job, on_progress)


def test_a_worker_that_dies_does_not_stop_the_other_units_of_its_group(
    tmp_path: Path, tokenizer_dir: Path, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenlake.runs.build_run.RETRY_SECONDS", (0.0, 0.0))
    write_units(tmp_path / "a.jsonl", 8)
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir, pack=512)
    config |= {"source": {"unit_size": 65536}}
    retried: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, UnitRetried):
            retried.append(event)

    failing = Failing(pool, 2)
    with build_runs.BuildRun(
        load_config(config), pool=failing, on_event=watch
    ) as build_run:
        units = build_run.session().pending
        assert len(units) > 4
        build_run.build(units, lambda line: None)
        runs = build_run.step_runs(units)
    assert len(retried) == 2
    assert [run.error for run in runs if run.step_name == "pack"] == [
        "it is gone",
        "it is gone",
        None,
    ]
    [built] = [run for run in runs if run.step_name == "load"]
    assert built.units == len(units)


def test_units_that_are_built_again_and_again_stay_within_the_number_of_task_runs(
    tmp_path: Path, tokenizer_dir: Path, pool: Any
) -> None:
    write_units(tmp_path / "many.jsonl", 50)
    config = config_of(tmp_path, tmp_path / "many.jsonl", tokenizer_dir, pack=512)
    config |= {"source": {"unit_size": 65536}}
    with build_runs.BuildRun(load_config(config), pool=pool) as build_run:
        session = build_run.session()
        task_runs = 0
        steps = tuple(
            StepTime(step_name=step_name, began=1.0, ended=2.0, busy=1.0)
            for step_name in STEPS
        )
        for _ in range(1 + 15):
            # As after a tokenizer that was found wrong: all units are pending once
            # more.
            groups = build_run.groups()
            assert [unit for group in groups for unit in group] == session.pending
            task_runs += len(groups)
            for group in groups:
                for unit in group:
                    build_run._note_try(unit, steps, None)
                task_runs += len(build_run.step_runs(group))
        # Units must be built, whatever is left: in one group each time, without steps.
        assert 250 <= task_runs <= 256 + 15


def test_the_step_that_meets_a_bad_record_is_the_one_that_failed(
    tmp_path: Path, tokenizer_dir: Path, pool: Any
) -> None:
    # Behind the first records, on which the engine of the tokenizer is chosen before
    # there is a unit.
    write_units(tmp_path / "bad.jsonl", 32)
    with (tmp_path / "bad.jsonl").open("a") as file:
        file.write('{"text": 7}\n')
    config = config_of(tmp_path, tmp_path / "bad.jsonl", tokenizer_dir, pack=16)
    with build_runs.BuildRun(load_config(config), pool=pool) as build_run:
        with pytest.raises(BadRecordError, match=r"bad\.jsonl:\d+"):
            build_run.build([0], lambda line: None)
        runs = build_run.step_runs([0])
    [failed] = [run for run in runs if run.error]
    assert (failed.step_name, failed.name) == ("load", "load 00000")
    assert "bad.jsonl" in failed.error


DIES_ONCE = """
import os, pathlib, signal

def die_once(row):
    mark = pathlib.Path(__file__).with_name("has_died")
    if row["text"] == "now" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return row
"""


def test_a_worker_that_is_killed_leaves_word_of_its_step(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps_that_die.py").write_text(DIES_ONCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Behind the first block, on which the engine of the tokenizer is chosen before
    # there is a unit.
    rows = [{"text": f"a lake {i} " * 20} for i in range(6000)] + [{"text": "now"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = config_of(
        tmp_path,
        tmp_path / "in.jsonl",
        tokenizer_dir,
        pack=256,
        format_callback="steps_that_die:die_once",
    )
    began = time.time()
    with build_runs.BuildRun(load_config(config), workers=1) as build_run:
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            build_run.build([0], lambda line: None)
        [run] = build_run.step_runs([0])
        assert "SIGKILL" in run.error
        assert run.name == "load 00000"
        assert began < run.began <= run.ended <= time.time()
        build_run.build([0], lambda line: None)
        names = [run.name for run in build_run.step_runs([0])]
    assert names == [
        f"{step_name} 00000, try 2"
        for step_name in ("load", "tokenize", "pack", "save")
    ]
