"""The notebooks run from top to bottom in a kernel of Jupyter, and are stored with what they show."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import nbformat
import pytest

from tests.docs.notebooks import MACHINE, NOTEBOOKS, ROOT, execute, shown
from tests.seeds import promise
from tests.store.support import shared_store

CHECKS = {
    "explore": """
import os

assert len(lengths) == 81, len(lengths)
assert "the river rose" in rows["text"][0]

from tokenlake import Where
assert Where("tokens > 3")({"tokens": 2}) is None

from tokenlake.query.session import sql as query
(row,) = query(os.environ["TOKENLAKE_STORE"], "select current_setting('enable_progress_bar') as bar").to_pylist()
assert row == {"bar": False}, row
""",
    "train": "assert losses[-1] < losses[0] and array.shape == (8, 128)",
    "mixtures": "assert worst < 1",
}


@pytest.fixture(autouse=True)
def small(tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(shared_store(tokenizer_dir)))
    monkeypatch.setenv("TOKENLAKE_DATASET", "small")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "lib"), str(ROOT)]))


@pytest.mark.integration
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@promise(321, 340, 341)
def test_it_runs_in_a_kernel(path: Path) -> None:
    assert importlib.util.find_spec("ipywidgets") is None, (
        "with it, DuckDB takes settings that it else refuses"
    )
    execute(path, CHECKS[path.stem])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_shows_results_and_nothing_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code) and not any(
        output.output_type == "error" or output.get("name") == "stderr"
        for cell in code
        for output in cell.outputs
    )
    assert not MACHINE.search(shown(notebook)), "run `python -m tests.docs.notebooks`, and see what it keeps"
