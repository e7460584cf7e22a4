"""Runs the notebooks in a kernel; ``python -m tests.docs.notebooks`` writes them
again, with what they show.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

ROOT: Final = Path(__file__).resolve().parents[2]
NOTEBOOKS: Final = tuple(sorted((ROOT / "notebooks").glob("*.ipynb")))
MACHINE: Final = re.compile(
    r"/(?:tmp|home|root|work|Users|usr|var|private)/|\.venv|0x[0-9a-f]{6,}"
)
"""What an output must not show: places of one machine, and addresses in its memory."""


def execute(path: Path, more: str = "") -> Any:
    """Run a notebook from top to bottom, and a cell after it; returns it with its
    outputs.
    """
    notebook = nbformat.read(path, as_version=4)
    if more:
        notebook.cells.append(nbformat.v4.new_code_cell(more))
    # The folder of the notebooks, as in Jupyter: they import `plots` from it.
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources=resources
    ).execute()
    return notebook


def shown(notebook: Any) -> str:
    """Return all that the cells show, as one text."""
    return json.dumps(
        [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    )


def _write(path: Path) -> None:
    notebook = execute(path)
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python", "version": "3.11"},
    }
    nbformat.write(notebook, path)


def main() -> None:
    """Run all of them, each on the data that it makes, and keep their outputs."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "lib"), str(ROOT)])
    for path in NOTEBOOKS:
        _write(path)


if __name__ == "__main__":
    main()
