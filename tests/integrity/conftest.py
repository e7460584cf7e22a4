"""One worker for all repairs of a module, and a copy of its store for each of them.

Each module has a fixture ``built``: the folder of its inputs, with the store beneath it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrity.support import one_pool
from tests.store.support import linked_copy
from tokenlake.etl.pool import WorkerPool


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as workers:
        yield workers


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> Path:
    return linked_copy(built / "store", tmp_path / "store")


@pytest.fixture(autouse=True)
def _one_pool(monkeypatch: pytest.MonkeyPatch, pool: WorkerPool) -> None:
    one_pool(monkeypatch, pool)
