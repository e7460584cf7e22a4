"""Planning of very many small files in nested folders.

The costs of reading (hashes of all files, footers of Parquet files) are measured
separately from those of the plan. Each measurement is made in a new process, so that
its peak memory is that of planning.
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
from dataclasses import dataclass
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
"""Goal: wall seconds of planning 100,000 files."""

PLAN_BYTES: Final = 1 << 30
"""Goal: peak memory."""

MILLION: Final = 1_000_000
MILLION_SECONDS: Final = 60.0
"""Goal: CPU seconds of planning a million files."""

_MILLION_UNIT_SIZE: Final = "20kB"
"""Size of a unit: a million files give about 35,000 units."""

_FOLDER_FILES: Final = 100
"""Number of files per folder."""

_SUBFOLDERS: Final = 25
"""Number of folders per parent folder."""

Row = tuple[str, float, float | None]
"""(description, value, largest value that meets the goal; None: no goal)."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Wall seconds of the steps before a plan.

    Attributes:
        listing: Seconds of finding the files.
        hashing: Seconds of hashing them.
        footers: Seconds of reading the footers of Parquet files.
        peak_bytes: Peak memory of the process.
    """

    listing: float
    hashing: float
    footers: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Costs of a plan.

    Attributes:
        wall: Wall seconds.
        cpu: CPU seconds.
        peak_bytes: Peak memory of the process.
    """

    wall: float
    cpu: float
    peak_bytes: float


def measure_planning(folder: Path, files: int = 100_000) -> list[Row]:
    """Measure the steps of planning a tree of files.

    Half of the files are JSON Lines of 200 bytes, the others small Parquet files.

    Args:
        folder: Folder for the tree, which is written unless it exists.
        files: Number of files.

    Returns:
        Seconds of each step, and peak memory in bytes.
    """
    tree = make_tree(folder / f"planning-{files}", files)
    cache = folder / "planning-cache"
    shutil.rmtree(cache, ignore_errors=True)
    tokenizer = _tokenizer(folder / "planning-tokenizer")
    # The first process fills the cache of hashes for the second one.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        steps = pool.apply(_time_steps, (tree, tokenizer, cache))
        plan = pool.apply(_time_plan, (tree, tokenizer, cache))
    peak_bytes = max(steps.peak_bytes, plan.peak_bytes)
    plan_seconds = plan.wall - steps.footers
    return [
        (f"find {files} files, s", steps.listing, None),
        ("hash them, without cached hashes, s", steps.hashing, None),
        ("read the footers of the Parquet half, s", steps.footers, None),
        ("plan, with cached hashes and without footers, s", plan_seconds, PLAN_SECONDS),
        ("peak memory, bytes", peak_bytes, float(PLAN_BYTES)),
    ]


def measure_million(folder: Path, files: int) -> list[Row]:
    """Plan a tree of JSON Lines files, plan it again, and plan it with one more file.

    The tree is removed afterwards.

    Args:
        folder: Folder for the tree, which takes 4 KB and an inode per file.
        files: Number of files.

    Returns:
        CPU seconds of each plan, and peak memory in bytes.
    """
    # 1. A tree without Parquet files, whose footers would be read.
    tree = make_tree(folder / f"planning-lines-{files}", files, parquet=False)
    cache = folder / "planning-lines-cache"
    shutil.rmtree(cache, ignore_errors=True)
    tokenizer = _tokenizer(folder / "planning-tokenizer")
    # 2. Three plans: without cached hashes, with them, and with one new file.
    arguments = (tree, tokenizer, cache, _MILLION_UNIT_SIZE)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        first = pool.apply(_time_plan, arguments)
        again = pool.apply(_time_plan, arguments)
        (tree / "000" / "00" / "added.jsonl").write_bytes(b'{"text": "one more"}\n')
        added = pool.apply(_time_plan, arguments)
    shutil.rmtree(tree)
    peak_bytes = max(plan.peak_bytes for plan in (first, again, added))
    return [
        (
            f"plan {files:,} files, without cached hashes, CPU s",
            first.cpu,
            MILLION_SECONDS,
        ),
        ("again, CPU s", again.cpu, None),
        ("with one file more, CPU s", added.cpu, None),
        ("peak memory, bytes", peak_bytes, float(PLAN_BYTES)),
    ]


def make_tree(root: Path, files: int, *, parquet: bool = True) -> Path:
    """Write a tree of small files, unless it exists.

    Args:
        root: Root of the tree.
        files: Number of files.
        parquet: True if half of the files are Parquet; False for JSON Lines only.

    Returns:
        The root.
    """
    complete = root / ".complete"
    if complete.exists():
        return root
    # 1. The content of all JSON Lines files, and of all Parquet files.
    line = json.dumps({"text": "x" * 187}).encode() + b"\n"
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["three", "short", "texts"]}), table)
    # 2. The files, 100 per folder.
    for index in range(files):
        folder_number = index // _FOLDER_FILES
        parent = root / f"{folder_number // _SUBFOLDERS:03d}"
        folder = parent / f"{folder_number % _SUBFOLDERS:02d}"
        if index % _FOLDER_FILES == 0:
            folder.mkdir(parents=True, exist_ok=True)
        if parquet and index % 2 == 0:
            (folder / f"{index:07d}.parquet").write_bytes(table.getvalue())
        else:
            (folder / f"{index:07d}.jsonl").write_bytes(line)
    complete.touch()
    return root


def _tokenizer(folder: Path) -> Path:
    """Write a tiny tokenizer, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, data in train_bpe([__doc__ or ""], vocab_size=300).files.items():
        (folder / file_name).write_bytes(data)
    return folder


def _resolve_build(
    tree: Path, tokenizer: Path, cache: Path, unit_size: str | None = None
) -> ResolvedBuild:
    """Return the build of a tree.

    Args:
        tree: Root of the tree.
        tokenizer: Folder of the tokenizer.
        cache: Folder for hashes of the files.
        unit_size: Size of a unit; None: the default of the library.
    """
    os.environ["TOKENLAKE_CACHE"] = str(cache)
    dataset = {"name": "small", "data_files": str(tree), "tokenizer": str(tokenizer)}
    config: Mapping[str, Any] = {
        "name": "scale",
        "datasets": [dataset],
        "pack": {"enabled": True},
    }
    if unit_size is not None:
        config = {**config, "source": {"unit_size": unit_size}}
    return resolve(load_config(config))


def _time_steps(tree: Path, tokenizer: Path, cache: Path) -> StepTimes:
    """Time the steps before a plan, in this process."""
    build = _resolve_build(tree, tokenizer, cache)
    source = build.sources[0]
    start_time = time.monotonic()
    list_inputs(source, hashed=False)
    listing_seconds = time.monotonic() - start_time
    # Hashing lists the files once more.
    start_time = time.monotonic()
    with HashCache() as hash_cache:
        files = list_inputs(source, hash_threads=build.hash_threads, cache=hash_cache)
    listing_and_hashing_seconds = time.monotonic() - start_time
    start_time = time.monotonic()
    split_files(files, build.unit_size, threads=build.hash_threads)
    return StepTimes(
        listing=listing_seconds,
        hashing=listing_and_hashing_seconds - listing_seconds,
        footers=time.monotonic() - start_time,
        peak_bytes=_peak_bytes(),
    )


def _time_plan(
    tree: Path, tokenizer: Path, cache: Path, unit_size: str | None = None
) -> PlanCost:
    """Measure a plan in this process."""
    build = _resolve_build(tree, tokenizer, cache, unit_size)
    wall_began = time.monotonic()
    cpu_began = time.process_time()
    make_plan(build)
    return PlanCost(
        wall=time.monotonic() - wall_began,
        cpu=time.process_time() - cpu_began,
        peak_bytes=_peak_bytes(),
    )


def _peak_bytes() -> float:
    """Return the peak resident memory of this process (Linux).

    The value of getrusage is not used, since a child inherits it from its parent.
    """
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return float(match[1]) * 1024 if match else 0.0
