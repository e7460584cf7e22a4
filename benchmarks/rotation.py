"""Measured runs of the systems in rotation, after a warm-up.

Systems run in the order A B C A B C rather than A A B B C C: a machine that becomes
slower or busier is so for all of them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import builds
from benchmarks.contenders import Job, System, command, content_tokens, ids_digest
from benchmarks.inputs import Input
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run of one system.

    Attributes:
        measured: Resources that the run used.
        tokens: Number of ids of the documents' own text in the output.
        digest: SHA-256 of all ids, for systems that write raw ids; None for others.
    """

    measured: Measurement
    tokens: int
    digest: str | None = None


@dataclass(slots=True, kw_only=True)
class Series:
    """All measurements of one system with one tokenizer.

    Attributes:
        system: System that is measured.
        vocabulary: Its tokenizer.
        source: Input of the measured runs.
        runs: Measured runs.
        small: Run on a small input, which is little more than start-up.
        small_megabytes: Text of the small input, in MB.
        tokens: Number of ids of the documents' own text; None before the first run.
        digests: Folder of an input -> SHA-256 of its ids, for systems that write raw
            ids.
        failure: Error that ended the measurements; None if there was none.
    """

    system: System
    vocabulary: Vocabulary
    source: Input
    runs: list[Measurement] = field(default_factory=list)
    small: Measurement | None = None
    small_megabytes: float = 0.0
    tokens: int | None = None
    digests: dict[str, str] = field(default_factory=dict)
    failure: str | None = None

    def add_digest(self, source: Input, outcome: Outcome) -> None:
        """Store the digest of the ids of an input, if the run has one."""
        if outcome.digest is not None:
            self.digests[source.folder] = outcome.digest

    def median(self, quantity: Callable[[Measurement], float]) -> float:
        """Return the median of a quantity over the runs."""
        return statistics.median(map(quantity, self.runs))

    @property
    def cpu(self) -> float:
        """Median CPU seconds."""
        return self.median(lambda run: run.cpu)

    @property
    def rate(self) -> float:
        """MB (10^6 bytes) of text per CPU second, start-up included."""
        return self.source.megabytes / self.cpu

    @property
    def marginal_rate(self) -> float | None:
        """MB of text per CPU second beyond start-up, which is the rate of more text.

        It is None if the runs do not differ enough from the small one.
        """
        # Start-up is the same on both inputs, and cancels in the differences.
        small = self.small
        if small is None or self.cpu <= small.cpu:
            return None
        if self.source.megabytes <= self.small_megabytes:
            return None
        added_megabytes = self.source.megabytes - self.small_megabytes
        return added_megabytes / (self.cpu - small.cpu)

    def cpu_on(self, megabytes: float) -> float | None:
        """Return the expected CPU seconds on an input of another size.

        They are on the line through the small run and the median. The result is None if
        there is no such line.
        """
        if self.small is None or self.marginal_rate is None:
            return None
        added_megabytes = megabytes - self.small_megabytes
        return self.small.cpu + added_megabytes / self.marginal_rate


class Bench:
    """Runner of the systems, one at a time.

    Args:
        work: Folder for all files of the benchmark.
        log: Function that reports progress; None: print to standard error.
    """

    def __init__(self, work: Path, log: Callable[[str], None] | None = None) -> None:
        self._work = work
        self._log = log or _print_progress

    def run(self, system: System, source: Input, vocabulary: Vocabulary) -> Outcome:
        """Run a system once, with a fresh output and a fresh hash cache.

        Raises:
            RuntimeError: The system failed.
        """
        # 1. Run, with an empty folder for the output.
        output = self._work / "scratch" / system.name
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        job = Job(source, vocabulary, output)
        log_path = self._work / "logs" / f"{system.name}.log"
        log_path.parent.mkdir(exist_ok=True)
        measurement = measure(
            command(system, job),
            report=output / "measured.json",
            log=log_path,
            env=builds.environment(self._work, output / "hash-cache"),
        )
        if measurement.exit_code != 0:
            raise RuntimeError(
                f"exit code {measurement.exit_code}: {_last_lines(log_path)} (whole output: {log_path})"
            )

        # 2. Count the tokens while the output exists.
        outcome = Outcome(
            measured=measurement,
            tokens=content_tokens(system, job),
            digest=ids_digest(system, job),
        )
        shutil.rmtree(output)
        return outcome

    def rotate(self, all_series: Sequence[Series], small: Input, repeats: int) -> None:
        """Measure all systems, and add the measurements to their series.

        1. Every system has a warm-up, whose measurement is dropped, and a run on the
           small input.
        2. The systems take `repeats` turns.

        A system that fails has no further runs. The others continue.

        Args:
            all_series: Series of each system.
            small: Small input.
            repeats: Number of measured runs of each system.
        """
        for series in all_series:
            self._record_failure(series, partial(self._prepare, series, small))
        for turn in range(1, repeats + 1):
            for series in all_series:
                run = partial(self._add_run, series, f"{turn}/{repeats}")
                self._record_failure(series, run)

    def _prepare(self, series: Series, small: Input) -> None:
        """Warm a system up, and run it on the small input."""
        # A run of a peer on the whole input takes minutes. The small input warms the
        # same caches.
        warm_up = series.source
        if series.system.peer:
            warm_up = small
        self.run(series.system, warm_up, series.vocabulary)
        outcome = self.run(series.system, small, series.vocabulary)
        series.add_digest(small, outcome)
        series.small = outcome.measured
        series.small_megabytes = small.megabytes
        self._log_run(series, "warm, small run", outcome.measured)

    def _add_run(self, series: Series, turn: str) -> None:
        """Run a system, and add the measurement to its series.

        Raises:
            RuntimeError: The system failed, or had another number of tokens before.
        """
        outcome = self.run(series.system, series.source, series.vocabulary)
        series.add_digest(series.source, outcome)
        # All runs must produce the same number of tokens.
        if series.tokens not in (None, outcome.tokens):
            raise RuntimeError(
                f"{outcome.tokens} tokens, but {series.tokens} in the run before; "
                "expected the same from the same input"
            )
        series.tokens = outcome.tokens
        series.runs.append(outcome.measured)
        self._log_run(series, turn, outcome.measured)

    def _record_failure(self, series: Series, action: Callable[[], None]) -> None:
        """Run an action, unless its system failed before. Record its error.

        The system keeps its line in the table, and the others continue.
        """
        if series.failure is not None:
            return
        try:
            action()
        except (RuntimeError, OSError, KeyError) as error:
            series.failure = f"{type(error).__name__}: {error}"
            self._log(
                f"{series.vocabulary.name} {series.system.name}: {series.failure}"
            )

    def _log_run(self, series: Series, name: str, run: Measurement) -> None:
        """Report a run, and the processes that had to be killed after it."""
        message = (
            f"{series.vocabulary.name} {series.system.name} {name}: "
            f"{run.cpu:.2f} CPU s, {run.wall:.2f} s"
        )
        if run.left_behind:
            message += f"; killed what it left behind: {run.left_behind}"
        self._log(message)


def expected_tokens(all_series: Iterable[Series]) -> Mapping[tuple[str, str], int]:
    """Return the number of tokens that most systems have.

    Returns:
        (tokenizer, folder of the input) -> number of ids of the documents' own text.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for series in all_series:
        if series.tokens is not None:
            key = (series.vocabulary.name, series.source.folder)
            counts.setdefault(key, []).append(series.tokens)
    return {key: statistics.mode(values) for key, values in counts.items()}


def _print_progress(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def _last_lines(log: Path) -> str:
    """Return the last three lines of a log, of at most 500 characters together."""
    log_lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(log_lines[-3:])[-500:]
