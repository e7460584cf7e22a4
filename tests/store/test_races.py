"""Concurrency and crashes with real processes: exactly one creates or swaps, and
nothing is ever half visible.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.store.support import sha256
from tokenlake import Catalog
from tokenlake.runtime.store import Store, open_store

LIB = Path(__file__).resolve().parents[2] / "lib"
PRELUDE = """
import hashlib, json, os, sys, time
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.errors import VersionConflictError
from tokenlake.runtime.store.address import open_store
root, arguments = sys.argv[1], json.loads(sys.argv[2])
store = open_store(root)
print("ready", flush=True)
sys.stdin.readline()
"""


def start(root: Path, body: str, arguments: Any = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            PRELUDE + body,
            str(root),
            json.dumps(arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(LIB)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def race(root: Path, body: str, arguments: list[Any]) -> list[Any]:
    """Start one process for each argument, let them go at once, and return what each
    prints.
    """
    processes = [start(root, body, argument) for argument in arguments]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output) for output in outputs]


PUT_MANY = """
outcomes = []
for index in range(60):
    data = (str(arguments["text"]) * 50 + str(index)).encode()
    try:
        outcomes.append(store.put_new(f"d/v1/{index:03d}", data, replace_orphan=arguments.get("replace", False)))
    except VersionConflictError as error:
        assert error.details["got"] != error.details["expected"]
        outcomes.append("conflict")
print(json.dumps(outcomes))
"""


def test_orphans_are_replaced_whole_by_one_writer_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for index in range(60):
        store.put_new(f"d/v1/{index:03d}", b"orphan")
    first, second = race(tmp_path, PUT_MANY, [{"text": "same", "replace": True}] * 2)
    assert {frozenset(pair) for pair in zip(first, second, strict=True)} == {
        frozenset(["replaced", "equal"])
    }
    assert all(info.size > 200 for info in store.list("d"))


CLAIM_MANY = """
catalog = Catalog(store)
found = []
for index in range(12):
    result = catalog.claim("d", hashlib.sha256(f"{arguments}-{index}".encode()).hexdigest(), {"pid": os.getpid()})
    found.append([result.version, result.status])
print(json.dumps(found))
"""


def test_different_builds_claim_different_versions_without_gaps(tmp_path: Path) -> None:
    found = race(tmp_path, CLAIM_MANY, ["a", "b"])
    claims = [tuple(claim) for claims in found for claim in claims]
    assert sorted(version for version, _ in claims) == list(range(1, 25))
    assert {status for _, status in claims} == {"new"}
    assert [
        info.version for info in Catalog(open_store(tmp_path)).versions("d")
    ] == list(range(1, 25))


def test_equal_builds_share_one_claim(tmp_path: Path) -> None:
    first, second = race(tmp_path, CLAIM_MANY, ["same", "same"])
    assert (
        [version for version, _ in first]
        == [version for version, _ in second]
        == list(range(1, 13))
    )
    pairs = zip(first, second, strict=True)
    assert {frozenset([a[1], b[1]]) for a, b in pairs} == {
        frozenset(["new", "resumed"])
    }


PUBLISH_FOR_EVER = """
for index in range(10**6):
    data = str(index).encode() * 50_000
    store.put_new(f"d/v1/data/{index:06d}", data)
"""


def test_a_kill_while_publishing_leaves_whole_objects_and_sweepable_rests(
    tmp_path: Path,
) -> None:
    dice = random.Random(7)
    seen = 0
    for turn in range(40):
        if turn > 3 and seen:
            # On a busy machine the first ones may die before they publish anything.
            break
        root = tmp_path / str(turn)
        process = start(root, PUBLISH_FOR_EVER)
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(0.01 + dice.random() * 0.08)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        store = open_store(root)
        for info in store.list(""):
            index = int(info.key.rpartition("/")[2])
            assert store.read(info.key) == str(index).encode() * 50_000
            seen += 1
        store.sweep_temp("d/v1")
        rests = [path.name for path in root.rglob(".tmp-*")]
        assert rests == []
    assert seen > 0


# ---- compare-and-swap: of writers that saw the same one succeeds
# -----------------------------------------

KEY = "d/tags/x.json"


def test_of_several_repairs_one_replaces(store: Store) -> None:
    bad, good = b"as it was c0mmitted", b"as it was committed"
    store.put_new(KEY, bad)
    temps = [store.temp("d/v1") for _ in range(8)]
    for temp in temps:
        temp.write_bytes(good)
    seen, whole = sha256(bad), sha256(good)
    with store.open(KEY) as opened, ThreadPoolExecutor(8) as pool:
        outcomes = list(
            pool.map(lambda temp: store.replace(temp, KEY, whole, seen), temps)
        )
        assert opened.read() == bad  # readers keep what they opened
    assert sorted(outcomes) == ["equal"] * 7 + ["replaced"]
    assert store.leftovers("") == []
