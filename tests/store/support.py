"""A small real store for tests of what reads stores; built once for all of them."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokenlake.etl.runner import build_dataset

SEQ_LENGTH = 64


def settings(root: Path, tokenizer: Path) -> dict[str, Any]:
    """Two sources, two splits, one bad record in quarantine."""
    return {
        "name": "small",
        "datasets": [
            {"name": "notes", "data_files": str(root / "notes" / "*.txt"), "text_mode": "lines"},
            {"name": "pages", "data_files": str(root / "pages")},
        ],
        "default_tokenizer": str(tokenizer),
        "source": {
            "on_bad_record": "quarantine",
            "max_bad_fraction": 0.5,
            "splits": {"train": 0.8, "validation": 0.2},
        },
        "pack": {"enabled": True, "seq_length": SEQ_LENGTH},
        "save": {"output_dir": str(root / "store")},
    }


def write_inputs(root: Path) -> None:
    """Forty lines of text and forty JSONL records, of which one is bad."""
    (root / "notes").mkdir()
    (root / "pages").mkdir()
    lines = [f"Note {i}: the river rose by {i * 7} centimetres overnight.\n" for i in range(40)]
    (root / "notes" / "river.txt").write_text("".join(lines))
    pages = [json.dumps({"text": f"Page {i}. " + "A lake holds water. " * (i % 9)}) for i in range(40)]
    pages[7] = '{"text": null}'
    (root / "pages" / "lake.jsonl").write_text("\n".join(pages) + "\n")


def build_store(root: Path, tokenizer: Path) -> Path:
    """Build ``small`` v1 and, with one file more, v2; and claim a version of ``other``. Returns the store."""
    write_inputs(root)
    build_dataset(settings(root, tokenizer), workers=1)
    (root / "notes" / "sea.txt").write_text("The tide went out.\nThe tide came in.\n")
    build_dataset(settings(root, tokenizer), workers=1)
    return root / "store"


@functools.cache
def shared_store(tokenizer: Path) -> Path:
    """Return what :func:`build_store` makes, built once for this process; nobody may write to it."""
    root = Path(tempfile.mkdtemp(prefix="tokenlake-tests-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return build_store(root, tokenizer)


def copy_store(store: Path, target: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(store, target)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return target
