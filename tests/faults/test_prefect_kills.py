"""kill -9 at random moments of the real flow: of a worker, of the flow's own process,
of the Prefect server.

The moments are drawn from a fixed seed, as parts of the time that an undisturbed run
takes on this machine; so the same parts of a run are met everywhere, if not the same
instruction.
"""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_support import (
    changed,
    damage,
    difference,
    finished_units,
    temporary,
    tree,
)
from tests.prefect.deployed import (
    LAUNCH,
    Launched,
    PrefectServer,
    build_workers,
    environment,
    kill_all,
)

__all__ = ["environment"]


def run_of(config: dict[str, Any], store: Path, server: PrefectServer) -> Launched:
    """The flow in a process of its own, with two workers below it; it tells its end
    alone.
    """
    store.parent.mkdir(exist_ok=True)
    path = store.parent / "set.yaml"
    path.write_text(json.dumps(config | {"save": {"output_dir": str(store)}}))
    return Launched(
        server.environment, path, (), LAUNCH.replace("on_event=tell", "on_event=None")
    )


def kill_parent(run: Launched) -> None:
    """Kill the flow's process alone, and see that its workers follow."""
    workers = build_workers(run.process.pid)
    run.process.kill()
    _, left = psutil.wait_procs(workers, 120)
    for worker in left:
        worker.kill()
    assert not left, "workers outlived their parent"


UNITS: Final = 10
KILLS: Final = {"worker": 7, "parent": 8, "server": 6}
DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Calm:
    """An undisturbed run: its configuration without a store, its tree, and how long
    it took.
    """

    config: dict[str, Any]
    tree: dict[str, str]
    seconds: float


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[PrefectServer]:
    server = PrefectServer(environment)
    yield server
    kill_all(server.command.process)


@pytest.fixture(scope="module")
def calm(
    server: PrefectServer,
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer_dir: Path,
    request: pytest.FixtureRequest,
) -> Calm:
    """Ten units of modules of the standard library, by the reference engine:
    seconds, not moments.
    """
    folder = tmp_path_factory.mktemp("calm")
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lines = [
        json.dumps({"text": path.read_text("utf-8", errors="ignore")}) + "\n"
        for path in modules
    ]
    (folder / "in").mkdir()
    for unit in range(UNITS):
        (folder / "in" / f"{unit}.jsonl").write_text("".join(lines[unit::UNITS]))
    config = {
        "name": "set",
        "datasets": [{"name": "code", "data_files": str(folder / "in")}],
        "default_tokenizer": str(tokenizer_dir),
        "source": {"unit_size": "256KiB"},
        "tokenize": {"tokenizer_backend": "tokenizers"},
        "pack": {"enabled": True, "seq_length": 256},
    }
    seconds = 0.0
    # The first one is slower: nothing is in the cache.
    for attempt in ("first", "second")[
        : 2 if request.config.getoption("--faults") == "all" else 1
    ]:
        store = folder / attempt / "store"
        begin = time.monotonic()
        with run_of(config, store, server) as run:
            assert run.wait() == 0, (run.told, run.errors)
        seconds = time.monotonic() - begin
    return Calm(config, tree(store), seconds)


@pytest.mark.parametrize("whom", list(KILLS))
def test_a_random_kill_costs_nothing_that_was_finished(
    whom: str, server: PrefectServer, calm: Calm, tmp_path: Path, cases: Cases
) -> None:
    draw = random.Random(f"kill {whom}")
    # One in each slice of the run, so that all of it is met.
    many = KILLS[whom]
    parts = [(index + draw.random()) / many for index in range(many)]
    draw.shuffle(parts)
    for index, part in enumerate(cases.choose(parts, sample=1)):
        for attempt in range(4):
            # Again, earlier, where the run was over by then: machines are not equally
            # busy all the time.
            store = tmp_path / f"{index}-{attempt}" / "store"
            if (
                verdict := disturbed(whom, server, part * 0.8**attempt, calm, store)
            ) is not None:
                break
        assert verdict is not None, (
            f"{whom}: four runs were over before the kill at {part:.4f}"
        )
        wrong, redone = verdict
        note = (
            f"at {part:.4f} of the run: {'; '.join(wrong)}" if wrong or redone else ""
        )
        cases.add(
            f"kill -9: {whom}",
            survived=not wrong and not redone,
            redone=redone,
            note=note,
        )


def disturbed(
    whom: str, server: PrefectServer, part: float, calm: Calm, store: Path
) -> tuple[list[str], int] | None:
    """Kill, look, run again; what is wrong and how many units were redone. None: the
    run was over before.
    """
    with run_of(calm.config, store, server) as run:
        held = killed(whom, run, server, part, calm.seconds, store)
        if held is None:
            return None
        wrong = ended(whom, run)
    wrong += damage(store)
    finished = finished_units(store) if store.exists() else {}
    redone = sum(changed(path, inode) for path, inode in held.items())
    with run_of(calm.config, store, server) as again:
        code = again.wait()
    if code != 0 or not again.told:
        return [*wrong, f"the rerun: {again.told} {again.errors[-2000:]}"], redone
    status, _, resumed = again.told[-1][1]
    if status != "exists" and resumed != len(finished):
        wrong.append(f"the rerun: {status}, {resumed} of {len(finished)} finished")
    redone += sum(changed(path, inode) for path, inode in finished.items())
    wrong += difference(store, calm.tree) + temporary(store)
    shutil.rmtree(store.parent)
    return wrong, redone


def killed(
    whom: str,
    run: Launched,
    server: PrefectServer,
    part: float,
    seconds: float,
    store: Path,
) -> dict[Path, int] | None:
    """Wait for the moment and kill; return the units that were finished by then.
    None: too late.
    """
    begin = time.monotonic()
    victim: psutil.Process | None = None
    if whom == "worker":
        # Of its own life: from when there is one to the end.
        while (
            not (workers := build_workers(run.process.pid))
            and run.process.poll() is None
        ):
            time.sleep(0.01)
        victim = workers[0] if workers else None
    now = time.monotonic()
    moment = now + part * (begin + seconds - now)
    while time.monotonic() < moment and run.process.poll() is None:
        time.sleep(0.005)
    if run.process.poll() is not None or (
        victim is not None and not victim.is_running()
    ):
        return None
    held = finished_units(store) if store.exists() else {}
    if whom == "parent":
        kill_parent(run)
    elif whom == "server":
        kill_all(server.command.process)
        time.sleep(DOWN_SECONDS)
        server.start()
    elif victim is not None:
        victim.kill()
    return held


def ended(whom: str, run: Launched) -> list[str]:
    """Whether a disturbed run ended as it may; without its server it may fail, but
    must end.
    """
    code, said = run.wait(), f"{run.told} {run.errors[-2000:]}"
    if whom == "worker" and code != 0:
        return [f"a worker's death ended the run: {said}"]
    if whom == "parent" and code != -9:
        return [f"ended with {code}: {said}"]
    return [said] if "did not end by itself" in run.errors else []
