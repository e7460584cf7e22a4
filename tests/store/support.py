"""A small real store for tests of what reads stores; built once for all of them."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tokenlake.etl.pool import WorkerPool
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
    """Put ``small`` v1 and, with one file more, v2 into a folder, with what they were built from. Returns the store."""
    linked_copy(_built(tokenizer.parent / "small", tokenizer), root)
    return root / "store"


@functools.cache
def _built(root: Path, tokenizer: Path) -> Path:
    root.mkdir()
    write_inputs(root)
    with WorkerPool(1) as pool:
        build_dataset(settings(root, tokenizer), pool=pool)
        (root / "notes" / "sea.txt").write_text("The tide went out.\nThe tide came in.\n")
        build_dataset(settings(root, tokenizer), pool=pool)
    return root


def linked_copy(store: Path, target: Path) -> Path:
    """Copy a store; files that were one inode are one inode again, and may be written to."""
    inodes: dict[int, Path] = {}
    for path in sorted(store.rglob("*")):
        copy = target / path.relative_to(store)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
            continue
        first = inodes.setdefault(path.stat().st_ino, copy)
        if first is copy:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        else:
            os.link(first, copy)
    return target


def shared_store(tokenizer: Path) -> Path:
    """Return the store of :func:`build_store` itself; nobody may write to it."""
    return _built(tokenizer.parent / "small", tokenizer) / "store"


def copy_store(store: Path, target: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(store, target)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return target
