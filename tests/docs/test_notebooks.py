"""The notebooks run from top to bottom in a kernel of Jupyter, and are stored with
what they show.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.notebooks import MACHINE, NOTEBOOKS, ROOT, execute, shown
from tests.seeds import promise
from tests.store.support import shared_store

CHECKS = {
    "explore": """
from tokenlake import Where
assert Where("tokens > 3")({"tokens": 2}) is None

(row,) = tl.sql(STORE, "select current_setting('enable_progress_bar') as bar").to_pylist()
assert row == {"bar": False}, row
assert NAME in list(query("select dataset from datasets")["dataset"])
""",
    "train": "assert losses[-1] < losses[0] and batch['input_ids'].shape == (8, 128) and 'perplexity' in results",
    "mixtures": "assert largest_difference < 1",
}
OF_A_STORE = """
assert len(lengths) == 81, len(lengths)
assert "the river rose" in rows["text"][0]
"""


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels import this library, and build data of their own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "lib"), str(ROOT)]))
    for name in ("TOKENLAKE_STORE", "TOKENLAKE_DATASET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.integration
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@promise(321, 340, 341)
def test_it_runs_in_a_kernel(path: Path) -> None:
    assert importlib.util.find_spec("ipywidgets") is None, (
        "with it, DuckDB takes settings that it else refuses"
    )
    execute(path, CHECKS[path.stem])


@pytest.mark.integration
def test_explore_opens_a_store_that_exists(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(shared_store(tokenizer_dir)))
    monkeypatch.setenv("TOKENLAKE_DATASET", "small")
    execute(ROOT / "notebooks" / "explore.ipynb", CHECKS["explore"] + OF_A_STORE)


@pytest.fixture(scope="module")
def plots() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "notebooks"))
        yield importlib.import_module("plots")


@given(largest=st.floats(1e-6, 1e12))
def test_ticks_are_round_and_reach_the_largest_value(
    plots: ModuleType, largest: float
) -> None:
    ticks = plots.ticks(largest)
    assert ticks[0] == 0 and ticks[-1] >= largest * 0.99 and 3 <= len(ticks) <= 7
    for tick in ticks:
        assert float(f"{tick:.3g}") == pytest.approx(tick)


def test_a_plot_has_axes_labels_and_a_legend(plots: ModuleType) -> None:
    picture = plots.line_plot(
        {"<code>": [0, 5, 9], "web": [9, 5, 0]},
        x_label="step",
        y_label="rows",
        x_step=100,
    ).data
    tree = ElementTree.fromstring(picture)
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"step", "rows", "<code>", "web", "200", "10", "0"} <= set(texts)
    lines = list(tree.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2 and len(lines[0].attrib["points"].split()) == 3


def test_bars_are_as_high_as_their_values(plots: ModuleType) -> None:
    picture = plots.bar_plot({"1": 10, "2": 5}, x_label="segments", y_label="rows").data
    tree = ElementTree.fromstring(picture)
    heights = [
        float(bar.attrib["height"])
        for bar in tree.iter("{http://www.w3.org/2000/svg}rect")
        if bar.find("{http://www.w3.org/2000/svg}title") is not None
    ]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_shows_results_and_nothing_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code) and not any(
        output.output_type == "error" or output.get("name") == "stderr"
        for cell in code
        for output in cell.outputs
    )
    assert not MACHINE.search(shown(notebook)), (
        "run `python -m tests.docs.notebooks`, and see what it keeps"
    )
