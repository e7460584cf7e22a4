"""Flows as people run them: deployed, by a worker of a pool, against a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.prefect import deployed
from tests.prefect.deployed import (
    SLOW,
    asked,
    build_workers,
    cancel,
    get,
    launched,
    post,
    prefect,
    tasks_of,
    two_sources,
    until,
)
from tests.store.support import build_store, copy_store
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog

pytestmark = pytest.mark.integration

data, environment = deployed.data, deployed.environment
server, worker = deployed.server, deployed.worker


def test_a_deployment_runs_to_a_committed_version(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    shown = prefect(
        worker,
        *("deployment", "run", "tokenize/llama2-2048", "--watch"),
        *("--flow-run-name", "nightly"),
        *("--param", f"data_files={data}"),
        *("--param", f"tokenizer={tokenizer_dir}"),
        *("--param", f"output={tmp_path}"),
    )
    assert "Completed" in shown
    manifest = Catalog(open_store(str(tmp_path))).manifest("llama2-2048", 1)
    assert manifest.seq_length == 2048
    run = post(worker, "flow_runs/filter", sort="START_TIME_DESC")[0]
    assert run["name"] == "nightly"
    names = {task["name"] for task in tasks_of(worker, run["id"])}
    assert names == {"plan", "unit 00000", "commit", "report"}
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["tokens-llama2-2048"]}})
    assert f"{manifest.account.tokens:,}" in page["data"]


def test_a_mixture_is_deployed_as_runs_of_tokenize_and_a_mixture_of_what_they_made(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    sources = two_sources(tmp_path)
    store = tmp_path / "store"
    shown = prefect(
        worker,
        *("deployment", "run", "mix/pretrain-2048", "--watch"),
        *("--param", f"data_files={json.dumps(sources)}"),
        *("--param", f"weights={json.dumps({'code': 0.25, 'web': 0.75})}"),
        *("--param", f"tokenizer={tokenizer_dir}"),
        *("--param", f"output={store}"),
        *("--param", "name=pile"),
    )
    assert "Completed" in shown
    manifest = Catalog(open_store(str(store))).manifest("pile", 1)
    assert manifest.mixture is not None
    assert list(manifest.mixture.sources) == ["code", "web"]
    run = post(worker, "flow_runs/filter", sort="START_TIME_DESC", flows={"name": {"any_": ["mix"]}})[0]
    children = post(worker, "flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run["id"]]}})
    assert {child["name"]: child["state_type"] for child in children} == {
        "pile.code.tokens": "COMPLETED",
        "pile.web.tokens": "COMPLETED",
    }
    names = [task["name"] for task in tasks_of(worker, run["id"]) if "/" not in task["task_key"]]
    assert {"plan", "unit 00000", "commit", "report"} <= set(names)
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["tokens-pile"]}})
    for told in ("### Mixture", "| code | pile.code.tokens@v1 | 25.00% |", "### Order"):
        assert told in page["data"]


def test_a_verification_of_everything_fails_where_something_is_damaged(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    store = copy_store(build_store(tmp_path, tokenizer_dir), tmp_path / "copy")
    shard = min(store.glob("small/v2/data/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    deployment = get(worker, "deployments/name/verify/everything")["id"]
    path = f"deployments/{deployment}/create_flow_run"
    run = post(worker, path, parameters={"store": str(store)})["id"]
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] in ("FAILED", "COMPLETED"), "it ends")
    ended = get(worker, f"flow_runs/{run}")
    state = ended["state"]
    assert ended["name"] == "everything"
    assert state["type"] == "FAILED"
    assert "1 of 2 versions damaged: small@v2" in state["message"]
    expected = dict.fromkeys(["small v1", "small v2", "report"], "COMPLETED")
    # The server writes down what became of tasks a moment after the run's end.
    until(
        lambda: {task["name"]: task["state_type"] for task in tasks_of(worker, run)} == expected,
        "all tasks are completed",
    )
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["verification"]}})
    assert f"data/{shard.name}" in page["data"] and "sha256" in page["data"]


def test_a_flow_that_is_given_what_the_other_builds_names_it(worker: dict[str, str]) -> None:
    text: dict[str, Any] = {"name": "one", "datasets": [{"name": "a", "data_files": "/none"}]}
    mixed = text | {"mix": {"weights": {"a": 1.0}, "epochs": 1}}
    for flow, config, other in (("tokenize/demo", mixed, "mix"), ("mix/pretrain-2048", text, "tokenize")):
        deployment = get(worker, f"deployments/name/{flow}")["id"]
        run = post(worker, f"deployments/{deployment}/create_flow_run", parameters={"config": config})["id"]
        until(lambda run=run: get(worker, f"flow_runs/{run}")["state_type"] == "FAILED", "the run failed")
        assert f"the flow `{other}`" in get(worker, f"flow_runs/{run}")["state"]["message"]


def test_a_cancelled_run_stops_and_can_be_resumed(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    # Enough to be heard before it is all done, on a machine with nothing else to do.
    copies = tmp_path / "in"
    copies.mkdir()
    for number in range(2):
        (copies / f"{number}.jsonl").write_bytes(data.read_bytes())
    data = copies
    values: dict[str, Any] = {
        "data_files": str(data),
        "tokenizer": str(tokenizer_dir),
        "output": str(tmp_path),
    }
    values |= {"name": "stopped", "overrides": list(SLOW)}
    deployment = get(worker, "deployments/name/tokenize/demo")["id"]
    run = post(worker, f"deployments/{deployment}/create_flow_run", parameters=values)["id"]
    ledger = tmp_path / "stopped" / "v1" / "ledger"
    until(lambda: ledger.is_dir() and len(list(ledger.iterdir())) >= 2, "two units are finished")
    builders = build_workers()
    assert builders

    cancel(worker, run)
    until(lambda: not any(process.is_running() for process in builders), "the worker processes are gone", 10)
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] == "CANCELLED", "the run is cancelled")
    assert not (ledger.parent / "manifest.json").exists()
    finished = len(list(ledger.iterdir()))

    values["overrides"] += [
        f"datasets={json.dumps([{'name': 'data', 'data_files': str(data)}])}",
        f"default_tokenizer={tokenizer_dir}",
        f"save.output_dir={tmp_path}",
        "name=stopped",
    ]
    with launched(worker, "demo", *values["overrides"]) as again:
        assert again.wait() == 0
    status, built, resumed = again.told[-1][1]
    assert (status, resumed) == ("resumed", finished)
    assert built > 0


def test_a_bad_record_ends_the_run_at_once(
    server: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": 7}\n')
    config = tmp_path / "bad.yaml"
    config.write_text(json.dumps(asked(bad, tokenizer_dir, tmp_path)))
    with launched(server, config) as run:
        assert run.wait() == 1
    assert run.told[-1] == ["error", "BadRecordError"]
    assert "UnitRetried" not in [name for name, _ in run.told]
    recorded = post(server, "flow_runs/filter", sort="START_TIME_DESC")[0]
    assert recorded["state_type"] == "FAILED"
    assert "bad.jsonl:2" in recorded["state"]["message"]


def test_a_mistake_is_logged_in_a_sentence(
    server: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "mistake.yaml"
    config.write_text(json.dumps(asked(tmp_path / "absent.jsonl", tokenizer_dir, tmp_path)))
    with launched(server, config) as run:
        assert run.wait() == 2
    recorded = post(server, "flow_runs/filter", sort="START_TIME_DESC")[0]
    assert (recorded["name"], recorded["state_type"]) == ("mistake", "FAILED")
    asked_for = {"flow_run_id": {"any_": [recorded["id"]]}}
    until(lambda: len(post(server, "logs/filter", logs=asked_for)) >= 3, "the logs are there")
    told = [line["message"] for line in post(server, "logs/filter", logs=asked_for)]
    assert [message for message in told if "absent.jsonl" in message]
    assert [message for message in told if "Traceback" in message or len(message.splitlines()) > 3] == []
