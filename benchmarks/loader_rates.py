"""Batches of 256 x 2048 on the host: CPU seconds of whole processes, loaders in
rotation, every row accounted for.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.loader_contenders import (
    EVERYTHING,
    GRAIN,
    LITDATA,
    MAPPED,
    MIXTURE_EVERYTHING,
    OURS,
    SEGMENTS,
    STORED,
    UNSHUFFLED,
    Loader,
    command,
    interpreter,
)
from benchmarks.loader_input import LoaderInput, convert
from benchmarks.measure import Measurement, measure

RATES: Final = {OURS: 200.0, SEGMENTS: 150.0}  # Mtok per CPU second, at least
PEERS: Final = {
    GRAIN: 7.0,
    UNSHUFFLED: 5.0,
    LITDATA: 1.8,
    STORED: 1.3,
    MAPPED: 0.5,
}  # times a peer's, at least
DERIVED: Final = 0.92
"""Of the rate of ids alone, at least, with two columns that follow from segments."""
DRAWN: Final = "by weights"
PEAK_BYTES: Final = 10**9  # of a process that delivers a whole epoch, at most
HEAD: Final = (
    *(
        "loader",
        "order",
        "Mtok",
        "CPU s (min-max)",
        "wall s",
        "peak MB",
        "Mtok per CPU s",
        "beyond start-up",
    ),
    "rows",
)


@dataclass(slots=True, kw_only=True)
class LoaderSeries:
    """All measurements of one loader; `failure` says why there are no more.

    `mtok` is what each run delivers, `small` a run on `small_mtok`, which is little
    more than start-up.
    """

    loader: Loader
    mtok: float = 0.0
    runs: list[Measurement] = field(default_factory=list)
    small: Measurement | None = None
    small_mtok: float = 0.0
    rows: str = ""
    failure: str | None = None

    @property
    def cpu(self) -> float:
        """Median CPU seconds of the whole process tree."""
        return statistics.median(run.cpu for run in self.runs)

    @property
    def rate(self) -> float:
        """Mtok per CPU second, nothing subtracted."""
        return self.mtok / self.cpu

    @property
    def marginal(self) -> float | None:
        """The same beyond start-up: what more tokens would cost."""
        if self.small is None or self.cpu <= self.small.cpu:
            return None
        return (self.mtok - self.small_mtok) / (self.cpu - self.small.cpu)

    @property
    def peak_bytes(self) -> int:
        """Largest resident set of any process of any run."""
        return max(run.peak_bytes for run in self.runs)

    def cells(self) -> list[str]:
        """Its line of the table, under :data:`HEAD`."""
        first = [self.loader.name, self.loader.order]
        if not self.runs:
            return [
                *first,
                f"failed: {self.failure}".replace("|", "/"),
                *[""] * (len(HEAD) - 3),
            ]
        times = [run.cpu for run in self.runs]
        return [
            *first,
            f"{self.mtok:.0f}",
            f"{self.cpu:.2f} ({min(times):.2f}-{max(times):.2f})",
            f"{statistics.median(run.wall for run in self.runs):.2f}",
            f"{self.peak_bytes / 1e6:.0f}",
            f"{self.rate:.1f}",
            "" if self.marginal is None else f"{self.marginal:.1f}",
            self.rows + (f"; then failed: {self.failure}" if self.failure else ""),
        ]


def measure_rates(
    work: Path,
    loaders: Sequence[Loader],
    full: LoaderInput,
    small: LoaderInput,
    passes: int,
    repeats: int,
) -> list[LoaderSeries]:
    """A discarded warm-up on the small input and a small run of each, then `repeats`
    turns over all of them.
    """
    series = [LoaderSeries(loader=loader) for loader in loaders]
    for one in series:
        _guarded(one, lambda one=one: _prepare(work, one, full, small))
    for turn in range(repeats):
        for one in series:
            many = max(1, round(passes * one.loader.share))
            _guarded(
                one,
                lambda one=one, many=many, turn=turn: _turn(
                    work, one, full, many, turn, repeats
                ),
            )
    return series


def _prepare(
    work: Path, one: LoaderSeries, full: LoaderInput, small: LoaderInput
) -> None:
    convert(full, one.loader.form, interpreter(one.loader.module))
    once(work, one.loader, small, 1)
    one.small, _ = once(work, one.loader, small, 1)
    one.small_mtok = small.mtok
    print(
        f"{one.loader.name}: small run {one.small.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def _turn(
    work: Path,
    one: LoaderSeries,
    full: LoaderInput,
    passes: int,
    turn: int,
    repeats: int,
) -> None:
    run, one.rows = once(work, one.loader, full, passes)
    one.mtok = full.mtok * passes
    one.runs.append(run)
    print(
        f"{one.loader.name} {turn + 1}/{repeats}: {run.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def once(
    work: Path, loader: Loader, given: LoaderInput, passes: int, *more: str
) -> tuple[Measurement, str]:
    """One run in a fresh process; returns what it took and what is to be said of its
    rows.
    """
    data = convert(given, loader.form, interpreter(loader.module))
    if loader.form == "" and loader.role == "ceiling":
        data = given.version / "data"
    _warm(data)
    name = "-".join(filter(None, (loader.program, loader.variant)))
    log = work / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    env = builds.environment(work, work / "scratch" / "hash-cache")
    run = measure(
        [*command(loader, data, passes), *more],
        report=log.with_suffix(".json"),
        log=log,
        env=env,
    )
    lines = log.read_text(errors="replace").strip().splitlines()
    if run.exit_code:
        raise RuntimeError(
            f"exit code {run.exit_code}: {' / '.join(lines[-2:])[-300:]} (whole output: {log})"
        )
    found = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    rows = judged(found, given, passes, drawn="mixture" in loader.variant)
    if loader.role == "ours" and rows not in ("all", DRAWN):
        raise RuntimeError(f"delivered {rows}")
    return run, rows


def _warm(folder: Path) -> None:
    """Have the page cache hold what is about to be read: other loaders' forms may
    have pushed it out.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def judged(
    found: Mapping[str, int], given: LoaderInput, passes: int, *, drawn: bool
) -> str:
    """What was delivered, beside what there is: the same rows, each once an epoch, have
    the same count and sum.

    `drawn`: as many rows as there are, by weights; some come twice.
    """
    expected, got = given.rows * passes, found["rows"]
    if got != expected:
        return f"{got:,} of {expected:,}"
    if drawn:
        return DRAWN
    return (
        "all"
        if found["sum"] == given.sum * passes % 2**64
        else f"{got:,}, but OTHERS than there are"
    )


def _guarded(one: LoaderSeries, action: Callable[[], None]) -> None:
    """A system that fails keeps its line in the table and costs the others nothing."""
    if one.failure is None:
        try:
            action()
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            one.failure = f"{type(error).__name__}: {error}"
            print(f"{one.loader.name}: {one.failure}", file=sys.stderr, flush=True)


def rate_goals(series: Sequence[LoaderSeries]) -> list[Goal]:
    """What can be judged of the systems that ran: rates, ratios in this same run,
    memory.
    """
    ran = {one.loader.name: one for one in series if one.runs}
    goals = [
        goal
        for name, limit in RATES.items()
        if name in ran
        for goal in _rate(ran[name], limit)
    ]
    if OURS in ran:
        goals += [
            goal
            for name, times in PEERS.items()
            if name in ran
            for goal in _ratio(ran[OURS], ran[name], times)
        ]
    if OURS in ran and SEGMENTS in ran:
        goals += _ratio(ran[SEGMENTS], ran[OURS], DERIVED)
    for name in (EVERYTHING, MIXTURE_EVERYTHING):
        if name in ran:
            what = f"{name}: peak memory of a process over whole epochs"
            goals.append(
                Goal(
                    what, ran[name].peak_bytes / 1e6, "at most", PEAK_BYTES / 1e6, " MB"
                )
            )
    return goals


def _rate(one: LoaderSeries, limit: float) -> list[Goal]:
    goals = [
        Goal(
            f"{one.loader.name}: of the whole process",
            one.rate,
            "at least",
            limit,
            " Mtok per CPU s",
        )
    ]
    if one.marginal is not None:
        what = f"{one.loader.name}: beyond start-up"
        goals.append(Goal(what, one.marginal, "at least", limit, " Mtok per CPU s"))
    return goals


def _ratio(ours: LoaderSeries, peer: LoaderSeries, times: float) -> list[Goal]:
    what = f"{ours.loader.name} / {peer.loader.name}"
    goals = [
        Goal(f"{what}: whole processes", ours.rate / peer.rate, "at least", times, "x")
    ]
    if ours.marginal is not None and peer.marginal is not None:
        goals.append(
            Goal(
                f"{what}: beyond start-up",
                ours.marginal / peer.marginal,
                "at least",
                times,
                "x",
            )
        )
    return goals
