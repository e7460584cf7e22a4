"""Concurrency and crashes with real processes: exactly one creates or swaps, and nothing is ever half visible."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.store.support import files, sha256
from tokenlake.store.address import open_store
from tokenlake.store.base import Store
from tokenlake.store.catalog import Catalog

LIB = Path(__file__).resolve().parents[2] / "lib"
PRELUDE = """
import hashlib, json, os, sys, time
from tokenlake.store.catalog import Catalog
from tokenlake.errors import VersionConflictError
from tokenlake.store.address import open_store
root, arguments = sys.argv[1], json.loads(sys.argv[2])
store = open_store(root)
print("ready", flush=True)
sys.stdin.readline()
"""


def start(root: Path, body: str, arguments: Any = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PRELUDE + body, str(root), json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": str(LIB)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def race(root: Path, body: str, arguments: list[Any]) -> list[Any]:
    """Start one process for each argument, let them go at once, and return what each prints."""
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


def test_writers_of_other_bytes_get_a_conflict_and_change_nothing(tmp_path: Path) -> None:
    outcomes = race(tmp_path, PUT_MANY, [{"text": text} for text in ("a", "b", "c")])
    for index, found in enumerate(zip(*outcomes, strict=True)):
        assert Counter(found) == {"created": 1, "conflict": 2}
        winner = "abc"[found.index("created")]
        assert (tmp_path / f"d/v1/{index:03d}").read_text() == winner * 50 + str(index)


def test_orphans_are_replaced_whole_by_one_writer_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for index in range(60):
        store.put_new(f"d/v1/{index:03d}", b"orphan")
    first, second = race(tmp_path, PUT_MANY, [{"text": "same", "replace": True}] * 2)
    assert {frozenset(pair) for pair in zip(first, second, strict=True)} == {frozenset(["replaced", "equal"])}
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
    assert [info.version for info in Catalog(open_store(tmp_path)).versions("d")] == list(range(1, 25))


def test_equal_builds_share_one_claim(tmp_path: Path) -> None:
    first, second = race(tmp_path, CLAIM_MANY, ["same", "same"])
    assert [version for version, _ in first] == [version for version, _ in second] == list(range(1, 13))
    pairs = zip(first, second, strict=True)
    assert {frozenset([a[1], b[1]]) for a, b in pairs} == {frozenset(["new", "resumed"])}


PUBLISH_FOR_EVER = """
for index in range(10**6):
    data = str(index).encode() * 50_000
    store.put_new(f"d/v1/data/{index:06d}", data)
"""


def test_a_kill_while_publishing_leaves_whole_objects_and_sweepable_rests(tmp_path: Path) -> None:
    dice = random.Random(7)
    seen = 0
    for turn in range(40):
        if turn > 3 and seen:
            break  # on a busy machine the first ones may die before they publish anything
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


def _can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-o", os.devnull, "true"], check=False, capture_output=True).returncode == 0
    )


PUBLISH_ONE = """
store.put_new("d/v1/data/x", b"whole" * 1000)
"""


def traced(root: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + PUBLISH_ONE, str(root), "null"]
    environment = {**os.environ, "PYTHONPATH": str(LIB)}
    return subprocess.run(
        ["strace", "-qq", *options, *command],
        env=environment,
        input="go\n",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "call", ["fsync:1", "fsync:2", "fsync:3", "fsync:4", "fsync:5", "link:1", "unlink:1", "fchmod:1"]
)
def test_every_step_of_publishing_may_be_the_last(tmp_path: Path, call: str) -> None:
    if not _can_trace():
        pytest.skip("strace is missing or ptrace is denied; crash points cannot be chosen")
    name, when = call.split(":")
    inject = ["-f", "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={when}"]
    process = traced(tmp_path / "lake", inject)
    assert process.returncode != 0, "the step was never reached"
    store = open_store(tmp_path / "lake")
    assert {info.key: info.size for info in store.list("")} in ({}, {"d/v1/data/x": 5000})
    assert store.put_new("d/v1/data/x", b"whole" * 1000) in ("created", "equal")
    store.sweep_temp("d/v1")
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in files] == [b"whole" * 1000]


def test_the_order_of_durable_steps(tmp_path: Path) -> None:
    """The file is durable before it has a name, the name before anybody is told."""
    if not _can_trace():
        pytest.skip("strace is missing or ptrace is denied; the order cannot be observed")
    trace = tmp_path / "trace"
    (tmp_path / "lake/d/v1/data").mkdir(parents=True)
    options = ["-y", "-o", str(trace), "-e", "trace=fsync,link,linkat,unlink,rename"]
    assert traced(tmp_path / "lake", options).returncode == 0
    lines = [line for line in trace.read_text().splitlines() if "lake" in line]
    steps = [line.split("(")[0] + (" file" if ".tmp-" in line.split(",")[0] else " folder") for line in lines]
    link = steps.index("link file")
    assert [step for step in steps[:link] if step != "fsync folder"] == ["fsync file"]
    assert steps[link:] == ["link file", "fsync folder", "unlink file"]
    assert "/d/v1/data>" in lines[link + 1]


# ---- compare-and-swap: of writers that saw the same one succeeds -----------------------------------------

KEY = "d/tags/x.json"


def test_create_replace_and_say_it_again(store: Store) -> None:
    assert store.swap(KEY, b"one", None) == "created"
    assert store.swap(KEY, b"one", None) == "equal"
    before = store.local_path(KEY).stat().st_ino
    with store.open(KEY) as opened:
        assert store.swap(KEY, b"two", b"one") == "replaced"
        assert opened.read() == b"one"
    assert store.local_path(KEY).stat().st_ino != before
    assert store.swap(KEY, b"two", b"one") == "equal"
    assert store.swap(KEY, b"", b"two") == "replaced"
    assert store.swap(KEY, b"three", b"") == "replaced"
    assert store.read(KEY) == b"three"
    assert stat.S_IMODE(store.local_path(KEY).stat().st_mode) == 0o444
    assert files(store) == {KEY}


COUNT_UP = """
for _ in range(arguments):
    while True:
        seen = store.read("d/tags/n") if store.exists("d/tags/n") else None
        try:
            outcome = store.swap("d/tags/n", str(int(seen or b"0") + 1).encode(), seen)
        except VersionConflictError:
            continue
        if outcome != "equal":  # somebody else counted to the same number
            break
print(store.read("d/tags/n").decode())
"""


def test_processes_that_count_lose_no_count(tmp_path: Path) -> None:
    assert max(race(tmp_path, COUNT_UP, [10, 10, 10])) == 30
    assert files(tmp_path) == {"d/tags/n"}


def test_of_several_repairs_one_replaces(store: Store) -> None:
    bad, good = b"as it was c0mmitted", b"as it was committed"
    store.put_new(KEY, bad)
    temps = [store.temp("d/v1") for _ in range(8)]
    for temp in temps:
        temp.write_bytes(good)
    seen, whole = sha256(bad), sha256(good)
    with store.open(KEY) as opened, ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda temp: store.replace(temp, KEY, whole, seen), temps))
        assert opened.read() == bad  # readers keep what they opened
    assert sorted(outcomes) == ["equal"] * 7 + ["replaced"]
    assert store.leftovers("") == []
