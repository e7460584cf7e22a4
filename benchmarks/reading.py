"""Reading raw files: CPU seconds beside other readers, memory on 10 GB, milliseconds of
a seek.

A case is one file, the same for all readers, made from the machine's text: long
documents are source files as they are, short ones their paragraphs.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker, documents
from benchmarks.measure import Measurement, measure

SYSTEMS: Final = ("tokenlake", "polars", "duckdb", "pyarrow")
SHARE: Final = 0.8  # of the fastest reader's MB per CPU second, at least
_LARGE_GROUP_ROWS: Final = 100_000  # up to a GB of text: the worst that writers make
_GROUP_ROWS: Final = 1000  # of a Parquet row group, as the Hub's datasets have them
PEAK_BYTES: Final = 500 * 10**6  # of a process that reads 10 GB
SEEK_SECONDS: Final = 0.05
_SHORT: Final = 1000  # bytes of a short document, at most
_FEW: Final = 10_000  # bytes of the files that show what starting costs


@dataclass(slots=True, kw_only=True)
class ReadCase:
    """One file and what each reader took for it."""

    name: str
    kind: str
    path: str
    text_bytes: int
    rows: int
    runs: dict[str, list[Measurement]] = field(default_factory=dict)
    startup: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def cpu(self, system: str) -> float:
        """Median CPU seconds of the whole process."""
        return statistics.median(run.cpu for run in self.runs[system])

    def whole(self, system: str) -> float:
        """MB of text per CPU second of the whole process."""
        return self.text_bytes / 1e6 / self.cpu(system)

    def rate(self, system: str) -> float:
        """MB of text per CPU second beyond those that the same process takes for a
        file of a few rows.
        """
        return (
            self.text_bytes
            / 1e6
            / max(self.cpu(system) - self.startup.get(system, 0.0), 1e-3)
        )

    def goal(self) -> Goal | None:
        """Ours against the fastest peer."""
        peers = [name for name in self.runs if name != "tokenlake"]
        if "tokenlake" not in self.runs or not peers:
            return None
        best = max(peers, key=self.rate)
        what = f"reading {self.name}: MB per CPU s beyond start-up, tokenlake / {best}"
        return Goal(
            what, self.rate("tokenlake") / self.rate(best), "at least", SHARE, "x"
        )


def measure_reading(
    work: Path, maker: InputMaker, megabytes: float, repeats: int
) -> list[ReadCase]:
    """Every system on every case, in rotation, a warm-up first; medians are over
    `repeats` runs.
    """
    cases = list(make_cases(work, maker, int(megabytes * 1e6)))
    few = {
        case.kind: case
        for case in make_cases(work, maker, _FEW)
        if case.name.startswith("short")
    }
    for kind, case in few.items():
        for system in SYSTEMS:
            for turn in range(repeats + 1):
                _run(work, case, system, keep=turn > 0)
        for large in cases:
            if large.kind == kind:
                large.startup = {system: case.cpu(system) for system in case.runs}
    for case in cases:
        for turn in range(repeats + 1):
            for system in SYSTEMS:
                if system not in case.failures:
                    _run(work, case, system, keep=turn > 0)
    return cases


def _run(work: Path, case: ReadCase, system: str, *, keep: bool) -> None:
    log, answer = work / "logs" / f"read-{system}.log", work / "scratch" / "read.txt"
    for path in (log, answer):
        path.parent.mkdir(exist_ok=True, parents=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.systems.readers",
        system,
        case.kind,
        case.path,
        str(answer),
    ]
    done = measure(command, report=work / "scratch" / "read.json", log=log)
    if done.exit_code:
        case.failures[system] = f"exit code {done.exit_code}, see {log}"
        case.runs.pop(system, None)
        return
    found = tuple(map(int, answer.read_text().split()))
    if found != (case.rows, case.text_bytes):
        case.failures[system] = f"read {found}, expected {(case.rows, case.text_bytes)}"
        case.runs.pop(system, None)
    elif keep:
        case.runs.setdefault(system, []).append(done)


def make_cases(work: Path, maker: InputMaker, size: int) -> Iterator[ReadCase]:
    """The files of all cases, written where they are not there yet."""
    folder = work / "inputs" / f"reading-2-{size / 1e6:g}MB"
    folder.mkdir(parents=True, exist_ok=True)
    for length in ("long", "short"):
        texts = _texts(maker, size, short=length == "short")
        for kind, write in _WRITERS.items():
            path = folder / f"{length}.{kind}"
            if not path.exists():
                write(path, texts)
            total = sum(len(text.encode()) for text in texts)
            name = f"{length} documents ({total / len(texts):.0f} bytes), {kind}"
            yield ReadCase(
                name=name, kind=kind, path=str(path), text_bytes=total, rows=len(texts)
            )


def _texts(maker: InputMaker, size: int, *, short: bool) -> list[str]:
    found: list[str] = []
    total = 0
    for _, text in documents(maker.files()):
        pieces = text.split("\n\n") if short else [text]
        for piece in pieces:
            part = piece[:_SHORT] if short else piece
            if part.strip() and "\0" not in part:
                found.append(part)
                total += len(part)
        if total >= size:
            break
    return found


def _write_jsonl(path: Path, texts: Sequence[str]) -> None:
    with path.open("wb") as sink:
        for index, text in enumerate(texts):
            record = {"id": index, "text": text, "lang": "en"}
            sink.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def _write_parquet(path: Path, texts: Sequence[str]) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
    with pq.ParquetWriter(
        path, schema, compression="zstd", write_page_checksum=True
    ) as sink:
        rest = iter(enumerate(texts))
        while part := list(islice(rest, _GROUP_ROWS)):
            ids, values = zip(*part, strict=True)
            sink.write_batch(
                pa.RecordBatch.from_arrays(
                    [pa.array(ids), pa.array(values, pa.large_string())], schema=schema
                )
            )


def _write_csv(path: Path, texts: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as sink:
        rows = csv.writer(sink)
        rows.writerow(["id", "text"])
        rows.writerows(enumerate(texts))


_WRITERS: Final[dict[str, Callable[[Path, Sequence[str]], None]]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "csv": _write_csv,
}


def measure_large(work: Path, maker: InputMaker, gigabytes: float) -> list[Goal]:
    """Peak memory of a process that reads `gigabytes` of text in one file, per
    format.
    """
    texts = _texts(maker, 64_000_000, short=False)
    goals: list[Goal] = []
    for name in ("large.jsonl.zst", "large.jsonl", "large.parquet", "large.csv"):
        kind, path = name.split(".")[1], work / "scratch" / name
        path.parent.mkdir(exist_ok=True)
        rows, size = _write_large(path, kind, texts, int(gigabytes * 1e9))
        case = ReadCase(
            name=name, kind=kind, path=str(path), text_bytes=size, rows=rows
        )
        _run(work, case, "tokenlake", keep=True)
        path.unlink()
        if case.failures:
            raise RuntimeError(f"{name}: {case.failures['tokenlake']}")
        peak = case.runs["tokenlake"][0].peak_bytes
        what = f"reading {size / 1e9:.1f} GB of text from {name}: peak memory"
        goals.append(Goal(what, peak / 1e6, "at most", PEAK_BYTES / 1e6, " MB"))
    return goals


def _write_large(
    path: Path, kind: str, texts: Sequence[str], size: int
) -> tuple[int, int]:
    """Write the same texts again and again; return rows and bytes of text."""
    once = sum(len(text.encode()) for text in texts)
    turns = max(1, size // once)
    if kind == "parquet":
        table = pa.table(
            {
                "id": pa.array(range(len(texts))),
                "text": pa.array(texts, pa.large_string()),
            }
        )
        with pq.ParquetWriter(
            path, table.schema, compression="zstd", write_page_checksum=True
        ) as sink:
            for _ in range(turns):
                sink.write_table(table, row_group_size=_LARGE_GROUP_ROWS)
        return len(texts) * turns, once * turns
    part = path.with_name(f"part.{kind}")
    _WRITERS[kind](part, texts)
    data = part.read_bytes()
    part.unlink()
    head = b""
    if kind == "csv":
        head, data = data[: data.index(b"\n") + 1], data[data.index(b"\n") + 1 :]
    codec = "zstd" if path.suffix == ".zst" else None
    with pa.output_stream(str(path), compression=codec) as sink:
        sink.write(head)
        for _ in range(turns):
            sink.write(data)
    return len(texts) * turns, once * turns


def measure_seek(cases: Sequence[ReadCase], repeats: int = 25) -> list[Goal]:
    """Milliseconds to the first row at a random place, through the row-wise API; the
    index is built first.
    """
    from tokenlake import JsonShardedSource, ParquetShardedSource

    goals: list[Goal] = []
    for case in cases:
        opener = {"jsonl": JsonShardedSource, "parquet": ParquetShardedSource}.get(
            case.kind
        )
        if opener is None:
            continue
        source = opener(case.path)
        (shard,) = source.shard_names
        next(iter(source.open_shard_at_row(shard, case.rows - 1)))
        places = [case.rows * turn // repeats for turn in range(repeats)]
        times: list[float] = []
        for place in places:
            started = time.perf_counter()
            next(iter(source.open_shard_at_row(shard, place)))
            times.append(time.perf_counter() - started)
        what = f"seek to a row, {case.name}: median (largest {max(times) * 1e3:.0f} ms)"
        goals.append(
            Goal(
                what,
                statistics.median(times) * 1e3,
                "at most",
                SEEK_SECONDS * 1e3,
                " ms",
            )
        )
    return goals
