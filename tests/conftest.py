"""Fixtures shared by the whole suite; anything used by one file alone lives in that file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real ``corpora/`` and ``hf/`` tokenizers, where the machine has one."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("TOKENLAKE_TEST_DATA", default))
    if not (folder / "corpora").is_dir() or not (folder / "hf").is_dir():
        pytest.skip(
            f"no real corpora and tokenizers in {folder}; set TOKENLAKE_TEST_DATA to a folder with both"
        )
    return folder
