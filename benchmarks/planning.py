"""Planning at scale: a hundred thousand small files in nested folders, listed, hashed
and planned.

What reading costs (hashing every file, reading every footer) is measured apart from
what the plan itself costs. Each figure comes from a process of its own, whose memory is
then that of planning alone.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.config.load import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.etl.planner import make_plan
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.listing import list_inputs
from tokenlake.etl.sources.splits import split_files
from tokenlake.etl.tokenizers.training import train_bpe

PLAN_SECONDS: Final = 20.0
PLAN_BYTES: Final = 1 << 30
_FOLDER_FILES: Final = 100

Row = tuple[str, float, float | None]
"""What was measured, its value, and the most it may be (None: there is no goal of
its own).
"""


def measure_planning(folder: Path, files: int = 100_000) -> list[Row]:
    """Plan a tree of `files` files, half JSON Lines of 200 bytes and half small
    Parquet, below `folder`.

    Args:
        folder: for the tree, which is made when it is not there yet.
        files: how many.

    Returns:
        Seconds of each step and bytes of memory at most.
    """
    tree = make_tree(folder / f"planning-{files}", files)
    cache = folder / "planning-cache"
    shutil.rmtree(cache, ignore_errors=True)
    tokenizer = _tokenizer(folder / "planning-tokenizer")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        steps = pool.apply(_steps, (tree, tokenizer, cache))
        whole = pool.apply(_whole, (tree, tokenizer, cache))
    rest = whole["seconds"] - steps["footers"]
    return [
        (f"find {files} files, s", steps["find"], None),
        ("hash them, nothing known, s", steps["hash"], None),
        ("read the footers of the Parquet half, s", steps["footers"], None),
        ("plan, hashes known and footers left out, s", rest, PLAN_SECONDS),
        ("peak memory, bytes", max(steps["bytes"], whole["bytes"]), float(PLAN_BYTES)),
    ]


MILLION: Final = 1_000_000
MILLION_SECONDS: Final = 60.0  # of CPU
_UNIT: Final = "20kB"  # so that a million files make some 35,000 units


def measure_million(folder: Path, files: int) -> list[Row]:
    """Plan a tree of lines alone, the first time, again, and with one file more; the
    tree is removed.

    Args:
        folder: for the tree, which takes 4 KB and an inode for each file.
        files: how many.

    Returns:
        CPU seconds of each plan, and bytes of memory at most.
    """
    tree = make_tree(folder / f"planning-lines-{files}", files, parquet=False)
    cache = folder / "planning-lines-cache"
    shutil.rmtree(cache, ignore_errors=True)
    tokenizer = _tokenizer(folder / "planning-tokenizer")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        first = pool.apply(_whole, (tree, tokenizer, cache, _UNIT))
        again = pool.apply(_whole, (tree, tokenizer, cache, _UNIT))
        (tree / "000" / "00" / "added.jsonl").write_bytes(b'{"text": "one more"}\n')
        added = pool.apply(_whole, (tree, tokenizer, cache, _UNIT))
    shutil.rmtree(tree)
    most = max(each["bytes"] for each in (first, again, added))
    return [
        (f"plan {files:,} files, nothing known, CPU s", first["cpu"], MILLION_SECONDS),
        ("again, CPU s", again["cpu"], None),
        ("with one file more, CPU s", added["cpu"], None),
        ("peak memory, bytes", most, float(PLAN_BYTES)),
    ]


def make_tree(root: Path, files: int, *, parquet: bool = True) -> Path:
    """Make a tree of small files, half of them Parquet unless only lines are wanted;
    return its root.

    One that is there stays as it is.
    """
    done = root / ".complete"
    if done.exists():
        return root
    line = json.dumps({"text": "x" * 187}).encode() + b"\n"
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["three", "short", "texts"]}), table)
    for index in range(files):
        folder = (
            root
            / f"{index // _FOLDER_FILES // 25:03d}"
            / f"{index // _FOLDER_FILES % 25:02d}"
        )
        if index % _FOLDER_FILES == 0:
            folder.mkdir(parents=True, exist_ok=True)
        name, data = (
            (f"{index:07d}.jsonl", line)
            if index % 2 or not parquet
            else (f"{index:07d}.parquet", table.getvalue())
        )
        (folder / name).write_bytes(data)
    done.touch()
    return root


def _tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in train_bpe([__doc__ or ""], vocab_size=300).files.items():
        (folder / name).write_bytes(data)
    return folder


def _build(
    tree: Path, tokenizer: Path, cache: Path, unit_size: str | None = None
) -> ResolvedBuild:
    os.environ["TOKENLAKE_CACHE"] = str(cache)
    dataset = {"name": "small", "data_files": str(tree), "tokenizer": str(tokenizer)}
    config: Mapping[str, Any] = {
        "name": "scale",
        "datasets": [dataset],
        "pack": {"enabled": True},
    }
    sizes = {"source": {"unit_size": unit_size}} if unit_size else {}
    return resolve(load_config({**config, **sizes}))


def _steps(tree: Path, tokenizer: Path, cache: Path) -> dict[str, float]:
    build = _build(tree, tokenizer, cache)
    source = build.sources[0]
    began = time.monotonic()
    list_inputs(source, hashed=False)
    found = time.monotonic()
    with HashCache() as known:
        files = list_inputs(source, hash_threads=build.hash_threads, cache=known)
    hashed = time.monotonic()
    split_files(files, build.unit_size, threads=build.hash_threads)
    return {
        "find": found - began,
        "hash": (hashed - found) - (found - began),
        "footers": time.monotonic() - hashed,
        "bytes": _peak(),
    }


def _whole(
    tree: Path, tokenizer: Path, cache: Path, unit_size: str | None = None
) -> dict[str, float]:
    build = _build(tree, tokenizer, cache, unit_size)
    began, cpu = time.monotonic(), time.process_time()
    make_plan(build)
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "bytes": _peak(),
    }


def _peak() -> float:
    """Bytes of this process at most (Linux); not rusage's, which a child inherits
    from its parent.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return float(found[1]) * 1024 if found else 0.0
