"""Reading of raw files: CPU seconds compared with other readers, memory, and seeks.

A case is a file that all readers read. It is made of texts of this machine: long
documents are source files, short ones their paragraphs.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker, documents
from benchmarks.measure import Measurement, measure
from tokenlake import JsonShardedSource, ParquetShardedSource

SYSTEMS: Final = ("tokenlake", "polars", "duckdb", "pyarrow")
SHARE: Final = 0.8
"""Goal: MB per CPU second, divided by those of the fastest reader."""

PEAK_BYTES: Final = 500 * 10**6
"""Goal: peak memory of a process that reads 10 GB."""

SEEK_SECONDS: Final = 0.05
"""Goal: median seconds of a seek."""

_GROUP_ROWS: Final = 1000
"""Rows of a Parquet row group, as in datasets of the Hub."""

_LARGE_GROUP_ROWS: Final = 100_000
"""Rows of the largest Parquet row groups in practice, up to a GB of text."""

_SHORT: Final = 1000
"""Largest number of characters of a short document."""

_TINY: Final = 10_000
"""Bytes of the files that show the costs of starting."""


@dataclass(slots=True, kw_only=True)
class ReadCase:
    """File that all readers read, with their measurements.

    Attributes:
        name: Description for the report.
        kind: Format of the file.
        path: Path of the file.
        text_bytes: Bytes of all texts in UTF-8.
        rows: Number of rows.
        runs: Reader -> measurements.
        startup: Reader -> CPU seconds for a file of a few rows.
        failures: Reader -> reason of its failure.
    """

    name: str
    kind: str
    path: str
    text_bytes: int
    rows: int
    runs: dict[str, list[Measurement]] = field(default_factory=dict)
    startup: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def cpu(self, system: str) -> float:
        """Return the median CPU seconds of the process of a reader."""
        return statistics.median(run.cpu for run in self.runs[system])

    def whole(self, system: str) -> float:
        """Return MB of text per CPU second of the process."""
        return self.text_bytes / 1e6 / self.cpu(system)

    def rate(self, system: str) -> float:
        """Return MB of text per CPU second, without the costs of starting."""
        seconds = self.cpu(system) - self.startup.get(system, 0.0)
        return self.text_bytes / 1e6 / max(seconds, 1e-3)

    def goal(self) -> Goal | None:
        """Return the goal that compares Tokenlake with the fastest other reader."""
        peers = [name for name in self.runs if name != "tokenlake"]
        if "tokenlake" not in self.runs or not peers:
            return None
        # Rates without start-up are compared, which do not depend on the size.
        fastest = max(peers, key=self.rate)
        return Goal(
            f"reading {self.name}: MB per CPU s beyond start-up, tokenlake / {fastest}",
            self.rate("tokenlake") / self.rate(fastest),
            "at least",
            SHARE,
            "x",
        )


def measure_reading(
    work: Path, maker: InputMaker, megabytes: float, repeats: int
) -> list[ReadCase]:
    """Measure all readers on all cases, in rotation after a warm-up.

    Args:
        work: Work folder of the benchmark.
        maker: Source of the texts.
        megabytes: Size of the files in 10^6 bytes of text.
        repeats: Number of measurements.
    """
    cases = list(make_cases(work, maker, int(megabytes * 1e6)))
    # 1. The costs of starting, from a tiny file of each format.
    for tiny_case in make_cases(work, maker, _TINY):
        if not tiny_case.name.startswith("short"):
            continue
        for system in SYSTEMS:
            for turn in range(repeats + 1):
                _run(work, tiny_case, system, is_measured=turn > 0)
        for case in cases:
            if case.kind == tiny_case.kind:
                case.startup = {name: tiny_case.cpu(name) for name in tiny_case.runs}
    # 2. All cases. The first turn is the warm-up.
    for case in cases:
        for turn in range(repeats + 1):
            for system in SYSTEMS:
                if system not in case.failures:
                    _run(work, case, system, is_measured=turn > 0)
    return cases


def _run(work: Path, case: ReadCase, system: str, *, is_measured: bool) -> None:
    """Run a reader on a case, and add its measurement or failure to the case.

    Args:
        work: Work folder of the benchmark.
        case: Case.
        system: Name of the reader.
        is_measured: False for a warm-up.
    """
    # 1. Run the reader in a new process.
    log_path = work / "logs" / f"read-{system}.log"
    counts_path = work / "scratch" / "read.txt"
    for path in (log_path, counts_path):
        path.parent.mkdir(exist_ok=True, parents=True)
    program = "benchmarks.systems.readers"
    arguments = [system, case.kind, case.path, str(counts_path)]
    run = measure(
        [sys.executable, "-m", program, *arguments],
        report=work / "scratch" / "read.json",
        log=log_path,
    )
    # 2. Check that it read all rows.
    failure: str | None = None
    if run.exit_code:
        failure = f"exit code {run.exit_code}, see {log_path}"
    else:
        counts = tuple(map(int, counts_path.read_text().split()))
        expected = (case.rows, case.text_bytes)
        if counts != expected:
            failure = f"read {counts}, expected {expected}"
    if failure is not None:
        case.failures[system] = failure
        case.runs.pop(system, None)
    elif is_measured:
        case.runs.setdefault(system, []).append(run)


def make_cases(work: Path, maker: InputMaker, size: int) -> Iterator[ReadCase]:
    """Yield all cases. Files that do not exist are written.

    Args:
        work: Work folder of the benchmark.
        maker: Source of the texts.
        size: Bytes of text of each file.
    """
    folder = work / "inputs" / f"reading-2-{size / 1e6:g}MB"
    folder.mkdir(parents=True, exist_ok=True)
    for length in ("long", "short"):
        texts = _texts(maker, size, are_short=length == "short")
        text_bytes = _bytes_of(texts)
        # All formats hold the same texts.
        for kind, write in _WRITERS.items():
            path = folder / f"{length}.{kind}"
            if not path.exists():
                write(path, texts)
            mean = text_bytes / len(texts)
            yield ReadCase(
                name=f"{length} documents ({mean:.0f} bytes), {kind}",
                kind=kind,
                path=str(path),
                text_bytes=text_bytes,
                rows=len(texts),
            )


def _bytes_of(texts: Sequence[str]) -> int:
    """Return the bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _texts(maker: InputMaker, size: int, *, are_short: bool) -> list[str]:
    """Return texts of at least `size` characters.

    Args:
        maker: Source of the texts.
        size: Number of characters.
        are_short: True for paragraphs of at most 1,000 characters, False for files.
    """
    texts: list[str] = []
    character_count = 0
    for _, document in documents(maker.files()):
        pieces = [document]
        if are_short:
            pieces = [paragraph[:_SHORT] for paragraph in document.split("\n\n")]
        # Leave out blank texts, and those with NUL.
        for piece in pieces:
            if piece.strip() and "\0" not in piece:
                texts.append(piece)
                character_count += len(piece)
        if character_count >= size:
            break
    return texts


def _write_jsonl(path: Path, texts: Sequence[str]) -> None:
    """Write texts as JSON Lines, with columns id, text and lang."""
    with path.open("wb") as output_file:
        for index, text in enumerate(texts):
            record = {"id": index, "text": text, "lang": "en"}
            output_file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def _write_parquet(path: Path, texts: Sequence[str]) -> None:
    """Write texts as Parquet, with columns id and text."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
    with pq.ParquetWriter(
        path, schema, compression="zstd", write_page_checksum=True
    ) as output_file:
        for first in range(0, len(texts), _GROUP_ROWS):
            # One row group.
            group_texts = texts[first : first + _GROUP_ROWS]
            ids = pa.array(range(first, first + len(group_texts)), pa.int64())
            values = pa.array(group_texts, pa.large_string())
            output_file.write_batch(
                pa.RecordBatch.from_arrays([ids, values], schema=schema)
            )


def _write_csv(path: Path, texts: Sequence[str]) -> None:
    """Write texts as CSV, with columns id and text."""
    with path.open("w", newline="", encoding="utf-8") as output_file:
        writer = csv.writer(output_file)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))


_WRITERS: Final[dict[str, Callable[[Path, Sequence[str]], None]]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "csv": _write_csv,
}
"""Format -> function that writes texts to a file."""


def measure_large(work: Path, maker: InputMaker, gigabytes: float) -> list[Goal]:
    """Measure the peak memory of a process that reads a large file, for each format.

    Args:
        work: Work folder of the benchmark.
        maker: Source of the texts.
        gigabytes: Size of the file in 10^9 bytes of text.

    Raises:
        RuntimeError: A file was not read completely.
    """
    # 64 MB of text are repeated until the file is large enough.
    texts = _texts(maker, 64_000_000, are_short=False)
    goals: list[Goal] = []
    for file_name in ("large.jsonl.zst", "large.jsonl", "large.parquet", "large.csv"):
        kind = file_name.split(".")[1]
        path = work / "scratch" / file_name
        path.parent.mkdir(exist_ok=True)
        rows, text_bytes = _write_large(path, kind, texts, int(gigabytes * 1e9))
        case = ReadCase(
            name=file_name, kind=kind, path=str(path), text_bytes=text_bytes, rows=rows
        )
        _run(work, case, "tokenlake", is_measured=True)
        # Large files are removed at once: the disk may not hold all of them.
        path.unlink()
        if case.failures:
            raise RuntimeError(f"{file_name}: {case.failures['tokenlake']}")
        peak_bytes = case.runs["tokenlake"][0].peak_bytes
        goals.append(
            Goal(
                f"reading {text_bytes / 1e9:.1f} GB of text from {file_name}: peak memory",
                peak_bytes / 1e6,
                "at most",
                PEAK_BYTES / 1e6,
                " MB",
            )
        )
    return goals


def _write_large(
    path: Path, kind: str, texts: Sequence[str], size: int
) -> tuple[int, int]:
    """Write the same texts repeatedly.

    Args:
        path: File to write; it is compressed if its name ends with ``.zst``.
        kind: Format of the file.
        texts: Texts.
        size: Bytes of text to approach.

    Returns:
        Number of rows, and bytes of text.
    """
    pass_bytes = _bytes_of(texts)
    passes = max(1, size // pass_bytes)
    # Row groups are written one by one, so that memory is small.
    if kind == "parquet":
        _write_large_parquet(path, texts, passes)
    else:
        # Write the texts once, and copy the bytes of all lines but the header.
        part = path.with_name(f"part.{kind}")
        _WRITERS[kind](part, texts)
        lines = part.read_bytes()
        part.unlink()
        header = b""
        if kind == "csv":
            header_end = lines.index(b"\n") + 1
            header = lines[:header_end]
            lines = lines[header_end:]
        codec = "zstd" if path.suffix == ".zst" else None
        with pa.output_stream(str(path), compression=codec) as output_file:
            output_file.write(header)
            for _ in range(passes):
                output_file.write(lines)
    return len(texts) * passes, pass_bytes * passes


def _write_large_parquet(path: Path, texts: Sequence[str], passes: int) -> None:
    """Write the same texts repeatedly, in large row groups."""
    ids = pa.array(range(len(texts)))
    table = pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", write_page_checksum=True
    ) as output_file:
        for _ in range(passes):
            output_file.write_table(table, row_group_size=_LARGE_GROUP_ROWS)


def measure_seek(cases: Sequence[ReadCase], repeats: int = 25) -> list[Goal]:
    """Measure the time to read a row at any place through the row-wise API.

    The index of the file is built before.

    Args:
        cases: Cases; those without a row-wise reader are left out.
        repeats: Number of rows to read.
    """
    source_classes = {"jsonl": JsonShardedSource, "parquet": ParquetShardedSource}
    goals: list[Goal] = []
    for case in cases:
        if case.kind not in source_classes:
            continue
        source = source_classes[case.kind](case.path)
        # The file is a single shard.
        (shard,) = source.shard_names
        # Reading the last row builds the index.
        next(iter(source.open_shard_at_row(shard, case.rows - 1)))
        milliseconds: list[float] = []
        for turn in range(repeats):
            row = case.rows * turn // repeats
            start_time = time.perf_counter()
            next(iter(source.open_shard_at_row(shard, row)))
            milliseconds.append((time.perf_counter() - start_time) * 1e3)
        goals.append(
            Goal(
                f"seek to a row, {case.name}: median (largest {max(milliseconds):.0f} ms)",
                statistics.median(milliseconds),
                "at most",
                SEEK_SECONDS * 1e3,
                " ms",
            )
        )
    return goals
