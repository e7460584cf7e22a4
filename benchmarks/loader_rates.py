"""Rates of loaders: CPU seconds of whole processes for batches of 256 x 2048 on the
host.

Loaders run in rotation. The count and the sum of the delivered rows are checked after
every run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from benchmarks.measure import Measurement, measure, printed_figures

LEAST_RATES: Final = {OURS: 200.0, SEGMENTS: 150.0}
"""Loader -> least rate in Mtok per CPU second."""

LEAST_SPEEDUPS: Final = {
    GRAIN: 7.0,
    UNSHUFFLED: 5.0,
    LITDATA: 1.8,
    STORED: 1.3,
    MAPPED: 0.5,
}
"""Peer -> least ratio of Tokenlake's rate to the peer's."""

LEAST_SEGMENTS_SHARE: Final = 0.92
"""Least rate with two columns that follow from segments, over that of ids alone."""

MOST_PEAK_BYTES: Final = 10**9
"""Most memory of a process that delivers a whole epoch."""

ALL_ROWS: Final = "all"
"""Description of delivered rows that are all of the dataset, once in every epoch."""

BY_WEIGHTS: Final = "by weights"
"""Description of the delivered rows of a mixture."""

HEAD: Final = (
    "loader",
    "order",
    "Mtok",
    "CPU s (min-max)",
    "wall s",
    "peak MB",
    "Mtok per CPU s",
    "beyond start-up",
    "rows",
)

_READ_BYTES: Final = 1 << 24  # bytes that are read at once to fill the page cache


@dataclass(slots=True, kw_only=True)
class LoaderSeries:
    """All measurements of one loader.

    Attributes:
        loader: Loader that is measured.
        mtok: Number of ids that each run delivers, in 10^6.
        runs: Measured runs.
        small: Run on a small input, which is little more than start-up.
        small_mtok: Number of ids that the small run delivers, in 10^6.
        rows: Description of the delivered rows.
        failure: Error that ended the measurements; None if there was none.
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
        """Mtok per CPU second, start-up included."""
        return self.mtok / self.cpu

    @property
    def marginal(self) -> float | None:
        """Mtok per CPU second beyond start-up, which is the rate of more tokens."""
        # Start-up is the same on both inputs, and cancels in the differences.
        if self.small is None or self.cpu <= self.small.cpu:
            return None
        return (self.mtok - self.small_mtok) / (self.cpu - self.small.cpu)

    @property
    def peak_bytes(self) -> int:
        """Largest resident set of any process of any run."""
        return max(run.peak_bytes for run in self.runs)

    def cells(self) -> list[str]:
        """Return its line of the table, under :data:`HEAD`."""
        cells = [self.loader.name, self.loader.order]
        if not self.runs:
            # A bar would end the cell.
            failure = f"failed: {self.failure}".replace("|", "/")
            empty_cells = [""] * (len(HEAD) - len(cells) - 1)
            return [*cells, failure, *empty_cells]

        # Medians, and the range of the CPU seconds.
        cpu_times = [run.cpu for run in self.runs]
        wall = statistics.median(run.wall for run in self.runs)
        marginal = "" if self.marginal is None else f"{self.marginal:.1f}"
        rows = self.rows
        if self.failure:
            rows += f"; then failed: {self.failure}"
        return [
            *cells,
            f"{self.mtok:.0f}",
            f"{self.cpu:.2f} ({min(cpu_times):.2f}-{max(cpu_times):.2f})",
            f"{wall:.2f}",
            f"{self.peak_bytes / 1e6:.0f}",
            f"{self.rate:.1f}",
            marginal,
            rows,
        ]


def measure_rates(
    work: Path,
    loaders: Sequence[Loader],
    full: LoaderInput,
    small: LoaderInput,
    passes: int,
    repeats: int,
) -> list[LoaderSeries]:
    """Measure all loaders.

    1. Every loader has a warm-up on the small input, whose measurement is dropped, and
       a run on the small input.
    2. The loaders take `repeats` turns on the full input.

    A loader that fails has no further runs. The others continue.

    Args:
        work: Folder for all files of the benchmark.
        loaders: Loaders to measure.
        full: Input of the measured runs.
        small: Small input.
        passes: Number of epochs of a run.
        repeats: Number of measured runs of each loader.
    """
    all_series = [LoaderSeries(loader=loader) for loader in loaders]
    for series in all_series:
        _record_failure(series, partial(_prepare, work, series, full, small))
    for turn in range(1, repeats + 1):
        for series in all_series:
            # Slow loaders have fewer epochs, but at least one.
            epochs = max(1, round(passes * series.loader.share))
            run = partial(_add_run, work, series, full, epochs, f"{turn}/{repeats}")
            _record_failure(series, run)
    return all_series


def _prepare(
    work: Path, series: LoaderSeries, full: LoaderInput, small: LoaderInput
) -> None:
    """Convert the rows, warm the loader up, and run it on the small input."""
    loader = series.loader
    convert(full, loader.form, interpreter(loader.module))
    run_loader(work, loader, small, 1)
    series.small, _ = run_loader(work, loader, small, 1)
    series.small_mtok = small.mtok
    print(
        f"{loader.name}: small run {series.small.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def _add_run(
    work: Path, series: LoaderSeries, full: LoaderInput, passes: int, turn: str
) -> None:
    """Run a loader, and add the measurement to its series."""
    measurement, series.rows = run_loader(work, series.loader, full, passes)
    series.mtok = full.mtok * passes
    series.runs.append(measurement)
    print(
        f"{series.loader.name} {turn}: {measurement.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def _record_failure(series: LoaderSeries, action: Callable[[], None]) -> None:
    """Run an action, unless its loader failed before. Record its error.

    The loader keeps its line in the table, and the others continue.
    """
    if series.failure is not None:
        return
    try:
        action()
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        series.failure = f"{type(error).__name__}: {error}"
        print(f"{series.loader.name}: {series.failure}", file=sys.stderr, flush=True)


def run_loader(
    work: Path,
    loader: Loader,
    loader_input: LoaderInput,
    passes: int,
    *options: str,
) -> tuple[Measurement, str]:
    """Run a loader in a fresh process.

    Args:
        work: Folder for all files of the benchmark.
        loader: Loader to run.
        loader_input: Rows to deliver.
        passes: Number of epochs.
        options: Further options of its command line.

    Returns:
        Measurement of the process, and a description of the delivered rows.

    Raises:
        RuntimeError: The loader failed, or Tokenlake's delivered other rows.
    """
    # 1. Prepare the rows in the loader's form, and the page cache.
    data_folder = convert(loader_input, loader.form, interpreter(loader.module))
    # Ceilings read the shards themselves.
    if loader.form == "" and loader.role == "ceiling":
        data_folder = loader_input.version / "data"
    _fill_page_cache(data_folder)

    # 2. Run.
    log_name = loader.program
    if loader.variant:
        log_name += f"-{loader.variant}"
    log_path = work / "logs" / f"{log_name}.log"
    log_path.parent.mkdir(exist_ok=True)
    measurement = measure(
        [*command(loader, data_folder, passes), *options],
        report=log_path.with_suffix(".json"),
        log=log_path,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
    )

    # 3. Check the rows.
    figures = printed_figures(measurement, log_path)
    is_mixture = "mixture" in loader.variant
    rows = describe_rows(figures, loader_input, passes, is_mixture=is_mixture)
    if loader.role == "ours" and rows not in (ALL_ROWS, BY_WEIGHTS):
        raise RuntimeError(f"delivered {rows}")
    return measurement, rows


def _fill_page_cache(folder: Path) -> None:
    """Read all files of a folder, so that they are in the page cache.

    Forms of other loaders may have pushed them out.
    """
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def describe_rows(
    figures: Mapping[str, int],
    loader_input: LoaderInput,
    passes: int,
    *,
    is_mixture: bool,
) -> str:
    """Describe the rows that a loader delivered.

    Rows that come once in every epoch have the count and the sum of the stored rows. A
    mixture has as many rows, but draws them by weights, so that some come twice.

    Args:
        figures: Figures that the loader's sink printed.
        loader_input: Stored rows.
        passes: Number of epochs.
        is_mixture: Whether the rows are those of a mixture.
    """
    expected_rows = loader_input.rows * passes
    rows = figures["rows"]
    if rows != expected_rows:
        return f"{rows:,} of {expected_rows:,}"
    if is_mixture:
        return BY_WEIGHTS
    # A row that is lost, repeated or changed changes the sum.
    expected_sum = loader_input.sum * passes % 2**64
    if figures["sum"] != expected_sum:
        return f"{rows:,}, but OTHERS than there are"
    return ALL_ROWS


def rate_goals(all_series: Sequence[LoaderSeries]) -> list[Goal]:
    """Return the goals of all loaders that ran: rates, ratios and memory."""
    measured = {series.loader.name: series for series in all_series if series.runs}
    goals: list[Goal] = []
    # 1. Rates of Tokenlake's loader.
    for loader_name, limit in LEAST_RATES.items():
        if loader_name in measured:
            goals.extend(_goals_of_rate(measured[loader_name], limit))
    # 2. Its rates over those of peers, and with more columns over ids alone.
    if OURS in measured:
        for loader_name, limit in LEAST_SPEEDUPS.items():
            if loader_name in measured:
                goals.extend(
                    _goals_of_ratio(measured[OURS], measured[loader_name], limit)
                )
    if OURS in measured and SEGMENTS in measured:
        goals.extend(
            _goals_of_ratio(measured[SEGMENTS], measured[OURS], LEAST_SEGMENTS_SHARE)
        )
    # 3. Its memory.
    for loader_name in (EVERYTHING, MIXTURE_EVERYTHING):
        if loader_name in measured:
            goals.append(
                Goal(
                    f"{loader_name}: peak memory of a process over whole epochs",
                    measured[loader_name].peak_bytes / 1e6,
                    "at most",
                    MOST_PEAK_BYTES / 1e6,
                    " MB",
                )
            )
    return goals


def _goals_of_rate(series: LoaderSeries, limit: float) -> Iterator[Goal]:
    """Yield goals for the rate of a loader, with and without start-up.

    Args:
        series: Measurements of the loader.
        limit: Least Mtok per CPU second.
    """
    unit = " Mtok per CPU s"
    loader_name = series.loader.name
    yield Goal(
        f"{loader_name}: of the whole process", series.rate, "at least", limit, unit
    )
    if series.marginal is not None:
        yield Goal(
            f"{loader_name}: beyond start-up", series.marginal, "at least", limit, unit
        )


def _goals_of_ratio(
    series: LoaderSeries, peer: LoaderSeries, limit: float
) -> Iterator[Goal]:
    """Yield goals for the ratio of two rates, with and without start-up.

    Args:
        series: Measurements of Tokenlake's loader.
        peer: Measurements of the other loader.
        limit: Least ratio.
    """
    names = f"{series.loader.name} / {peer.loader.name}"
    ratio = series.rate / peer.rate
    yield Goal(f"{names}: whole processes", ratio, "at least", limit, "x")
    if series.marginal is not None and peer.marginal is not None:
        ratio = series.marginal / peer.marginal
        yield Goal(f"{names}: beyond start-up", ratio, "at least", limit, "x")
