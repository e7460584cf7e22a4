"""Verification: GB hashed and tokens decoded per CPU second of the whole command,
beside what nobody does without.

The version is a real build with each of its shards several times, ledger records
included, so that it is whole and large enough for the start of the command to matter
little. Runs are pinned to one processor, read from the page cache, and take turns with
two bare loops over the same files: sha256 of their bytes, and their decoding by
pyarrow.
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

HASHED: Final = 0.8  # GB per CPU second, at least
DECODED: Final = 150.0  # Mtok per CPU second, at least
PEAK_BYTES: Final = 500 * 10**6
_BUILT: Final = "corpus"
# Hashing goes nine times as fast as decoding, and is given four times as much: both are
# to last longer than the start.
_HASHED_COPIES: Final = 48
_DECODED_COPIES: Final = 12


@dataclass(slots=True, kw_only=True)
class Verified:
    """What a command took, several times, on a version."""

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
        """Of shards."""
        return self.manifest.totals.bytes / 1e9

    @property
    def mtok(self) -> float:
        """Of content."""
        return (
            sum(account.content_packed for account in self.manifest.accounts.values())
            / 1e6
        )


def measure_verify(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    megabytes: float,
    repeats: int,
    *,
    quick: bool,
) -> tuple[list[Goal], list[str]]:
    """Return goals and a note with what the bare loops took."""
    source = maker.make(megabytes)
    folder = work / "inputs" / f"verify-{vocabulary.name}-{Path(source.folder).name}"
    folder.mkdir(parents=True, exist_ok=True)
    built = build(
        work, folder, _BUILT, sorted(Path(source.folder).glob("*.jsonl")), vocabulary
    )
    series: list[Verified] = []
    for name, copies, option, loop in (
        ("hashed", _HASHED_COPIES, [], "sha256"),
        ("decoded", _DECODED_COPIES, ["--deep"], "pyarrow"),
    ):
        version = folder / "store" / name / "v1"
        manifest = repeated(built, version, 1 if quick else copies)
        ours = [
            "verify",
            *option,
            name,
            "--store",
            str(folder / "store"),
            "--workers",
            "1",
        ]
        bare = ["benchmarks.systems.verify_bare", loop, str(version / DATA)]
        for shown, module in (
            (" ".join(["verify", *option]), ["tokenlake", *ours]),
            (loop, bare),
        ):
            series.append(
                Verified(
                    name=shown,
                    command=[sys.executable, "-m", *module],
                    manifest=manifest,
                )
            )
    for turn in range(repeats + 1):
        for one in series:
            done = _run(work, one)
            if turn:
                one.runs.append(done)
    return _goals(series), [_note(series)]


def repeated(built: Path, version: Path, times: int) -> Manifest:
    """Commit a version that holds a built one's units so many times, under other
    numbers; it may be there.
    """
    if (version / MANIFEST).exists():
        return Manifest.from_bytes((version / MANIFEST).read_bytes())
    shutil.rmtree(version, ignore_errors=True)
    shutil.copytree(
        built,
        version,
        ignore=shutil.ignore_patterns(DATA, LEDGER, MANIFEST, CLAIM, "runs"),
    )
    manifest = Manifest.from_bytes((built / MANIFEST).read_bytes())
    records = [
        UnitRecord.from_bytes(path.read_bytes())
        for path in sorted((built / LEDGER).iterdir())
    ]
    others = {
        path: entry
        for path, entry in manifest.other_files.items()
        if not path.startswith(f"{LEDGER}/")
    }
    files: list[ShardEntry] = []
    for folder in (DATA, LEDGER):
        (version / folder).mkdir()
    for copy in range(times):
        for record in records:
            number = copy * (1 + max(one.unit for one in records)) + record.unit
            parts = [_linked(built, version, part, number) for part in record.parts]
            data = replace(record, unit=number, parts=tuple(parts)).to_bytes()
            path = ledger_path(number)
            (version / path).write_bytes(data)
            others[path] = FileEntry(
                bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
            )
            files += parts
    accounts = {
        name: Account.total([account] * times)
        for name, account in manifest.accounts.items()
    }
    name = version.parent.name
    made = replace(
        manifest,
        dataset=name,
        files=tuple(files),
        other_files=others,
        accounts=accounts,
    )
    made.check()
    (version / MANIFEST).write_bytes(made.to_bytes())
    return made


def _linked(built: Path, version: Path, part: ShardEntry, unit: int) -> ShardEntry:
    path = shard_path(part.split, unit, part.part)
    os.link(built / part.path, version / path)
    return replace(part, path=path, unit=unit)


def _run(work: Path, one: Verified) -> Measurement:
    log = work / "logs" / "verify.log"
    for folder in (log.parent, work / "scratch"):
        folder.mkdir(parents=True, exist_ok=True)
    pin = (
        ["taskset", "-c", str(max(os.sched_getaffinity(0)))]
        if shutil.which("taskset")
        else []
    )
    env = builds.environment(work, work / "scratch" / "hash-cache")
    done = measure(
        [*pin, *one.command], report=work / "scratch" / "verify.json", log=log, env=env
    )
    if done.exit_code:
        raise RuntimeError(
            f"{one.name} ended with exit code {done.exit_code}; its output is in {log}"
        )
    return done


def _goals(series: Sequence[Verified]) -> list[Goal]:
    plain, _, deep, _ = series
    peak = max(run.peak_bytes for one in (plain, deep) for run in one.runs)
    return [
        Goal(
            f"{_size(plain)}: GB per CPU s",
            plain.gigabytes / plain.cpu,
            "at least",
            HASHED,
            " GB/s",
        ),
        Goal(
            f"{_size(deep)}: Mtok per CPU s",
            deep.mtok / deep.cpu,
            "at least",
            DECODED,
            " Mtok/s",
        ),
        Goal("verify: peak memory", peak / 1e6, "at most", PEAK_BYTES / 1e6, " MB"),
    ]


def _size(one: Verified) -> str:
    shards = len(one.manifest.files)
    return f"{one.name}, {one.gigabytes:.2f} GB, {one.mtok:.0f} Mtok, {shards} shards, one thread"


def _note(series: Sequence[Verified]) -> str:
    plain, sha256, deep, arrow = (one.cpu for one in series)
    return (
        f"Verification, whole processes on one processor, medians of {len(series[0].runs)}: "
        f"{'; '.join(_shown(one) for one in series)}. CPU seconds: "
        f"verify / sha256 {plain / sha256:.2f}, verify --deep / pyarrow's decoding alone {deep / arrow:.2f}"
    )


def _shown(one: Verified) -> str:
    times = [run.cpu for run in one.runs]
    rates = f"{one.gigabytes / one.cpu:.2f} GB/s, {one.mtok / one.cpu:.0f} Mtok/s"
    return (
        f"{one.name} {one.cpu:.2f} CPU s ({min(times):.2f}-{max(times):.2f}; {rates})"
    )
