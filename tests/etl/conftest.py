"""Builds of tests in this process, by what one worker would keep between jobs: a
worker process takes a second.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tokenlake.etl import InProcessPool, Workbench


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench()


@pytest.fixture
def processes() -> None:
    """Have a test's builds start worker processes all the same."""


@pytest.fixture
def in_this_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bench: Workbench
) -> None:
    if "processes" not in request.fixturenames:
        pool = nullcontext(InProcessPool(bench))
        monkeypatch.setattr("tokenlake.etl.runner.open_pool", lambda *asked: pool)
