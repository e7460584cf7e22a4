"""What an engine costs for each unit: CPU of the whole process tree for many tiny units
beyond few, less that of local.

A unit here is four records of some 4 KB, so that nearly all of it is the engine. Starts
of processes, clusters and schedulers are in both runs, and so in no difference. As a
program: ``python -m benchmarks.engines ENGINE CONFIG`` builds once, with whoever it
takes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.measure import measure
from benchmarks.vocabularies import Vocabulary
from tokenlake.etl.runner import build_dataset

MOST: Final = {"store": 5.0, "ray": 5.0, "dask": 15.0}
"""Milliseconds of CPU for a unit beyond those of the local engine."""

KEPT: Final = 0.95
"""Units for a CPU second of eight workers beside one's."""

UNITS: Final = (200, 1_000)
_JOINED: Final = (2_000, 6_000)
"""Units of those that join: eight workers begin one after the other, and not all
have before 1,000 are built.
"""

_TEXT: Final = "a lake holds water, and rivers flow to it from the hills. " * 17


def measure_engines(
    work: Path, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Return goals, and a note on what each engine took."""
    sizes, joined = ((10, 30), (20, 60)) if quick else (UNITS, _JOINED)
    each: dict[str, list[float]] = {
        name: [] for name in ("local", *MOST, "store x1", "store x8")
    }
    for _ in range(repeats):
        for engine, found in each.items():
            few, many = joined if " x" in engine else sizes
            seconds = [
                _cpu(work / "engines", engine, units, vocabulary)
                for units in (few, many)
            ]
            found.append((seconds[1] - seconds[0]) / (many - few) * 1e3)
    took = {engine: statistics.median(found) for engine, found in each.items()}
    goals = [
        Goal(
            f"a unit on {engine} beyond one on this machine",
            took[engine] - took["local"],
            "at most",
            most,
            " CPU ms",
        )
        for engine, most in MOST.items()
    ]
    share = took["store x1"] / took["store x8"]
    goals.append(
        Goal(
            "units a CPU s, eight workers by the store / one",
            share,
            "at least",
            KEPT,
            "x",
        )
    )
    told = ", ".join(f"{engine} {_span(found)}" for engine, found in each.items())
    spans = f"{sizes[0]:,} to {sizes[1]:,} of them, for x1 and x8 {joined[0]:,} to {joined[1]:,}"
    return goals, [f"CPU ms of a unit of 4 KB, from {spans}: {told}"]


def _span(found: list[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _cpu(folder: Path, engine: str, units: int, vocabulary: Vocabulary) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    (data := folder / "data").mkdir(parents=True)
    lines = (json.dumps({"text": f"{number} {_TEXT}"}) for number in range(4 * units))
    (data / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    size = (data / "a.jsonl").stat().st_size // units + 1
    config = {
        "name": "tiny",
        "datasets": [{"name": "tiny", "data_files": str(data)}],
        "default_tokenizer": vocabulary.folder,
        "source": {"unit_size": size},
        "pack": {"enabled": True, "seq_length": 512},
        "save": {"output_dir": str(folder / "store")},
    }
    (folder / "config.json").write_text(json.dumps(config))
    log = folder / "run.log"
    found = measure(
        [
            sys.executable,
            "-m",
            "benchmarks.engines",
            engine,
            str(folder / "config.json"),
        ],
        report=folder / "measured.json",
        log=log,
        env=builds.environment(folder.parent, folder / "cache"),
        billed=engine != "ray",
    )
    if found.exit_code:
        raise RuntimeError(
            f"{engine} ended with {found.exit_code}: {log.read_text()[-2000:]}"
        )
    # Processes of Ray ignore SIGCHLD, and are billed to nobody: what was seen of them
    # counts.
    return max(found.cpu, found.sampled_cpu) if engine == "ray" else found.cpu


def main(engine: str, path: str) -> None:
    """Build with one worker, or with eight that join by the store."""
    config: dict[str, Any] = json.loads(Path(path).read_text())
    name, _, many = engine.partition(" x")
    with ExitStack() as stack:
        if name == "store":
            place = config["save"]["output_dir"]
            command = [
                sys.executable,
                "-m",
                "tokenlake",
                "work",
                place,
                "tiny@v1",
                "--workers",
                "1",
                "--wait",
                "5m",
            ]
            for share in range(int(many or 1)):
                worker = subprocess.Popen(
                    [*command, "--share", f"{share}/{many or 1}"], env=os.environ
                )
                stack.callback(worker.wait)
        build_dataset(config, executor=name, workers=None if name == "store" else 1)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(*sys.argv[1:])
