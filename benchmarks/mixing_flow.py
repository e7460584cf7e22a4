"""Materialised mixtures: three sources of real texts, their tokens or packed rows
mixed, beside a bare Parquet write.

Everything a build does is counted: its plan, a worker's start, what is read, hashes,
the commit. The bare write gets the finished rows as Arrow batches in memory and writes
them with the same schema, row groups and properties.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary

LEVELS: Final = ("sequences", "documents")
WEIGHTS: Final = {"text": 0.5, "code": 0.3, "multilingual": 0.2}
RATE: Final = 40.0  # Mtok per CPU second, at least
OF_BARE: Final = 0.5  # of the bare write's rate, at least
DECODED: Final = 1.2  # rows decoded for each that is written, at most
GROWTH: Final = 1.15  # of a worker's memory, on four times the data, at most
SEQ_LENGTH: Final = 2048


@dataclass(slots=True, kw_only=True)
class MixCase:
    """One mixture and what it took."""

    level: str
    copies: int
    tokens: int = 0
    runs: list[Measurement] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    decoded: float = 0.0
    units: int = 0

    @property
    def cpu(self) -> float:
        """Median CPU seconds of all processes."""
        return statistics.median(run.cpu for run in self.runs)

    @property
    def rate(self) -> float:
        """Mtok per CPU second."""
        return self.tokens / 1e6 / self.cpu

    @property
    def of_bare(self) -> float:
        """This rate by the bare write's."""
        return statistics.median(self.bare) / self.cpu

    @property
    def worker_bytes(self) -> int:
        """Peak resident bytes of the largest worker."""
        return max(
            peak
            for run in self.runs
            for name, peak in run.processes.items()
            if "tokenlake.etl.worker" in name
        )


def measure_mixing(
    work: Path, maker: InputMaker, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Both levels, on some data and on four times as much.

    Returns:
        goals, and a note on each case.
    """
    sizes = (1, 2) if quick else (2, 8)
    cases = [
        _case(
            work, maker, vocabulary, level, copies, repeats if copies == sizes[1] else 1
        )
        for copies in sizes
        for level in LEVELS
    ]
    notes = [_note(case) for case in cases]
    return [
        goal
        for level in LEVELS
        for goal in _goals([case for case in cases if case.level == level])
    ], notes


def _note(case: MixCase) -> str:
    return (
        f"mix of {case.level}: {case.tokens / 1e6:.0f} Mtok in {case.units} units, {case.cpu:.2f} CPU s, bare write "
        f"{statistics.median(case.bare):.2f}; {case.decoded:.3f} rows decoded for each written; largest worker "
        f"{case.worker_bytes / 1e6:.0f} MB"
    )


def _goals(cases: list[MixCase]) -> Iterator[Goal]:
    small, large = cases
    what = f"mix of {large.level}, {large.tokens / 1e6:.0f} Mtok"
    yield Goal(
        f"{what}: of all processes", large.rate, "at least", RATE, " Mtok per CPU s"
    )
    more = (large.tokens - small.tokens) / 1e6 / max(large.cpu - small.cpu, 1e-3)
    yield Goal(
        f"{what}: of all processes, beyond start-up",
        more,
        "at least",
        RATE,
        " Mtok per CPU s",
    )
    yield Goal(
        f"{what}: by the rate of a bare write", large.of_bare, "at least", OF_BARE, "x"
    )
    yield Goal(
        f"{what}: rows decoded for each written", large.decoded, "at most", DECODED, "x"
    )
    growth = large.worker_bytes / small.worker_bytes
    yield Goal(
        f"{what}: memory of a worker by that on a quarter",
        growth,
        "at most",
        GROWTH,
        "x",
    )


def _case(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    level: str,
    copies: int,
    repeats: int,
) -> MixCase:
    case = MixCase(level=level, copies=copies)
    store = work / "scratch" / f"mix-{copies}"
    for name in WEIGHTS:
        _build_parent(work, maker, vocabulary, store, name, level, copies)
    for turn in range(repeats + 1):
        config = _config(store, level)
        run, folder = _build(work, store, config)
        bare = _figures(work, "bare_parquet", str(folder), str(store / "bare.parquet"))[
            "cpu"
        ]
        if turn:  # the first is a warm-up
            case.runs.append(run)
            case.bare.append(bare)
        case.tokens = json.loads((folder / "manifest.json").read_bytes())["totals"][
            "tokens"
        ]
        print(
            f"mix of {level} {turn}/{repeats}: {run.cpu:.2f} CPU s",
            file=sys.stderr,
            flush=True,
        )
        shutil.rmtree(folder.parent)
    found = _figures(work, "mix_decoded", str(_write(store, _config(store, level))))
    case.decoded, case.units = found["decoded"] / found["rows"], found["units"]
    shutil.rmtree(store / builds.NAME)
    return case


def _config(store: Path, level: str) -> dict[str, Any]:
    return {
        "name": builds.NAME,
        "datasets": [{"name": name, "dataset": f"{name}-{level}"} for name in WEIGHTS],
        # The same lanes for both sizes: what a worker holds are the windows of the
        # lanes.
        "mix": {"weights": WEIGHTS, "epochs": 1, "seed": 0, "lanes": 8},
        "pack": {"enabled": True, "seq_length": SEQ_LENGTH}
        if level == "documents"
        else {},
        "save": {"output_dir": str(store)},
    }


def _build_parent(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    store: Path,
    name: str,
    level: str,
    copies: int,
) -> None:
    """The tokens of a source, or its packed rows; built once."""
    dataset = f"{name}-{level}"
    if (store / dataset / "v1" / "manifest.json").exists():
        return
    folder = work / "inputs" / f"mix-{copies}" / name
    if not folder.exists():
        folder.mkdir(parents=True)
        for path in _texts(maker, name):
            for copy in range(copies):
                (folder / f"{copy:02d}-{path.name}").symlink_to(path.absolute())
    source = {
        "name": name,
        "data_files": str(folder),
        "tokenizer": vocabulary.folder,
        "long_documents": "keep",
    }
    pack = (
        {"enabled": True, "seq_length": SEQ_LENGTH}
        if level == "sequences"
        else {"enabled": False}
    )
    config = {
        "name": dataset,
        "datasets": [source],
        "pack": pack,
        "save": {"output_dir": str(store)},
    }
    _build(work, store, config)


def _texts(maker: InputMaker, name: str) -> list[Path]:
    """Real texts where the machine has them, else a share of its own."""
    shared = Path(
        os.environ.get(
            "TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"
        )
    )
    found = sorted((shared / "corpora").glob(f"{name}-*.parquet"))
    own = sorted(Path(maker.make(24.0).folder).glob("*")) if not found else []
    return found or own[list(WEIGHTS).index(name) :: len(WEIGHTS)]


def _write(store: Path, config: dict[str, Any]) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    path = store.parent / f"{store.name}.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path


def _build(work: Path, store: Path, config: dict[str, Any]) -> tuple[Measurement, Path]:
    """One build with one worker; returns what it took and the version's folder."""
    log = work / "logs" / "mix.log"
    log.parent.mkdir(exist_ok=True)
    env = builds.environment(work, work / "scratch" / "hash-cache")
    path = _write(store, config)
    run = measure(
        builds.library_command(path, 1),
        report=path.with_suffix(".json"),
        log=log,
        env=env,
    )
    if run.exit_code:
        raise RuntimeError(
            f"the build ended with exit code {run.exit_code}; its output is in {log}"
        )
    return run, store / config["name"] / "v1"


def _figures(work: Path, program: str, *arguments: str) -> dict[str, Any]:
    """What a program of :mod:`benchmarks.systems` prints."""
    log = work / "logs" / f"{program}.log"
    done = measure(
        [sys.executable, "-m", f"benchmarks.systems.{program}", *arguments],
        report=log.with_suffix(".json"),
        log=log,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
    )
    if done.exit_code:
        raise RuntimeError(
            f"{program} ended with exit code {done.exit_code}; its output is in {log}"
        )
    return json.loads(log.read_text().splitlines()[-1])
