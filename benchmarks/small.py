"""Much that is small: 20,000 files of 1.5 KB beside a bare loop, and the same bytes in
many units beside a few.

The bare loop is that of the throughput: pyarrow's parser, gigatoken, raw ids. It opens
the same files.
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
BARE: Final = 3.0  # times the CPU seconds of the bare loop
UNITS: Final = 5_000
EACH: Final = 3.0  # milliseconds of CPU for a unit beyond its bytes
MEGABYTES: Final = 64.0
_RECORDS, _CHARACTERS = 3, 480  # of a file, and of a record
# A store for each run, and all are removed at the end: ext4 passes over inodes that
# were deleted in the last minutes one by one, so that a file made in a folder where
# thousands just went costs 0.4 to 0.6 ms, and not 0.02.
_STORES: Final = count()


def measure_small(
    work: Path, maker: InputMaker, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Return goals, and a note on what the runs took."""
    files, units = (FILES // 40, UNITS // 100) if quick else (FILES, UNITS)
    folder = work / f"small-{vocabulary.name}"
    source = _many_files(folder / f"files-{files}", maker.make(MEGABYTES), files)
    text = maker.make(1.0 if quick else MEGABYTES)
    size = int(text.file_bytes / units)
    _fresh(folder / "stores").mkdir(parents=True)
    runs: dict[str, list[float]] = {
        "bare": [],
        "files": [],
        "few units": [],
        "many units": [],
    }
    for _ in range(repeats):
        runs["bare"].append(_cpu(folder, _bare(folder, source, vocabulary)))
        runs["files"].append(_cpu(folder, _build(folder, source, vocabulary, None)))
        runs["few units"].append(_cpu(folder, _build(folder, text, vocabulary, None)))
        runs["many units"].append(
            _cpu(folder, _build(folder, text, vocabulary, str(size)))
        )
    took = {name: statistics.median(seconds) for name, seconds in runs.items()}
    last = max((folder / "stores").iterdir(), key=lambda store: int(store.name))
    made = len(list((builds.version_folder(last) / "ledger").iterdir()))
    _fresh(folder / "stores")
    each = (took["many units"] - took["few units"]) / made * 1e3
    goals = [
        Goal(
            f"{files:,} files of 1.5 KB: CPU s, tokenlake / bare gigatoken loop",
            took["files"] / took["bare"],
            "at most",
            BARE,
            "x",
        ),
        Goal(
            f"a unit of {size:,} bytes beyond its bytes",
            each,
            "at most",
            EACH,
            " CPU ms",
        ),
    ]
    told = ", ".join(f"{name} {_span(seconds)}" for name, seconds in runs.items())
    return goals, [f"small files and units ({made:,} of them), CPU s: {told}"]


def _span(seconds: Sequence[float]) -> str:
    return (
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    )


def _many_files(folder: Path, source: Input, files: int) -> Input:
    """Cut the documents of an input into files of three records of 480 characters,
    unless they are there.
    """
    if not folder.exists():
        making = _fresh(folder.with_name(folder.name + ".making"))
        making.mkdir(parents=True)
        records = (
            record
            for path in sorted(Path(source.folder).glob("*.jsonl"))
            for record in _records(path)
        )
        for number in range(files):
            (making / f"{number:06d}.jsonl").write_bytes(
                b"".join(islice(records, _RECORDS))
            )
        making.rename(folder)
    return replace(source, folder=str(folder), documents=_RECORDS * files)


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        for line in lines:
            text = orjson.loads(line)["text"]
            for at in range(0, len(text), _CHARACTERS):
                yield orjson.dumps(
                    {"text": text[at : at + _CHARACTERS]},
                    option=orjson.OPT_APPEND_NEWLINE,
                )


def _bare(folder: Path, source: Input, vocabulary: Vocabulary) -> list[str]:
    output = _fresh(folder / "bare")
    output.mkdir()
    module = ["-m", "benchmarks.systems.bare_gigatoken"]
    return [
        sys.executable,
        *module,
        source.folder,
        vocabulary.folder,
        vocabulary.eos,
        str(output),
        "1",
        str(vocabulary.id_bytes),
    ]


def _build(
    folder: Path, source: Input, vocabulary: Vocabulary, unit_size: str | None
) -> list[str]:
    store = folder / "stores" / str(next(_STORES))
    config = builds.write_config(
        folder / "config.json", source, vocabulary, store, unit_size
    )
    return builds.library_command(config, 1)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _cpu(folder: Path, command: list[str]) -> float:
    log = folder / "run.log"
    found = measure(
        command,
        report=folder / "measured.json",
        log=log,
        env=builds.environment(folder, _fresh(folder / "cache")),
    )
    if found.exit_code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {found.exit_code}: {log.read_text()[-500:]}"
        )
    return found.cpu
