"""Repair: every kind of file of a small real version is damaged, and comes back byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.repair_support import KINDS, damage, files_of, linked_copy, tree
from tests.store_support import build_store
from tokenlake.build.pool import WorkerPool
from tokenlake.catalog import Catalog
from tokenlake.mending import RepairReport, rebuild, repair
from tokenlake.storage import open_store
from tokenlake.verify import verify


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """``small`` v1 and v2, which share a unit; v1 lacks a file that has been added to its inputs."""
    root = tmp_path_factory.mktemp("repair")
    build_store(root, tokenizer_dir)
    return root


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> Path:
    return linked_copy(built / "store", tmp_path / "store")


@pytest.fixture(scope="module")
def kept_pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _one_pool(monkeypatch: pytest.MonkeyPatch, kept_pool: WorkerPool) -> None:
    """Workers start once for all tests: each takes a second."""
    monkeypatch.setattr(rebuild, "WorkerPool", lambda workers: _Borrowed(kept_pool))


class _Borrowed:
    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.run, self.cancel = pool.run, pool.cancel

    def __enter__(self) -> WorkerPool:
        return self._pool

    def __exit__(self, *_: object) -> None:
        pass


def well(store: Path, reference: str = "small") -> bool:
    opened = open_store(store)
    return verify(opened, *Catalog(opened).resolve(reference), deep=True).ok


def how(report: RepairReport) -> dict[str, str]:
    return {f"{file.version}/{file.path}": file.how for file in report.files}


def test_all_kinds_of_files_come_back_from_their_inputs(built: Path, lake: Path) -> None:
    before = tree(built / "store")
    for index, path in enumerate(files_of(lake / "small" / "v1")):
        if path.name != "manifest.json":
            damage(path, KINDS[index % 4], Random(index))
    report = repair(lake, "small@v1")
    assert report.ok, report
    assert tree(lake) == before
    assert report.problems == () and report.new_version is None
