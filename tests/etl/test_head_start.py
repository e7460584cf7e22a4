"""Workers that start while their build is planned: how many, and when none do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builds import config_of
from tests.no_job import no_job
from tokenlake import load_config
from tokenlake.errors import ConfigError, SourceNotFoundError, WorkerError
from tokenlake.etl import (
    BuildSession,
    InProcessPool,
    Workbench,
    WorkerPool,
    build_dataset,
    events,
    run_pending,
)
from tokenlake.etl.head_start import HeadStart

MIB = 1 << 20


class Noting:
    """A pool that does its jobs in this process and notes what it was asked for
    before.
    """

    def __init__(self) -> None:
        self.workers = 8
        self.steps: list[Any] = []
        self._real = InProcessPool()

    def prepare(self, count: int) -> None:
        self.steps.append(("prepare", count))

    def warm(self, job: Any) -> None:
        self.steps.append(("warm", job.source.name))

    def expect(self, count: int, jobs: object = None) -> None:
        self.steps.append(("expect", count))

    def run(self, job: Any, on_progress: Any = lambda fields: None) -> Any:
        self.steps.append(("run", job.op))
        return self._real.run(job, on_progress)

    def cancel(self) -> None:
        pass


def lines(path: Path, count: int) -> Path:
    path.write_text(
        "".join(
            json.dumps({"text": f"a lake holds water {n}"}) + "\n" for n in range(count)
        )
    )
    return path


def planning(source: str, files: int, size: int) -> events.Planning:
    return events.Planning(source, "hashing", 0, files, 0, size)


@pytest.mark.parametrize(
    ("entry", "files", "size", "workers"),
    [
        ("in/*.jsonl", 1, 735 * 10**6, 87),  # units of 8 MiB
        ("in/*.jsonl", 20_000, 1 * MIB, 1),
        ("in/a.parquet", 1, 64 << 30, 512),  # of 128 MiB
        ("in/*.jsonl.gz", 3, 735 * 10**6, 3),  # each is read by one worker
        ("in/*.txt", 2, 735 * 10**6, 2),
        ("in", 5, 735 * 10**6, 5),  # whatever is in the folder
    ],
)
def test_workers_start_for_the_units_that_a_listing_foretells(
    entry: str, files: int, size: int, workers: int, tmp_path: Path, tokenizer_dir: Path
) -> None:
    pool, told = Noting(), list[events.Event]()
    config = load_config(config_of(tmp_path, entry, tokenizer_dir, pack=16))
    watcher = HeadStart(pool, config, told.append)
    event = planning("s", files, size)
    watcher(planning("s", 0, 0))  # while files are listed nobody knows how many
    watcher(event)
    assert pool.steps == [("prepare", 1), ("prepare", workers)]
    assert told[-1] is event


def test_a_build_starts_its_workers_before_its_plan_is_there(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    pool = Noting()
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 400), tokenizer_dir, pack=16
    )
    config["source"] = {"unit_size": 2000}
    session = BuildSession.open(config, on_event=pool.steps.append, pool=pool)  # type: ignore[arg-type]
    kinds = [type(step).__name__ for step in pool.steps]
    last = max(at for at, step in enumerate(pool.steps) if isinstance(step, tuple))
    assert last < kinds.index("BuildPlanned")
    prepared = max(step[1] for step in pool.steps if isinstance(step, tuple))
    units = len(session.plan.units)
    assert 1 < prepared <= units
    pool.steps.clear()
    run_pending(session, pool)  # type: ignore[arg-type]
    asked = [step for step in pool.steps if isinstance(step, tuple)]
    assert asked[:3] == [("expect", units), ("warm", "s"), ("run", "engine")]
    session.commit()


def test_a_build_that_is_likely_done_starts_none(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 4), tokenizer_dir, pack=16
    )
    build_dataset(config)
    pool = Noting()
    session = BuildSession.open(config, pool=pool)  # type: ignore[arg-type]
    assert session.found_committed
    assert pool.steps == []
    # Of a dataset that has a version most units may be reused: one worker is enough to
    # begin with.
    lines(tmp_path / "in.jsonl", 4000)
    changed = {
        **config,
        "pack": {"enabled": True, "seq_length": 32},
        "source": {"unit_size": 2000},
    }
    BuildSession.open(changed, pool=pool)  # type: ignore[arg-type]
    assert pool.steps == [("prepare", 1)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"default_tokenizer": "no such tokenizer"}, SourceNotFoundError),
        ({"pack": {"enabled": True, "seq_length": 0}}, ConfigError),
    ],
)
def test_a_refused_build_leaves_no_process(
    change: dict[str, Any], error: type[Exception], tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 4), tokenizer_dir, pack=16
    )
    del config["datasets"][0]["tokenizer"]
    with WorkerPool(4, started=0) as pool:
        with pytest.raises(error):
            BuildSession.open(
                {"default_tokenizer": str(tokenizer_dir), **config, **change}, pool=pool
            )
        assert len(pool.pids()) <= 1
    assert pool.pids() == []


def test_ctrl_c_while_workers_start_leaves_none(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 400), tokenizer_dir, pack=16
    )
    config["source"] = {"unit_size": 2000}
    started: list[psutil.Process] = []

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.Listed):
            started.extend(map(psutil.Process, pool.pids()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), WorkerPool(3, started=0) as pool:
        BuildSession.open(config, on_event=interrupt, pool=pool)
    assert len(started) == 3
    assert not any(process.is_running() for process in started)
    assert not (tmp_path / "store").exists()


def test_a_warm_worker_has_loaded_what_its_units_need(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 40), tokenizer_dir, pack=16
    )
    session = BuildSession.open(config)
    unit = session.plan.units[0]
    workbench = Workbench()
    pool = InProcessPool(workbench)
    engine = session.backends.choose(unit, InProcessPool())
    workbench.warm(session.plan.warm_job(unit, session._layout))  # type: ignore[arg-type]
    # The one that is there is used.
    monkeypatch.setattr("tokenlake.etl.workbench.Encoder", None)
    session.backends._chosen[unit.source] = engine
    session.run_unit(0, pool)  # type: ignore[arg-type]
    assert session.commit().totals.documents == 40


def test_what_a_warm_worker_cannot_load_is_not_its_end(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = config_of(
        tmp_path, lines(tmp_path / "in.jsonl", 4), tokenizer_dir, pack=16
    )
    session = BuildSession.open(config)
    unit = session.plan.units[0]
    job = session.plan.warm_job(unit, session._layout)  # type: ignore[arg-type]
    with WorkerPool(2, started=2) as pool:
        before = pool.pids()
        pool.warm(replace(job, tokenizer="gone"))
        # Each of them by the worker that has just been free, or by the other.
        for _ in range(3):
            with ThreadPoolExecutor(2) as callers:
                answers = [
                    callers.submit(pool.run, no_job("nothing")) for _ in range(2)
                ]
            for answer in answers:
                with pytest.raises(WorkerError, match="unknown job 'nothing'"):
                    answer.result()
        assert pool.pids() == before
