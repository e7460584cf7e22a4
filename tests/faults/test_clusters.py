"""Ray and Dask: real clusters of this machine make the bytes of a local build, also where a process of theirs dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.etl.remote_builds_support import stored
from tests.rowwise.mixed_store import settings as mixture
from tests.seeds import promise
from tokenlake.etl.runner import build_dataset

UNITS = 16

# In a process of its own: what these libraries warn of is not ours, and what they start ends with it.
_BUILD = """
import json, sys, threading, psutil
from tokenlake.etl.events import UnitFinished, UnitRetried
from tokenlake.etl.runner import build_dataset

killed, retried = [], []

def kill(event):
    if isinstance(event, UnitRetried):
        retried.append(event.error)
    if isinstance(event, UnitFinished) and not killed:
        found = psutil.Process().children(recursive=True)
        victim = next(each for each in found if "tokenlake.etl.worker" in each.cmdline()).parent()
        killed.append(victim.pid)
        victim.kill()

if __name__ == "__main__":
    engine, config = sys.argv[1], json.loads(sys.argv[2])
    result = build_dataset(config, engine=engine or None, workers=None if not engine else 2, on_event=kill)
    print(json.dumps({"built": result.units_built, "killed": len(killed), "retried": retried}))
"""

_MIX = """
import json, os, sys
from pathlib import Path
from tokenlake.etl.runner import build_dataset
from tokenlake.integrity.repair import repair

if __name__ == "__main__":
    engine, config = sys.argv[1], json.loads(sys.argv[2])
    build_dataset(config, engine=engine, workers=2)
    store = config["save"]["output_dir"]
    damaged = sorted(Path(store, config["name"]).rglob("*.parquet"))
    for shard in damaged:
        os.truncate(shard, shard.stat().st_size // 2)
    again = repair(store, config["name"], engine=engine)
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


def _settings(root: Path, tokenizer: Path, store: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "datasets": [{"name": f"s{i:02d}", "data_files": str(root / f"{i}.jsonl")} for i in range(UNITS)],
        "default_tokenizer": str(tokenizer),
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(store)},
    }


def _script(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@promise(183)
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_cluster_makes_the_same_bytes_though_one_of_its_processes_dies(
    engine: str, tmp_path: Path, tokenizer_dir: Path
):
    for unit in range(UNITS):
        rows = ({"text": f"{unit} {row}: a lake holds water, été " * (row % 7 + 1)} for row in range(300))
        (tmp_path / f"{unit}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = _settings(tmp_path, tokenizer_dir, tmp_path / "cluster")
    if engine == "ray":
        config["ray"] = {"enabled": True, "num_workers": 2, "resources_per_worker": {"CPU": 1}}
    found = json.loads(
        _script(_BUILD, "" if engine == "ray" else engine, json.dumps(config)).splitlines()[-1]
    )
    assert (found["built"], found["killed"]) == (UNITS, 1)
    # Dask gives the task of a worker that died to another by itself.
    assert engine == "dask" or any("cluster" in error for error in found["retried"])
    build_dataset(_settings(tmp_path, tokenizer_dir, tmp_path / "local"), workers=1)
    assert stored(tmp_path / "cluster") == stored(tmp_path / "local")


@promise(183)
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_cluster_makes_a_mixture_and_repairs_all_of_its_shards(
    engine: str, tmp_path: Path, tokenizer_dir: Path
):
    config = mixture(tmp_path, tokenizer_dir)
    build_dataset(config, workers=1)
    there = config | {"save": {"output_dir": str(tmp_path / "cluster")}}
    found = json.loads(_script(_MIX, engine, json.dumps(there)).splitlines()[-1])
    assert found["ok"] and found["damaged"] > 0
    assert stored(tmp_path / "cluster") == stored(tmp_path / "store")


@promise(288)
def test_what_ray_reserves_is_what_the_section_says():
    said = _script(_RESOURCES)
    assert "more than the whole cluster has: CPU 1000 of" in said
    assert "GPU 1 of 0" in said
