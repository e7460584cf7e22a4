"""The part `loader`: cost of batches, waiting times, work of several hosts, and
quality of the shuffle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
from benchmarks.interpreters import release
from benchmarks.loader_contenders import GLOBAL, LOADERS, OURS, SHUFFLED, Loader
from benchmarks.loader_hosts import measure_balance, measure_hosts
from benchmarks.loader_input import make_input
from benchmarks.loader_many_sources import measure_many_sources
from benchmarks.loader_moments import measure_moments
from benchmarks.loader_quality import measure_quality
from benchmarks.loader_ragged import measure_ragged
from benchmarks.loader_rates import LoaderSeries, measure_rates, rate_goals
from benchmarks.loader_remote import measure_remote
from benchmarks.mixture_quality import measure_mixture_quality
from benchmarks.vocabularies import Vocabulary

SMALL: Final = 4.0
"""MB of text of the small input, on which a run is little more than start-up."""

QUICK: Final = 16.0
"""MB of text of the input of `--quick`."""

PASSES: Final = 3
"""Number of epochs of a measured run."""

LEAST_TURNS: Final = 5
"""Least number of measured runs of short measurements."""


@dataclass(slots=True, kw_only=True)
class LoaderReport:
    """All results of the part `loader`.

    Attributes:
        series: Rates of the loaders.
        quality: Lines of the table of orders.
        goals: Goals of all measurements.
        notes: Notes on all measurements.
        failures: Errors of loaders and of measurements.
    """

    series: list[LoaderSeries] = field(default_factory=list)
    quality: list[list[str]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(
        self, name: str, measure: Callable[[], tuple[list[Goal], list[str]]]
    ) -> None:
        """Run a measurement, and add its goals and notes.

        If it fails, its error is added, and the benchmark continues.

        Args:
            name: Name of the measurement.
            measure: Function that returns goals and notes.
        """
        print(f"loader, {name} ...", file=sys.stderr, flush=True)
        try:
            goals, notes = measure()
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            failure = f"loader, {name}: {type(error).__name__}: {error}"
            self.failures.append(failure)
            print(failure, file=sys.stderr, flush=True)
            return
        self.goals += goals
        self.notes += notes


def measure_loader(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    megabytes: float,
    repeats: int,
    *,
    quick: bool,
) -> LoaderReport:
    """Run all measurements of the part that can run here.

    Loaders that cannot run are noted with the line that installs them.

    Args:
        work: Folder for all files of the benchmark.
        maker: Maker of inputs.
        vocabulary: Tokenizer of the datasets.
        megabytes: Text of the input, in MB.
        repeats: Number of measured runs of each loader.
        quick: Whether to use a small input, one epoch, and no peers.
    """
    report = LoaderReport()
    passes = PASSES
    turns = max(repeats, LEAST_TURNS)
    if quick:
        megabytes = QUICK
        passes = 1
        turns = 1

    # 1. Inputs and loaders.
    source = maker.make(megabytes)
    small = make_input(work, maker.make(SMALL), vocabulary)
    full = make_input(work, source, vocabulary)
    report.notes.append(
        f"Loaders read {full.describe()}; batches of 256 x 2048 int32, every token summed up"
    )
    loaders = _available_loaders(report.notes, quick=quick)
    report.notes.append(f"Loaders' versions: {_versions(loaders)}")

    # 2. Rates of all loaders.
    report.series = measure_rates(work, loaders, full, small, passes, repeats)
    report.goals = rate_goals(report.series)
    for series in report.series:
        if series.failure:
            report.failures.append(f"{series.loader.name}: {series.failure}")

    # 3. Measurements of Tokenlake's loader alone.
    report.add(
        "moments", partial(measure_moments, work, maker, vocabulary, full, turns)
    )
    report.add("hosts", partial(measure_hosts, work, full))
    report.add("64 sources", partial(measure_many_sources, small, turns))
    report.add("mixtures' order", measure_mixture_quality)
    report.add("a bucket", partial(measure_remote, work, full, turns))
    report.add("ranks", partial(measure_balance, full))
    report.add(
        "documents",
        partial(measure_ragged, work, source, vocabulary, full, passes, turns),
    )

    # 4. Orders of all loaders that ran.
    loaders_that_ran = [series.loader for series in report.series if series.runs]
    quality = measure_quality(work, loaders_that_ran, full)
    report.quality = quality.lines
    report.notes += quality.notes
    for series in report.series:
        loader = series.loader
        # The order of a dataset is the same for all columns, and judged once.
        judged_name = OURS if loader.role == "ours" else loader.name
        if loader.order == SHUFFLED and judged_name in quality.like_chance:
            series.loader = replace(loader, order=GLOBAL)
    return report


def _available_loaders(notes: list[str], *, quick: bool) -> Sequence[Loader]:
    """Return the loaders that can run here.

    Args:
        notes: Notes, to which reasons of the other loaders are added.
        quick: Whether to leave peers out.
    """
    loaders: list[Loader] = []
    for loader in LOADERS:
        reason = loader.missing()
        if reason is not None:
            notes.append(reason)
        elif quick and loader.role == "peer":
            notes.append(f"{loader.name} left out: quick")
        else:
            loaders.append(loader)
    return loaders


def _versions(loaders: Sequence[Loader]) -> str:
    """Return the packages of the peers with their versions."""
    modules: list[str] = []
    for loader in loaders:
        is_peer = loader.role != "ceiling" and "tokenlake" not in loader.module
        if is_peer and loader.module not in modules:
            modules.append(loader.module)
    return ", ".join(release(module) for module in modules) or "none but ours"
