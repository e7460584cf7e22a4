"""Costs of many small files, and of many units.

20,000 files of 1.5 KB are compared with a bare loop that opens the same files, and a
build of many units with one of few units on the same input. The bare loop is that of
the part `throughput`: pyarrow's parser, gigatoken, raw ids.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Final

import orjson

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import Input, InputMaker
from benchmarks.measure import measure
from benchmarks.vocabularies import Vocabulary

FILES: Final = 20_000
UNITS: Final = 5_000
MEGABYTES: Final = 64.0
"""Size of the input for few and for many units."""

BARE: Final = 3.0
"""Goal: CPU seconds of many files, divided by those of the bare loop."""

EACH: Final = 3.0
"""Goal: CPU milliseconds of a unit, beyond the cost of its bytes."""

_FILE_RECORDS: Final = 3
_RECORD_CHARACTERS: Final = 480
"""Number of records per file, and of characters per record."""

# ext4 skips inodes that were recently deleted one by one: creating a file in a folder
# from which thousands were just removed takes 0.4 to 0.6 ms instead of 0.02. So each
# run has a new store, and all stores are removed at the end.
_STORE_NUMBERS: Final = count()
"""Numbers of the stores of this process."""


def measure_small(
    work: Path, maker: InputMaker, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Measure many files and many units, in rotation.

    Args:
        work: Work folder of the benchmark.
        maker: Maker of the inputs.
        vocabulary: Tokenizer.
        repeats: Number of measurements.
        quick: True for few files and units.

    Returns:
        Goals, and a note with the CPU seconds of all runs.
    """
    # 1. The inputs.
    file_count = FILES
    unit_count = UNITS
    megabytes = MEGABYTES
    if quick:
        file_count = FILES // 40
        unit_count = UNITS // 100
        megabytes = 1.0
    folder = work / f"small-{vocabulary.name}"
    many_files = _many_files(
        folder / f"files-{file_count}", maker.make(MEGABYTES), file_count
    )
    text = maker.make(megabytes)
    unit_bytes = int(text.file_bytes / unit_count)
    stores = folder / "stores"
    shutil.rmtree(stores, ignore_errors=True)
    stores.mkdir(parents=True)
    # 2. CPU seconds of all runs.
    runs: dict[str, list[float]] = {
        "bare": [],
        "files": [],
        "few units": [],
        "many units": [],
    }
    for _ in range(repeats):
        commands = {
            "bare": _bare_command(folder, many_files, vocabulary),
            "files": _build_command(folder / "files.json", many_files, vocabulary),
            "few units": _build_command(folder / "few.json", text, vocabulary),
            "many units": _build_command(
                folder / "many.json", text, vocabulary, str(unit_bytes)
            ),
        }
        for run_name, command in commands.items():
            runs[run_name].append(_cpu_seconds(folder, command))
    medians: dict[str, float] = {}
    spans: list[str] = []
    for run_name, seconds in runs.items():
        medians[run_name] = statistics.median(seconds)
        spans.append(f"{run_name} {_span(seconds)}")
    # 3. The number of units of the last build, which is one of many units.
    last_store = max(stores.iterdir(), key=lambda store: int(store.name))
    ledger = builds.version_folder(last_store) / "ledger"
    built_units = len(list(ledger.iterdir()))
    shutil.rmtree(stores)
    seconds_per_unit = (medians["many units"] - medians["few units"]) / built_units
    goals = [
        Goal(
            f"{file_count:,} files of 1.5 KB: CPU s, tokenlake / bare gigatoken loop",
            medians["files"] / medians["bare"],
            "at most",
            BARE,
            "x",
        ),
        Goal(
            f"a unit of {unit_bytes:,} bytes, beyond the cost of its bytes",
            seconds_per_unit * 1e3,
            "at most",
            EACH,
            " CPU ms",
        ),
    ]
    return goals, [
        f"small files and units ({built_units:,} of them), CPU s: {', '.join(spans)}"
    ]


def _span(seconds: Sequence[float]) -> str:
    """Return the median with the smallest and the largest value."""
    median = statistics.median(seconds)
    return f"{median:.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _many_files(folder: Path, source: Input, file_count: int) -> Input:
    """Cut the documents of an input into small files, unless these exist.

    Args:
        folder: Folder of the small files.
        source: Input to cut.
        file_count: Number of files.
    """
    if not folder.exists():
        # Write to a temporary folder, so that an interrupted run leaves no input.
        new_folder = folder.with_name(folder.name + ".making")
        shutil.rmtree(new_folder, ignore_errors=True)
        new_folder.mkdir(parents=True)
        records = _records(source)
        for number in range(file_count):
            lines = b"".join(islice(records, _FILE_RECORDS))
            (new_folder / f"{number:06d}.jsonl").write_bytes(lines)
        new_folder.rename(folder)
    return replace(source, folder=str(folder), documents=_FILE_RECORDS * file_count)


def _records(source: Input) -> Iterator[bytes]:
    """Yield the texts of an input, cut into JSON lines of 480 characters."""
    for path in sorted(Path(source.folder).glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                text = orjson.loads(line)["text"]
                # The last record of a text is shorter.
                for first_character in range(0, len(text), _RECORD_CHARACTERS):
                    record = {
                        "text": text[
                            first_character : first_character + _RECORD_CHARACTERS
                        ]
                    }
                    yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _bare_command(folder: Path, source: Input, vocabulary: Vocabulary) -> list[str]:
    """Return the command of the bare loop, with an empty folder for its output."""
    # The bare loop expects an empty folder.
    output = folder / "bare"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    program = "benchmarks.systems.bare_gigatoken"
    arguments = [
        source.folder,
        vocabulary.folder,
        vocabulary.eos,
        str(output),
        "1",
        str(vocabulary.id_bytes),
    ]
    return [sys.executable, "-m", program, *arguments]


def _build_command(
    config: Path, source: Input, vocabulary: Vocabulary, unit_size: str | None = None
) -> list[str]:
    """Return the command of a build with one worker, in a new store.

    Args:
        config: File for the configuration, in the folder of the stores.
        source: Input.
        vocabulary: Tokenizer.
        unit_size: Size of a unit; None: the default of the library.
    """
    store = config.parent / "stores" / str(next(_STORE_NUMBERS))
    builds.write_config(config, source, vocabulary, store, unit_size)
    return builds.library_command(config, 1)


def _cpu_seconds(folder: Path, command: list[str]) -> float:
    """Return the CPU seconds of a command that runs without cached hashes.

    Raises:
        RuntimeError: The command failed.
    """
    log_path = folder / "run.log"
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    # Hashes of inputs are computed in every run.
    run = measure(
        command,
        report=folder / "measured.json",
        log=log_path,
        env=builds.environment(folder, cache),
    )
    if run.exit_code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {run.exit_code}: {log_path.read_text()[-500:]}"
        )
    return run.cpu
