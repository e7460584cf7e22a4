"""Bytes that ``tokenlake rm`` and ``tokenlake gc`` free."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tokenlake as tl
from tests.cli.small_build import TEXTS, write_config, write_lines
from tokenlake.cli.app import main
from tokenlake.etl import build_dataset

Output = pytest.CaptureFixture[str]


def _store_with_shared_files(folder: Path, tokenizer: Path) -> Path:
    """Build two versions; the second has the units of the first and one more."""
    write_lines(folder / "a.jsonl", TEXTS[:40])
    config = write_config(folder, tokenizer, source={"unit_size": 1024})
    build_dataset(str(config), workers=1)
    write_lines(folder / "b.jsonl", TEXTS[40:])
    build_dataset(str(config), workers=1)
    return folder / "store"


def _used_bytes(store: Path) -> int:
    """Return the bytes of all files of a store, hard links counted once.

    A removal replaces claim and manifest by notes, which are left out.
    """
    sizes: dict[int, int] = {}
    for path in store.rglob("*"):
        if path.is_file() and path.name not in ("claim.json", "manifest.json"):
            sizes[path.stat().st_ino] = path.stat().st_size
    return sum(sizes.values())


def test_rm_states_the_bytes_that_it_frees(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    store = _store_with_shared_files(tmp_path, tokenizer_dir)
    removal = ["rm", "small@v1", f"--store={store}"]
    before = _used_bytes(store)
    assert main([*removal, "--dry-run", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main([*removal, "--dry-run"]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert "would be removed, which frees" in last_line
    assert _used_bytes(store) == before

    assert main([*removal, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == expected | {"dry_run": False}
    assert 0 < record["freed_bytes"] < record["bytes"]
    assert record["freed_bytes"] == before - _used_bytes(store)


def test_the_last_version_of_shared_files_frees_all_of_them(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    store = _store_with_shared_files(tmp_path, tokenizer_dir)
    tl.remove_version(store / "small@v1")
    before = _used_bytes(store)
    assert main(["rm", "small@v2", f"--store={store}"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(" removed")
    assert before - _used_bytes(store) == before


def test_gc_states_the_bytes_that_it_frees(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    # Two stray files are one file with two names; a third one is a name of a file that
    # is kept.
    store = _store_with_shared_files(tmp_path, tokenizer_dir)
    data = store / "small" / "v2" / "data"
    (data / "stray-0.parquet").write_bytes(b"12345")
    os.link(data / "stray-0.parquet", data / "stray-1.parquet")
    os.link(data / "train-00000-00.parquet", data / "stray-2.parquet")
    collection = ["gc", "--grace=0", f"--store={store}"]
    assert main([*collection, "--dry-run", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert tl.gc(store, grace=0, dry_run=True).freed_bytes == 5
    before = _used_bytes(store)
    assert main([*collection, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["files"], record["freed_bytes"]) == (3, 5)
    assert record["bytes"] > 10
    assert record["removed"] == expected["removed"]
    assert before - _used_bytes(store) == 5
