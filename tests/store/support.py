"""A small real store, built once for all tests that read one; and records, manifests
and files in short.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenlake import Catalog, Manifest
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import Account, ShardEntry, Store, UnitRecord, seal

SEQ_LENGTH = 64


def settings(root: Path, tokenizer: Path) -> dict[str, Any]:
    """Two sources, two splits, one bad record in quarantine."""
    return {
        "name": "small",
        "datasets": [
            {
                "name": "notes",
                "data_files": str(root / "notes" / "*.txt"),
                "text_mode": "lines",
            },
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
    lines = [
        f"Note {i}: the river rose by {i * 7} centimetres overnight.\n"
        for i in range(40)
    ]
    (root / "notes" / "river.txt").write_text("".join(lines))
    pages = [
        json.dumps({"text": f"Page {i}. " + "A lake holds water. " * (i % 9)})
        for i in range(40)
    ]
    pages[7] = '{"text": null}'
    (root / "pages" / "lake.jsonl").write_text("\n".join(pages) + "\n")


def build_store(root: Path, tokenizer: Path) -> Path:
    """Put ``small`` v1 and, with one file more, v2 into a folder, with what they
    were built from. Returns the store.
    """
    linked_copy(_built(tokenizer.parent / "small", tokenizer), root)
    return root / "store"


@functools.cache
def _built(root: Path, tokenizer: Path) -> Path:
    root.mkdir()
    write_inputs(root)
    build_dataset(settings(root, tokenizer), workers=1)
    (root / "notes" / "sea.txt").write_text("The tide went out.\nThe tide came in.\n")
    build_dataset(settings(root, tokenizer), workers=1)
    return root


def linked_copy(store: Path, target: Path) -> Path:
    """Copy a store; files that were one inode are one inode again, and may be
    written to.
    """
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


def a_shard(**changes: Any) -> ShardEntry:
    """The first shard of a version, of one token."""
    plain: dict[str, Any] = {
        "path": "data/train-00000-00.parquet",
        "split": "train",
        "unit": 0,
        "part": 0,
    }
    plain |= {"bytes": 100, "sha256": "a" * 64, "rows": 1, "tokens": 1, "documents": 1}
    plain |= {"row_groups": (0,), "logical": {"input_ids": "0" * 32}}
    return ShardEntry(**plain | changes)


def a_record(**changes: Any) -> UnitRecord:
    """The record of a unit that read and wrote nothing."""
    plain: dict[str, Any] = {
        "unit": 0,
        "fingerprint": "f" * 64,
        "source": "c",
        "inputs": (),
        "parts": (),
    }
    plain |= {
        "account": Account(),
        "quarantine": None,
        "engine": "e",
        "produced_by": {},
    }
    return UnitRecord(**plain | changes)


def a_manifest(**changes: Any) -> Manifest:
    """The manifest of a version without files."""
    plain: dict[str, Any] = {
        "kind": "tokens",
        "dataset": "code",
        "version": 1,
        "fingerprint": "a" * 64,
    }
    plain |= {"seq_length": None, "files": (), "inputs": ()}
    plain |= {
        name: {}
        for name in ("config", "tokenizer", "other_files", "accounts", "produced_by")
    }
    return Manifest(**plain | changes)


def claimed(catalog: Catalog, fingerprint: str, **meta: Any) -> tuple[int, str]:
    """Claim the version of ``code`` that builds a fingerprint; return its number and
    its status.
    """
    claim = catalog.claim("code", fingerprint, meta)
    return claim.version, claim.status


def closing_note(dataset: str, version: int) -> bytes:
    """Return the bytes that take the place of the manifest of a number that is
    closed.
    """
    return seal(
        {"format_version": 1, "dataset": dataset, "version": version, "closed": True}
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files(root: Path | Store) -> set[str]:
    """Return the keys of all files that lie in a local store, temporary ones too."""
    folder = root if isinstance(root, Path) else Path(root.url)
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
