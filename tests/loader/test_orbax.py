"""The loader's state in checkpoints of Orbax; several processes: see
``test_loader_jax_hosts.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loader.jax_support import packed_store, run


def test_model_and_loader_are_saved_and_restored_together(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    store = packed_store(tmp_path_factory)
    run("tests.loader.jax_orbax", quiet=False, store=str(store), folder=str(tmp_path))
