"""Verification: GB hashed and tokens decoded per CPU second of the whole command.

It is compared with two bare loops over the same files: sha256 of their bytes, and their
decoding by pyarrow. The version is a real build with several copies of each shard and
ledger record. It is complete, and large enough for the start of the command to be
negligible. Runs are pinned to one processor, read from the page cache, and take turns
with the bare loops.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
from benchmarks.loader_input import build
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.layout import (
    CLAIM,
    DATA,
    LEDGER,
    MANIFEST,
    ledger_path,
    shard_path,
)
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

HASHED: Final = 0.8
"""Goal: GB hashed per CPU second."""

DECODED: Final = 150.0
"""Goal: Mtok decoded per CPU second."""

PEAK_BYTES: Final = 500 * 10**6
"""Goal: peak memory."""

_BUILT: Final = "corpus"
"""Name of the built dataset that is copied."""

# Hashing is nine times as fast as decoding. With four times as much data, both take
# much longer than the start of the command.
_HASHED_COPIES: Final = 48
_DECODED_COPIES: Final = 12
"""Number of copies of each shard."""


@dataclass(slots=True, kw_only=True)
class CommandSeries:
    """Measurements of a command on a version.

    Attributes:
        name: Name in the report.
        command: Command line.
        manifest: Manifest of the version.
        runs: Measurements.
    """

    name: str
    command: Sequence[str]
    manifest: Manifest
    runs: list[Measurement] = field(default_factory=list)

    @property
    def cpu(self) -> float:
        """Median CPU seconds of the whole process."""
        return statistics.median(run.cpu for run in self.runs)

    @property
    def gigabytes(self) -> float:
        """GB (10^9 bytes) of all shards."""
        return self.manifest.totals.bytes / 1e9

    @property
    def mtok(self) -> float:
        """Million tokens of content."""
        accounts = self.manifest.accounts.values()
        return sum(account.content_packed for account in accounts) / 1e6


@dataclass(frozen=True, slots=True)
class VerifySeries:
    """Measurements of verification and of its bare loops.

    Attributes:
        hashing: ``tokenlake verify``.
        sha256: Bare loop of sha256 on the same version.
        decoding: ``tokenlake verify --deep``.
        pyarrow: Bare loop of decoding by pyarrow on the same version.
    """

    hashing: CommandSeries
    sha256: CommandSeries
    decoding: CommandSeries
    pyarrow: CommandSeries

    def all(self) -> list[CommandSeries]:
        """Return all series."""
        return [self.hashing, self.sha256, self.decoding, self.pyarrow]


def measure_verify(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    megabytes: float,
    repeats: int,
    *,
    quick: bool,
) -> tuple[list[Goal], list[str]]:
    """Measure verification in rotation with the bare loops, after a warm-up.

    Args:
        work: Work folder of the benchmark.
        maker: Maker of the input.
        vocabulary: Tokenizer.
        megabytes: Size of the built input in 10^6 bytes of text.
        repeats: Number of measurements.
        quick: True for a version without copies.

    Returns:
        Goals, and a note with all CPU seconds.
    """
    # 1. The versions, which are copies of a build.
    source = maker.make(megabytes)
    folder = work / "inputs" / f"verify-{vocabulary.name}-{Path(source.folder).name}"
    folder.mkdir(parents=True, exist_ok=True)
    parts = sorted(Path(source.folder).glob("*.jsonl"))
    built = build(work, folder, _BUILT, parts, vocabulary)
    store = folder / "store"
    hashed = store / "hashed" / "v1"
    decoded = store / "decoded" / "v1"
    hashed_copies = _HASHED_COPIES
    decoded_copies = _DECODED_COPIES
    if quick:
        hashed_copies = 1
        decoded_copies = 1
    hashed_manifest = repeated(built, hashed, hashed_copies)
    decoded_manifest = repeated(built, decoded, decoded_copies)
    # 2. The commands.
    python = [sys.executable, "-m"]
    verify = [*python, "tokenlake", "verify"]
    bare = [*python, "benchmarks.systems.verify_bare"]
    options = ["--store", str(store), "--workers", "1"]
    series = VerifySeries(
        hashing=CommandSeries(
            name="verify",
            command=[*verify, "hashed", *options],
            manifest=hashed_manifest,
        ),
        sha256=CommandSeries(
            name="sha256",
            command=[*bare, "sha256", str(hashed / DATA)],
            manifest=hashed_manifest,
        ),
        decoding=CommandSeries(
            name="verify --deep",
            command=[*verify, "--deep", "decoded", *options],
            manifest=decoded_manifest,
        ),
        pyarrow=CommandSeries(
            name="pyarrow",
            command=[*bare, "pyarrow", str(decoded / DATA)],
            manifest=decoded_manifest,
        ),
    )
    # 3. The measurements. The first turn is the warm-up.
    for turn in range(repeats + 1):
        for command_series in series.all():
            run = _run(work, command_series)
            if turn > 0:
                command_series.runs.append(run)
    return _goals(series), [_note(series)]


def repeated(built: Path, version: Path, copies: int) -> Manifest:
    """Commit a version that holds the units of a build several times.

    The copies of a unit have other numbers. Shards are hard links. A version that
    exists is kept.

    Args:
        built: Folder of the built version.
        version: Folder of the new version.
        copies: Number of copies of each unit.

    Returns:
        Manifest of the new version.
    """
    if (version / MANIFEST).exists():
        return Manifest.from_bytes((version / MANIFEST).read_bytes())
    # 1. Copy all files that do not belong to units.
    shutil.rmtree(version, ignore_errors=True)
    unit_files = shutil.ignore_patterns(DATA, LEDGER, MANIFEST, CLAIM, "runs")
    shutil.copytree(built, version, ignore=unit_files)
    manifest = Manifest.from_bytes((built / MANIFEST).read_bytes())
    other_files: dict[str, FileEntry] = {}
    for path, entry in manifest.other_files.items():
        if not path.startswith(f"{LEDGER}/"):
            other_files[path] = entry
    # 2. Copy all units, under new numbers.
    for folder in (DATA, LEDGER):
        (version / folder).mkdir()
    records = [
        UnitRecord.from_bytes(path.read_bytes())
        for path in sorted((built / LEDGER).iterdir())
    ]
    unit_numbers = 1 + max(record.unit for record in records)
    shards: list[ShardEntry] = []
    for copy in range(copies):
        for record in records:
            # Each copy has its own range of numbers.
            unit = copy * unit_numbers + record.unit
            parts = [_link_shard(built, version, part, unit) for part in record.parts]
            shards += parts
            new_record = replace(record, unit=unit, parts=tuple(parts))
            data = new_record.to_bytes()
            path = ledger_path(unit)
            (version / path).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            other_files[path] = FileEntry(bytes=len(data), sha256=digest)
    # 3. Commit the manifest.
    accounts: dict[str, Account] = {}
    for source_name, account in manifest.accounts.items():
        accounts[source_name] = Account.total([account] * copies)
    new_manifest = replace(
        manifest,
        dataset=version.parent.name,
        files=tuple(shards),
        other_files=other_files,
        accounts=accounts,
    )
    # Reject an inconsistent manifest, which no command would read.
    new_manifest.check()
    (version / MANIFEST).write_bytes(new_manifest.to_bytes())
    return new_manifest


def _link_shard(built: Path, version: Path, part: ShardEntry, unit: int) -> ShardEntry:
    """Link a shard of a build under the number of another unit.

    Args:
        built: Folder of the built version.
        version: Folder of the new version.
        part: Shard to link.
        unit: New number of its unit.

    Returns:
        Entry of the link.
    """
    path = shard_path(part.split, unit, part.part)
    os.link(built / part.path, version / path)
    return replace(part, path=path, unit=unit)


def _run(work: Path, series: CommandSeries) -> Measurement:
    """Run a command, pinned to one processor if `taskset` is installed.

    Raises:
        RuntimeError: The command failed.
    """
    log_path = work / "logs" / "verify.log"
    for folder in (log_path.parent, work / "scratch"):
        folder.mkdir(parents=True, exist_ok=True)
    # The CPU seconds of a process vary if it moves between processors.
    command = list(series.command)
    if shutil.which("taskset"):
        processor = max(os.sched_getaffinity(0))
        command = ["taskset", "-c", str(processor), *command]
    run = measure(
        command,
        report=work / "scratch" / "verify.json",
        log=log_path,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
    )
    if run.exit_code:
        raise RuntimeError(
            f"{series.name} ended with exit code {run.exit_code}; its output is in {log_path}"
        )
    return run


def _goals(series: VerifySeries) -> list[Goal]:
    """Return the goals of hashing, decoding and memory."""
    hashing = series.hashing
    decoding = series.decoding
    # Memory must be small in all runs.
    peak_bytes = max(run.peak_bytes for run in [*hashing.runs, *decoding.runs])
    return [
        Goal(
            f"{_describe_version(hashing)}: GB per CPU s",
            hashing.gigabytes / hashing.cpu,
            "at least",
            HASHED,
            " GB/s",
        ),
        Goal(
            f"{_describe_version(decoding)}: Mtok per CPU s",
            decoding.mtok / decoding.cpu,
            "at least",
            DECODED,
            " Mtok/s",
        ),
        Goal(
            "verify: peak memory", peak_bytes / 1e6, "at most", PEAK_BYTES / 1e6, " MB"
        ),
    ]


def _describe_version(series: CommandSeries) -> str:
    """Return the name of a command with the size of its version."""
    shards = len(series.manifest.files)
    return f"{series.name}, {series.gigabytes:.2f} GB, {series.mtok:.0f} Mtok, {shards} shards, one thread"


def _note(series: VerifySeries) -> str:
    """Return a line with the CPU seconds of all commands, and their ratios."""
    measurements = [_describe_runs(command_series) for command_series in series.all()]
    hashing_ratio = series.hashing.cpu / series.sha256.cpu
    decoding_ratio = series.decoding.cpu / series.pyarrow.cpu
    return (
        f"Verification, whole processes on one processor, medians of {len(series.hashing.runs)}: "
        f"{'; '.join(measurements)}. CPU seconds: "
        f"verify / sha256 {hashing_ratio:.2f}, verify --deep / pyarrow's decoding alone {decoding_ratio:.2f}"
    )


def _describe_runs(series: CommandSeries) -> str:
    """Return the CPU seconds and rates of a command."""
    seconds = [run.cpu for run in series.runs]
    span = f"{min(seconds):.2f}-{max(seconds):.2f}"
    gigabytes = series.gigabytes / series.cpu
    mtok = series.mtok / series.cpu
    return f"{series.name} {series.cpu:.2f} CPU s ({span}; {gigabytes:.2f} GB/s, {mtok:.0f} Mtok/s)"
