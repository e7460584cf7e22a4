"""What each unit costs those who look at all of them: sessions, commit, ls, pages,
verify, gc, and readers of a manifest.

Units are those of a real build, but hardly any work is done for them: one is built, and
the others are its copies, each with a record of its own. So twenty thousand are made in
a minute, by the doors that every build uses.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
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
from tokenlake.runtime.store.ledger import InputEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

UNITS: Final = (1_000, 5_000, 20_000)
SHARDS: Final = 100_000
AGAIN: Final = 3.0  # CPU seconds of a run with nothing to do over 5,000 units
PAGES: Final = 10.0  # CPU seconds of the pages of a store of 20,000 shards
OPEN: Final = 1.0  # CPU seconds of a manifest of so many shards
_NAME: Final = "slopes"


@final
class CopyingPool:
    """A pool that builds one unit, and whose other units are copies of it."""

    workers = 1

    def __init__(self) -> None:
        self._real = InProcessPool()
        self._first: UnitRecord | None = None

    def run(self, job: Job, on_progress: Any = None) -> Any:
        """Return the record of a unit, whose files are those of the first one."""
        if not isinstance(job, UnitJob):
            return self._real.run(job)
        if self._first is None:
            sealed: str = self._real.run(job)
            self._first = UnitRecord.from_bytes(sealed.encode())
            return sealed
        made = renamed_record(self._first, job.unit)
        layout, store = Layout(job.dataset, job.version), open_store(job.store)
        pairs = zip(self._first.parts, made.parts, strict=True)
        store.link_all(
            [
                Link(
                    source=layout.key(a.path),
                    target=layout.key(b.path),
                    size=a.bytes,
                    sha256=a.sha256,
                )
                for a, b in pairs
            ]
        )
        [part] = job.ranges
        read = InputEntry(
            source=part.file.source,
            path=part.file.path,
            size=part.file.size,
            token=part.file.token,
            file_id=part.file.file_id,
            start=part.start,
            stop=part.stop,
        )
        return (
            replace(made, fingerprint=job.fingerprint, inputs=(read,))
            .to_bytes()
            .decode()
        )

    def expect(self, count: int, jobs: object = None) -> None:
        """Nothing is to be got ready."""

    def cancel(self) -> None:
        """Nothing runs beside the caller."""


def measure_slopes(work: Path, *, quick: bool) -> tuple[list[Goal], list[str]]:
    """Return goals, and what each step cost for each number of units."""
    counts = tuple(count // 50 for count in UNITS) if quick else UNITS
    folder = work / "slopes"
    shutil.rmtree(folder, ignore_errors=True)
    took = {count: _measured(folder / str(count), count) for count in counts}
    opened, shards = _opened(
        folder / str(counts[-1]), SHARDS // 50 if quick else SHARDS
    )
    shutil.rmtree(folder)
    goals = [
        Goal(
            f"nothing to do for {counts[1]:,} units",
            took[counts[1]]["rerun"],
            "at most",
            AGAIN,
            " CPU s",
        ),
        Goal(
            f"pages of {counts[2]:,} shards",
            took[counts[2]]["pages"],
            "at most",
            PAGES,
            " CPU s",
        ),
        Goal(f"open a dataset of {shards:,} shards", opened, "at most", OPEN, " CPU s"),
    ]
    return goals, [_told(step, took) for step in took[counts[0]]]


def _told(step: str, took: dict[int, dict[str, float]]) -> str:
    """``commit: 0.31, 0.30, 0.30 ms a unit of 1,000, 5,000, 20,000; 0.30 for each
    more``.
    """
    counts = list(took)
    each = ", ".join(f"{took[count][step] / count * 1e3:.3f}" for count in counts)
    slope = (
        (took[counts[-1]][step] - took[counts[0]][step])
        / (counts[-1] - counts[0])
        * 1e3
    )
    sizes = ", ".join(f"{count:,}" for count in counts)
    return f"{step}: {each} CPU ms a unit of {sizes}; {slope:.3f} for each more"


def _measured(folder: Path, units: int) -> dict[str, float]:
    """Return step to CPU seconds, of a build of so many units."""
    config, store = _config(folder, units), str(folder / "store")
    steps: dict[str, float] = {}

    def timed(step: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            found = act()
        steps[step] = time.process_time() - began
        return found

    session = timed("plan and claim", lambda: BuildSession.open(config))
    pool: Any = CopyingPool()
    run_pending(session, pool)
    timed("resume", lambda: BuildSession.open(config))
    timed("commit", session.commit)
    timed("rerun", lambda: finished_build(config))
    timed("manifest", lambda: Catalog(open_store(store)).manifest(_NAME, 1))
    timed("ls", lambda: ls(store=store))
    timed("pages", lambda: report_store(store, folder / "pages"))
    timed("pages again", lambda: report_store(store, folder / "pages"))
    report = timed("verify", lambda: verify(store, _NAME))
    timed("gc", lambda: gc(store, dry_run=True))
    if report.problems or len(session.plan.units) != units:
        raise RuntimeError(
            f"{len(session.plan.units)} units of {units}; {report.problems[:1]}"
        )
    return steps


def _config(folder: Path, units: int) -> dict[str, Any]:
    """Write lines of one length, each of which is a unit, and return the
    configuration of a build of them.
    """
    folder.mkdir(parents=True)
    lines = list(_lines(units))
    (folder / "lines.jsonl").write_bytes(b"".join(lines))
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    for name, data in train_bpe(
        ["a line as long as any other"], vocab_size=300
    ).files.items():
        (tokenizer / name).write_bytes(data)
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


def _lines(count: int) -> Iterator[bytes]:
    return (
        json.dumps({"id": f"{number:08d}", "text": "a line"}).encode() + b"\n"
        for number in range(count)
    )


def _opened(folder: Path, shards: int) -> tuple[float, int]:
    """Return the CPU seconds of opening a version of so many shards, and how many
    they are.
    """
    version = folder / "store" / _NAME / "v1"
    made = Manifest.from_bytes((version / "manifest.json").read_bytes())
    times = -(-shards // len(made.files))
    files = [
        replace(shard, unit=unit, path=shard_path(shard.split, unit, shard.part))
        for copy in range(times)
        for shard in made.files
        for unit in [copy * len(made.files) + shard.unit]
    ]
    many = folder / "many" / "v1"
    shutil.copytree(
        version, many, ignore=shutil.ignore_patterns("data", "ledger", "manifest.json")
    )
    large = replace(made, dataset="many", files=tuple(files))
    (many / "manifest.json").write_bytes(large.to_bytes())
    began = time.process_time()
    open_version(str(many))
    return time.process_time() - began, len(files)
