"""Report of the benchmark, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks.contenders import MEANING
from benchmarks.determinism import Trial
from benchmarks.goals import FIRST_UNIT, WORKER_BYTES, Goal, throughput_goals
from benchmarks.inputs import Input
from benchmarks.loader import LoaderReport
from benchmarks.loader_quality import HEAD as QUALITY_HEAD
from benchmarks.loader_rates import HEAD as LOADER_HEAD
from benchmarks.measure import Measurement
from benchmarks.memory import MemoryCase
from benchmarks.models import HEAD as MODELS_HEAD
from benchmarks.models import ModelTable
from benchmarks.packing import HEAD as PACKING_HEAD
from benchmarks.packing import PackingRun
from benchmarks.reading import SYSTEMS as READ_SYSTEMS
from benchmarks.reading import ReadCase
from benchmarks.rotation import Series, expected_tokens
from benchmarks.startup import Startup
from benchmarks.texts import SYSTEMS as TEXTS_SYSTEMS
from benchmarks.texts import TextsCase, megabytes
from benchmarks.vocabularies import Vocabulary

SYSTEMS_HEAD: Final = (
    "tokenizer",
    "system",
    "workers",
    "text MB",
    "CPU s (min-max)",
    "wall s",
    "largest process MB",
    "MB per CPU s",
    "beyond start-up",
    "tokens",
)
TRIALS_HEAD: Final = (
    "build compared with library, 1 worker",
    "files",
    "units finished at the kill",
    "result",
)


@dataclass(slots=True, kw_only=True)
class Results:
    """All results of a run of the benchmark. Parts that did not run are empty.

    Attributes:
        machine: Description of the machine.
        versions: Package -> version.
        repeats: Number of measured runs of each system.
        inputs: Inputs that were used.
        vocabularies: Tokenizers that were used.
        series: Throughput of the systems.
        trials: Builds that were compared byte for byte.
        memory: Memory of builds.
        models: Builds and bare loops with the tokenizers of published models.
        startup: Time to the first unit.
        reading: Reading of files.
        texts: Building from conversations and prompts.
        packing: Packing of documents.
        loader: Everything about the loader.
        figures: Goals of all other parts.
        notes: Notes on all parts.
        failures: Errors of parts.
    """

    machine: str
    versions: Mapping[str, str]
    repeats: int
    inputs: list[Input] = field(default_factory=list)
    vocabularies: list[Vocabulary] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    memory: list[MemoryCase] = field(default_factory=list)
    models: ModelTable | None = None
    startup: Startup | None = None
    reading: list[ReadCase] = field(default_factory=list)
    texts: list[TextsCase] = field(default_factory=list)
    packing: list[PackingRun] = field(default_factory=list)
    loader: LoaderReport | None = None
    figures: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, figures: Iterable[Goal], notes: Iterable[str]) -> None:
        """Append the goals and notes of one part."""
        self.figures += figures
        self.notes += notes

    def goals(self) -> list[Goal]:
        """Return all goals that these results can judge."""
        goals = throughput_goals(self.series)
        goals += [_memory_goal(case) for case in self.memory]
        if self.startup is not None:
            goals.append(_startup_goal(self.startup))
        for case in self.reading:
            goal = case.goal()
            if goal is not None:
                goals.append(goal)
        for case in self.texts:
            goals.extend(case.goals())
        # The other parts have made their goals already.
        return goals + self.figures


def _memory_goal(case: MemoryCase) -> Goal:
    """Return the goal for the largest worker of a build."""
    source = case.source
    input_size = f"{source.megabytes:.0f} MB in {source.documents} documents"
    return Goal(
        f"{case.vocabulary.name}, {input_size}, units of {case.unit_size}: peak of the largest worker",
        case.worker_bytes / 1e6,
        "at most",
        WORKER_BYTES / 1e6,
        " MB",
    )


def _startup_goal(startup: Startup) -> Goal:
    """Return the goal for the time to the first unit."""
    seconds = startup.first_unit
    return Goal(
        f"`tokenlake run` to its first unit, warm home ({min(seconds):.2f}-{max(seconds):.2f})",
        startup.median,
        "at most",
        FIRST_UNIT,
        " s",
    )


def to_json(results: Results) -> dict[str, Any]:
    """Return all measurements, and the goals, as values of JSON."""
    # Goals are computed from the results, and are no fields of them.
    goals: list[dict[str, Any]] = []
    for goal in results.goals():
        goals.append(asdict(goal) | {"met": goal.is_met})
    return asdict(results) | {"goals": goals}


def to_markdown(results: Results) -> str:
    """Return the whole report."""
    parts = [
        _introduction(results),
        _systems(results),
        _models(results),
        _reading(results),
        _texts(results),
        _packing(results),
        _loader_rates(results),
        _loader_quality(results),
        _goals(results),
        _trials(results.trials),
    ]
    # Parts that did not run are empty.
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(results: Results) -> str:
    """Return a list of the machine, versions, tokenizers, inputs, notes and errors."""
    # Machine and versions, tokenizers and inputs, and then notes and errors.
    versions = [
        f"{package} {package_version}"
        for package, package_version in results.versions.items()
    ]
    list_items = [
        f"Machine: {results.machine}.",
        f"Versions: {', '.join(versions)}.",
    ]
    for vocabulary in results.vocabularies:
        list_items.append(
            f"Tokenizer {vocabulary.name}: {vocabulary.origin}, {vocabulary.size} entries."
        )
    for source in results.inputs:
        list_items.append(f"Input: {source.describe()}.")
    list_items += results.notes
    list_items += results.failures
    return "\n".join(f"- {list_item}" for list_item in list_items)


# -- throughput and tokenizers


def _systems(results: Results) -> str:
    """Return the table of the systems."""
    if not results.series:
        return ""
    token_counts = expected_tokens(results.series)
    table_lines = [_system_cells(series, token_counts) for series in results.series]
    note = (
        f"Medians of {results.repeats} after a warm-up, systems in rotation. CPU seconds: user + system of "
        "the whole process tree. 'Beyond start-up' compares with a small run: MB per CPU second of more text."
    )
    return _table(SYSTEMS_HEAD, table_lines) + "\n\n" + note


def _system_cells(
    series: Series, token_counts: Mapping[tuple[str, str], int]
) -> list[str]:
    """Return the line of a system.

    Args:
        series: Measurements of the system.
        token_counts: (tokenizer, folder of the input) -> number of tokens that most
            systems have.
    """
    # System and input, which a failed system has as well.
    cells = [
        series.vocabulary.name,
        MEANING[series.system.family],
        str(series.system.workers),
        f"{series.source.megabytes:.0f}",
    ]
    if not series.runs:
        empty_cells = [""] * (len(SYSTEMS_HEAD) - len(cells) - 1)
        return [*cells, _failure_cell(series.failure), *empty_cells]

    # Systems that have another number of tokens than most are marked.
    tokens = f"{series.tokens:,}"
    expected_count = token_counts.get((series.vocabulary.name, series.source.folder))
    if series.tokens != expected_count:
        tokens += f" (others {expected_count:,})"
    if series.failure:
        tokens += f"; then failed: {series.failure}"
    marginal_rate = ""
    if series.marginal_rate is not None:
        marginal_rate = f"{series.marginal_rate:.2f}"
    return [
        *cells,
        f"{series.cpu:.2f} ({_cpu_range(series.runs)})",
        f"{series.median(lambda run: run.wall):.2f}",
        f"{series.median(lambda run: run.peak_bytes) / 1e6:.0f}",
        f"{series.rate:.2f}",
        marginal_rate,
        tokens,
    ]


def _models(results: Results) -> str:
    """Return the table of the tokenizers of published models."""
    if results.models is None:
        return ""
    note = (
        f"CPU seconds of whole builds and of bare loops, one worker, medians of {results.repeats}; in brackets MB of "
        "text per CPU second as measured. 'about': extrapolated from a part of the input. Exact: the same ids as the "
        "installed tokenizers. Systems that cannot run here have empty cells."
    )
    return _table(MODELS_HEAD, results.models.cells()) + "\n\n" + note


# -- reading, texts and packing


def _reading(results: Results) -> str:
    """Return the table of reading files."""
    if not results.reading:
        return ""
    column_names = ["read", "text MB", *READ_SYSTEMS]
    table_lines: list[list[str]] = []
    for case in results.reading:
        row_cells = [case.name, f"{case.text_bytes / 1e6:.0f}"]
        row_cells += [_read_cell(case, system) for system in READ_SYSTEMS]
        table_lines.append(row_cells)
    note = (
        "MB of text per CPU second beyond start-up, one thread; in brackets the same with start-up (imports, a file "
        "of a few rows) and the process's peak memory in MB."
    )
    return _table(column_names, table_lines) + "\n\n" + note


def _read_cell(case: ReadCase, system: str) -> str:
    """Return the rates of a system and its memory."""
    if system not in case.runs:
        return _failure_cell(case.failures.get(system, "not run"))
    peak_bytes = max(run.peak_bytes for run in case.runs[system])
    return (
        f"{case.rate(system):.0f} ({case.whole(system):.0f}; {peak_bytes / 1e6:.0f} MB)"
    )


def _texts(results: Results) -> str:
    """Return the table of conversations and prompts."""
    if not results.texts:
        return ""
    column_names = [
        "rows",
        "system",
        "input MB",
        "CPU s (min-max)",
        "MB per CPU s",
        "beyond start-up",
    ]
    table_lines: list[list[str]] = []
    for case in results.texts:
        # A line for every system, also for those that failed.
        for system in TEXTS_SYSTEMS:
            input_size = f"{megabytes(case.input(system)):.0f}"
            table_lines.append(
                [case.kind, system, input_size, *_texts_cells(case, system)]
            )
    return _table(column_names, table_lines)


def _texts_cells(case: TextsCase, system: str) -> list[str]:
    """Return the CPU seconds and rates of a system."""
    if system not in case.runs:
        return [_failure_cell(case.failures.get(system, "not run")), "", ""]
    return [
        f"{case.cpu(system):.2f} ({_cpu_range(case.runs[system])})",
        f"{case.rate(system):.2f}",
        f"{case.beyond(system):.2f}",
    ]


def _packing(results: Results) -> str:
    """Return the table of packing."""
    if not results.packing:
        return ""
    table_lines = [run.cells() for run in results.packing]
    note = (
        "CPU seconds of placing documents in rows, medians; TRL's time holds the copying of the tokens as well. Fill "
        "and rows over the least are of the tokens that are kept."
    )
    return _table(PACKING_HEAD, table_lines) + "\n\n" + note


# -- loader


def _loader_rates(results: Results) -> str:
    """Return the table of the loaders' rates."""
    if results.loader is None:
        return ""
    table_lines = [series.cells() for series in results.loader.series]
    note = (
        "Batches of 256 x 2048 int32 on the host, each epoch in another order where it is shuffled; medians of "
        f"{results.repeats} after a warm-up, loaders in rotation. CPU seconds: user + system of the process tree, page "
        "cache warm. 'Beyond start-up' compares with one epoch of a small input. 'all': every row exactly once "
        "in every epoch, by count and sum."
    )
    return _table(LOADER_HEAD, table_lines) + "\n\n" + note


def _loader_quality(results: Results) -> str:
    """Return the table of the loaders' orders."""
    if results.loader is None or not results.loader.quality:
        return ""
    note = (
        "One epoch as it was delivered; in brackets the mean of a uniform permutation."
    )
    return _table(QUALITY_HEAD, results.loader.quality) + "\n\n" + note


# -- goals and trials


def _goals(results: Results) -> str:
    """Return the table of the goals."""
    table_lines: list[list[str]] = []
    for goal in results.goals():
        table_lines.append(
            [
                goal.what,
                f"{goal.got:.2f}{goal.unit}",
                f"{goal.relation} {goal.limit:g}{goal.unit}",
                "yes" if goal.is_met else "no",
            ]
        )
    if not table_lines:
        return ""
    return _table(["figure", "got", "goal", "met"], table_lines)


def _trials(trials: Sequence[Trial]) -> str:
    """Return the table of builds that were compared byte for byte."""
    table_lines: list[list[str]] = []
    for trial in trials:
        finished_units = ""
        if trial.killed_after is not None:
            finished_units = str(trial.finished)
        table_lines.append(
            [trial.what, str(trial.files), finished_units, _verdict(trial)]
        )
    if not table_lines:
        return ""
    return _table(TRIALS_HEAD, table_lines)


def _verdict(trial: Trial) -> str:
    """Return the result of a comparison."""
    if not trial.passed:
        different_files = ", ".join(trial.different[:3]) or "none"
        rebuilt_files = ", ".join(trial.redone[:3]) or "none"
        return f"DIFFERENT: {different_files}; REDONE: {rebuilt_files}"
    if trial.killed_after is not None:
        return "identical, nothing redone"
    return "identical"


# -- cells and tables


def _failure_cell(failure: str | None) -> str:
    """Return the cell of a system that failed."""
    # A bar would end the cell.
    return f"failed: {failure}".replace("|", "/")


def _cpu_range(runs: Sequence[Measurement]) -> str:
    """Return the smallest and the largest CPU seconds of some runs."""
    times = [run.cpu for run in runs]
    return f"{min(times):.2f}-{max(times):.2f}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])
