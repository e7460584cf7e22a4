"""The notebook runs from top to bottom in a kernel of Jupyter, on a small store, and is stored without outputs."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.seeds import promise
from tests.store.support import shared_store

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "explore.ipynb"

CHECKS = """
assert len(lengths) == 81, len(lengths)
assert "the river rose" in rows["text"][0]

from tokenlake import Where
assert Where("tokens > 3")({"tokens": 2}) is None

from tokenlake.query import query
print(query(os.environ["TOKENLAKE_STORE"], "select current_setting('enable_progress_bar') as bar").to_pylist())
"""


@pytest.mark.integration
@promise(321, 340, 341)
def test_it_runs_in_a_kernel(tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("ipywidgets") is None, (
        "with it, DuckDB takes settings that it else refuses"
    )
    monkeypatch.setenv("TOKENLAKE_STORE", str(shared_store(tokenizer_dir)))
    monkeypatch.setenv("TOKENLAKE_DATASET", "small")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "lib"), str(ROOT)]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import os" + CHECKS))
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (printed,) = notebook.cells[-1].outputs
    assert printed["text"] == "[{'bar': False}]\n"


def test_it_holds_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
