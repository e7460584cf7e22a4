"""A copy of a module's store for each of its repairs.

Each module has a fixture ``built``: the folder of its inputs, with the store beneath
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.support import linked_copy


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> Path:
    return linked_copy(built / "store", tmp_path / "store")
