"""A disk that is full, a limit on files, a quota, a file system gone read-only: one
sentence, and nothing is lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import string
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_support import (
    Bench,
    Case,
    Scenario,
    bench_in,
    changed,
    configuration,
    damage,
    difference,
    finished_units,
    require_strace,
    sentence_problems,
    temporary,
)


@final
class SmallDisk:
    """A mounted tmpfs."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def change(self, options: str) -> None:
        """Change what it was mounted with: ``size=64k``, ``nr_inodes=20``, ``ro``."""
        _run("mount", "-o", f"remount,{options}", str(self.place))


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[SmallDisk]:
    """Mount a tmpfs for as long as the context lasts; skips where that is not
    allowed.
    """
    if os.geteuid() != 0:
        pytest.skip("a small file system is mounted, which needs root")
    place.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", options, "tokenlake-test", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here: {getattr(error, 'stderr', error)}")
    try:
        yield SmallDisk(place)
    finally:
        try:
            _run("umount", str(place))
        except subprocess.CalledProcessError:
            _run("umount", "-l", str(place))
            raise


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


PLENTY: Final = "size=16m,nr_inodes=10000"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("bench")) as bench:
        yield bench


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Scenario:
    """Three units of some 30 KB each, of noise: a page of them is not written at
    once where there is no room.
    """
    inputs, noise = tmp_path_factory.mktemp("in"), random.Random(7)
    for unit in range(3):
        words = ("".join(noise.choices(string.ascii_letters, k=9)) for _ in range(3000))
        texts = [" ".join(words_) for words_ in zip(*[words] * 30, strict=True)]
        (inputs / f"{unit}.jsonl").write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in texts)
        )
    config = configuration(inputs, tokenizer_dir)
    request = {"op": "build", "config": config, "workers": 1, "retries": 0}
    return Scenario(
        "noise", ("main", "unit", "worker"), request, None, config, first=True
    )


def disturbed(
    bench: Bench, scenario: Scenario, store: Path, remedy: str, **limits: Any
) -> list[str]:
    """Run into a limit; what is wrong with the sentence or with what is visible."""
    answer = bench.ask(scenario.asked(store) | limits)
    wrong = (
        sentence_problems(answer["said"]) if answer["code"] else ["nothing happened"]
    )
    if remedy not in answer["said"]:
        wrong.append(f"the remedy ({remedy}) is not named: {answer['said']}")
    return wrong + damage(store)


def resumed(bench: Bench, scenario: Scenario, store: Path) -> tuple[list[str], int]:
    """Run again, without the limit: nothing is redone, and the tree is the
    undisturbed one.
    """
    finished = finished_units(store) if store.exists() else {}
    answer = bench.ask(scenario.asked(store))
    if answer["code"]:
        return [f"the rerun: {answer['said']}"], 0
    told = json.loads(answer["said"])["result"]
    redone = sum(changed(path, inode) for path, inode in finished.items())
    committed = told[0] == "exists"
    wrong = (
        []
        if committed or told[2] == len(finished)
        else [f"{told}, of {len(finished)} finished"]
    )
    return wrong + difference(store, bench.undisturbed(scenario)) + temporary(
        store
    ), redone


def count(cases: Cases, kind: str, case: object, wrong: list[str], redone: int) -> None:
    note = f"{case}: {'; '.join(wrong)}" if wrong or redone else ""
    cases.add(kind, survived=not wrong and not redone, redone=redone, note=note)


def test_a_full_disk(
    tmp_path: Path, bench: Bench, scenario: Scenario, cases: Cases
) -> None:
    whole = sum(-(-size // 4096) * 4 for size in sizes(bench, scenario))
    for size in cases.choose(list(range(4, whole, 4)), sample=4):
        with small_disk(tmp_path / f"{size}k", f"size={size}k") as disk:
            store = disk.place / "store"
            wrong = disturbed(bench, scenario, store, "Free space")
            disk.change(PLENTY)
            again, redone = resumed(bench, scenario, store)
            count(cases, "disk: full", f"size={size}k", wrong + again, redone)


def test_a_disk_that_has_no_room_for_another_file(
    tmp_path: Path, bench: Bench, scenario: Scenario, cases: Cases
) -> None:
    # The root, store, dataset, version, four folders in it, and the files.
    whole = 8 + len(sizes(bench, scenario))
    for inodes in cases.choose(list(range(2, whole)), sample=3):
        with small_disk(tmp_path / str(inodes), f"size=16m,nr_inodes={inodes}") as disk:
            store = disk.place / "store"
            wrong = disturbed(bench, scenario, store, "Free space")
            disk.change(PLENTY)
            again, redone = resumed(bench, scenario, store)
            count(
                cases,
                "disk: no file left",
                f"nr_inodes={inodes}",
                wrong + again,
                redone,
            )


def test_a_limit_on_the_size_of_a_file(
    tmp_path: Path, bench: Bench, scenario: Scenario, cases: Cases
) -> None:
    limits = sorted({size - 1 for size in sizes(bench, scenario)} | {0, 100, 4096})
    for limit in cases.choose(limits, sample=3):
        store = tmp_path / str(limit) / "store"
        wrong = disturbed(bench, scenario, store, "ulimit -f", file_size=limit)
        again, redone = resumed(bench, scenario, store)
        count(cases, "disk: file-size limit", f"limit={limit}", wrong + again, redone)
        shutil.rmtree(tmp_path / str(limit))


def test_a_file_system_that_is_read_only(
    tmp_path: Path, bench: Bench, scenario: Scenario, cases: Cases
) -> None:
    with small_disk(tmp_path / "disk", PLENTY) as disk:
        store = disk.place / "store"
        for kept in (None, "claim.json", "ledger/00001.json"):
            begin(bench, scenario, store, kept)
            disk.change("ro")
            wrong = disturbed(bench, scenario, store, "mounted read-only")
            disk.change("rw")
            again, redone = resumed(bench, scenario, store)
            count(cases, "disk: read-only", kept, wrong + again, redone)
        disk.change("ro")
        answer = bench.ask(scenario.asked(store))
        told = json.loads(answer["said"]).get("result", answer)
        wrong = (
            [] if told == ["exists", 0, 0, 0] else [f"a version that is there: {told}"]
        )
        count(cases, "disk: read-only", "committed", wrong + damage(store), 0)


def begin(bench: Bench, scenario: Scenario, store: Path, kept: str | None) -> None:
    """Put back a build that ended after it had made ``kept``; None: nothing."""
    shutil.rmtree(store, ignore_errors=True)
    if kept is None:
        return
    assert bench.ask(scenario.asked(store))["code"] == 0
    version = store / "set" / "v1"
    later = [
        "README.md",
        "manifest.json",
        "ledger/00002.json",
        "data/train-00002-00.parquet",
    ]
    if kept == "claim.json":
        later = [
            str(p.relative_to(version))
            for p in version.rglob("*")
            if p.is_file() and p.name != kept
        ]
    for name in later:
        (version / name).unlink()


@pytest.mark.parametrize("family", ["write", "link", "mkdir"])
def test_a_quota(
    family: str, tmp_path: Path, bench: Bench, scenario: Scenario, cases: Cases
) -> None:
    require_strace(tmp_path)
    chosen: list[Case] = list(
        cases.choose(bench.enumerate(scenario, family, "EDQUOT"), sample=2)
    )
    met = 0
    for case in chosen:
        verdict = bench.run(case)
        met += verdict.hit
        if verdict.hit:
            count(cases, "disk: quota", case, list(verdict.wrong), verdict.redone)
    assert met >= len(chosen) - 2


def sizes(bench: Bench, scenario: Scenario) -> list[int]:
    """The sizes of the files of the undisturbed version, its claim and its run's log
    left out or in as they come.
    """
    store = bench.place() / "store"
    assert bench.ask(scenario.asked(store))["code"] == 0
    return [
        path.stat().st_size
        for path in store.rglob("*")
        if path.is_file() and path.parent.name != "runs"
    ]
