"""Runs of `work/units` in a process pool of a real Prefect server, and engines as
the parameter of a deployment.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.prefect.deployed import (
    SLOW,
    begin,
    data,
    ended,
    environment,
    get,
    post,
    process_of,
    runs_of,
    server,
    tasks_of,
    until,
    worker,
)
from tests.seeds import promise
from tokenlake.etl.shared_plan import Leases, read_plan
from tokenlake.runtime.store import Layout, StoreAddress, open_store

__all__ = ["data", "environment", "server", "worker"]


@contextmanager
def _a_unit_held(root: Path, layout: Layout) -> Generator[None]:
    """Keep the lease of a unit that nobody has begun, so that the build cannot end
    meanwhile.
    """
    store = open_store(root)
    plan = read_plan(store, layout)
    assert plan is not None
    leases = Leases(store, layout, "held", 6)
    units = plan.jobs(store, StoreAddress(str(root)))
    assert any(
        not store.exists(layout.ledger(unit)) and leases.take(unit)
        for unit in sorted(units, reverse=True)
    )
    with leases.kept():
        yield


def _log(worker: dict[str, str], run: str) -> list[str]:
    lines = post(worker, "logs/filter", logs={"flow_run_id": {"any_": [run]}})
    return [line["message"] for line in lines]


def _running(worker: dict[str, str]) -> list[str]:
    return [
        run["id"]
        for run in runs_of(worker, "work/units")
        if run["state_type"] == "RUNNING"
    ]


@contextmanager
def _standing_still(process: psutil.Process) -> Generator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.kill()


@promise(183)
def test_runs_of_work_units_build_for_a_run_and_outlive_its_death_and_each_others(
    request: pytest.FixtureRequest, tokenizer_dir: Path, tmp_path: Path
) -> None:
    """A run of `work/units` is killed, then the run that waits, then one is silent:
    the next run ends well.
    """
    if request.config.getoption("--faults") != "all":
        pytest.skip("minutes long: --faults all")
    worker, data = request.getfixturevalue("worker"), request.getfixturevalue("data")
    values: dict[str, Any] = {
        "tokenizer": str(tokenizer_dir),
        "name": "shared",
        "overrides": list(SLOW),
    }
    values |= {"data_files": str(data), "output": str(tmp_path / "store")}
    helped = values | {"executor": "store", "work_runs": 2, "workers": 1}
    ledger = tmp_path / "store/shared/v1/ledger"
    parent = begin(worker, "tokenize/demo", **helped)
    until(
        lambda: ledger.is_dir() and bool(list(ledger.iterdir())),
        "a unit is finished",
        120,
    )
    with _a_unit_held(tmp_path / "store", Layout("shared", 1)):
        killed = _running(worker)[0]
        process_of(killed).kill()
        until(
            lambda: len(runs_of(worker, "work/units")) >= 3,
            "another is started in its place",
            120,
        )
        process_of(parent).kill()
        again = begin(worker, "tokenize/demo", **helped)
        found = "already work on this build"
        until(
            lambda: any(found in line for line in _log(worker, again)),
            "it finds them",
            120,
        )
        silent = _running(worker)[0]
        # As on a machine that is gone: the server says that it runs.
        stopped = process_of(silent)
        with _standing_still(stopped):
            lost = "no sign of life for"
            until(
                lambda: any(lost in line for line in _log(worker, again)),
                "it is lost",
                120,
            )
            assert get(worker, f"flow_runs/{silent}")["state_type"] == "CRASHED"
    run = ended(worker, again)
    assert (run["name"], run["state_type"]) == ("shared v1", "COMPLETED")
    until(
        lambda: get(worker, f"flow_runs/{parent}")["state_type"] == "CRASHED",
        "the server knows of the death",
    )
    ends = {
        one["id"]: ended(worker, one["id"])["state_type"]
        for one in runs_of(worker, "work/units")
    }
    assert (ends.pop(killed), ends.pop(silent)) == ("CRASHED", "CRASHED")
    assert set(ends.values()) <= {"COMPLETED", "CANCELLED"}
    # A worker that was killed, or that is just ending, may have left word of itself; no
    # plan and no lease is left.
    left = {
        path.name.partition("-")[0]
        for path in (ledger.parent / "runs/units").rglob("*.json")
    }
    assert left <= {"worker"}
    assert "plan" in {task["name"] for task in tasks_of(worker, again)}
    # Dask and Ray, with the same bytes.
    for engine in ("dask", "ray"):
        clustered = values | {"name": engine, "executor": engine, "workers": 2}
        there = ended(worker, begin(worker, "tokenize/demo", **clustered))
        assert there["state_type"] == "COMPLETED", there["state"]["message"]
    shards = {
        name: {
            path.name: path.read_bytes()
            for path in (tmp_path / f"store/{name}/v1/data").iterdir()
        }
        for name in ("shared", "dask", "ray")
    }
    assert (
        shards["shared"] == shards["dask"] == shards["ray"]
        and len(shards["dask"]) >= 10
    )
    outside = ended(worker, begin(worker, "work/units", name="shared", store="/etc"))
    assert (
        outside["state_type"],
        "outside the places that this worker allows" in outside["state"]["message"],
    ) == (
        "FAILED",
        True,
    )
