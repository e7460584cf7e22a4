"""The command line: which parts to run, how large, and where to keep what."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.adding import measure_adding
from benchmarks.contenders import SYSTEMS, System
from benchmarks.corpora import corpus_files, make_input
from benchmarks.determinism import Determinism
from benchmarks.engines import measure_engines
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
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
# MB of text: the input that shows start-up cost, the one for start-up and determinism,
# the one huge document
SMALL, CHECKED, DOCUMENT = 4.0, 64.0, 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do. Sizes are MB (10^6 bytes) of text."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0 if every system that was asked for ran and every tree
    was identical.
    """
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    results = run(options)
    print(to_markdown(results))
    print(f"all measurements: {options.json}", file=sys.stderr)
    failed = any(one.failure for one in results.series) or not all(
        trial.passed for trial in results.trials
    )
    return 1 if failed or results.failures else 0


def parse(arguments: Sequence[str] | None) -> Options:
    """Options from a command line."""
    names = [system.name for system in SYSTEMS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        choices=PARTS,
        action="append",
        help="run this part alone; may be repeated",
    )
    add(
        "--memory",
        action="store_true",
        help="also measure memory on a 5 GB input and one 200 MB document",
    )
    add(
        "--kill",
        type=int,
        default=0,
        metavar="N",
        help="also kill -9 a build N times and compare after a rerun",
    )
    add(
        "--system",
        choices=names,
        action="append",
        help="measure this system alone; may be repeated",
    )
    add(
        "--tokenizer",
        choices=list(REAL),
        action="append",
        help="with this tokenizer alone; may be repeated",
    )
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="in the part `tokenizers`: this tokenizer alone, for example llama3_1; may be repeated",
    )
    add("--repeat", type=int, default=3, help="measured runs of each system")
    add("--megabytes", type=float, default=320.0, help="text of the input")
    add(
        "--peer-megabytes",
        type=float,
        default=40.0,
        help="text of the peers' part of it; 0: all of it",
    )
    add(
        "--quick",
        action="store_true",
        help="a check that everything works, on a few MB; the numbers mean nothing",
    )
    add("--seed", type=int, default=0, help="of the moments at which builds are killed")
    add(
        "--dir",
        type=Path,
        default=os.environ.get("BENCH_DIR"),
        help="work folder (default: BENCH_DIR, else a temporary one)",
    )
    add(
        "--json",
        type=Path,
        help="where all measurements go (default: results.json in the work folder)",
    )
    return _options(parser.parse_args(arguments))


def _options(given: argparse.Namespace) -> Options:
    work = Path(given.dir or Path(tempfile.gettempdir(), "tokenlake-bench")).absolute()
    asked = {
        name for name, on in (("memory", given.memory), ("kill", given.kill)) if on
    }
    quick = given.quick
    megabytes = 12.0 if quick else given.megabytes
    return Options(
        work=work,
        parts=frozenset(given.only or set(PARTS) - {"kill", "memory"}) | asked,
        systems=tuple(
            one for one in SYSTEMS if not given.system or one.name in given.system
        ),
        tokenizers=tuple(given.tokenizer or REAL),
        models=tuple(given.model or ()),
        megabytes=megabytes,
        peer_megabytes=(6.0 if quick else given.peer_megabytes) or megabytes,
        memory_megabytes=50.0 if quick else 5000.0,
        document_megabytes=10.0 if quick else DOCUMENT,
        repeats=1 if quick else given.repeat,
        quick=quick,
        kills=given.kill or (10 if "kill" in (given.only or ()) else 0),
        seed=given.seed,
        json=(given.json or work / "results.json").absolute(),
    )


def run(options: Options) -> Results:
    """All parts that were asked for, one after the other; a part that fails costs
    the others nothing.
    """
    results = Results(
        machine=machine_line(), versions=versions(), repeats=options.repeats
    )
    if options.quick:
        results.notes.append(
            "Quick: a few MB and one run show that everything works; the numbers mean nothing"
        )
    maker = InputMaker(options.work)
    vocabularies = [obtain(name, options.work, maker) for name in options.tokenizers]
    results.vocabularies = vocabularies
    actions = {
        "throughput": _throughput,
        "tokenizers": _tokenizers,
        "startup": _startup,
        "reading": _reading,
        "texts": _texts,
        "packing": _packing,
        "positions": _positions,
        "mix": _mix,
        "loader": _loader,
        "verify": _verify,
        "small": _small,
        "adding": _adding,
        "scale": _scale,
        "engines": _engines,
        "determinism": _determinism,
        "memory": _memory,
    }
    for part, action in actions.items():
        if part in options.parts or (part == "determinism" and "kill" in options.parts):
            print(f"{part} ...", file=sys.stderr, flush=True)
            try:
                action(options, maker, vocabularies, results)
            except (RuntimeError, OSError, KeyError) as error:
                results.failures.append(
                    f"{part} failed: {type(error).__name__}: {error}"
                )
                print(results.failures[-1], file=sys.stderr)
            options.json.write_text(json.dumps(to_json(results), indent=1, default=str))
    return results


def _throughput(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    full, part = maker.make(options.megabytes), maker.make(options.peer_megabytes)
    results.inputs += [full] if full == part else [full, part]
    systems = [system for system in options.systems if system.missing() is None]
    absent = [system for system in options.systems if system.missing() is not None]
    results.notes += [
        f"{system.name} left out, {system.missing()}" for system in absent
    ]
    bench = Bench(options.work)
    for vocabulary in vocabularies:
        series = [
            Series(system=one, vocabulary=vocabulary, source=part if one.peer else full)
            for one in systems
        ]
        bench.rotate(series, maker.make(SMALL), options.repeats)
        results.series += series


def _tokenizers(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    real = real_vocabularies(options.work)
    names = [vocabulary.name for vocabulary in real]
    unknown = sorted(set(options.models) - set(names))
    if unknown:
        raise RuntimeError(
            f"--model {', '.join(unknown)}: not here; expected some of {', '.join(names) or 'none'}"
        )
    chosen = [one for one in real if not options.models or one.name in options.models]
    if not chosen:
        results.notes.append(
            f"tokenizers left out: no real tokenizer in {shared_folder()} (see TOKENLAKE_TEST_DATA)"
        )
        return
    inputs = maker.make
    if corpus_files():
        # Of all tokenizers, so that the input does not depend on the choice.
        excluded = special_tokens(real)
        inputs = functools.partial(make_input, options.work, special_tokens=excluded)
    else:
        results.notes.append(
            f"tokenizers: no corpora in {shared_folder()}, so the input is this machine's text"
        )
    small = 1.0 if options.quick else SMALL
    sizes = (options.megabytes, min(options.peer_megabytes, options.megabytes), small)
    results.models = measure_models(
        Bench(options.work), chosen, inputs, sizes, options.repeats
    )
    results.inputs += [inputs(size) for size in dict.fromkeys(sizes)]
    results.vocabularies = [
        *results.vocabularies,
        *(one for one in chosen if one.name not in REAL),
    ]
    results.notes += results.models.notes
    results.figures += results.models.goals()


def _startup(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    source = maker.make(min(options.megabytes, CHECKED))
    results.startup = measure_startup(
        options.work, source, vocabularies[0], max(options.repeats, 3)
    )


def _reading(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    results.reading = measure_reading(
        options.work, maker, options.megabytes, options.repeats
    )
    results.figures += measure_seek(results.reading)
    files = 2_000 if options.quick else 100_000
    results.figures += _planning(files, measure_planning(options.work, files))
    if "memory" in options.parts:
        results.figures += measure_large(
            options.work, maker, 0.2 if options.quick else 10.0
        )


def _texts(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    llama2 = next(
        (one for one in vocabularies if one.name == "llama2"), vocabularies[-1]
    )
    size, part = (
        (4.0, 1.0) if options.quick else (200.0, min(options.peer_megabytes, 40.0))
    )
    results.texts = measure_texts(
        options.work, maker, llama2, size, part, options.repeats
    )


def _packing(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    runs, goals, notes = measure_packing(
        options.work, vocabularies[0], options.repeats, quick=options.quick
    )
    results.packing, results.figures = runs, results.figures + goals
    results.notes += notes


def _positions(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_positions(
        options.repeats, 50_000 if options.quick else 2_000_000
    )
    results.add(goals, notes)


def _mix(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_mixing(
        options.work, maker, vocabularies[0], options.repeats, quick=options.quick
    )
    results.add(goals, notes)


def _loader(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    results.loader = measure_loader(
        options.work,
        maker,
        vocabularies[0],
        2 * options.megabytes,
        options.repeats,
        quick=options.quick,
    )
    results.figures += results.loader.goals
    results.notes += results.loader.notes
    results.failures += results.loader.failures


def _verify(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_verify(
        options.work,
        maker,
        vocabularies[0],
        2 * options.megabytes,
        options.repeats,
        quick=options.quick,
    )
    results.add(goals, notes)


def _small(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_small(
        options.work, maker, vocabularies[0], options.repeats, quick=options.quick
    )
    results.add(goals, notes)


def _engines(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_engines(
        options.work, vocabularies[0], options.repeats, quick=options.quick
    )
    results.add(goals, notes)


def _adding(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    goals, notes = measure_adding(options.work, vocabularies[0], quick=options.quick)
    results.add(goals, notes)


def _scale(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    for measured in (measure_slopes, measure_schedule):
        goals, notes = measured(options.work, quick=options.quick)
        results.add(goals, notes)
    files = MILLION // 500 if options.quick else MILLION
    results.figures += _planning(files, measure_million(options.work, files))


def _planning(files: int, rows: Sequence[Row]) -> list[Goal]:
    apart = "; ".join(
        f"{what} {value:.1f}" for what, value, goal in rows if goal is None
    )
    return [
        Goal(f"{files:,} files: {what} ({apart})", value, "at most", goal)
        for what, value, goal in rows
        if goal is not None
    ]


def _determinism(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    check = Determinism(
        options.work, maker.make(min(options.megabytes, CHECKED)), vocabularies[0]
    )
    if "determinism" in options.parts:
        results.trials += check.workers()
    if "kill" in options.parts:
        results.trials += check.kill(options.kills, options.seed)


def _memory(
    options: Options,
    maker: InputMaker,
    vocabularies: Sequence[Vocabulary],
    results: Results,
) -> None:
    large, document = (
        maker.make(options.memory_megabytes),
        maker.make_one_document(options.document_megabytes),
    )
    results.inputs += [large, document]
    cases = [(large, one, "128MiB") for one in vocabularies]
    cases += [
        (large, vocabularies[0], "1GiB"),
        *((document, one, "128MiB") for one in vocabularies),
    ]
    results.memory = [
        measure_memory(options.work, source, one, size) for source, one, size in cases
    ]
