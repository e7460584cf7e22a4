"""The contract of an executor: the bytes, the events and the errors of a build do not
depend on where its units run.

Executors of clusters run with slots in this process.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.contracts.conftest import SEQ_LENGTH, config_of, write_texts
from tokenlake.cli.app import main
from tokenlake.errors import BadRecordError
from tokenlake.etl import Event, InProcessPool, UnitFinished, build_dataset
from tokenlake.etl.cluster_pool import ClusterPool, Slot

Config = dict[str, Any]
Watcher = Callable[[Event], None]
Executor = Callable[[Config, Watcher], tl.BuildResult]


def in_this_process(config: Config, watcher: Watcher) -> tl.BuildResult:
    pool: Any = InProcessPool()
    return build_dataset(config, pool=pool, on_event=watcher, retries=0)


def one_process(config: Config, watcher: Watcher) -> tl.BuildResult:
    return build_dataset(config, workers=1, on_event=watcher, retries=0)


def three_processes(config: Config, watcher: Watcher) -> tl.BuildResult:
    return build_dataset(config, workers=3, on_event=watcher, retries=0)


def joined_by_the_store(config: Config, watcher: Watcher) -> tl.BuildResult:
    """Plan here, and build by `tokenlake work`."""
    store = config["save"]["output_dir"]
    command = ["work", store, config["name"], "--workers", "1", "--wait", "2m"]
    worker = threading.Thread(target=main, args=(command,), daemon=True)
    worker.start()
    try:
        return build_dataset(config, executor="store", on_event=watcher, retries=0)
    finally:
        worker.join(120)


class Nodes:
    """A cluster whose slots are in this process."""

    workers = 2

    def room(self) -> int:
        return 2

    def start(self) -> Slot:
        return Slot()

    def ask(self, slot: Slot, preflight: bytes, line: bytes) -> bytes:
        return slot.run(preflight, line)

    def end(self, slot: Slot) -> None:
        slot.close()

    def close(self) -> None: ...


def on_a_cluster(config: Config, watcher: Watcher) -> tl.BuildResult:
    with ClusterPool(Nodes) as pool:
        return build_dataset(config, pool=pool, on_event=watcher, retries=0)


EXECUTORS: dict[str, Executor] = {
    "in this process": in_this_process,
    "one process": one_process,
    "three processes": three_processes,
    "store": joined_by_the_store,
    "cluster": on_a_cluster,
}


@pytest.fixture(params=EXECUTORS)
def execute(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Executor:
    # A worker that joined by the store stays for so long after a build that failed.
    monkeypatch.setenv("TOKENLAKE_LEASE_SECONDS", "2")
    return EXECUTORS[request.param]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number in range(3):
        write_texts(folder / f"{number}.jsonl", 60, f"file{number}")
    return folder


def config_for(store: Path, data: Path, tokenizer: Path) -> Config:
    config = config_of(
        store, data, tokenizer, "texts", {"enabled": True, "seq_length": SEQ_LENGTH}
    )
    return {**config, "source": {"unit_size": "2KiB"}}


def files_of(version: Path) -> dict[str, bytes]:
    """Return the files of a version, except its logs, in which times are."""
    paths = [
        path
        for path in version.rglob("*")
        if path.is_file() and "runs" not in path.parts
    ]
    return {str(path.relative_to(version)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def expected(
    data: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    store = tmp_path_factory.mktemp("expected")
    in_this_process(config_for(store, data, tokenizer_dir), lambda event: None)
    return files_of(store / "texts/v1")


def test_the_bytes_are_those_of_one_process_and_each_unit_finishes_once(
    execute: Executor,
    data: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    expected: dict[str, bytes],
) -> None:
    finished: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, UnitFinished):
            finished.append(event.unit)

    result = execute(config_for(tmp_path, data, tokenizer_dir), watch)
    assert result.status == "built"
    assert files_of(tmp_path / "texts/v1") == expected
    assert sorted(finished) == list(range(result.units_built))
    assert result.units_built > 3
    assert tl.verify(tmp_path, "texts", deep=True).ok


def test_an_error_in_a_unit_ends_the_build_and_names_its_record(
    execute: Executor, data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    with (folder / "2.jsonl").open("a") as file:
        file.write('{"text": null}\n')
    config = config_for(tmp_path / "store", folder, tokenizer_dir)
    config["source"]["on_bad_record"] = "fail"
    with pytest.raises(BadRecordError, match=r"2\.jsonl:61"):
        execute(config, lambda event: None)
    assert not (tmp_path / "store/texts/v1/manifest.json").exists()
