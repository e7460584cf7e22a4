"""Builds of mixtures of three sources of real texts, beside a bare Parquet write.

A mixture is one of the sources' tokens, or of their packed rows. All work of a build
counts: planning, starting a worker, reading, hashing and committing. The bare write
gets the finished rows as Arrow batches in memory, and writes them with the same schema,
row groups and properties.
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
from typing import Any, Final, final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
from benchmarks.measure import Measurement, measure
from benchmarks.memory import WORKER_MODULE
from benchmarks.vocabularies import Vocabulary

SEQUENCES: Final = "sequences"
DOCUMENTS: Final = "documents"
LEVELS: Final = (SEQUENCES, DOCUMENTS)
"""Rows that are mixed: packed rows, or documents that the mixture packs."""

WEIGHTS: Final = {"text": 0.5, "code": 0.3, "multilingual": 0.2}
"""Source -> weight."""

LEAST_RATE: Final = 40.0
"""Least Mtok per CPU second."""

LEAST_BARE_SHARE: Final = 0.5
"""Least rate, over that of the bare write."""

MOST_DECODED: Final = 1.2
"""Most rows that are decoded for each row that is written."""

MOST_MEMORY_GROWTH: Final = 1.15
"""Most memory of a worker on four times the data, over that on the data."""

SEQ_LENGTH: Final = 2048
"""Number of ids of a row."""

MACHINE_MEGABYTES: Final = 24.0
"""Text of the machine in MB, if no corpora are given."""


@dataclass(slots=True, kw_only=True)
class MixCase:
    """Measurements of one mixture.

    Attributes:
        level: Level of the rows that are mixed, of :data:`LEVELS`.
        copies: Number of copies of each file of the sources.
        tokens: Number of ids of the mixture.
        runs: Measured builds.
        bare: CPU seconds of the bare write after each build.
        decoded: Number of rows that are decoded for each row that is written.
        units: Number of units of the build.
    """

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
    def bare_share(self) -> float:
        """Rate of the build, over that of the bare write."""
        return statistics.median(self.bare) / self.cpu

    @property
    def worker_bytes(self) -> int:
        """Peak resident bytes of the largest worker."""
        peaks: list[int] = []
        for run in self.runs:
            for process, peak_bytes in run.processes.items():
                if WORKER_MODULE in process:
                    peaks.append(peak_bytes)
        return max(peaks)


def measure_mixing(
    work: Path, maker: InputMaker, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Measure both levels, on some data and on four times as much.

    Args:
        work: Folder for all files of the benchmark.
        maker: Maker of inputs.
        vocabulary: Tokenizer of the sources.
        repeats: Number of measured builds of the large mixtures.
        quick: Whether to use little data.

    Returns:
        Goals, and a note on each mixture.
    """
    # Number of copies of the sources' files in the small and the large mixtures.
    small_copies = 2
    large_copies = 8
    if quick:
        small_copies = 1
        large_copies = 2
    # The small mixtures show the fixed costs, for which one run is enough.
    mixer = _Mixer(work, maker, vocabulary)
    small_cases = {level: mixer.measure(level, small_copies, 1) for level in LEVELS}
    large_cases = {
        level: mixer.measure(level, large_copies, repeats) for level in LEVELS
    }
    goals: list[Goal] = []
    for level in LEVELS:
        goals.extend(_goals(small_cases[level], large_cases[level]))
    cases = [*small_cases.values(), *large_cases.values()]
    return goals, [_note(case) for case in cases]


def _note(case: MixCase) -> str:
    """Return a note on a mixture."""
    return (
        f"mix of {case.level}: {case.tokens / 1e6:.0f} Mtok in {case.units} units, {case.cpu:.2f} CPU s, bare write "
        f"{statistics.median(case.bare):.2f}; {case.decoded:.3f} rows decoded for each written; largest worker "
        f"{case.worker_bytes / 1e6:.0f} MB"
    )


def _goals(small: MixCase, large: MixCase) -> Iterator[Goal]:
    """Yield the goals of a level.

    Args:
        small: Mixture of some data.
        large: Mixture of four times the data.
    """
    # Rates, with and without start-up.
    title = f"mix of {large.level}, {large.tokens / 1e6:.0f} Mtok"
    unit = " Mtok per CPU s"
    yield Goal(f"{title}: of all processes", large.rate, "at least", LEAST_RATE, unit)
    added_mtok = (large.tokens - small.tokens) / 1e6
    added_cpu = max(large.cpu - small.cpu, 1e-3)
    yield Goal(
        f"{title}: of all processes, beyond start-up",
        added_mtok / added_cpu,
        "at least",
        LEAST_RATE,
        unit,
    )
    yield Goal(
        f"{title}: by the rate of a bare write",
        large.bare_share,
        "at least",
        LEAST_BARE_SHARE,
        "x",
    )
    yield Goal(
        f"{title}: rows decoded for each written",
        large.decoded,
        "at most",
        MOST_DECODED,
        "x",
    )
    yield Goal(
        f"{title}: memory of a worker by that on a quarter",
        large.worker_bytes / small.worker_bytes,
        "at most",
        MOST_MEMORY_GROWTH,
        "x",
    )


@final
class _Mixer:
    """Builder of the sources and of their mixtures.

    Args:
        work: Folder for all files of the benchmark.
        maker: Maker of inputs.
        vocabulary: Tokenizer of the sources.
    """

    def __init__(self, work: Path, maker: InputMaker, vocabulary: Vocabulary) -> None:
        self._work = work
        self._maker = maker
        self._vocabulary = vocabulary
        self._env = builds.environment(work, work / "scratch" / "hash-cache")

    def measure(self, level: str, copies: int, repeats: int) -> MixCase:
        """Measure one mixture, after a warm-up.

        Args:
            level: Level of the rows that are mixed.
            copies: Number of copies of each file of the sources.
            repeats: Number of measured builds.
        """
        case = MixCase(level=level, copies=copies)
        store = self._work / "scratch" / f"mix-of-{copies}-copies"
        for source in WEIGHTS:
            self._build_source(store, source, level, copies)

        # 1. Build the mixture, and write its rows again.
        config = _mixture_config(store, level)
        for turn in range(repeats + 1):
            run, version = self._build(store, config)
            target = store / "bare.parquet"
            # The bare write follows each build, so that both run on a machine that is
            # equally busy.
            figures = self._run_program("bare_parquet", str(version), str(target))
            is_warm_up = turn == 0
            if not is_warm_up:
                case.runs.append(run)
                case.bare.append(figures["cpu"])
            manifest = json.loads((version / "manifest.json").read_bytes())
            case.tokens = manifest["totals"]["tokens"]
            print(
                f"mix of {level} {turn}/{repeats}: {run.cpu:.2f} CPU s",
                file=sys.stderr,
                flush=True,
            )
            # The next build begins without this version.
            shutil.rmtree(version.parent)

        # 2. Count the rows that a build decodes.
        figures = self._run_program("mix_decoded", str(_write_config(store, config)))
        case.decoded = figures["decoded"] / figures["rows"]
        case.units = figures["units"]
        shutil.rmtree(store / builds.NAME)
        return case

    def _build_source(self, store: Path, source: str, level: str, copies: int) -> None:
        """Build the tokens of a source, or its packed rows, unless they exist.

        Args:
            store: Folder of the datasets.
            source: Name of the source.
            level: Level of its rows.
            copies: Number of copies of each file.
        """
        dataset = f"{source}-{level}"
        if (store / dataset / "v1" / "manifest.json").exists():
            return

        # 1. Copy the files of the source. Links would not do: a build reads a file once,
        #    however many links lead to it.
        folder = self._work / "inputs" / f"mix-of-{copies}-copies" / source
        if not folder.exists():
            folder.mkdir(parents=True)
            for path in self._texts(source):
                for copy_number in range(copies):
                    target = folder / f"{copy_number:02d}-{path.name}"
                    shutil.copyfile(path, target)

        # 2. Build. Mixtures of documents need tokens that are not packed.
        pack: dict[str, Any] = {"enabled": False}
        if level == SEQUENCES:
            pack = {"enabled": True, "seq_length": SEQ_LENGTH}
        config = {
            "name": dataset,
            "datasets": [
                {
                    "name": source,
                    "data_files": str(folder),
                    "tokenizer": self._vocabulary.folder,
                    "long_documents": "keep",
                }
            ],
            "pack": pack,
            "save": {"output_dir": str(store)},
        }
        self._build(store, config)

    def _texts(self, source: str) -> list[Path]:
        """Return the files of a source: of a corpus, or a share of the machine's text."""
        default_folder = Path(__file__).resolve().parents[2] / "shared"
        folder = Path(os.environ.get("TOKENLAKE_TEST_DATA", default_folder))
        corpus_files = sorted((folder / "corpora").glob(f"{source}-*.parquet"))
        if corpus_files:
            return corpus_files
        machine_text = self._maker.make(MACHINE_MEGABYTES)
        files = sorted(Path(machine_text.folder).glob("*"))
        # The sources divide the machine's files.
        first_file = list(WEIGHTS).index(source)
        return files[first_file :: len(WEIGHTS)]

    def _build(self, store: Path, config: dict[str, Any]) -> tuple[Measurement, Path]:
        """Build a dataset with one worker.

        Args:
            store: Folder of the datasets.
            config: Configuration of the build.

        Returns:
            Measurement of the build, and the folder of the version.

        Raises:
            RuntimeError: The build failed.
        """
        log_path = self._work / "logs" / "mix.log"
        log_path.parent.mkdir(exist_ok=True)
        config_path = _write_config(store, config)
        measurement = measure(
            builds.library_command(config_path, 1),
            report=config_path.with_suffix(".json"),
            log=log_path,
            env=self._env,
        )
        if measurement.exit_code:
            raise RuntimeError(
                f"the build ended with exit code {measurement.exit_code}; its output is in {log_path}"
            )
        return measurement, store / config["name"] / "v1"

    def _run_program(self, program: str, *arguments: str) -> dict[str, Any]:
        """Return the figures that a program of :mod:`benchmarks.systems` prints.

        Args:
            program: Name of the program.
            arguments: Arguments of its command line.

        Raises:
            RuntimeError: The program failed.
        """
        log_path = self._work / "logs" / f"{program}.log"
        measurement = measure(
            [sys.executable, "-m", f"benchmarks.systems.{program}", *arguments],
            report=log_path.with_suffix(".json"),
            log=log_path,
            env=self._env,
        )
        if measurement.exit_code:
            raise RuntimeError(
                f"{program} ended with exit code {measurement.exit_code}; its output is in {log_path}"
            )
        return json.loads(log_path.read_text().splitlines()[-1])


def _mixture_config(store: Path, level: str) -> dict[str, Any]:
    """Return the configuration of a mixture.

    Args:
        store: Folder of the datasets.
        level: Level of the rows that are mixed.
    """
    pack: dict[str, Any] = {}
    if level == DOCUMENTS:
        pack = {"enabled": True, "seq_length": SEQ_LENGTH}
    return {
        "name": builds.NAME,
        "datasets": [
            {"name": source, "dataset": f"{source}-{level}"} for source in WEIGHTS
        ],
        # A worker holds the windows of its lanes. The number of lanes is the same for
        # both sizes, so that its memory can be compared.
        "mix": {"weights": WEIGHTS, "epochs": 1, "seed": 0, "lanes": 8},
        "pack": pack,
        "save": {"output_dir": str(store)},
    }


def _write_config(store: Path, config: dict[str, Any]) -> Path:
    """Write a configuration to a file beside the store, and return its path."""
    store.mkdir(parents=True, exist_ok=True)
    config_path = store.parent / f"{store.name}.yaml"
    config_path.write_text(json.dumps(config, indent=1))
    return config_path
