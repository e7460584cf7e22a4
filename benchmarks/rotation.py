"""Runs the systems in rotation, a warm-up first, and keeps every measurement.

A B C A B C rather than A A B B: a machine that gets slower or busier does so for all of
them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import builds
from benchmarks.contenders import Job, System, command, content_tokens, ids_digest
from benchmarks.inputs import Input
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one system.

    Attributes:
        measured: What it cost.
        tokens: Ids of the documents' own text in its output.
        digest: The sha256 of all ids, of systems that write raw ids.
    """

    measured: Measurement
    tokens: int
    digest: str | None = None


@dataclass(slots=True, kw_only=True)
class Series:
    """All measurements of one system with one vocabulary; `failure` says why there are
    none.

    `small` is a run on `small_megabytes` of text, which is little more than start-up.
    `digests` has the sha256 of the ids of each input, by its folder, for systems that
    write raw ids.
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

    def keep_digest(self, source: Input, outcome: Outcome) -> None:
        """Keep the hash of the ids of an input."""
        if outcome.digest is not None:
            self.digests[source.folder] = outcome.digest

    def median(self, value: Callable[[Measurement], float]) -> float:
        """Median of a quantity over the runs."""
        return statistics.median(map(value, self.runs))

    @property
    def cpu(self) -> float:
        """Median CPU seconds."""
        return self.median(lambda run: run.cpu)

    @property
    def rate(self) -> float:
        """MB (10^6 bytes of text) per CPU second, nothing subtracted."""
        return self.source.megabytes / self.cpu

    @property
    def marginal_rate(self) -> float | None:
        """The same beyond start-up: what more text would cost."""
        if (
            self.small is None
            or self.cpu <= self.small.cpu
            or self.source.megabytes <= self.small_megabytes
        ):
            return None
        return (self.source.megabytes - self.small_megabytes) / (
            self.cpu - self.small.cpu
        )

    def cpu_on(self, megabytes: float) -> float | None:
        """CPU seconds expected on an input of this size, on the line through the
        small run and the median.
        """
        if self.small is None or self.marginal_rate is None:
            return None
        return self.small.cpu + (megabytes - self.small_megabytes) / self.marginal_rate


class Bench:
    """Runs jobs in a scratch folder under `work`, one at a time."""

    def __init__(self, work: Path, say: Callable[[str], None] | None = None) -> None:
        self._work = work
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))

    def once(self, system: System, source: Input, vocabulary: Vocabulary) -> Outcome:
        """Make one cold run: a fresh output and hash cache."""
        output = self._work / "scratch" / system.name
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        job = Job(source, vocabulary, output)
        log = self._work / "logs" / f"{system.name}.log"
        log.parent.mkdir(exist_ok=True)
        env = builds.environment(self._work, output / "hash-cache")
        measured = measure(
            command(system, job), report=output / "measured.json", log=log, env=env
        )
        if measured.exit_code != 0:
            raise RuntimeError(
                f"exit code {measured.exit_code}: {_tail(log)} (whole output: {log})"
            )
        tokens = content_tokens(system, job)
        digest = ids_digest(system, job)
        shutil.rmtree(output)
        return Outcome(measured=measured, tokens=tokens, digest=digest)

    def rotate(self, series: Sequence[Series], small: Input, repeats: int) -> None:
        """Fills `series`: a discarded warm-up, a small run, then `repeats` turns
        over all of them.
        """
        for one in series:
            self._guarded(one, lambda one=one: self._prepare(one, small))
        for turn in range(repeats):
            for one in series:
                self._guarded(
                    one,
                    lambda one=one, turn=turn: self._turn(one, f"{turn + 1}/{repeats}"),
                )

    def _prepare(self, one: Series, small: Input) -> None:
        # Peers warm up on the small input: a whole run takes them minutes, and it is
        # caches that warm.
        self.once(one.system, small if one.system.peer else one.source, one.vocabulary)
        outcome = self.once(one.system, small, one.vocabulary)
        one.keep_digest(small, outcome)
        one.small = outcome.measured
        one.small_megabytes = small.megabytes
        self._tell(one, "warm, small run", one.small)

    def _turn(self, one: Series, name: str) -> None:
        outcome = self.once(one.system, one.source, one.vocabulary)
        one.keep_digest(one.source, outcome)
        if one.tokens not in (None, outcome.tokens):
            raise RuntimeError(
                f"{outcome.tokens} tokens, but {one.tokens} in the run before; expected the same from the same input"
            )
        one.tokens = outcome.tokens
        one.runs.append(outcome.measured)
        self._tell(one, name, outcome.measured)

    def _guarded(self, one: Series, action: Callable[[], None]) -> None:
        """A system that fails keeps its line in the table and costs the others
        nothing.
        """
        if one.failure is None:
            try:
                action()
            except (RuntimeError, OSError, KeyError) as error:
                one.failure = f"{type(error).__name__}: {error}"
                self._say(f"{one.vocabulary.name} {one.system.name}: {one.failure}")

    def _tell(self, one: Series, name: str, run: Measurement) -> None:
        left = (
            f"; killed what it left behind: {run.left_behind}"
            if run.left_behind
            else ""
        )
        self._say(
            f"{one.vocabulary.name} {one.system.name} {name}: {run.cpu:.2f} CPU s, {run.wall:.2f} s{left}"
        )


def expected_tokens(series: Iterable[Series]) -> Mapping[tuple[str, str], int]:
    """Content tokens most systems found, by (vocabulary, input folder)."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in series:
        if one.tokens is not None:
            found.setdefault((one.vocabulary.name, one.source.folder), []).append(
                one.tokens
            )
    return {key: statistics.mode(counts) for key, counts in found.items()}


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:])[-500:]
