"""Adding to what exists: one file more beside 20,000 small ones, nothing new at all,
and a count over many shards.

The first build, whose cost is not the point, is made once and kept; each measurement
adds a file of its own and so makes the next version. What a unit costs on S3 is
counted, not timed, on moto behind a proxy that logs its requests: two stores of
different size are added to, and what they differ by is the units' own.
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
ADD_SECONDS: Final = 20.0
CPU_SECONDS: Final = 3.0  # of finding that nothing is to be done, and of a count
REQUESTS: Final = 3.0  # a unit, on S3
_FOLDER_FILES: Final = 1000
_LINE: Final = 200  # bytes of a file
# Bytes of a unit, so that more than half as many units as files come of it.
_UNIT: Final = 680
_WIDE: Final = "wide"
_COPIES: Final = 4  # of each shard, for the count
_ON_S3: Final = (40, 240)  # units


def measure_adding(
    work: Path, vocabulary: Vocabulary, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Return goals, and a note on what else it took."""
    files = FILES // 40 if quick else FILES
    folder = work / f"adding-{vocabulary.name}-{files}"
    store = folder / "store"
    config = _config(folder, vocabulary, files)
    if not (store / builds.NAME / "v1" / "manifest.json").exists():
        _run(folder, builds.library_command(config, os.cpu_count() or 1))
    units = len(Catalog(open_store(store)).manifest(builds.NAME, 1).files)
    _run(
        folder, _command("run", "--no-prefect", str(config))
    )  # compiles and warms what the first run would pay for
    nothing = _run(folder, _command("run", "--no-prefect", str(config)))
    _write(
        folder / "in" / "added",
        len(Catalog(open_store(store)).versions(builds.NAME)),
        "added",
    )
    added = _run(folder, _command("run", "--no-prefect", str(config)))
    multiply(store / builds.NAME / "v1", folder / "wide" / _WIDE / "v1", _COPIES)
    count = _run(
        folder,
        _command(
            "sql", f"select count(*) from {_WIDE}", "--store", str(folder / "wide")
        ),
    )
    requests, read = _on_s3(folder, vocabulary)
    goals = [
        Goal(
            f"1 file added to {files:,}, {units:,} units taken over",
            added.wall,
            "at most",
            ADD_SECONDS,
            " s",
        ),
        Goal(
            f"nothing to do for {units:,} units",
            nothing.cpu,
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
        Goal("S3 requests for each unit taken over", requests, "at most", REQUESTS),
        Goal("bytes of shards that came down meanwhile", read, "at most", 0.0),
    ]
    return goals, [f"adding 1 file to {files:,} took {added.cpu:.1f} CPU s"]


def _config(folder: Path, vocabulary: Vocabulary, files: int) -> Path:
    """Write the inputs, unless they are there, and the configuration of a build of
    them.
    """
    for start in range(0, files, _FOLDER_FILES):
        target = folder / "in" / f"{start // _FOLDER_FILES:03d}"
        if not target.exists():
            for number in range(start, min(start + _FOLDER_FILES, files)):
                _write(target, number, f"{number:07d}")
    path = folder / "config.json"
    path.write_text(
        json.dumps(
            _settings(folder / "in", vocabulary, {"output_dir": str(folder / "store")})
        )
    )
    return path


def _settings(
    inputs: Path, vocabulary: Vocabulary, save: Mapping[str, Any], unit: int = _UNIT
) -> dict[str, Any]:
    return {
        "name": builds.NAME,
        "datasets": [
            {"name": "text", "data_files": str(inputs), "tokenizer": vocabulary.folder}
        ],
        "source": {"unit_size": unit},
        "pack": {"enabled": True, "seq_length": 64},
        "save": dict(save),
    }


def _write(folder: Path, number: int, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{number} small files are small files "
    line = json.dumps({"text": (text * (_LINE // len(text) + 1))[: _LINE - 13]})
    (folder / f"{name}-{number:07d}.jsonl").write_text(line + "\n")


def _command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("tokenlake")), *arguments]


def _run(folder: Path, command: list[str]) -> Measurement:
    environment = builds.environment(folder, folder / "cache")
    # Nobody else compiles the library at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    log = folder / "run.log"
    found = measure(command, report=folder / "measured.json", log=log, env=environment)
    if found.exit_code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {found.exit_code}: {log.read_text()[-500:]}"
        )
    return found


def _on_s3(folder: Path, vocabulary: Vocabulary) -> tuple[float, float]:
    """Return requests for each unit taken over, and bytes of shards that were read
    for all of them.
    """
    os.environ.update(LAKE_KEY=KEY, LAKE_SECRET=SECRET)
    asked, read = list[int](), 0
    with S3Server() as server:
        server.client().create_bucket(Bucket="lake")
        for units in _ON_S3:
            inputs = folder / f"s3-{units}"
            save = {
                "output_dir": f"s3://lake/{units}",
                "storage_options": server.options(),
            }
            for number in range(units):
                _write(inputs, number, "file")
            settings = _settings(inputs, vocabulary, save, _LINE)
            sizes = {
                shard.path: shard.bytes
                for shard in build_dataset(settings, workers=2).manifest.files
            }
            _write(inputs, units, "more")
            server.log.clear()
            if build_dataset(settings, workers=1).units_reused != units:
                raise RuntimeError(f"not all of {units} units on S3 were taken over")
            asked.append(len(server.log))
            paths = [
                unquote(one.path).partition("?")[0]
                for one in server.log
                if one.method == "GET"
            ]
            read += sum(
                sizes.get("data/" + path.rpartition("/data/")[2], 0) for path in paths
            )
            (inputs / f"more-{units:07d}.jsonl").unlink()
        close_filesystems()
    return (asked[1] - asked[0]) / (_ON_S3[1] - _ON_S3[0]), float(read)
