"""Documents in buckets beside the same documents packed.

Measured are ids per CPU second of whole processes, and the share of padding.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import Input
from benchmarks.loader_input import CORPUS, LoaderInput, build
from benchmarks.measure import measure, printed_figures
from benchmarks.vocabularies import Vocabulary

DOCUMENTS: Final = "documents"
"""Name of the dataset whose rows are documents."""

BUCKETS: Final = 24
"""Number of buckets."""

LEAST_SHARE: Final = 0.6
"""Least rate of documents, over that of packed rows."""


def measure_ragged(
    work: Path,
    source: Input,
    vocabulary: Vocabulary,
    loader_input: LoaderInput,
    passes: int,
    repeats: int,
) -> tuple[list[Goal], list[str]]:
    """Measure packed rows and documents in turns.

    Args:
        work: Folder for all files of the benchmark.
        source: Text of the documents.
        vocabulary: Their tokenizer.
        loader_input: The same documents, packed.
        passes: Number of epochs of a run.
        repeats: Number of measured runs.

    Returns:
        A goal for the ratio of the rates, and a note on the rates and the padding.
    """
    # 1. Measure both datasets in turns.
    parts = sorted(Path(source.folder).glob("*.jsonl"))
    folder = Path(loader_input.folder)
    build(work, folder, DOCUMENTS, parts, vocabulary, seq_length=None)
    rates: dict[str, list[float]] = {CORPUS: [], DOCUMENTS: []}
    padding = 0.0  # share of the last run, which is one of documents
    for turn in range(1, repeats + 1):
        for dataset_name, rates_of_dataset in rates.items():
            rate, padding = _run_loader(work, loader_input, dataset_name, passes)
            rates_of_dataset.append(rate)
            print(
                f"loader, {dataset_name} {turn}/{repeats}: {rate:.1f}",
                file=sys.stderr,
                flush=True,
            )

    # 2. Compare the runs of each turn.
    ratios: list[float] = []
    for rate, packed_rate in zip(rates[DOCUMENTS], rates[CORPUS], strict=True):
        ratios.append(rate / packed_rate)
    goal = Goal(
        "documents in buckets / packed rows: ids, whole processes",
        statistics.median(ratios),
        "at least",
        LEAST_SHARE,
        "x",
    )
    medians: list[str] = []
    for dataset_name, rates_of_dataset in rates.items():
        medians.append(f"{dataset_name} {statistics.median(rates_of_dataset):.1f}")
    note = (
        f"Mtok per CPU s without padding, four columns, {passes} epochs: {', '.join(medians)}; "
        f"{padding:.1%} of the ids that {BUCKETS} buckets deliver are padding"
    )
    return [goal], [note]


def _run_loader(
    work: Path, loader_input: LoaderInput, name: str, passes: int
) -> tuple[float, float]:
    """Run the loader in a fresh process.

    Args:
        work: Folder for all files of the benchmark.
        loader_input: Datasets to read.
        name: Name of the dataset.
        passes: Number of epochs.

    Returns:
        Mtok per CPU second, and the share of padding.

    Raises:
        RuntimeError: The process failed.
    """
    log_path = work / "logs" / f"loader-ragged-{name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "benchmarks.systems.loader_ragged"]
    measurement = measure(
        [*program, str(loader_input.store), name, str(passes), str(BUCKETS)],
        report=log_path.with_suffix(".json"),
        log=log_path,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
    )
    figures = printed_figures(measurement, log_path)
    # Only ids count, not padding.
    rate = figures["ids"] / measurement.cpu / 1e6
    return rate, 1 - figures["ids"] / figures["cells"]
