"""The part `tokenizers`: builds and bare loops with the tokenizers that people train
with.

For each tokenizer the same input is built and encoded by the systems of
:data:`MEASURED`. A bare loop reads, encodes and writes raw ids; it is the least that
any build must do. A loop counts as exact where its ids are those of `tokenizers` in the
installed version: on a small input, and, between the faster loops, on the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.contenders import SYSTEMS
from benchmarks.goals import Goal
from benchmarks.inputs import Input
from benchmarks.rotation import Bench, Series
from benchmarks.vocabularies import Vocabulary

BUILD: Final = "build-1"
BUILD_1: Final = "build-tokenizers1-1"
GIGATOKEN: Final = "bare-1"
REFERENCE: Final = "tokenizers-1"
TOKENIZERS_1: Final = "tokenizers1-1"
MEASURED: Final = (BUILD, BUILD_1, GIGATOKEN, TOKENIZERS_1, REFERENCE)

HEAD: Final = (
    *(
        "tokenizer",
        "build",
        "build, tokenizers 1.x",
        "bare gigatoken",
        "bare tokenizers 1.x",
    ),
    *(
        "bare tokenizers, installed",
        "build / fastest exact loop",
        "build / bare, tokenizers 1.x",
    ),
    *("build / Llama 3.1's", "ids of the loops"),
)
# CPU seconds of a build over those of the other system, at most.
ANY_LOOP: Final = {"gpt2": 1.5, "llama3_1": 1.5, "qwen3": 1.5}
LLAMA_3: Final = {"deepseek_v4": 1.5, "gemma3": 1.5, "gemini": 1.5, "tekken": 1.5}
LOOP_1: Final = {"llama2": 0.5, "gemma3": 0.5}
OTHER_LOOP_1: Final = 1.5


@dataclass(frozen=True, slots=True)
class ModelRow:
    """All measurements with one tokenizer.

    Attributes:
        vocabulary: The tokenizer.
        source: The whole input.
        small: The small input, which all systems encode.
        series: Measurements by name of the system; systems that cannot run here are
            missing.
    """

    vocabulary: Vocabulary
    source: Input
    small: Input
    series: dict[str, Series]

    def cpu(self, system: str) -> float | None:
        """CPU seconds on the whole input; a peer's are extrapolated from its part.
        None where it did not run.
        """
        one = self.series.get(system)
        if one is None or not one.runs:
            return None
        return (
            one.cpu if one.source == self.source else one.cpu_on(self.source.megabytes)
        )

    def is_exact(self, loop: str) -> bool:
        """Whether the ids of a bare loop were compared and are those of the
        installed `tokenizers`.
        """
        if loop == REFERENCE:
            return self.cpu(REFERENCE) is not None
        return self._compared(loop, REFERENCE, self.small) is True and (
            self._compared(loop, TOKENIZERS_1, self.source) is not False
        )

    def ids(self) -> str:
        """What the hashes of ids say, for people."""
        words: list[str] = []
        for loop, name in ((GIGATOKEN, "gigatoken"), (TOKENIZERS_1, "tokenizers 1.x")):
            if self.cpu(loop) is None:
                continue
            compared = self._compared(loop, REFERENCE, self.small)
            if compared is None:
                words.append(f"{name} not compared")
            elif not self.is_exact(loop):
                words.append(f"{name} DIFFERENT")
        return ", ".join(words) or "equal"

    def fastest_exact_loop(self) -> float | None:
        """CPU seconds of the fastest exact bare loop."""
        times = [
            cpu
            for loop in (GIGATOKEN, TOKENIZERS_1, REFERENCE)
            if self.is_exact(loop) and (cpu := self.cpu(loop)) is not None
        ]
        return min(times, default=None)

    def _compared(self, one: str, other: str, source: Input) -> bool | None:
        first, second = self.series.get(one), self.series.get(other)
        if first is None or second is None:
            return None
        digests = first.digests.get(source.folder), second.digests.get(source.folder)
        return None if None in digests else digests[0] == digests[1]


@dataclass(slots=True)
class ModelTable:
    """The whole table.

    Attributes:
        rows: One for each tokenizer.
        notes: Systems that were left out, with the reason.
    """

    rows: list[ModelRow]
    notes: list[str]

    def cells(self) -> list[list[str]]:
        """The cells below :data:`HEAD`."""
        llama_3 = self._llama_3()
        cells: list[list[str]] = []
        for row in self.rows:
            cpu = [_seconds(row, system) for system in MEASURED]
            ratios = [
                _ratio(row.cpu(BUILD), row.fastest_exact_loop()),
                _ratio(row.cpu(BUILD_1), row.cpu(TOKENIZERS_1)),
                _ratio(row.cpu(BUILD), llama_3),
            ]
            cells.append(
                [
                    row.vocabulary.name,
                    *cpu,
                    *(_times(ratio) for ratio in ratios),
                    row.ids(),
                ]
            )
        return cells

    def goals(self) -> Iterator[Goal]:
        """Yield the goals that can be judged."""
        for row in self.rows:
            name, build = row.vocabulary.name, row.cpu(BUILD)
            figures = (
                (
                    "build / fastest exact bare loop",
                    build,
                    row.fastest_exact_loop(),
                    ANY_LOOP.get(name),
                ),
                (
                    "build / build with Llama 3.1's tokenizer",
                    build,
                    self._llama_3(),
                    LLAMA_3.get(name),
                ),
                (
                    "build / bare loop, both with tokenizers 1.x",
                    row.cpu(BUILD_1),
                    row.cpu(TOKENIZERS_1),
                    LOOP_1.get(name, OTHER_LOOP_1),
                ),
            )
            for what, ours, theirs, limit in figures:
                ratio = _ratio(ours, theirs)
                if ratio is not None and limit is not None:
                    yield Goal(f"{name}: CPU s, {what}", ratio, "at most", limit, "x")

    def _llama_3(self) -> float | None:
        for row in self.rows:
            if row.vocabulary.name == "llama3_1":
                return row.cpu(BUILD)
        return None


def measure_models(
    bench: Bench,
    vocabularies: Sequence[Vocabulary],
    inputs: Callable[[float], Input],
    sizes: tuple[float, float, float],
    repeats: int,
) -> ModelTable:
    """Run all systems with all tokenizers.

    Args:
        bench: Runs the jobs.
        vocabularies: The tokenizers.
        inputs: Makes an input of so many MB of text.
        sizes: MB of text of the whole input, of the slow peers' part, and of the small
            input.
        repeats: Measured runs of each system.
    """
    source, part, small = (inputs(size) for size in sizes)
    systems = [system for system in SYSTEMS if system.name in MEASURED]
    table = ModelTable(rows=[], notes=[])
    for system in systems:
        reason = system.missing()
        if reason is not None:
            table.notes.append(f"{system.name} left out: {reason}")
    available = [system for system in systems if system.missing() is None]
    for vocabulary in vocabularies:
        series = [
            Series(
                system=system,
                vocabulary=vocabulary,
                source=part if system.peer else source,
            )
            for system in available
        ]
        bench.rotate(series, small, repeats)
        table.notes.extend(
            f"{vocabulary.name}, {one.system.name} failed: {one.failure}"
            for one in series
            if one.failure
        )
        table.rows.append(
            ModelRow(
                vocabulary, source, small, {one.system.name: one for one in series}
            )
        )
    return table


def _seconds(row: ModelRow, system: str) -> str:
    one = row.series.get(system)
    cpu = row.cpu(system)
    if one is None:
        return ""
    if cpu is None:
        return "failed, see the notes" if one.failure else "too short to extrapolate"
    about = "" if one.source == row.source else "about "
    return f"{about}{cpu:.1f} ({one.rate:.1f} MB/s)"


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
