"""One build of 64 units, wherever they are built and whoever is killed meanwhile: the
same bytes, nothing left behind.

The table at the end has a line for each engine: kills, and how many of them the build
survived.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.etl.remote_builds_support import Files, bucket, stored
from tests.faults.conftest import Cases
from tests.rowwise.mixed_store import settings as mixture
from tests.seeds import promise
from tests.servers.s3 import KEY, SECRET
from tokenlake import verify
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import Layout, Store, StoreAddress, open_store

UNITS = 64
V1 = Layout("small", 1)
SECONDS = 600.0

# In a process of its own: what these libraries warn of is not ours, and what they start
# ends with it.
_RAY = """
import faulthandler, json, os, sys, threading
faulthandler.dump_traceback_later(240, exit=True)  # a build that hangs says where
from ray.cluster_utils import Cluster
from tokenlake.etl.events import UnitFinished, UnitStarted
from tokenlake.etl.runner import build_dataset

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
os.environ["RAY_ADDRESS"] = cluster.address
done, killed = [], []

def watch(event):
    if isinstance(event, UnitFinished):
        done.append(event.unit)
    if isinstance(event, UnitStarted) and len(done) >= 12 and not killed:
        killed.append(1)
        threading.Thread(target=cluster.remove_node, args=(nodes[0],), kwargs={"allow_graceful": False}).start()

if __name__ == "__main__":
    result = build_dataset(json.loads(sys.argv[1]), executor="ray", workers=3, on_event=watch)
    cluster.shutdown()
    print(json.dumps([result.units_built, len(killed)]))
"""

_KILLS = """
import json, sys, psutil
from tokenlake.etl.events import UnitFinished, UnitRetried
from tokenlake.etl.runner import build_dataset

engine, most, done, killed, retried = sys.argv[2], int(sys.argv[3]), [], [], []

def watch(event):
    if isinstance(event, UnitRetried):
        retried.append(event.error)
    if isinstance(event, UnitFinished):
        done.append(event.unit)
        if len(killed) < most and len(done) % 8 == 0:
            found = psutil.Process().children(recursive=True)
            workers = [each for each in found if "tokenlake.etl.worker" in each.cmdline()]
            if workers:
                victim = workers[len(killed) % len(workers)].parent()
                killed.append(victim.pid)
                victim.kill()

if __name__ == "__main__":
    workers = 2 if engine else None
    result = build_dataset(json.loads(sys.argv[1]), executor=engine or None, workers=workers, on_event=watch)
    print(json.dumps([result.units_built, len(killed), retried]))
"""

_MIX = """
import json, os, sys
from pathlib import Path
from tokenlake.etl.runner import build_dataset
from tokenlake.etl.integrity.repair import repair

if __name__ == "__main__":
    engine, config = sys.argv[1], json.loads(sys.argv[2])
    build_dataset(config, executor=engine, workers=2)
    store = config["save"]["output_dir"]
    damaged = sorted(Path(store, config["name"]).rglob("*.parquet"))
    for shard in damaged:
        os.truncate(shard, shard.stat().st_size // 2)
    again = repair(store, config["name"], executor=engine)
    print(json.dumps({"damaged": len(damaged), "ok": again.ok}))
"""

_RESOURCES = """
import ray
from tokenlake.config.stages import RayConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.cluster_pool import RayNodes

nodes = RayNodes(RayConfig(num_workers=3, object_store_memory="80MB"), None)
assert nodes.workers == 3
assert ray.cluster_resources()["object_store_memory"] == 80 << 20, ray.cluster_resources()
try:
    RayNodes(RayConfig(use_gpu=True, resources_per_worker={"CPU": 1000}), None)
except ConfigError as error:
    print(error)
nodes.close()
"""


@dataclass(frozen=True)
class Inputs:
    """64 sources, a unit each; and what a build of them by one process left."""

    root: Path
    tokenizer: Path
    expected: Files = field(default_factory=Files)

    def config(self, where: StoreAddress | Path) -> dict[str, Any]:
        address = where if isinstance(where, StoreAddress) else StoreAddress(str(where))
        options = {"storage_options": dict(address.options)} if address.options else {}
        files = [
            {"name": f"s{i:02d}", "data_files": str(self.root / f"{i}.jsonl")}
            for i in range(UNITS)
        ]
        return {
            "name": "small",
            "datasets": files,
            "default_tokenizer": str(self.tokenizer),
            "pack": {"enabled": True, "seq_length": 64},
            "save": {"output_dir": address.url, **options},
        }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Inputs:
    root = tmp_path_factory.mktemp("inputs")
    for unit in range(UNITS):
        rows = (
            {"text": f"{unit} {row}: a lake holds water, été " * (row % 7 + 1)}
            for row in range(300)
        )
        (root / f"{unit}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    made = Inputs(root, tokenizer_dir)
    build_dataset(made.config(root / "local"), workers=1)
    return Inputs(root, tokenizer_dir, stored(root / "local"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("TOKENLAKE_LEASE_SECONDS", "3")


def _script(code: str, *arguments: str) -> str:
    """Run a script; return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_two_processes_of_this_machine(inputs: Inputs, tmp_path: Path, cases: Cases):
    build_dataset(inputs.config(tmp_path / "two"), workers=2)
    cases.add("local, 2 workers", survived=stored(tmp_path / "two") == inputs.expected)


@promise(183)
def test_three_nodes_of_ray_of_which_one_dies(
    inputs: Inputs, tmp_path: Path, cases: Cases
):
    built, killed = json.loads(
        _script(_RAY, json.dumps(inputs.config(tmp_path / "ray")))
    )
    same = stored(tmp_path / "ray") == inputs.expected
    cases.add(
        "ray, 3 nodes, nodes killed", survived=same and (built, killed) == (UNITS, 1)
    )


@promise(183)
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_workers_of_a_cluster_that_are_killed(
    engine: str, inputs: Inputs, tmp_path: Path, cases: Cases
):
    config, kills, named = (
        inputs.config(tmp_path / engine),
        7 if cases.all else 3,
        engine,
    )
    if engine == "ray":  # by its section alone
        config["ray"] = {
            "enabled": True,
            "num_workers": 2,
            "resources_per_worker": {"CPU": 1},
        }
        kills, named = 1, ""
    built, killed, retried = json.loads(
        _script(_KILLS, json.dumps(config), named, str(kills))
    )
    # Dask gives the task of a worker that died to another by itself.
    told = engine == "dask" or any("cluster" in error for error in retried)
    same = stored(tmp_path / engine) == inputs.expected
    fine = same and told and (built, killed) == (UNITS, kills)
    cases.add(f"{engine}, workers killed", survived=fine, count=kills)


@promise(183)
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_cluster_makes_a_mixture_and_repairs_all_of_its_shards(
    engine: str, tmp_path: Path, tokenizer_dir: Path
):
    config = mixture(tmp_path, tokenizer_dir)
    build_dataset(config, workers=1)
    there = config | {"save": {"output_dir": str(tmp_path / "cluster")}}
    found = json.loads(_script(_MIX, engine, json.dumps(there)))
    assert found["ok"] and found["damaged"] > 0
    assert stored(tmp_path / "cluster") == stored(tmp_path / "store")


@promise(288)
def test_what_ray_reserves_is_what_the_section_says():
    said = _script(_RESOURCES)
    assert "more than the whole cluster has: CPU 1000 of" in said
    assert "GPU 1 of 0" in said


@contextmanager
def _waiting(config: dict[str, Any]) -> Generator[Callable[[], int]]:
    """Plan, and wait for whoever joins, in a process; gives a function that waits
    for its end.
    """
    code = "import json, sys, tokenlake as tl; tl.build_dataset(json.loads(sys.argv[1]), executor='store')"
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(config)])
    try:
        yield lambda: process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()


class _Crew:
    """Processes of `tokenlake work` on one build; one that is killed is replaced
    where that is wanted.
    """

    def __init__(self, where: StoreAddress, size: int) -> None:
        self._where, self._store, self._size = where, open_store(where), size
        self._environment = os.environ | {
            "TOKENLAKE_STORE_OPTIONS": json.dumps(dict(where.options))
        }
        self.all = [self._start(share) for share in range(size)]

    def _start(self, share: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tokenlake",
            "work",
            self._where.url,
            "small@v1",
            "--workers",
            "1",
        ]
        more = ["--share", f"{share}/{self._size}", "--wait", "10m"]
        return subprocess.Popen(
            [*command, *more], env=self._environment, stderr=subprocess.DEVNULL
        )

    def kill(self, most: int, *, again: bool, over: Callable[[], bool]) -> int:
        """Kill, one after the other, those that hold a unit; return how many were."""
        killed = 0
        while killed < most and not over():
            pid = self._at_work()
            found = [
                each for each in self.all if each.pid == pid and each.poll() is None
            ]
            if not found:
                time.sleep(0.02)
                continue
            children = psutil.Process(pid).children(recursive=True)
            found[0].kill()
            found[0].wait()
            killed += 1
            _, alive = psutil.wait_procs(children, 120)
            assert not alive, "its worker process outlived it"
            if again:
                self.all.append(self._start(killed % self._size))
        return killed

    def _at_work(self) -> int | None:
        """Return the process id of a worker that holds a lease now."""
        for key in _notes(self._store, "lease-"):
            with suppress(Exception):
                lease = json.loads(self._store.read(key))
                return int(lease["worker"].rsplit("-", 2)[1])
        return None

    def end(self) -> None:
        for process in self.all:
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def _notes(store: Store, *kinds: str) -> list[str]:
    """The keys of what workers note beside the records of runs: units that are
    leased, workers that are there.
    """
    keys = [info.key for info in store.list(V1.key("runs/units"))]
    return [key for key in keys if key.rpartition("/")[2].startswith(kinds)]


def _survived(inputs: Inputs, where: StoreAddress, files: Files) -> bool:
    """Whether the version is the local one, whole, and nothing of the work is left."""
    store = open_store(where)
    left = _notes(store, "lease-", "worker-")
    assert not left, left
    return files == inputs.expected and verify(store, "small", 1).ok


@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_processes_that_join_by_the_store_and_are_killed(
    kind: str, inputs: Inputs, tmp_path: Path, cases: Cases
):
    if kind == "s3":
        with bucket("s3") as lake:
            where = lake.address("reach")
            killed = _killed(inputs, where, size=8, most=3, again=False)
            same = _survived(inputs, where, stored(lake, "reach"))
        # A quick machine may be done before the third is met at work.
        cases.add(
            "store on S3, 8 `work`, killed", survived=same and killed > 0, count=killed
        )
        return
    kills, trial = 0, 0
    # With those of the other engines 100.
    wanted, most = (90, 40) if cases.all else (5, 8)
    # A quick machine is done before many are met at work.
    while kills < wanted and trial < most:
        trial += 1
        place = tmp_path / f"store{trial}"
        killed = _killed(inputs, StoreAddress(str(place)), size=2, most=20, again=True)
        kills += killed
        same = _survived(inputs, StoreAddress(str(place)), stored(place))
        cases.add("store in a folder, `work` killed", survived=same, count=killed)
    assert kills >= wanted // 5


def _killed(
    inputs: Inputs, where: StoreAddress, *, size: int, most: int, again: bool
) -> int:
    with _waiting(inputs.config(where)) as end:
        crew = _Crew(where, size)
        ended: list[int] = []
        waiter = threading.Thread(target=lambda: ended.append(end()))
        waiter.start()
        try:
            killed = crew.kill(most, again=again, over=lambda: bool(ended))
            waiter.join()
        finally:
            crew.end()
        assert ended == [0]
        return killed
