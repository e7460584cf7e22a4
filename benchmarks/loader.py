"""The part `loader`: what batches cost, how long a trainer waits, what hosts share,
how well rows are mixed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

# MB of text: the input that shows start-up cost, the one of `--quick`
SMALL, QUICK = 4.0, 16.0
PASSES: Final = 3  # epochs of a measured run


@dataclass(slots=True, kw_only=True)
class LoaderReport:
    """Everything that was found."""

    series: list[LoaderSeries] = field(default_factory=list)
    quality: list[list[str]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(
        self, what: str, measure: Callable[[], tuple[list[Goal], list[str]]]
    ) -> None:
        """Have one more question answered; where that fails, the others keep their
        answers.
        """
        print(f"loader, {what} ...", file=sys.stderr, flush=True)
        try:
            goals, notes = measure()
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            self.failures.append(f"loader, {what}: {type(error).__name__}: {error}")
            print(self.failures[-1], file=sys.stderr, flush=True)
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
    """Measure all that can run here; what cannot is named with its install line.

    Args:
        megabytes: text of the input.
        quick: a small input, one epoch, and no peers.
    """
    report = LoaderReport()
    small = make_input(work, maker.make(SMALL), vocabulary)
    full = make_input(work, maker.make(QUICK if quick else megabytes), vocabulary)
    report.notes.append(
        f"Loaders read {full.describe()}; batches of 256 x 2048 int32, every token summed up"
    )
    loaders = _present(report.notes, quick=quick)
    modules = dict.fromkeys(
        one.module
        for one in loaders
        if one.role != "ceiling" and "tokenlake" not in one.module
    )
    report.notes.append(
        f"Loaders' versions: {', '.join(map(release, modules)) or 'none but ours'}"
    )
    report.series = measure_rates(
        work, loaders, full, small, 1 if quick else PASSES, repeats
    )
    report.goals = rate_goals(report.series)
    report.failures = [
        f"{one.loader.name}: {one.failure}" for one in report.series if one.failure
    ]
    turns = 1 if quick else max(repeats, 5)
    report.add("moments", lambda: measure_moments(work, maker, vocabulary, full, turns))
    report.add("hosts", lambda: measure_hosts(work, full))
    report.add("64 sources", lambda: measure_many_sources(small, turns))
    report.add("mixtures' order", measure_mixture_quality)
    report.add("a bucket", lambda: measure_remote(work, full, turns))
    report.add("ranks", lambda: measure_balance(full))
    source, epochs = maker.make(QUICK if quick else megabytes), 1 if quick else PASSES
    report.add(
        "documents",
        lambda: measure_ragged(work, source, vocabulary, full, epochs, turns),
    )
    ran = [one.loader for one in report.series if one.runs]
    quality = measure_quality(work, ran, full)
    report.quality = quality.lines
    report.notes += quality.notes
    for one in report.series:
        # Our datasets have one order, whatever their columns are.
        judged = OURS if one.loader.role == "ours" else one.loader.name
        if one.loader.order == SHUFFLED and judged in quality.like_chance:
            one.loader = replace(one.loader, order=GLOBAL)
    return report


def _present(notes: list[str], *, quick: bool) -> Sequence[Loader]:
    found: list[Loader] = []
    for loader in LOADERS:
        reason = loader.missing()
        if reason is not None:
            notes.append(reason)
        elif quick and loader.role == "peer":
            notes.append(f"{loader.name} left out: quick")
        else:
            found.append(loader)
    return found
