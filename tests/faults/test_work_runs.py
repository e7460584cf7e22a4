"""Runs of `work/units` in a process pool of a real Prefect server, and engines as the parameter of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

__all__ = ["data", "environment", "server", "worker"]


@promise(183)
def test_runs_of_work_units_build_for_a_run_and_outlive_its_death_and_each_others(
    request: pytest.FixtureRequest, tokenizer_dir: Path, tmp_path: Path
) -> None:
    """One run of `work/units` is killed, then the run that waits; the next one with its parameters ends well."""
    if request.config.getoption("--faults") != "all":
        pytest.skip("minutes long: --faults all")
    worker, data = request.getfixturevalue("worker"), request.getfixturevalue("data")
    values: dict[str, Any] = {"tokenizer": str(tokenizer_dir), "name": "shared", "overrides": list(SLOW)}
    values |= {"data_files": str(data), "output": str(tmp_path / "store")}
    helped = values | {"engine": "store", "work_runs": 2, "workers": 1}
    ledger = tmp_path / "store/shared/v1/ledger"
    parent = begin(worker, "tokenize/demo", **helped)
    until(lambda: ledger.is_dir() and bool(list(ledger.iterdir())), "a unit is finished", 120)
    running = [run for run in runs_of(worker, "work/units") if run["state_type"] == "RUNNING"]
    process_of(running[0]["id"]).kill()
    until(lambda: len(runs_of(worker, "work/units")) >= 3, "another is started in its place")
    process_of(parent).kill()
    again = begin(worker, "tokenize/demo", **helped)
    run = ended(worker, again)
    assert (run["name"], run["state_type"]) == ("shared v1", "COMPLETED")
    until(
        lambda: get(worker, f"flow_runs/{parent}")["state_type"] == "CRASHED", "the server knows of the death"
    )
    ends = {one["id"]: ended(worker, one["id"])["state_type"] for one in runs_of(worker, "work/units")}
    assert ends.pop(running[0]["id"]) == "CRASHED"
    assert set(ends.values()) <= {"COMPLETED", "CANCELLED"}
    # A worker that was killed, or that is just ending, may have left word of itself; no plan and no lease is left.
    left = {path.name.partition("-")[0] for path in (ledger.parent / "runs/units").rglob("*.json")}
    assert left <= {"worker"}
    lines = post(worker, "logs/filter", logs={"flow_run_id": {"any_": [again]}})
    assert any("are at this build already" in line["message"] for line in lines)
    assert "plan" in {task["name"] for task in tasks_of(worker, again)}
    # Dask, with the same bytes.
    on_dask = ended(
        worker, begin(worker, "tokenize/demo", **values | {"name": "dask", "engine": "dask", "workers": 2})
    )
    assert on_dask["state_type"] == "COMPLETED", on_dask["state"]["message"]
    shards = {
        name: {path.name: path.read_bytes() for path in (tmp_path / f"store/{name}/v1/data").iterdir()}
        for name in ("shared", "dask")
    }
    assert shards["shared"] == shards["dask"] and len(shards["dask"]) >= 10
    outside = ended(worker, begin(worker, "work/units", name="shared", store="/etc"))
    assert (outside["state_type"], "outside what this worker allows" in outside["state"]["message"]) == (
        "FAILED",
        True,
    )
