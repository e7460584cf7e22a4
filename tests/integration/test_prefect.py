"""Flows as people run them: deployed, by a worker of a pool whose owner bounds it,
against a server.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazily
from tests.prefect.deployed import (
    SLOW,
    asked,
    begin,
    build_workers,
    cancel,
    ended,
    get,
    post,
    tasks_of,
    two_sources,
    until,
)
from tests.seeds import promise
from tests.servers.http import HttpServer
from tests.store.support import build_store, copy_store
from tokenlake import Catalog, Manifest
from tokenlake.base import secrets as references
from tokenlake.cli.app import main
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import Event, UnitRetried
from tokenlake.runtime.store import open_store

blocks: Any = lazily("prefect.blocks.system")
flows: Any = lazily("tokenlake_flows.tokenize")
launch: Any = lazily("tokenlake_flows.launch")
notifications: Any = lazily("tokenlake_flows.notifications")
handlers: Any = lazily("prefect.logging.handlers")
settings: Any = lazily("prefect.settings")
blocks_of_run: Any = lazily("tokenlake_tasks.blocks")

pytestmark = pytest.mark.integration


@pytest.fixture
def here(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The server, which runs that this process itself launches report to."""
    url = {"PREFECT_API_URL": server["PREFECT_API_URL"]}
    monkeypatch.setenv("PREFECT_API_URL", url["PREFECT_API_URL"])
    with settings.temporary_settings(url):
        yield server
        handlers.APILogHandler().flush()


def artifact(worker: dict[str, str], key: str, run: str | None = None) -> str:
    """The one artifact of a key, or that of a flow run."""
    found = post(worker, "artifacts/filter", artifacts={"key": {"any_": [key]}})
    [page] = [each for each in found if run in (None, each["flow_run_id"])]
    return page["data"]


def parents(task: dict[str, Any]) -> set[str]:
    """The task runs that arrows lead from to this one."""
    return {each["id"] for inputs in task["task_inputs"].values() for each in inputs}


@promise(318, 329, 330, 332, 335, 338)
def test_deployments_run_to_committed_versions_side_by_side(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    shared: dict[str, Any] = {
        "tokenizer": str(tokenizer_dir),
        "output": str(tmp_path / "store"),
        "workers": 1,
    }
    files = two_sources(tmp_path)
    nightly = begin(
        worker,
        "tokenize/llama2-2048",
        **shared,
        data_files=files["web"],
        run_name="nightly",
    )
    mixture = begin(
        worker,
        "mix/pretrain-2048",
        **shared,
        data_files=files,
        weights={"code": 0.25, "web": 0.75},
        name="pile",
    )
    catalog = Catalog(open_store(str(tmp_path / "store")))

    run = ended(worker, nightly)
    assert (run["name"], run["state_type"]) == ("llama2-2048 v1", "COMPLETED")
    manifest = catalog.manifest("llama2-2048", 1)
    assert manifest.seq_length == 2048
    tasks = {task["name"]: task for task in tasks_of(worker, nightly)}
    steps = [f"{step} 00000" for step in ("load", "tokenize", "pack", "save")]
    assert set(tasks) == {"plan", "unit 00000", *steps, "commit", "report"}
    assert {task["state_type"] for task in tasks.values()} == {"COMPLETED"}
    # Each step has its own times, which lie within those of the unit.
    unit = tasks["unit 00000"]
    for step in (tasks[name] for name in steps):
        assert (
            unit["start_time"]
            < step["start_time"]
            <= step["end_time"]
            < unit["end_time"]
        )
        assert step["state"]["message"].startswith("busy ")
    begins = [tasks[name]["start_time"] for name in steps]
    assert begins == sorted(begins) and len(set(begins)) == len(steps)
    assert unit["tags"] == tasks["load 00000"]["tags"] == ["source:data"]
    page, report = (
        artifact(worker, "tokens-llama2-2048"),
        tmp_path / "store/llama2-2048/v1/runs/report.html",
    )
    assert f"{manifest.account.tokens:,}" in page
    for told in (
        "### Time by step",
        "| source | units | all | load | tokenize | pack | save |",
    ):
        assert told in page
    # A browser opens no file from the page of a run: the main tables are in the page,
    # and a command serves the rest.
    assert (
        "### Tokens per document" in page
        and "tokenlake report llama2-2048@v1 --serve" in page
    )
    assert "file://" not in page and report.read_bytes().startswith(b"<!doctype html>")

    before = {task["name"]: parents(task) for task in tasks_of(worker, nightly)}
    ids = {task["name"]: task["id"] for task in tasks_of(worker, nightly)}
    assert before == {
        "plan": set(),
        "unit 00000": {ids["plan"]},
        "load 00000": {ids["unit 00000"]},
        "tokenize 00000": {ids["unit 00000"], ids["load 00000"]},
        "pack 00000": {ids["unit 00000"], ids["tokenize 00000"]},
        "save 00000": {ids["unit 00000"], ids["pack 00000"]},
        "commit": {ids["plan"], ids["unit 00000"]},
        "report": {ids["commit"]},
    }
    records = [
        catalog.store.read(info.key)
        for info in catalog.store.list("llama2-2048/v1/runs")
    ]
    assert nightly in {
        json.loads(data).get("flow_run", {}).get("id")
        for data in records
        if data[:1] == b"{"
    }
    [progress] = post(
        worker,
        "artifacts/filter",
        artifacts={"key": {"any_": ["progress-llama2-2048"]}},
    )
    assert (progress["type"], progress["data"]) == ("progress", 100)
    assert progress["description"].startswith("llama2-2048 v1: 100%, 1 of 1 unit, ")

    run = ended(worker, mixture)
    assert (run["name"], run["state_type"]) == ("pile v1", "COMPLETED")
    mixed = catalog.manifest("pile", 1).mixture
    assert mixed is not None
    assert list(mixed.sources) == ["code", "web"]
    children = post(
        worker,
        "flow_runs/filter",
        flow_runs={"parent_flow_run_id": {"any_": [mixture]}},
    )
    assert {child["name"]: child["state_type"] for child in children} == {
        "pile.code.tokens v1": "COMPLETED",
        "pile.web.tokens v1": "COMPLETED",
    }
    names = [
        task["name"]
        for task in tasks_of(worker, mixture)
        if "/" not in task["task_key"]
    ]
    mixed_steps = {f"{step} 00000" for step in ("load", "mix", "pack", "save")}
    assert {"plan", "unit 00000", *mixed_steps, "commit", "report"} <= set(names)
    assert "| all | load | mix | pack | save |" in artifact(worker, "tokens-pile")
    for told in ("### Mixture", "| code | pile.code.tokens@v1 | 25.00% |", "### Order"):
        assert told in artifact(worker, "tokens-pile")


def test_a_version_starts_what_follows_it_and_a_failure_is_told(
    worker: dict[str, str],
    here: dict[str, str],
    tokenizer_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    follower = get(worker, "deployments/name/verify/new-version")["id"]
    [automation] = post(worker, "automations/filter")
    assert (automation["name"], automation["enabled"]) == ("new-version", False)
    with HttpServer({"hook": b""}) as hook, HttpServer() as elsewhere:
        assert notifications.main([f"{hook.url}/hook"]) == 0
        assert (
            capsys.readouterr().out == "created tokenlake-failed, tokenlake-damaged\n"
        )
        blocks.Secret(value=elsewhere.url).save("elsewhere")
        switch = partial(post, worker, f"automations/{automation['id']}", "PATCH")
        switch(enabled=True)
        files = two_sources(tmp_path)
        values: dict[str, Any] = {
            "tokenizer": str(tokenizer_dir),
            "output": str(tmp_path / "store"),
        }
        values |= {"config": "llama2-2048", "workers": 1}
        built = begin(
            worker, "tokenize/demo", data_files=files["code"], name="followed", **values
        )
        wrong = begin(
            worker, "tokenize/demo", config=sent_elsewhere(tokenizer_dir, tmp_path)
        )
        failed = ended(worker, wrong)
        assert (ended(worker, built)["name"], failed["state_type"]) == (
            "followed v1",
            "FAILED",
        )
        assert "endpoint_url: expected a URL in full" in failed["state"]["message"]
        assert not elsewhere.log
        until(
            lambda: [each.method for each in hook.log] == ["POST"],
            "the message is there",
        )
    followers = {"deployment_id": {"any_": [follower]}}
    until(
        lambda: bool(post(worker, "flow_runs/filter", flow_runs=followers)),
        "the automation acts",
    )
    [run] = post(worker, "flow_runs/filter", flow_runs=followers)
    assert run["parameters"] == {
        "names": ["followed@v1"],
        "store": str(tmp_path / "store"),
    }
    switch(enabled=False)  # or each version of another test starts a run, too
    assert ended(worker, run["id"])["state_type"] == "COMPLETED"
    about = {"event": {"prefix": ["tokenlake.", "prefect.asset.materialization"]}}
    found = post(worker, "events/filter", filter=about)["events"]
    events = {
        each["event"]: each
        for each in found
        if each["payload"].get("dataset") == "followed"
    }
    committed = events["tokenlake.version.committed"]
    assert committed["resource"]["prefect.resource.id"] == "tokenlake.dataset.followed"
    assert (
        committed["payload"]["manifest_sha256"]
        == manifest_of(tmp_path / "store", "followed").sha256
    )
    made = events["prefect.asset.materialization.succeeded"]
    assert (
        made["resource"]["prefect.resource.id"] == f"file://{tmp_path}/store/followed"
    )
    related = {each["prefect.resource.id"] for each in made["related"]}
    assert {f"file://{files['code']}", f"prefect.flow-run.{built}"} <= related
    logs = post(worker, "logs/filter", logs={"flow_run_id": {"any_": [wrong]}})
    assert logs and "Traceback" not in json.dumps(logs)


def sent_elsewhere(tokenizer_dir: Path, tmp_path: Path) -> dict[str, Any]:
    """A configuration that would read, with the worker's secrets, from a host that
    nobody allowed.
    """
    options = {
        "endpoint_url": {"block": "elsewhere"},
        "key": {"env": "LAKE_KEY"},
        "secret": {"env": "LAKE_KEY"},
    }
    files = {"data_files": "s3://lake/raw/a.jsonl", "storage_options": options}
    dataset = {"name": "s", "tokenizer": str(tokenizer_dir), **files}
    return {
        "name": "x",
        "datasets": [dataset],
        "save": {"output_dir": str(tmp_path / "out")},
    }


def manifest_of(store: Path, dataset: str) -> Manifest:
    return Catalog(open_store(str(store))).manifest(dataset, 1)


@promise(337)
def test_deployments_have_tags_limits_and_schedules_to_switch_on(
    worker: dict[str, str],
) -> None:
    build = get(worker, "deployments/name/tokenize/llama2-2048")
    assert build["tags"] == ["tokenlake", "tokenize"]
    assert build["global_concurrency_limit"]["limit"] == 1
    assert build["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    (schedule,) = build["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("0 3 * * *", False)
    assert get(worker, "deployments/name/push/hub")["tags"] == ["tokenlake", "push"]


def test_a_verification_fails_where_something_is_damaged(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    store = copy_store(build_store(tmp_path, tokenizer_dir), tmp_path / "copy")
    shard = min(store.glob("small/v2/data/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    verification = begin(worker, "verify/all-versions", store=str(store))
    run = ended(worker, verification)
    assert (run["name"], run["state_type"]) == ("all-versions", "FAILED")
    assert "1 of 2 versions damaged: small@v2" in run["state"]["message"]
    expected = dict.fromkeys(["small v1", "small v2", "report"], "COMPLETED")
    # The server writes down what became of tasks a moment after the run's end.
    until(
        lambda: (
            {
                task["name"]: task["state_type"]
                for task in tasks_of(worker, verification)
            }
            == expected
        ),
        "all tasks are completed",
    )
    about = {"event": {"prefix": ["tokenlake.version.damaged"]}}
    until(
        lambda: bool(post(worker, "events/filter", filter=about)["events"]),
        "the event is written down",
    )
    found = post(worker, "events/filter", filter=about)["events"]
    assert [
        (each["payload"]["name"], each["payload"]["problems"]) for each in found
    ] == [("small@v2", 1)]
    page = artifact(worker, "verification", verification)
    assert f"data/{shard.name}" in page
    assert "sha256" in page


def test_a_cancelled_run_stops_and_can_be_resumed(
    worker: dict[str, str],
    here: dict[str, str],
    data: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    # Enough for one worker to be heard before it is all done, on a machine with nothing
    # else to do.
    values: dict[str, Any] = {
        "data_files": str(data),
        "tokenizer": str(tokenizer_dir),
        "output": str(tmp_path),
        "workers": 1,
    }
    values |= {"name": "stopped", "overrides": list(SLOW)}
    run = begin(worker, "tokenize/demo", **values)
    ledger = tmp_path / "stopped" / "v1" / "ledger"
    until(
        lambda: ledger.is_dir() and len(list(ledger.iterdir())) >= 2,
        "two units are finished",
        240,
    )
    builders = build_workers()
    assert builders

    cancel(worker, run)
    until(
        lambda: not any(process.is_running() for process in builders),
        "the worker processes are gone",
    )
    until(
        lambda: get(worker, f"flow_runs/{run}")["state_type"] == "CANCELLED",
        "the run is cancelled",
    )
    assert not (ledger.parent / "manifest.json").exists()
    finished = len(list(ledger.iterdir()))

    # The ids are those of the reference: the rest may be built by the fast engine.
    values["overrides"] += [
        "tokenize.tokenizer_backend=auto",
        f"datasets={json.dumps([{'name': 'data', 'data_files': str(data)}])}",
        f"default_tokenizer={tokenizer_dir}",
        f"save.output_dir={tmp_path}",
        "name=stopped",
    ]
    again = launch.launch("demo", values["overrides"], workers=1)
    assert (again.status, again.units_resumed) == ("resumed", finished)
    assert again.units_built > 0


def test_a_flow_loads_a_secret_block_and_shows_it_nowhere(
    here: dict[str, str],
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nor a secret of its environment."""
    monkeypatch.setattr(references, "_BLOCKS", {})
    monkeypatch.setattr(references, "_KNOWN", set())
    monkeypatch.setenv("LAKE_PLANTED", "planted-5b1c77e09a")
    monkeypatch.setenv(
        "TOKENLAKE_STORE_OPTIONS", json.dumps({"secret": "planted-5b1c77e09a"})
    )
    with HttpServer({"in/a.jsonl": b'{"text": "flows to the sea"}\n' * 300}) as lake:
        lake.secret = "Bearer opensesame-7d1f0c55"
        blocks.Secret(value=lake.secret).save("lake-auth")
        config = asked(Path("in"), tokenizer_dir, tmp_path / "store")
        config["datasets"][0] |= {
            "data_files": f"{lake.url}/in/a.jsonl",
            "storage_options": {"headers": {"Authorization": {"block": "lake-auth"}}},
        }
        path = tmp_path / "secretive.yaml"
        path.write_text(json.dumps(config))
        state = flows.tokenize(config=str(path), workers=1, return_state=True)
        assert state.is_completed(), state.message
    with pytest.raises(
        ConfigError, match="the Prefect server has no Secret block with this name"
    ):
        blocks_of_run.load_blocks(["no-such-block"])
    run = _newest(here, "secretive")["id"]
    asked_for = {"flow_run_id": {"any_": [run]}}
    until(
        lambda: len(post(here, "logs/filter", logs=asked_for)) >= 3,
        "the logs are there",
    )
    kept = [
        _newest(here, "secretive"),
        tasks_of(here, run),
        post(here, "logs/filter", logs=asked_for),
    ]
    told = capfd.readouterr()
    home = [path for path in Path(here["PREFECT_HOME"]).rglob("*") if path.is_file()]
    # The database of the server, its write-ahead log with it, where the block lies
    # encrypted.
    assert [path for path in home if path.name == "prefect.db"]
    for secret in ("planted-5b1c77e09a", "opensesame"):
        assert secret not in told.out + told.err + json.dumps(kept)
        for path in (*home, *(path for path in tmp_path.rglob("*") if path.is_file())):
            assert secret.encode() not in path.read_bytes(), path


def test_a_bad_record_ends_the_run_at_once(
    here: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": 7}\n')
    config = tmp_path / "bad.yaml"
    config.write_text(json.dumps(asked(bad, tokenizer_dir, tmp_path)))
    told: list[Event] = []
    with pytest.raises(BadRecordError, match=r"bad\.jsonl:2"):
        launch.launch(str(config), workers=1, on_event=told.append)
    assert told and not [event for event in told if isinstance(event, UnitRetried)]
    recorded = _newest(here, "bad")
    assert recorded["state_type"] == "FAILED"
    assert "bad.jsonl:2" in recorded["state"]["message"]


@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.usefixtures("here")
def test_a_flow_does_not_take_a_damaged_version_for_one_that_is_there(
    tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(
        json.dumps(asked(Path(two_sources(tmp_path)["code"]), tokenizer_dir, tmp_path))
    )
    assert main(["run", str(config), "--no-prefect"]) == 0
    shard = next(tmp_path.rglob("data/*.parquet"))
    shard.unlink()
    assert main(["run", str(config)]) == 3
    assert f"{shard.name} is missing" in capsys.readouterr().err
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(20)
    assert child.exitcode == 0, "a process that is forked after a run ends well"


def _newest(server: dict[str, str], name: str) -> dict[str, Any]:
    """Return the newest run of a name; what other tests started may still be
    running.
    """
    wanted = {"name": {"like_": name}}
    return post(server, "flow_runs/filter", sort="START_TIME_DESC", flow_runs=wanted)[0]


def test_a_mistake_is_logged_in_a_sentence(
    here: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "mistake.yaml"
    config.write_text(
        json.dumps(asked(tmp_path / "absent.jsonl", tokenizer_dir, tmp_path))
    )
    assert main(["run", str(config)]) == 2
    recorded = _newest(here, "mistake")
    assert (recorded["name"], recorded["state_type"]) == ("mistake", "FAILED")
    asked_for = {"flow_run_id": {"any_": [recorded["id"]]}}
    until(
        lambda: len(post(here, "logs/filter", logs=asked_for)) >= 3,
        "the logs are there",
    )
    told = [line["message"] for line in post(here, "logs/filter", logs=asked_for)]
    assert [message for message in told if "absent.jsonl" in message]
    assert [
        message
        for message in told
        if "Traceback" in message or len(message.splitlines()) > 3
    ] == []
    # The artifacts of the run name the reason.
    page = artifact(here, "failure-mistake", recorded["id"])
    assert page.startswith("# mistake failed") and "absent.jsonl" in page


def test_a_schedule_makes_runs(worker: dict[str, str]) -> None:
    """As the server's scheduler makes them: it fails with releases of what Prefect
    needs that are too new for it.
    """
    deployment = get(worker, "deployments/name/verify/all-versions")
    found, [schedule] = deployment["id"], deployment["schedules"]
    post(
        worker, f"deployments/{found}/schedules/{schedule['id']}", "PATCH", active=True
    )
    post(worker, f"deployments/{found}/schedule")
    made = post(worker, "flow_runs/filter", deployments={"id": {"any_": [found]}})
    # Others ran it meanwhile, for versions that are damaged; none of these is still to
    # come.
    assert "SCHEDULED" in {run["state_type"] for run in made}
