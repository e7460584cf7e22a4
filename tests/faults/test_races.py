"""Races for one key, of which exactly one writer wins and the others learn what is
there; and every order of steps.

The orders of builds, commits and collections take minutes: with ``--faults all`` only.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Barrier as ThreadBarrier
from typing import Any

import pytest

from tests.faults.conftest import Cases
from tests.store.memory_store import Stops
from tests.store.object_store_support import CLOUDS, bucket_on, environment, sha256
from tests.store.test_gc_interleavings import asleep, build, built, gc, walk
from tests.store.test_gc_interleavings import commit as committing
from tokenlake.errors import VersionConflictError
from tokenlake.runtime.store import HashingFile, Store, open_store

RACES, WRITERS = 1000, 4
WAYS = ("put_new", "publish", "swap")
BEFORE = b"before"


def claims(index: int, number: int) -> bytes:
    return f"race {number}, writer {index}\n".encode() * (1 + 50 * (number % 2))


def commit(store: Store, index: int, number: int) -> str:
    """Write in the way of a race; return "won", or the hash of what was there."""
    way, key, data = (
        WAYS[number % len(WAYS)],
        f"corpus/v{number}/manifest.json",
        claims(index, number),
    )
    try:
        if way == "swap":
            outcome = store.swap(key, data, BEFORE)
        elif way == "put_new":
            outcome = store.put_new(key, data)
        else:
            temp = store.temp(f"corpus/v{number}")
            with HashingFile(temp) as sink:
                sink.write(data)
            outcome = store.publish(temp, key, sink.sha256)
    except VersionConflictError as error:
        return str(error.details["got"])
    return "won" if outcome in ("created", "replaced") else outcome


def run(
    store: Store, index: int, numbers: Sequence[int], start: Barrier | ThreadBarrier
) -> list[str]:
    """Take part in all races; all writers begin each of them together."""
    outcomes: list[str] = []
    for number in numbers:
        if index == 0 and WAYS[number % len(WAYS)] == "swap":
            store.put_new(f"corpus/v{number}/manifest.json", BEFORE)
        start.wait(60)
        outcomes.append(commit(store, index, number))
    return outcomes


def judge(
    kind: str,
    cases: Cases,
    store: Store,
    numbers: Sequence[int],
    outcomes: list[list[str]],
) -> None:
    for number, race in zip(numbers, zip(*outcomes, strict=True), strict=True):
        there = store.read(f"corpus/v{number}/manifest.json")
        winners = [index for index, outcome in enumerate(race) if outcome == "won"]
        right = (
            len(winners) == 1
            and there == claims(winners[0], number)
            and all(outcome == sha256(there) for outcome in race if outcome != "won")
        )
        cases.add(f"commit race: {kind}", survived=right, note=f"race {number}: {race}")


def process(
    root: str, index: int, numbers: Sequence[int], start: Any, answers: Any
) -> None:
    answers.put((index, run(open_store(root), index, numbers, start)))


def test_processes_on_a_disk(tmp_path: Path, cases: Cases) -> None:
    numbers = cases.choose(range(RACES), sample=60)
    spawning = multiprocessing.get_context("spawn")
    start, answers = spawning.Barrier(WRITERS), spawning.Queue()
    workers = [
        spawning.Process(
            target=process, args=(str(tmp_path), index, numbers, start, answers)
        )
        for index in range(WRITERS)
    ]
    for worker in workers:
        worker.start()
    outcomes = dict(answers.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join()
        worker.close()
    store = open_store(tmp_path)
    judge("local", cases, store, numbers, [outcomes[index] for index in range(WRITERS)])
    assert not store.leftovers("")


@pytest.mark.parametrize("scheme", CLOUDS)
def test_writers_in_a_bucket(scheme: str, tmp_path: Path, cases: Cases) -> None:
    numbers = cases.choose(range(RACES), sample=60)
    start = ThreadBarrier(WRITERS)
    with (
        environment(tmp_path),
        bucket_on(scheme) as bucket,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        root = bucket.open().url.rpartition("/")[2]
        stores = [bucket.open(root) for _ in range(WRITERS)]
        outcomes = list(
            pool.map(
                run, stores, range(WRITERS), [numbers] * WRITERS, [start] * WRITERS
            )
        )
        judge("s3" if scheme == "s3" else "gcs", cases, stores[0], numbers, outcomes)
        assert not stores[0].leftovers("")


#: Whatever changes an object, listings, and looks at a claim or a manifest.
CHANGES: Stops = frozenset(
    {
        "put_new",
        "swap",
        "delete",
        "list_dirs",
        "list",
        ("read", "claim.json"),
        ("size", "manifest.json"),
    }
)
WALKS: dict[str, tuple[dict[str, bytes], list[Any]]] = {
    "a commit and two collections": (built(), [committing, gc, gc]),
    "a commit, its rerun and a collection": (built(), [committing, build, gc]),
    "a commit that slept and two collections": (asleep(), [committing, gc, gc]),
    "two equal builds": ({}, [build, build]),
}


@pytest.mark.parametrize("name", WALKS)
def test_every_order(cases: Cases, name: str) -> None:
    if not cases.all and name != "two equal builds":
        pytest.skip("minutes of interleavings: --faults all")
    begin, works = WALKS[name]
    found = walk(
        begin, works, CHANGES
    )  # fails where a visible version is not whole, with the steps that led there
    cases.add(f"gc: {name}, states", count=len(found.states))
