"""Numbers to Markdown and JSON."""

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

COLUMNS: Final = (
    *(
        "tokenizer",
        "system",
        "workers",
        "text MB",
        "CPU s (min-max)",
        "wall s",
        "largest process MB",
    ),
    *("MB per CPU s", "beyond start-up", "tokens"),
)


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything a run of the benchmark found; parts that were not asked for stay
    empty.
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
        """All goals that these results can judge."""
        goals = throughput_goals(self.series)
        for case in self.memory:
            size = (
                f"{case.source.megabytes:.0f} MB in {case.source.documents} documents"
            )
            what = f"{case.vocabulary.name}, {size}, units of {case.unit_size}: peak of the largest worker"
            goals.append(
                Goal(
                    what, case.worker_bytes / 1e6, "at most", WORKER_BYTES / 1e6, " MB"
                )
            )
        if self.startup is not None:
            what = "`tokenlake run` to its first unit, warm home"
            what += f" ({min(self.startup.first_unit):.2f}-{max(self.startup.first_unit):.2f})"
            goals.append(Goal(what, self.startup.median, "at most", FIRST_UNIT, " s"))
        goals += [goal for case in self.reading if (goal := case.goal())]
        goals += [goal for case in self.texts for goal in case.goals()]
        return goals + self.figures


def to_json(results: Results) -> dict[str, Any]:
    """All raw measurements, JSON-able."""
    goals = [asdict(goal) | {"met": goal.met} for goal in results.goals()]
    return asdict(results) | {"goals": goals}


def to_markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        _systems(results),
        _models(results),
        _reading(results),
        _texts(results),
        _packing(results),
        *_loader(results),
        _goals(results),
        _trials(results.trials),
    ]
    return "\n\n".join([_head(results), *filter(None, parts)]) + "\n"


def _head(results: Results) -> str:
    versions = ", ".join(
        f"{name} {number}" for name, number in results.versions.items()
    )
    lines = [f"Machine: {results.machine}.", f"Versions: {versions}."]
    lines += [
        f"Tokenizer {one.name}: {one.origin}, {one.size} entries."
        for one in results.vocabularies
    ]
    lines += [f"Input: {one.describe()}." for one in results.inputs]
    lines += [*results.notes, *results.failures]
    return "\n".join(f"- {line}" for line in lines)


def _systems(results: Results) -> str:
    if not results.series:
        return ""
    expected = expected_tokens(results.series)
    rows = [_row(one, expected) for one in results.series]
    note = (
        f"Medians of {results.repeats} after a warm-up, systems in rotation. CPU seconds: user + system of "
        "the whole process tree. 'Beyond start-up' compares with a small run: MB per CPU second of more text."
    )
    return _table(COLUMNS, rows) + "\n\n" + note


def _models(results: Results) -> str:
    if results.models is None:
        return ""
    note = (
        f"CPU seconds of whole builds and of bare loops, one worker, medians of {results.repeats}; in brackets MB of "
        "text per CPU second as measured. 'about': extrapolated from a part of the input. Exact: the same ids as the "
        "installed tokenizers. Systems that cannot run here have empty cells."
    )
    return _table(MODELS_HEAD, results.models.cells()) + "\n\n" + note


def _row(one: Series, expected: Mapping[tuple[str, str], int]) -> list[str]:
    first = [
        one.vocabulary.name,
        MEANING[one.system.family],
        str(one.system.workers),
        f"{one.source.megabytes:.0f}",
    ]
    if not one.runs:
        return [*first, f"failed: {one.failure}".replace("|", "/"), *[""] * 5]
    marginal = one.marginal_rate
    count = expected.get((one.vocabulary.name, one.source.folder))
    tokens = (
        f"{one.tokens:,}"
        if one.tokens == count
        else f"{one.tokens:,} (others {count:,})"
    )
    return [
        *first,
        f"{one.cpu:.2f} ({_span(one.runs)})",
        f"{one.median(lambda run: run.wall):.2f}",
        f"{one.median(lambda run: run.peak_bytes) / 1e6:.0f}",
        f"{one.rate:.2f}",
        f"{marginal:.2f}" if marginal is not None else "",
        tokens + (f"; then failed: {one.failure}" if one.failure else ""),
    ]


def _reading(results: Results) -> str:
    if not results.reading:
        return ""
    head = ["read", "text MB", *READ_SYSTEMS]
    rows = [
        [
            case.name,
            f"{case.text_bytes / 1e6:.0f}",
            *(_read_cell(case, system) for system in READ_SYSTEMS),
        ]
        for case in results.reading
    ]
    note = (
        "MB of text per CPU second beyond start-up, one thread; in brackets the same with start-up (imports, a file "
        "of a few rows) and the process's peak memory in MB."
    )
    return _table(head, rows) + "\n\n" + note


def _read_cell(case: ReadCase, system: str) -> str:
    if system not in case.runs:
        return f"failed: {case.failures.get(system, 'not run')}".replace("|", "/")
    peak = max(run.peak_bytes for run in case.runs[system])
    return f"{case.rate(system):.0f} ({case.whole(system):.0f}; {peak / 1e6:.0f} MB)"


def _texts(results: Results) -> str:
    if not results.texts:
        return ""
    rows = [
        [
            case.kind,
            system,
            f"{megabytes(case.input(system)):.0f}",
            *_texts_cells(case, system),
        ]
        for case in results.texts
        for system in TEXTS_SYSTEMS
    ]
    head = [
        "rows",
        "system",
        "input MB",
        "CPU s (min-max)",
        "MB per CPU s",
        "beyond start-up",
    ]
    return _table(head, rows)


def _texts_cells(case: TextsCase, system: str) -> list[str]:
    if system not in case.runs:
        return [
            f"failed: {case.failures.get(system, 'not run')}".replace("|", "/"),
            "",
            "",
        ]
    cpu = f"{case.cpu(system):.2f} ({_span(case.runs[system])})"
    return [cpu, f"{case.rate(system):.2f}", f"{case.beyond(system):.2f}"]


def _packing(results: Results) -> str:
    if not results.packing:
        return ""
    note = (
        "CPU seconds of placing documents in rows, medians; TRL's time holds the copying of the tokens as well. Fill "
        "and rows over the least are of the tokens that are kept."
    )
    return (
        _table(PACKING_HEAD, [run.cells() for run in results.packing]) + "\n\n" + note
    )


def _loader(results: Results) -> list[str]:
    if results.loader is None:
        return []
    rates = _table(LOADER_HEAD, [one.cells() for one in results.loader.series])
    note = (
        "Batches of 256 x 2048 int32 on the host, each epoch in another order where it is shuffled; medians of "
        f"{results.repeats} after a warm-up, loaders in rotation. CPU seconds: user + system of the process tree, page "
        "cache warm. 'Beyond start-up' compares with one epoch of a small input. 'all': every row exactly once "
        "in every epoch, by count and sum."
    )
    chance = (
        "One epoch as it was delivered; in brackets what a uniform permutation gives."
    )
    quality = (
        _table(QUALITY_HEAD, results.loader.quality) + "\n\n" + chance
        if results.loader.quality
        else ""
    )
    return [rates + "\n\n" + note, quality]


def _span(runs: Sequence[Measurement]) -> str:
    times = [run.cpu for run in runs]
    return f"{min(times):.2f}-{max(times):.2f}"


def _goals(results: Results) -> str:
    rows = [
        [
            goal.what,
            f"{goal.got:.2f}{goal.unit}",
            f"{goal.relation} {goal.limit:g}{goal.unit}",
            "yes" if goal.met else "no",
        ]
        for goal in results.goals()
    ]
    return _table(["figure", "got", "goal", "met"], rows) if rows else ""


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        [
            one.what,
            str(one.files),
            str(one.finished) if one.killed_after is not None else "",
            _verdict(one),
        ]
        for one in trials
    ]
    return (
        _table(
            [
                "build compared with library, 1 worker",
                "files",
                "units finished at the kill",
                "result",
            ],
            rows,
        )
        if rows
        else ""
    )


def _verdict(trial: Trial) -> str:
    if trial.passed:
        return "identical" + (
            ", nothing redone" if trial.killed_after is not None else ""
        )
    different, redone = (
        ", ".join(names[:3]) or "none" for names in (trial.different, trial.redone)
    )
    return f"DIFFERENT: {different}; REDONE: {redone}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
