"""Command line of the benchmark: parts, sizes, and folders."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.adding import measure_adding
from benchmarks.contenders import SYSTEMS, System
from benchmarks.corpora import corpus_files, make_input
from benchmarks.determinism import Determinism
from benchmarks.engines import measure_executors
from benchmarks.goals import Goal
from benchmarks.inputs import Input, InputMaker
from benchmarks.loader import measure_loader
from benchmarks.machine import machine_line, versions
from benchmarks.memory import measure_memory
from benchmarks.mixing_flow import measure_mixing
from benchmarks.mixing_positions import measure_positions
from benchmarks.models import measure_models
from benchmarks.packing import measure_packing
from benchmarks.planning import MILLION, Row, measure_million, measure_planning
from benchmarks.reading import measure_large, measure_reading, measure_seek
from benchmarks.report import Results, to_json, to_markdown
from benchmarks.rotation import Bench, Series
from benchmarks.schedule import measure_schedule
from benchmarks.slopes import measure_slopes
from benchmarks.small import measure_small
from benchmarks.startup import measure_startup
from benchmarks.texts import measure_texts
from benchmarks.verifying import measure_verify
from benchmarks.vocabularies import (
    REAL,
    Vocabulary,
    obtain,
    real_vocabularies,
    shared_folder,
    special_tokens,
)

PARTS: Final = (
    "throughput",
    "tokenizers",
    "startup",
    "reading",
    "texts",
    "packing",
    "positions",
    "mix",
    "loader",
    "verify",
    "small",
    "adding",
    "scale",
    "engines",
    "determinism",
    "kill",
    "memory",
)
"""Names of the parts, in the order in which they run."""

_OPTIONAL_PARTS: Final = frozenset({"kill", "memory"})
"""Parts that run only on request."""

SMALL: Final = 4.0
"""MB of the input that shows the costs of starting."""

CHECKED: Final = 64.0
"""MB of the input for start-up times and determinism."""

DOCUMENT: Final = 200.0
"""MB of the huge document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run. Sizes are in MB (10^6 bytes) of text.

    Attributes:
        work: Work folder.
        parts: Names of the parts to run.
        systems: Systems to compare.
        tokenizers: Tokenizers of all parts but `tokenizers`.
        models: Tokenizers of the part `tokenizers`; empty: all.
        megabytes: Size of the input.
        peer_megabytes: Size of the part of the input that slow systems get.
        memory_megabytes: Size of the input on which memory is measured.
        document_megabytes: Size of the document on which memory is measured.
        repeats: Number of measured runs of each system.
        quick: True for a check on a few MB.
        kills: Number of builds to kill.
        seed: Random seed of the moments at which builds are killed.
        json: File for all measurements.
    """

    work: Path
    parts: frozenset[str]
    systems: tuple[System, ...]
    tokenizers: tuple[str, ...]
    models: tuple[str, ...]
    megabytes: float
    peer_megabytes: float
    memory_megabytes: float
    document_megabytes: float
    repeats: int
    quick: bool
    kills: int
    seed: int
    json: Path


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a part of the benchmark needs.

    Attributes:
        options: Options of the run.
        maker: Maker of inputs.
        vocabularies: Tokenizers, at least one.
        results: Results of the run, to which a part adds its own.
    """

    options: Options
    maker: InputMaker
    vocabularies: Sequence[Vocabulary]
    results: Results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the report.

    Returns:
        0 if all requested systems ran and all versions were identical; otherwise 1.
    """
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    results = run(options)
    print(to_markdown(results))
    print(f"all measurements: {options.json}", file=sys.stderr)
    # Missed goals are part of the report, and no failure.
    has_failed_system = any(series.failure for series in results.series)
    has_difference = any(not trial.passed for trial in results.trials)
    if has_failed_system or has_difference or results.failures:
        return 1
    return 0


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of a command line.

    Args:
        arguments: Arguments; None: those of the process.
    """
    names = [system.name for system in SYSTEMS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    # Which parts and systems to run.
    add = parser.add_argument
    add(
        "--only",
        choices=PARTS,
        action="append",
        help="run only this part; may be repeated",
    )
    add(
        "--memory",
        action="store_true",
        help="also measure memory on a 5 GB input and on a 200 MB document",
    )
    add(
        "--kill",
        type=int,
        default=0,
        metavar="N",
        help="also kill a build N times, run it again, and compare",
    )
    add(
        "--system",
        choices=names,
        action="append",
        help="measure only this system; may be repeated",
    )
    add(
        "--tokenizer",
        choices=list(REAL),
        action="append",
        help="measure only with this tokenizer; may be repeated",
    )
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="in the part `tokenizers`: measure only this tokenizer, such as llama3_1; may be repeated",
    )
    # How much to measure.
    add("--repeat", type=int, default=3, help="measured runs of each system")
    add("--megabytes", type=float, default=320.0, help="MB of text of the input")
    add(
        "--peer-megabytes",
        type=float,
        default=40.0,
        help="MB of text of the part that peers get; 0: all",
    )
    add(
        "--quick",
        action="store_true",
        help="check on a few MB that everything works; the numbers mean nothing",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="random seed of the moments at which builds are killed",
    )
    add(
        "--dir",
        type=Path,
        default=os.environ.get("BENCH_DIR"),
        help="work folder (default: BENCH_DIR, or a temporary folder)",
    )
    add(
        "--json",
        type=Path,
        help="file for all measurements (default: results.json in the work folder)",
    )
    return _options(parser.parse_args(arguments))


def _options(arguments: argparse.Namespace) -> Options:
    """Return the options of parsed arguments."""
    # 1. Folders, systems and parts.
    default_folder = Path(tempfile.gettempdir(), "tokenlake-bench")
    work = Path(arguments.dir or default_folder).absolute()
    systems = SYSTEMS
    if arguments.system:
        systems = tuple(system for system in SYSTEMS if system.name in arguments.system)
    parts = set(arguments.only or set(PARTS) - _OPTIONAL_PARTS)
    if arguments.memory:
        parts.add("memory")
    kills = arguments.kill
    if kills:
        parts.add("kill")
    elif "kill" in parts:
        kills = 10
    # 2. Sizes. Peers get the whole input if their part is 0.
    quick = arguments.quick
    megabytes = arguments.megabytes
    peer_megabytes = arguments.peer_megabytes
    memory_megabytes = 5000.0
    document_megabytes = DOCUMENT
    repeats = arguments.repeat
    if quick:
        megabytes = 12.0
        peer_megabytes = 6.0
        memory_megabytes = 50.0
        document_megabytes = 10.0
        repeats = 1
    return Options(
        work=work,
        parts=frozenset(parts),
        systems=systems,
        tokenizers=tuple(arguments.tokenizer or REAL),
        models=tuple(arguments.model or ()),
        megabytes=megabytes,
        peer_megabytes=peer_megabytes or megabytes,
        memory_megabytes=memory_megabytes,
        document_megabytes=document_megabytes,
        repeats=repeats,
        quick=quick,
        kills=kills,
        seed=arguments.seed,
        json=(arguments.json or work / "results.json").absolute(),
    )


def run(options: Options) -> Results:
    """Run all requested parts, one after the other.

    Other parts still run if one fails. All results are written after each part.
    """
    results = Results(
        machine=machine_line(), versions=versions(), repeats=options.repeats
    )
    if options.quick:
        results.notes.append(
            "Quick: a few MB and one run show that everything works; the numbers mean nothing"
        )
    # 1. Tokenizers, which are trained if the real ones are missing.
    maker = InputMaker(options.work)
    vocabularies = [obtain(name, options.work, maker) for name in options.tokenizers]
    results.vocabularies = vocabularies
    context = Context(options, maker, vocabularies, results)
    actions: dict[str, Callable[[Context], None]] = {
        "throughput": _run_throughput,
        "tokenizers": _run_tokenizers,
        "startup": _run_startup,
        "reading": _run_reading,
        "texts": _run_texts,
        "packing": _run_packing,
        "positions": _run_positions,
        "mix": _run_mix,
        "loader": _run_loader,
        "verify": _run_verify,
        "small": _run_small,
        "adding": _run_adding,
        "scale": _run_scale,
        "engines": _run_engines,
        "determinism": _run_determinism,
        "memory": _run_memory,
    }
    # 2. All requested parts, in their order.
    requested_parts = set(options.parts)
    # Killed builds are compared with the same reference as other builds.
    if "kill" in requested_parts:
        requested_parts.add("determinism")
    for part, run_part in actions.items():
        if part not in requested_parts:
            continue
        print(f"{part} ...", file=sys.stderr, flush=True)
        try:
            run_part(context)
        except (RuntimeError, OSError, KeyError) as error:
            failure = f"{part} failed: {type(error).__name__}: {error}"
            results.failures.append(failure)
            print(failure, file=sys.stderr)
        options.json.write_text(json.dumps(to_json(results), indent=1, default=str))
    return results


def _run_throughput(context: Context) -> None:
    options = context.options
    results = context.results
    # 1. The input, of which slow systems get a part.
    full_input = context.maker.make(options.megabytes)
    peer_input = context.maker.make(options.peer_megabytes)
    results.inputs.append(full_input)
    if peer_input != full_input:
        results.inputs.append(peer_input)
    # 2. The systems that can run.
    systems: list[System] = []
    for system in options.systems:
        reason = system.missing()
        if reason is None:
            systems.append(system)
        else:
            results.notes.append(f"{system.name} left out, {reason}")
    # 3. All systems with each tokenizer.
    bench = Bench(options.work)
    small_input = context.maker.make(SMALL)
    for vocabulary in context.vocabularies:
        all_series: list[Series] = []
        for system in systems:
            source = peer_input if system.peer else full_input
            all_series.append(
                Series(system=system, vocabulary=vocabulary, source=source)
            )
        bench.rotate(all_series, small_input, options.repeats)
        results.series += all_series


def _run_tokenizers(context: Context) -> None:
    options = context.options
    results = context.results
    # 1. The tokenizers to compare.
    real = real_vocabularies(options.work)
    names = [vocabulary.name for vocabulary in real]
    unknown = sorted(set(options.models) - set(names))
    if unknown:
        raise RuntimeError(
            f"--model {', '.join(unknown)}: not here; expected some of {', '.join(names) or 'none'}"
        )
    vocabularies = real
    if options.models:
        vocabularies = [
            vocabulary for vocabulary in real if vocabulary.name in options.models
        ]
    if not vocabularies:
        results.notes.append(
            f"tokenizers left out: no real tokenizer in {shared_folder()} (see TOKENLAKE_TEST_DATA)"
        )
        return
    # 2. The inputs: real corpora, or else texts of this machine.
    make = context.maker.make
    if corpus_files():
        # Exclude the tokens of all tokenizers, so that the input does not depend on
        # the choice.
        excluded = special_tokens(real)
        make = functools.partial(make_input, options.work, special_tokens=excluded)
    else:
        results.notes.append(
            f"tokenizers: no corpora in {shared_folder()}, so the input is this machine's text"
        )
    small_megabytes = 1.0 if options.quick else SMALL
    peer_megabytes = min(options.peer_megabytes, options.megabytes)
    sizes = (options.megabytes, peer_megabytes, small_megabytes)
    # 3. The measurement.
    models = measure_models(
        Bench(options.work), vocabularies, make, sizes, options.repeats
    )
    results.models = models
    results.inputs += [make(size) for size in dict.fromkeys(sizes)]
    # GPT-2 and Llama 2 are already part of the results.
    all_vocabularies = list(results.vocabularies)
    for vocabulary in vocabularies:
        if vocabulary.name not in REAL:
            all_vocabularies.append(vocabulary)
    results.vocabularies = all_vocabularies
    results.add(models.goals(), models.notes)


def _run_startup(context: Context) -> None:
    options = context.options
    source = context.maker.make(min(options.megabytes, CHECKED))
    repeats = max(options.repeats, 3)
    context.results.startup = measure_startup(
        options.work, source, context.vocabularies[0], repeats
    )


def _run_reading(context: Context) -> None:
    options = context.options
    results = context.results
    results.reading = measure_reading(
        options.work, context.maker, options.megabytes, options.repeats
    )
    # Seeks read the files of the cases above. Plans have trees of their own.
    results.figures += measure_seek(results.reading)
    file_count = 2_000 if options.quick else 100_000
    rows = measure_planning(options.work, file_count)
    results.figures += _planning_goals(file_count, rows)
    if "memory" in options.parts:
        gigabytes = 0.2 if options.quick else 10.0
        results.figures += measure_large(options.work, context.maker, gigabytes)


def _run_texts(context: Context) -> None:
    options = context.options
    # Chat templates are those of Llama 2.
    vocabulary = context.vocabularies[-1]
    for candidate in context.vocabularies:
        if candidate.name == "llama2":
            vocabulary = candidate
    megabytes = 200.0
    peer_megabytes = min(options.peer_megabytes, 40.0)
    if options.quick:
        megabytes = 4.0
        peer_megabytes = 1.0
    context.results.texts = measure_texts(
        options.work,
        context.maker,
        vocabulary,
        megabytes,
        peer_megabytes,
        options.repeats,
    )


def _run_packing(context: Context) -> None:
    options = context.options
    runs, goals, notes = measure_packing(
        options.work, context.vocabularies[0], options.repeats, quick=options.quick
    )
    context.results.packing = runs
    context.results.add(goals, notes)


def _run_positions(context: Context) -> None:
    options = context.options
    row_count = 50_000 if options.quick else 2_000_000
    goals, notes = measure_positions(options.repeats, row_count)
    context.results.add(goals, notes)


def _run_mix(context: Context) -> None:
    options = context.options
    goals, notes = measure_mixing(
        options.work,
        context.maker,
        context.vocabularies[0],
        options.repeats,
        quick=options.quick,
    )
    context.results.add(goals, notes)


def _run_loader(context: Context) -> None:
    options = context.options
    report = measure_loader(
        options.work,
        context.maker,
        context.vocabularies[0],
        2 * options.megabytes,
        options.repeats,
        quick=options.quick,
    )
    context.results.loader = report
    context.results.add(report.goals, report.notes)
    context.results.failures += report.failures


def _run_verify(context: Context) -> None:
    options = context.options
    goals, notes = measure_verify(
        options.work,
        context.maker,
        context.vocabularies[0],
        2 * options.megabytes,
        options.repeats,
        quick=options.quick,
    )
    context.results.add(goals, notes)


def _run_small(context: Context) -> None:
    options = context.options
    goals, notes = measure_small(
        options.work,
        context.maker,
        context.vocabularies[0],
        options.repeats,
        quick=options.quick,
    )
    context.results.add(goals, notes)


def _run_engines(context: Context) -> None:
    options = context.options
    goals, notes = measure_executors(
        options.work, context.vocabularies[0], options.repeats, quick=options.quick
    )
    context.results.add(goals, notes)


def _run_adding(context: Context) -> None:
    options = context.options
    goals, notes = measure_adding(
        options.work, context.vocabularies[0], quick=options.quick
    )
    context.results.add(goals, notes)


def _run_scale(context: Context) -> None:
    options = context.options
    for measure_part in (measure_slopes, measure_schedule):
        goals, notes = measure_part(options.work, quick=options.quick)
        context.results.add(goals, notes)
    file_count = MILLION // 500 if options.quick else MILLION
    rows = measure_million(options.work, file_count)
    context.results.figures += _planning_goals(file_count, rows)


def _planning_goals(file_count: int, rows: Sequence[Row]) -> list[Goal]:
    """Return the goals of planning.

    Args:
        file_count: Number of planned files.
        rows: Measurements. Those without a goal are named in each goal.
    """
    # 1. Values without a goal, as one text.
    others: list[str] = []
    for description, value, limit in rows:
        if limit is None:
            others.append(f"{description} {value:.1f}")
    # 2. A goal for each of the other values.
    goals: list[Goal] = []
    for description, value, limit in rows:
        if limit is not None:
            text = f"{file_count:,} files: {description} ({'; '.join(others)})"
            goals.append(Goal(text, value, "at most", limit))
    return goals


def _run_determinism(context: Context) -> None:
    options = context.options
    source = context.maker.make(min(options.megabytes, CHECKED))
    check = Determinism(options.work, source, context.vocabularies[0])
    if "determinism" in options.parts:
        context.results.trials += check.workers()
    if "kill" in options.parts:
        context.results.trials += check.kill(options.kills, options.seed)


def _run_memory(context: Context) -> None:
    options = context.options
    results = context.results
    large_input = context.maker.make(options.memory_megabytes)
    document = context.maker.make_one_document(options.document_megabytes)
    results.inputs += [large_input, document]
    # The large input with each tokenizer and with two unit sizes, then the document.
    cases: list[tuple[Input, Vocabulary, str]] = []
    for vocabulary in context.vocabularies:
        cases.append((large_input, vocabulary, "128MiB"))
    cases.append((large_input, context.vocabularies[0], "1GiB"))
    for vocabulary in context.vocabularies:
        cases.append((document, vocabulary, "128MiB"))
    results.memory = []
    for source, vocabulary, unit_size in cases:
        case = measure_memory(options.work, source, vocabulary, unit_size)
        results.memory.append(case)
