"""The notebook runs from top to bottom on a small store, and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.store_support import build_store

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "explore.ipynb"


def test_its_code_runs(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(build_store(tmp_path, tokenizer_dir)))
    monkeypatch.setenv("TOKENLAKE_DATASET", "small")
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["lengths"]) == 81
    assert "the river rose" in names["rows"]["text"][0]


def test_it_holds_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
