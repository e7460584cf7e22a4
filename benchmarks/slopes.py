"""CPU time per unit of all steps that read or write every unit of a version.

These are sessions, commit, ls, pages, verify, gc, and readers of a manifest. The units
are those of a real build, but one unit is built, and the others are copies of it with
records of their own. Therefore twenty thousand are made in a minute, through the same
interfaces as in every build.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

from benchmarks.goals import Goal
from tokenlake.cli.catalog import ls
from tokenlake.etl.commit import renamed_record
from tokenlake.etl.in_process_pool import InProcessPool
from tokenlake.etl.integrity.verify import verify
from tokenlake.etl.job import Job, UnitJob
from tokenlake.etl.runner import finished_build, run_pending
from tokenlake.etl.session import BuildSession
from tokenlake.etl.tokenizers.training import train_bpe
from tokenlake.query.store_pages import report_store
from tokenlake.runtime.loader.dataset import open as open_version
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Link
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.gc import gc
from tokenlake.runtime.store.layout import Layout, shard_path
from tokenlake.runtime.store.ledger import InputEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

UNITS: Final = (1_000, 5_000, 20_000)
"""Numbers of units that are measured."""

SHARDS: Final = 100_000
"""Number of shards of the dataset that is opened."""

QUICK_PART: Final = 50
"""Divisor of the units and shards of a quick run."""

MOST_RERUN_SECONDS: Final = 3.0
"""Most CPU seconds of a run with nothing to do over 5,000 units."""

MOST_PAGES_SECONDS: Final = 10.0
"""Most CPU seconds of the pages of a store of 20,000 shards."""

MOST_OPEN_SECONDS: Final = 1.0
"""Most CPU seconds of opening the dataset."""

_NAME: Final = "slopes"
_LARGE: Final = "many"  # name of the dataset that is opened

StepSeconds = Mapping[str, float]
"""Step -> CPU seconds."""


@final
class CopyingPool:
    """Pool that builds one unit. Its other units are copies of that one."""

    workers = 1

    def __init__(self) -> None:
        self._pool = InProcessPool()
        self._first_record: UnitRecord | None = None

    def run(self, job: Job, on_progress: Any = None) -> Any:
        """Return the record of a unit, whose files are those of the first one."""
        # Jobs that build no unit run as usual.
        if not isinstance(job, UnitJob):
            return self._pool.run(job)
        if self._first_record is None:
            sealed_record: str = self._pool.run(job)
            self._first_record = UnitRecord.from_bytes(sealed_record.encode())
            return sealed_record

        # 1. Link the files of the first unit under the names of this one.
        record = renamed_record(self._first_record, job.unit)
        layout = Layout(job.dataset, job.version)
        links: list[Link] = []
        for part, copied_part in zip(
            self._first_record.parts, record.parts, strict=True
        ):
            links.append(
                Link(
                    source=layout.key(part.path),
                    target=layout.key(copied_part.path),
                    size=part.bytes,
                    sha256=part.sha256,
                )
            )
        open_store(job.store).link_all(links)

        # 2. Record the input that this unit should have read.
        (file_range,) = job.ranges
        input_entry = InputEntry(
            source=file_range.file.source,
            path=file_range.file.path,
            size=file_range.file.size,
            token=file_range.file.token,
            file_id=file_range.file.file_id,
            start=file_range.start,
            stop=file_range.stop,
        )
        record = replace(record, fingerprint=job.fingerprint, inputs=(input_entry,))
        return record.to_bytes().decode()

    def expect(self, count: int, jobs: object = None) -> None:
        """Do nothing: no workers are to be started."""

    def cancel(self) -> None:
        """Do nothing: no jobs run in the background."""


def measure_slopes(work: Path, *, quick: bool) -> tuple[list[Goal], list[str]]:
    """Measure all steps for each number of units.

    Args:
        work: Folder for all files of the benchmark.
        quick: Whether to measure few units.

    Returns:
        Goals, and a note on each step.
    """
    # 1. Measure all steps for each number of units, and opening a large version.
    divisor = QUICK_PART if quick else 1
    counts = [count // divisor for count in UNITS]
    folder = work / "slopes"
    shutil.rmtree(folder, ignore_errors=True)
    seconds_of_steps: dict[int, StepSeconds] = {}
    for count in counts:
        seconds_of_steps[count] = _measure_steps(folder / str(count), count)
    open_seconds, shards = _measure_opening(folder / str(counts[-1]), SHARDS // divisor)
    shutil.rmtree(folder)

    # 2. Judge the figures that have limits.
    _, middle_count, large_count = counts
    goals = [
        Goal(
            f"nothing to do for {middle_count:,} units",
            seconds_of_steps[middle_count]["rerun"],
            "at most",
            MOST_RERUN_SECONDS,
            " CPU s",
        ),
        Goal(
            f"pages of {large_count:,} shards",
            seconds_of_steps[large_count]["pages"],
            "at most",
            MOST_PAGES_SECONDS,
            " CPU s",
        ),
        Goal(
            f"open a dataset of {shards:,} shards",
            open_seconds,
            "at most",
            MOST_OPEN_SECONDS,
            " CPU s",
        ),
    ]
    steps = seconds_of_steps[large_count]
    return goals, [_note(step, seconds_of_steps) for step in steps]


def _note(step: str, seconds_of_steps: Mapping[int, StepSeconds]) -> str:
    """Return a note on a step.

    Example: ``commit: 0.31, 0.30, 0.30 CPU ms a unit of 1,000, 5,000, 20,000; 0.30 for
    each more``.

    Args:
        step: Name of the step.
        seconds_of_steps: Number of units -> CPU seconds of each step.
    """
    milliseconds: list[str] = []
    for count, seconds in seconds_of_steps.items():
        milliseconds.append(f"{seconds[step] / count * 1e3:.3f}")
    counts = list(seconds_of_steps)
    added_seconds = (
        seconds_of_steps[counts[-1]][step] - seconds_of_steps[counts[0]][step]
    )
    slope = added_seconds / (counts[-1] - counts[0]) * 1e3
    sizes = [f"{count:,}" for count in counts]
    return (
        f"{step}: {', '.join(milliseconds)} CPU ms a unit of {', '.join(sizes)}; "
        f"{slope:.3f} for each more"
    )


def _measure_steps(folder: Path, units: int) -> StepSeconds:
    """Return the CPU seconds of every step of a build, and of its readers.

    Args:
        folder: Folder of the build.
        units: Number of units.

    Raises:
        RuntimeError: The build has another number of units, or is damaged.
    """
    config = _config(folder, units)
    store = str(folder / "store")
    seconds: dict[str, float] = {}

    def timed(step: str, action: Callable[[], Any]) -> Any:
        start = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            result = action()
        seconds[step] = time.process_time() - start
        return result

    # 1. Steps of a build. Making the units is not measured.
    session = timed("plan and claim", lambda: BuildSession.open(config))
    pool: Any = CopyingPool()
    run_pending(session, pool)
    timed("resume", lambda: BuildSession.open(config))
    timed("commit", session.commit)
    timed("rerun", lambda: finished_build(config))

    # 2. Readers of the version. Pages are written twice: the second time, all are up to
    #    date.
    timed("manifest", lambda: Catalog(open_store(store)).manifest(_NAME, 1))
    timed("ls", lambda: ls(store=store))
    timed("pages", lambda: report_store(store, folder / "pages"))
    timed("pages again", lambda: report_store(store, folder / "pages"))

    # 3. Steps that look at every file.
    report = timed("verify", lambda: verify(store, _NAME))
    timed("gc", lambda: gc(store, dry_run=True))

    # 4. Refuse the figures of a damaged version.
    if report.problems or len(session.plan.units) != units:
        raise RuntimeError(
            f"{len(session.plan.units)} units of {units}; {report.problems[:1]}"
        )
    return seconds


def _config(folder: Path, units: int) -> dict[str, Any]:
    """Write the input of a build, and return its configuration.

    All lines of the input have the same length, and each is a unit.
    """
    folder.mkdir(parents=True)

    # 1. Lines of one length, which is the size of a unit.
    lines: list[bytes] = []
    for number in range(units):
        document = {"id": f"{number:08d}", "text": "a line"}
        lines.append(json.dumps(document).encode() + b"\n")
    (folder / "lines.jsonl").write_bytes(b"".join(lines))

    # 2. A tokenizer of any kind: only one unit is built.
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    files = train_bpe(["a line as long as any other"], vocab_size=300).files
    for file_name, content in files.items():
        (tokenizer / file_name).write_bytes(content)
    return {
        "name": _NAME,
        "datasets": [
            {
                "name": "text",
                "data_files": str(folder / "lines.jsonl"),
                "tokenizer": str(tokenizer),
            }
        ],
        "source": {"unit_size": len(lines[0])},
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(folder / "store")},
    }


def _measure_opening(folder: Path, shards: int) -> tuple[float, int]:
    """Measure how long a version of many shards takes to open.

    Args:
        folder: Folder of a build, whose shards are repeated.
        shards: Least number of shards.

    Returns:
        CPU seconds, and the number of shards.
    """
    # 1. Write a manifest that has the shards of the build many times.
    version = folder / "store" / _NAME / "v1"
    manifest = Manifest.from_bytes((version / "manifest.json").read_bytes())
    files: list[ShardEntry] = []
    for copy_number in range(math.ceil(shards / len(manifest.files))):
        for shard in manifest.files:
            new_unit = copy_number * len(manifest.files) + shard.unit
            new_path = shard_path(shard.split, new_unit, shard.part)
            files.append(replace(shard, unit=new_unit, path=new_path))
    large_version = folder / _LARGE / "v1"
    shutil.copytree(
        version,
        large_version,
        ignore=shutil.ignore_patterns("data", "ledger", "manifest.json"),
    )
    large_manifest = replace(manifest, dataset=_LARGE, files=tuple(files))
    (large_version / "manifest.json").write_bytes(large_manifest.to_bytes())

    # 2. Open it.
    start = time.process_time()
    open_version(str(large_version))
    return time.process_time() - start, len(files)
