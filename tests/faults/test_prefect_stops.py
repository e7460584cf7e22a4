"""Runs that are stopped: by Ctrl-C, by cancelling, by a worker that dies; nothing
that was finished is lost.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil

from tests.prefect import deployed
from tests.prefect.deployed import (
    asked,
    build_workers,
    cancel,
    get,
    launched,
    post,
    tasks_of,
    two_sources,
    until,
)

data, environment = deployed.data, deployed.environment
server, worker = deployed.server, deployed.worker


def test_a_cancelled_mixture_stops_at_the_source_it_is_at_and_can_be_resumed(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    short = two_sources(tmp_path)["web"]
    config = {
        **asked(data, tokenizer_dir, tmp_path / "store"),
        "name": "pile",
        "datasets": [
            {"name": "web", "data_files": short},
            {"name": "slow", "data_files": str(data)},
        ],
        "mix": {
            "weights": {"web": 0.5, "slow": 0.5},
            "total_rows": 200,
            "lanes": 1,
            "seed": 0,
        },
    }
    deployment = get(worker, "deployments/name/mix/pretrain-2048")["id"]
    path = f"deployments/{deployment}/create_flow_run"
    # The form of this deployment requires both.
    files = {"web": short, "slow": str(data)}
    parameters = {
        "config": config,
        "data_files": files,
        "tokenizer": str(tokenizer_dir),
    }
    run = post(worker, path, parameters=parameters)["id"]
    ledger = tmp_path / "store" / "pile.slow.tokens" / "v1" / "ledger"
    until(
        lambda: ledger.is_dir() and len(list(ledger.iterdir())) >= 1,
        "a unit is finished",
    )
    builders = build_workers()

    cancel(worker, run)
    until(
        lambda: not any(process.is_running() for process in builders),
        "the worker processes are gone",
    )
    until(
        lambda: get(worker, f"flow_runs/{run}")["state_type"] == "CANCELLED",
        "the run is cancelled",
    )
    children = post(
        worker, "flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run]}}
    )
    assert {child["name"]: child["state_type"] for child in children} == {
        "pile.web.tokens v1": "COMPLETED",
        "pile.slow.tokens v1": "CANCELLED",
    }
    assert not (ledger.parent / "manifest.json").exists()

    (tmp_path / "pile.yaml").write_text(json.dumps(config))
    with launched(worker, tmp_path / "pile.yaml") as again:
        assert again.wait() == 0
    assert again.told[-1] == ["result", ["built", 1, 0]]
    told = [event for event, _ in again.told]
    assert told.count("BuildStep") == 3
    assert told.count("BuildPlanned") == 3
    assert told.count("BackendDiscarded") == 0


def test_ctrl_c_and_a_killed_worker_cost_nothing_that_was_finished(
    environment: dict[str, str],
    server: dict[str, str],
    data: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    config = tmp_path / "code.yaml"
    config.write_text(json.dumps(asked(data, tokenizer_dir, tmp_path)))

    with launched(environment, config) as first:
        first.read_until("UnitFinished", 2)
        children = psutil.Process(first.process.pid).children(recursive=True)
        assert len(children) == 4, (
            "two workers, the process that ends them with their parent, and a server"
        )
        first.process.send_signal(signal.SIGINT)
        assert first.wait() == 130
    assert first.told[-1] == ["error", "CancelledError"]
    assert first.errors.strip() == "cancelling; press Ctrl-C again to end at once"
    assert not any(child.is_running() for child in children)

    with launched(server, config) as second:
        second.read_until("UnitStarted", 1)
        max(
            build_workers(second.process.pid),
            key=lambda process: process.cpu_times().user,
        ).kill()
        assert second.wait() == 0
    events = [name for name, _ in second.told]
    assert events.count("UnitRetried") == 1
    status, built, resumed = second.told[-1][1]
    assert status == "resumed"
    assert resumed >= 2
    assert built + resumed == len(list((tmp_path / "code" / "v1" / "ledger").iterdir()))
    run = post(server, "flow_runs/filter", sort="START_TIME_DESC")[0]
    tries = [task["run_count"] for task in tasks_of(server, run["id"])]
    assert sorted(tries)[-2:] == [1, 2]

    with launched(server, config) as third:
        assert third.wait() == 0
    assert third.told[-1] == ["result", ["exists", 0, 0]]
