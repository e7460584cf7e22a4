"""The part `tokenizers`: builds and bare loops with the tokenizers of published models.

For each tokenizer, the systems of :data:`MEASURED` build or encode the same input. A
bare loop reads, encodes and writes raw ids, which is the least that any build must do.
A loop is exact if its ids are those of `tokenizers` in the installed version. All loops
are compared on a small input, and the faster ones also with each other on the whole
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.contenders import SYSTEMS, System
from benchmarks.goals import Goal
from benchmarks.inputs import Input
from benchmarks.rotation import Bench, Series
from benchmarks.vocabularies import Vocabulary

# Names of the systems.
BUILD: Final = "build-1"
BUILD_1: Final = "build-tokenizers1-1"
GIGATOKEN: Final = "bare-1"
REFERENCE: Final = "tokenizers-1"
TOKENIZERS_1: Final = "tokenizers1-1"
MEASURED: Final = (BUILD, BUILD_1, GIGATOKEN, TOKENIZERS_1, REFERENCE)

HEAD: Final = (
    "tokenizer",
    "build",
    "build, tokenizers 1.x",
    "bare gigatoken",
    "bare tokenizers 1.x",
    "bare tokenizers, installed",
    "build / fastest exact loop",
    "build / bare, tokenizers 1.x",
    "build / Llama 3.1's",
    "ids of the loops",
)

# Tokenizer -> most CPU seconds of a build, over those of the other system.
MOST_OVER_LOOP: Final = {"gpt2": 1.5, "llama3_1": 1.5, "qwen3": 1.5}
MOST_OVER_LLAMA_3: Final = {
    "deepseek_v4": 1.5,
    "gemma3": 1.5,
    "gemini": 1.5,
    "tekken": 1.5,
}
MOST_OVER_LOOP_1: Final = {"llama2": 0.5, "gemma3": 0.5}
MOST_OVER_LOOP_1_OTHERWISE: Final = 1.5


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
        """Return CPU seconds on the whole input; None if the system did not run.

        Those of a peer, which encodes a part of the input, are extrapolated.
        """
        series = self.series.get(system)
        if series is None or not series.runs:
            return None
        if series.source == self.source:
            return series.cpu
        return series.cpu_on(self.source.megabytes)

    def is_exact(self, loop: str) -> bool:
        """Return whether the ids of a bare loop are known to be right.

        They must have been compared with those of the installed `tokenizers`.
        """
        if loop == REFERENCE:
            return self.cpu(REFERENCE) is not None
        # The reference encodes the small input alone. On the whole input, the faster
        # loops must agree if both ran.
        if self._has_equal_ids(loop, REFERENCE, self.small) is not True:
            return False
        return self._has_equal_ids(loop, TOKENIZERS_1, self.source) is not False

    def ids(self) -> str:
        """Return a description of the comparison of ids, for the table."""
        differences: list[str] = []
        for loop, loop_name in (
            (GIGATOKEN, "gigatoken"),
            (TOKENIZERS_1, "tokenizers 1.x"),
        ):
            if self.cpu(loop) is None:
                continue
            # A loop that agrees on the small input may differ on the whole one.
            if self._has_equal_ids(loop, REFERENCE, self.small) is None:
                differences.append(f"{loop_name} not compared")
            elif not self.is_exact(loop):
                differences.append(f"{loop_name} DIFFERENT")
        return ", ".join(differences) or "equal"

    def fastest_exact_loop(self) -> float | None:
        """Return CPU seconds of the fastest exact bare loop; None without any."""
        times: list[float] = []
        for loop in (GIGATOKEN, TOKENIZERS_1, REFERENCE):
            cpu = self.cpu(loop)
            if cpu is not None and self.is_exact(loop):
                times.append(cpu)
        return min(times, default=None)

    def _has_equal_ids(
        self, system: str, other_system: str, source: Input
    ) -> bool | None:
        """Return whether two systems have the same ids of an input.

        The result is None if one of them did not encode it.
        """
        series = self.series.get(system)
        other_series = self.series.get(other_system)
        if series is None or other_series is None:
            return None
        digest = series.digests.get(source.folder)
        other_digest = other_series.digests.get(source.folder)
        if digest is None or other_digest is None:
            return None
        return digest == other_digest


@dataclass(slots=True)
class ModelTable:
    """The whole table.

    Attributes:
        rows: Measurements with each tokenizer.
        notes: Systems that were left out, with the reason.
    """

    rows: list[ModelRow]
    notes: list[str]

    def cells(self) -> list[list[str]]:
        """Return the cells of each tokenizer, under :data:`HEAD`."""
        llama_3_cpu = self._llama_3_cpu()
        table_lines: list[list[str]] = []
        for row in self.rows:
            # The three columns of ratios, in the order of the head.
            ratios = (
                _ratio(row.cpu(BUILD), row.fastest_exact_loop()),
                _ratio(row.cpu(BUILD_1), row.cpu(TOKENIZERS_1)),
                _ratio(row.cpu(BUILD), llama_3_cpu),
            )
            row_cells = [row.vocabulary.name]
            row_cells += [_cpu_cell(row, system) for system in MEASURED]
            row_cells += [_ratio_cell(ratio) for ratio in ratios]
            row_cells.append(row.ids())
            table_lines.append(row_cells)
        return table_lines

    def goals(self) -> Iterator[Goal]:
        """Yield the goals that can be judged."""
        llama_3_cpu = self._llama_3_cpu()
        for row in self.rows:
            tokenizer_name = row.vocabulary.name
            # Description, ratio and limit of each figure.
            figures = (
                (
                    "build / fastest exact bare loop",
                    _ratio(row.cpu(BUILD), row.fastest_exact_loop()),
                    MOST_OVER_LOOP.get(tokenizer_name),
                ),
                (
                    "build / build with Llama 3.1's tokenizer",
                    _ratio(row.cpu(BUILD), llama_3_cpu),
                    MOST_OVER_LLAMA_3.get(tokenizer_name),
                ),
                (
                    "build / bare loop, both with tokenizers 1.x",
                    _ratio(row.cpu(BUILD_1), row.cpu(TOKENIZERS_1)),
                    MOST_OVER_LOOP_1.get(tokenizer_name, MOST_OVER_LOOP_1_OTHERWISE),
                ),
            )
            for figure, ratio, limit in figures:
                # Systems that did not run, and tokenizers without a limit, have no
                # goal.
                if ratio is not None and limit is not None:
                    yield Goal(
                        f"{tokenizer_name}: CPU s, {figure}",
                        ratio,
                        "at most",
                        limit,
                        "x",
                    )

    def _llama_3_cpu(self) -> float | None:
        """Return CPU seconds of the build with Llama 3.1's tokenizer, if it ran."""
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
        bench: Runner of the systems.
        vocabularies: The tokenizers.
        inputs: Function that returns an input of a size in MB of text.
        sizes: MB of text of the whole input, of the slow peers' part, and of the small
            input.
        repeats: Number of measured runs of each system.
    """
    # Slow peers encode a part of the input.
    source, part, small = (inputs(size) for size in sizes)
    table = ModelTable(rows=[], notes=[])

    # 1. Find the systems that can run here.
    systems = [system for system in SYSTEMS if system.name in MEASURED]
    available_systems: list[System] = []
    for system in systems:
        reason = system.missing()
        if reason is None:
            available_systems.append(system)
        else:
            table.notes.append(f"{system.name} left out: {reason}")

    # 2. Measure them with each tokenizer.
    for vocabulary in vocabularies:
        series_of_system: dict[str, Series] = {}
        for system in available_systems:
            series_of_system[system.name] = Series(
                system=system,
                vocabulary=vocabulary,
                source=part if system.peer else source,
            )
        bench.rotate(list(series_of_system.values()), small, repeats)
        for system_name, series in series_of_system.items():
            if series.failure:
                table.notes.append(
                    f"{vocabulary.name}, {system_name} failed: {series.failure}"
                )
        table.rows.append(ModelRow(vocabulary, source, small, series_of_system))
    return table


def _cpu_cell(row: ModelRow, system: str) -> str:
    """Return the CPU seconds of a system and its rate, for the table."""
    series = row.series.get(system)
    if series is None:
        return ""
    cpu = row.cpu(system)
    if cpu is None:
        if series.failure:
            return "failed, see the notes"
        return "too short to extrapolate"
    cell = f"{cpu:.1f} ({series.rate:.1f} MB/s)"
    if series.source != row.source:
        cell = f"about {cell}"
    return cell


def _ratio(cpu: float | None, other_cpu: float | None) -> float | None:
    """Return the ratio of CPU seconds; None if one of them is unknown."""
    if cpu is None or not other_cpu:
        return None
    return cpu / other_cpu


def _ratio_cell(ratio: float | None) -> str:
    """Return a ratio for the table."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}"
