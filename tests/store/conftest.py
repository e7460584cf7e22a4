"""Stores that many of these tests read or write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reading.support import lake_of
from tokenlake.runtime.store import Store, open_store


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store of :mod:`tests.reading.support`; nobody may write to it."""
    return lake_of(tmp_path_factory)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store on this disk."""
    return open_store(tmp_path / "lake")
