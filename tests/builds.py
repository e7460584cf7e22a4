"""Small builds of tests: their configuration, and workers that they share.

Starting a worker takes a second, a small build a tenth of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from tokenlake.config import RayConfig
from tokenlake.errors import CancelledError, WorkerDiedError
from tokenlake.etl import Job, WorkerPool, open_pool

Config = dict[str, Any]


def config_of(
    folder: Path,
    data: Path | str,
    tokenizer: Path,
    *,
    name: str = "s",
    pack: int | None = None,
    **dataset: Any,
) -> Config:
    """A build of one dataset into a store in `folder`, packed into rows of so many
    tokens or not at all.
    """
    return {
        "name": "set",
        "datasets": [
            {
                "name": name,
                "data_files": str(data),
                "tokenizer": str(tokenizer),
                **dataset,
            }
        ],
        "pack": {"enabled": False}
        if pack is None
        else {"enabled": True, "seq_length": pack},
        "save": {"output_dir": str(folder / "store")},
    }


@contextmanager
def small_row_groups(tokens: int) -> Iterator[None]:
    """Have builds in this process end a row group after `tokens` tokens, so that
    small datasets have several.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenlake.etl.unit.token_files.ROW_GROUP_TOKENS", tokens)
        patch.setattr("tokenlake.etl.unit.token_files._LEAST_TOKENS", 1)
        yield


class Lender:
    """The workers of all tests of this process: started once, where a test's
    surroundings are those of its start.
    """

    def __init__(self) -> None:
        self._surroundings = _surroundings()
        self._pool: WorkerPool | None = None
        self._running = 0

    def lend(self, workers: int) -> Lent | WorkerPool:
        """Lend up to so many workers; new ones where they would see another folder
        or other variables.
        """
        if workers < 1 or _surroundings() != self._surroundings:
            return WorkerPool(workers)
        self._pool = self._pool or WorkerPool(8)
        return Lent(self, self._pool, workers)

    @classmethod
    @contextmanager
    def here(cls) -> Iterator[None]:
        """Have builds borrow workers that are started in the surroundings of now,
        and end with the block.
        """
        lender = cls()
        try:
            with _borrowing(lender, "tokenlake.cli.build"):
                yield
        finally:
            lender.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def kill_all_but_idle(self, mine: int) -> None:
        """Kill the workers that are at work, unless they may be another's."""
        if self._pool is not None and self._running == mine:
            with self._pool._changed:  # pyright: ignore[reportPrivateUsage]
                for worker in self._pool._all.difference(self._pool._idle):  # pyright: ignore[reportPrivateUsage]
                    worker.kill()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class Lent:
    """A pool like any other, but that its idle workers outlive it and what cancels
    it.
    """

    def __init__(self, lender: Lender, pool: WorkerPool, workers: int) -> None:
        self.workers = workers
        self._lender, self._pool = lender, pool
        self._running, self._cancelled = 0, False

    def expect(self, count: int, jobs: Callable[[], Iterable[Job]] = tuple) -> None:
        self._pool.expect(min(count, self.workers), jobs)

    def run(
        self, job: Job, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> Any:
        self._running += 1
        try:
            with self._lender.running():
                self._stop_if_cancelled()
                return self._pool.run(job, on_progress)
        except WorkerDiedError:
            self._stop_if_cancelled()
            raise
        finally:
            self._running -= 1

    def cancel(self) -> None:
        self._cancelled = True
        self._lender.kill_all_but_idle(self._running)

    def _stop_if_cancelled(self) -> None:
        if self._cancelled:
            raise CancelledError("the build was cancelled; run it again to resume")

    def close(self) -> None:
        """Its workers stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its workers stay."""


def _surroundings() -> tuple[object, ...]:
    """What a worker takes over at its start, but for what no worker's work depends on.

    That is folders of a test's own, and what Polars, JAX, Ray and PyTorch set when a
    test first uses them: compared too, it would cost every later build workers of its
    own.
    """
    own = (
        "PYTEST_",
        "TERM",
        "TOKENIZERS_PARALLELISM",
        "TOKENLAKE_STORE",
        "TOKENLAKE_CACHE",
        "COLUMNS",
    )
    own += (
        "PREFECT_",
        "_RJEM_",
        "TF_CPP_",
        "TPU_",
        "RAY_",
        "ACCELERATE_",
        "TORCHINDUCTOR_",
    )
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(own)
    }
    return variables, Path.cwd(), tuple(sys.path)


@pytest.fixture(scope="session")
def lender() -> Iterator[Lender]:
    lender = Lender()
    yield lender
    lender.close()


@pytest.fixture(scope="module")
def pool(lender: Lender) -> Iterator[Lent | WorkerPool]:
    """One worker for the tests of a module: what cancels it there is no other
    module's business.
    """
    with lender.lend(1) as lent:
        yield lent


@pytest.fixture(scope="session", autouse=True)
def shared_workers(lender: Lender) -> Iterator[None]:
    """Have builds and repairs of all tests borrow workers, those of fixtures too."""
    with _borrowing(lender):
        yield


@contextmanager
def _borrowing(lender: Lender, *others: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            "tokenlake.etl.runner",
            "tokenlake.etl.integrity.repair",
            *others,
        ):
            patch.setattr(f"{module}.open_pool", partial(_lent_or_own, lender))
        yield


def _lent_or_own(
    lender: Lender, engine: Any, workers: int | None, ray: RayConfig
) -> Any:
    is_local = engine in (None, "local") and not ray.enabled
    if not is_local:
        return open_pool(engine, workers, ray)
    return lender.lend(workers or _processors())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
