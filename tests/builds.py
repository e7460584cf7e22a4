"""Small builds of tests: their configuration, and workers that they share.

Starting a worker takes a second, a small build a tenth of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokenlake.config.stages import RayConfig
from tokenlake.etl.engines import EngineName, open_pool
from tokenlake.etl.pool import WorkerPool
from tokenlake.threads import available_cpus

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
    """A build of one dataset into a store in `folder`, packed into rows of so many tokens or not at all."""
    return {
        "name": "set",
        "datasets": [{"name": name, "data_files": str(data), "tokenizer": str(tokenizer), **dataset}],
        "pack": {"enabled": False} if pack is None else {"enabled": True, "seq_length": pack},
        "save": {"output_dir": str(folder / "store")},
    }


class Lender:
    """Pools by their number of workers; one that was cancelled is not lent again."""

    def __init__(self) -> None:
        self._pools: dict[int, WorkerPool] = {}
        self._lent: set[int] = set()

    @contextmanager
    def lend(self, workers: int) -> Iterator[WorkerPool]:
        """Lend a pool; a new one where another thread has it already."""
        if workers in self._lent:
            with WorkerPool(workers) as own:
                yield own
            return
        pool = self._pools.pop(workers, None) or WorkerPool(workers)
        self._lent.add(workers)
        try:
            yield pool
        finally:
            self._lent.discard(workers)
            if pool._cancelled:  # pyright: ignore[reportPrivateUsage]
                pool.close()
            else:
                self._pools[workers] = pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@pytest.fixture(scope="session")
def lender() -> Iterator[Lender]:
    lender = Lender()
    yield lender
    lender.close()


@pytest.fixture(autouse=True)
def shared_workers(request: pytest.FixtureRequest, lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `build_dataset` borrow workers; a test that is marked ``own_workers`` starts its own."""
    if request.node.get_closest_marker("own_workers") is None:
        monkeypatch.setattr("tokenlake.etl.runner.open_pool", partial(_lent_or_own, lender))


def _lent_or_own(lender: Lender, engine: EngineName | None, workers: int | None, ray: RayConfig) -> Any:
    here = (engine or "local") == "local" and not ray.enabled
    return lender.lend(workers or available_cpus()) if here else open_pool(engine, workers, ray)
