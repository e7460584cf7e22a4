"""Costs of additions to a large dataset, of a rerun, and of a count over many shards.

The first build is not measured, and is cached in the work folder. Each measurement adds
a file and builds the next version. Requests on S3 are counted, not timed, on a moto
server behind a proxy that logs them. Two stores of different sizes are added to. The
difference of their requests, divided by the difference of their units, is the number of
requests per unit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.loader_many import multiply
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary
from tests.servers.s3 import KEY, SECRET, S3Server
from tokenlake.etl.runner import build_dataset
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.sessions import close_filesystems

FILES: Final = 20_000
"""Number of files to which one is added."""

ADD_SECONDS: Final = 20.0
"""Goal: wall seconds of adding a file."""

CPU_SECONDS: Final = 3.0
"""Goal: CPU seconds of a rerun with nothing to do, and of a count."""

REQUESTS: Final = 3.0
"""Goal: requests on S3 for each reused unit."""

_FOLDER_FILES: Final = 1000
"""Number of files per input folder."""

_FILE_BYTES: Final = 200
_UNIT_BYTES: Final = 680
"""Bytes of a unit, which give more than half as many units as files."""

_COUNTED: Final = "wide"
"""Name of the dataset that is counted."""

_COPIES: Final = 4
"""Number of copies of each shard in the dataset that is counted."""

_S3_UNITS: Final = (40, 240)
"""Number of units of the two stores on S3."""


def measure_adding(
    work: Path, vocabulary: Vocabulary, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Measure additions, reruns and counts.

    Args:
        work: Work folder of the benchmark.
        vocabulary: Tokenizer of the builds.
        quick: True for a small dataset.

    Returns:
        Goals, and a note with the CPU seconds of adding a file.
    """
    file_count = FILES // 40 if quick else FILES
    folder = work / f"adding-{vocabulary.name}-{file_count}"
    store = folder / "store"
    # 1. The dataset to which files are added, unless an earlier run built it.
    config = _write_config(folder, vocabulary, file_count)
    if not (store / builds.NAME / "v1" / "manifest.json").exists():
        _run(folder, builds.library_command(config, os.cpu_count() or 1))
    catalog = Catalog(open_store(store))
    units = len(catalog.manifest(builds.NAME, 1).files)
    # 2. A rerun with nothing to do. The run before it compiles modules and fills
    #    caches, for which only the first run pays.
    build_command = _command("run", "--no-prefect", str(config))
    _run(folder, build_command)
    rerun = _run(folder, build_command)
    # 3. A build after a file was added.
    version_count = len(Catalog(open_store(store)).versions(builds.NAME))
    _write_file(folder / "in" / "added", version_count, "added")
    addition = _run(folder, build_command)
    # 4. A count over many shards.
    multiply(store / builds.NAME / "v1", folder / "wide" / _COUNTED / "v1", _COPIES)
    query = f"select count(*) from {_COUNTED}"
    count = _run(folder, _command("sql", query, "--store", str(folder / "wide")))
    # 5. Requests on S3.
    requests, read_bytes = _requests_on_s3(folder, vocabulary)
    goals = [
        Goal(
            f"1 file added to {file_count:,}, {units:,} units reused",
            addition.wall,
            "at most",
            ADD_SECONDS,
            " s",
        ),
        Goal(
            f"nothing to do for {units:,} units",
            rerun.cpu,
            "at most",
            CPU_SECONDS,
            " CPU s",
        ),
        Goal(
            f"sql count(*) over {_COPIES * units:,} shards",
            count.cpu,
            "at most",
            CPU_SECONDS,
            " CPU s",
        ),
        Goal("S3 requests per reused unit", requests, "at most", REQUESTS),
        Goal("bytes of shards read meanwhile", read_bytes, "at most", 0.0),
    ]
    note = f"adding 1 file to {file_count:,} took {addition.cpu:.1f} CPU s"
    return goals, [note]


def _write_config(folder: Path, vocabulary: Vocabulary, file_count: int) -> Path:
    """Write the configuration of a build, and its inputs unless they exist."""
    # 1. The input files, in folders of 1,000.
    for start in range(0, file_count, _FOLDER_FILES):
        target = folder / "in" / f"{start // _FOLDER_FILES:03d}"
        if target.exists():
            continue
        for number in range(start, min(start + _FOLDER_FILES, file_count)):
            _write_file(target, number, f"{number:07d}")
    # 2. The configuration.
    save = {"output_dir": str(folder / "store")}
    path = folder / "config.json"
    path.write_text(json.dumps(_settings(folder / "in", vocabulary, save)))
    return path


def _settings(
    inputs: Path,
    vocabulary: Vocabulary,
    save: Mapping[str, Any],
    unit_bytes: int = _UNIT_BYTES,
) -> dict[str, Any]:
    """Return the configuration of a build.

    Args:
        inputs: Folder of the input files.
        vocabulary: Tokenizer.
        save: Section `save`, which names the store.
        unit_bytes: Size of a unit.
    """
    dataset = {
        "name": "text",
        "data_files": str(inputs),
        "tokenizer": vocabulary.folder,
    }
    return {
        "name": builds.NAME,
        "datasets": [dataset],
        "source": {"unit_size": unit_bytes},
        "pack": {"enabled": True, "seq_length": 64},
        "save": dict(save),
    }


def _write_file(folder: Path, number: int, name: str) -> None:
    """Write a file with one document, which is distinct for each number."""
    folder.mkdir(parents=True, exist_ok=True)
    sentence = f"{number} small files are small files "
    repeated = sentence * (_FILE_BYTES // len(sentence) + 1)
    framing_bytes = 13  # of `{"text": ""}` and the line end
    line = json.dumps({"text": repeated[: _FILE_BYTES - framing_bytes]})
    (folder / f"{name}-{number:07d}.jsonl").write_text(line + "\n")


def _command(*arguments: str) -> list[str]:
    """Return a command of the installed program `tokenlake`."""
    return [str(Path(sys.executable).with_name("tokenlake")), *arguments]


def _run(folder: Path, command: list[str]) -> Measurement:
    """Measure a command.

    Raises:
        RuntimeError: The command failed.
    """
    environment = builds.environment(folder, folder / "cache")
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    log_path = folder / "run.log"
    run = measure(
        command, report=folder / "measured.json", log=log_path, env=environment
    )
    # The end of the log shows the reason.
    if run.exit_code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {run.exit_code}: {log_path.read_text()[-500:]}"
        )
    return run


def _requests_on_s3(folder: Path, vocabulary: Vocabulary) -> tuple[float, float]:
    """Add a file to each of two stores on S3.

    Returns:
        Number of requests for each reused unit, and bytes of shards that were read.

    Raises:
        RuntimeError: A unit was built again.
    """
    os.environ.update(LAKE_KEY=KEY, LAKE_SECRET=SECRET)
    request_counts: list[int] = []
    read_bytes = 0
    with S3Server() as server:
        server.client().create_bucket(Bucket="lake")
        for units in _S3_UNITS:
            # 1. A version with one unit per file.
            inputs = folder / f"s3-{units}"
            for number in range(units):
                _write_file(inputs, number, "file")
            save = {
                "output_dir": f"s3://lake/{units}",
                "storage_options": server.options(),
            }
            settings = _settings(inputs, vocabulary, save, _FILE_BYTES)
            first_version = build_dataset(settings, workers=2)
            shard_bytes = {
                shard.path: shard.bytes for shard in first_version.manifest.files
            }
            # 2. The next version, which has one more file.
            _write_file(inputs, units, "more")
            server.log.clear()
            if build_dataset(settings, workers=1).units_reused != units:
                raise RuntimeError(f"not all of {units} units on S3 were reused")
            # 3. Its requests, and the shards that it read.
            request_counts.append(len(server.log))
            for request in server.log:
                if request.method == "GET":
                    object_path = unquote(request.path).partition("?")[0]
                    shard_path = "data/" + object_path.rpartition("/data/")[2]
                    read_bytes += shard_bytes.get(shard_path, 0)
            (inputs / f"more-{units:07d}.jsonl").unlink()
        close_filesystems()
    few_units, many_units = _S3_UNITS
    few_requests, many_requests = request_counts
    requests_per_unit = (many_requests - few_requests) / (many_units - few_units)
    return requests_per_unit, float(read_bytes)
