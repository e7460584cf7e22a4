"""Workers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokenlake.etl.pool import WorkerPool


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as workers:
        yield workers
