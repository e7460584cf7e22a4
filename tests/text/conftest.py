"""One pool of workers for all builds of this folder: starting one costs more than most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from tokenlake.etl.pool import WorkerPool


@pytest.fixture(scope="session")
def open_pool() -> Iterator[Callable[[], WorkerPool]]:
    """Return what opens the pool when it is first needed, and again where a build that failed has cancelled it."""
    opened: list[WorkerPool] = []

    def pool() -> WorkerPool:
        if not opened or opened[-1]._cancelled:  # pyright: ignore[reportPrivateUsage]
            opened.append(WorkerPool(1))
        return opened[-1]

    yield pool
    for each in opened:
        each.close()


@pytest.fixture(autouse=True)
def _one_pool(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, open_pool: Callable[[], WorkerPool]
) -> None:
    """Let builds with one worker share it; not where workers must import what a test writes."""

    def pool(workers: int) -> AbstractContextManager[WorkerPool]:
        return nullcontext(open_pool()) if workers == 1 else WorkerPool(workers)

    if not getattr(request.module, "OWN_WORKERS", False):
        monkeypatch.setattr("tokenlake.etl.runner.WorkerPool", pool)
