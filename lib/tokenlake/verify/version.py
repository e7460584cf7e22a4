"""Verifying a version: every byte against the manifest, and the manifest against itself and the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tokenlake.catalog import Catalog, lists_ledger
from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.manifest import FileEntry, Manifest, ShardEntry, UnitRecord
from tokenlake.reading.pages import SeenLevels
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import CLAIM, MANIFEST, RUNS, Layout, ledger_unit
from tokenlake.verify.copies import is_mark, never_published
from tokenlake.verify.crew import Stop, each
from tokenlake.verify.ledger import ledger_problems, read_ledger
from tokenlake.verify.meter import FileMeter, Meter
from tokenlake.verify.parents import parent_problems
from tokenlake.verify.report import Problem, VerifyProgress, VerifyReport
from tokenlake.verify.rows import Expected, Int64s
from tokenlake.verify.shard import ShardResult, check_shard
from tokenlake.verify.tags import tag_problems
from tokenlake.verify.whole import read_whole


def verify(
    store: ReadStore,
    dataset: str,
    version: int,
    *,
    deep: bool = False,
    workers: int | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> VerifyReport:
    """Check a committed version; damage is reported, never raised.

    Always: manifest (seal, shape, account, and of a mixture its order), parents that are there, ledger, claim, tags,
    missing and unlisted files, size and sha256 of every file, Parquet footers. With ``deep`` also: page checksums,
    nulls, counts of rows, tokens and documents, segment lengths, provenance, logical hashes; and, with the extra `etl`,
    what the manifest states of configuration and tokenizers (:mod:`tokenlake.verify.origins`). What is wrong with
    whole files is found in the bytes that the store gives: what it caches for readers is not looked at.

    Args:
        workers: threads; hashing and decoding release the GIL. Default: one for each processor.
        on_progress: called from the worker threads, one call at a time.

    Raises:
        NotFoundError: there is no such committed version.
    """
    layout = Layout(dataset, version)
    try:
        manifest = Catalog(store).manifest(dataset, version)
    except NotFoundError:
        raise
    except (IntegrityError, StoreError) as error:
        problem = "damaged" if isinstance(error, IntegrityError) else "unreadable"
        damaged = Problem(MANIFEST, problem, "a sealed manifest of this version", str(error))
        return VerifyReport(
            dataset=dataset,
            version=version,
            deep=deep,
            listed=False,
            files=0,
            bytes=0,
            rows=0,
            tokens=0,
            problems=(damaged,),
        )
    work = _Verification(store, layout, manifest, deep)
    return work.run(workers or _processors(), on_progress)


@final
@dataclass(frozen=True, slots=True)
class _Verification:
    store: ReadStore
    layout: Layout
    manifest: Manifest
    deep: bool

    def run(self, workers: int, on_progress: Callable[[VerifyProgress], None] | None) -> VerifyReport:
        stop = Stop()
        ledger = read_ledger(self.store, self.layout, self.manifest, threads=workers, stop=stop)
        problems = list(ledger.problems)
        expected = self._expected(ledger.records or [])
        if self._is_copy():
            expected = {path: entry for path, entry in expected.items() if self._is_here(path)}
        problems += self._account() + self._claim() + (self._origins() if self.deep else [])
        problems += parent_problems(self.store, self.manifest)
        if self.store.can_list:
            problems += self._listings(expected)
        shards = sum(entry.bytes for entry in self.manifest.files) * self.deep
        meter = Meter(len(expected), sum(entry.bytes for entry in expected.values()) + shards, on_progress)
        for path in expected.keys() & ledger.whole:
            _count(expected[path], meter)
        left = {path: entry for path, entry in expected.items() if path not in ledger.whole}
        results = self._read_all(left, workers, meter, stop)
        for result in results:
            problems += result.problems
        if ledger.records is not None:
            problems += ledger_problems(self.manifest, ledger.records, {problem.path for problem in problems})
        return VerifyReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            deep=self.deep,
            listed=self.store.can_list,
            files=len(expected),
            bytes=meter.read,
            rows=sum(result.rows for result in results),
            tokens=sum(result.tokens for result in results),
            problems=tuple(
                sorted(set(problems), key=lambda problem: (problem.path, problem.problem, problem.expected))
            ),
        )

    def _expected(self, records: list[UnitRecord]) -> dict[str, FileEntry | ShardEntry]:
        """Return path -> entry of every file with a known hash."""
        found: dict[str, FileEntry | ShardEntry] = {shard.path: shard for shard in self.manifest.files}
        for record in records:
            if (bad := record.quarantine) is not None:
                found[bad.path] = FileEntry(bytes=bad.bytes, sha256=bad.sha256)
        return found | self.manifest.other_files

    def _is_copy(self) -> bool:
        return not self._exists(CLAIM)

    def _is_here(self, path: str) -> bool:
        return not never_published(path) or self._exists(path)

    def _exists(self, path: str) -> bool:
        try:
            return self.store.exists(self.layout.key(path))
        except StoreError:
            return True  # whatever it is, it is there, and is looked at

    def _account(self) -> list[Problem]:
        try:
            self.manifest.check()
        except AccountError as error:
            return [Problem(MANIFEST, "account", "an account that closes", str(error))]
        return []

    def _claim(self) -> list[Problem]:
        try:
            claim = Catalog(self.store).read_claim(self.layout.dataset, self.layout.version)
        except IntegrityError as error:
            return [Problem(CLAIM, "damaged", "a sealed claim of this version", str(error))]
        except StoreError as error:
            return [Problem(CLAIM, "unreadable", "a regular file that can be read", str(error))]
        if claim is None or claim.fingerprint == self.manifest.fingerprint:
            return []
        return [Problem(CLAIM, "fingerprint", self.manifest.fingerprint, claim.fingerprint)]

    def _origins(self) -> list[Problem]:
        try:
            from tokenlake.verify.origins import origin_problems
        except ImportError:  # a trainer's installation has neither tokenizers nor YAML
            return []
        return origin_problems(self.store, self.layout, self.manifest)

    def _listings(self, expected: dict[str, FileEntry | ShardEntry]) -> list[Problem]:
        """What the store has and the manifest does not know, and the tags."""
        found: list[Problem] = []
        for look, path in ((lambda: self._unlisted(expected), "."), (self._tags, "../tags")):
            try:
                found += look()
            except StoreError as error:
                found.append(Problem(path, "unreadable", "a folder that can be listed", str(error)))
        return found

    def _tags(self) -> list[Problem]:
        return tag_problems(self.store, self.layout, self.manifest)

    def _unlisted(self, expected: dict[str, FileEntry | ShardEntry]) -> list[Problem]:
        paths = (self.layout.path(info.key) for info in self.store.list(self.layout.prefix))
        return [
            Problem(path, "unlisted", "only files that the manifest names", "a file of unknown origin")
            for path in paths
            if path not in expected and not self._is_known(path)
        ]

    def _is_known(self, path: str) -> bool:
        # Sealed ledger records prove themselves where a manifest does not list them.
        listed = lists_ledger(self.manifest)
        return (
            path in (MANIFEST, CLAIM)
            or (is_mark(path) and self._is_copy())
            or path.startswith(f"{RUNS}/")
            or (not listed and ledger_unit(path) is not None)
        )

    def _read_all(
        self, expected: dict[str, FileEntry | ShardEntry], threads: int, meter: Meter, stop: Stop
    ) -> list[ShardResult]:
        ids = np.sort(np.array([entry.file_id for entry in self.manifest.inputs], dtype=np.int64))
        rows, seen = Expected.of(self.manifest), SeenLevels(self.manifest.seq_length or 1)

        def read(path: str) -> ShardResult:
            entry = expected[path]
            work = entry.bytes * (2 if self.deep and isinstance(entry, ShardEntry) else 1)
            with meter.file(work) as count:
                return self._read(_Reading(path, entry, rows, ids, seen, count, stop))

        # The largest first would end sooner; in order of their names they lie together on a disk.
        return each(sorted(expected), read, threads=threads, stop=stop)

    def _read(self, reading: _Reading) -> ShardResult:
        path = reading.path
        try:
            return self._compare(reading)
        except NotFoundError:
            return _wrong(path, "missing", f"a file of {reading.entry.bytes} bytes", "no file")
        except (StoreError, IntegrityError) as error:  # a symlink, a folder, no permission, a failing disk
            return _wrong(path, "unreadable", "a regular file that can be read", str(error))

    def _compare(self, reading: _Reading) -> ShardResult:
        path, entry = reading.path, reading.entry
        shard = entry if isinstance(entry, ShardEntry) else None
        key = self.layout.key(path)
        with read_whole(
            self.store, key, entry.bytes, keep=shard is not None, on_read=reading.on_read
        ) as whole:
            if whole.sha256 is None:
                return _wrong(path, "size", f"{entry.bytes} bytes", f"{whole.size} bytes")
            if whole.sha256 != entry.sha256:
                return _wrong(path, "sha256", entry.sha256, whole.sha256)
            if shard is None or whole.stream is None:
                return ShardResult(0, 0, ())
            return check_shard(
                whole.stream,
                shard,
                reading.rows,
                reading.ids,
                reading.seen,
                deep=self.deep,
                on_decoded=reading.on_decoded,
            )


@final
@dataclass(frozen=True, slots=True)
class _Reading:
    """One file that is read, and who is told of it."""

    path: str
    entry: FileEntry | ShardEntry
    rows: Expected
    ids: Int64s
    seen: SeenLevels
    count: FileMeter
    stop: Stop

    def on_read(self, size: int) -> None:
        self.stop.check()
        self.count.read(size)

    def on_decoded(self, rows: int) -> None:
        self.stop.check()
        if isinstance(self.entry, ShardEntry):
            self.count.decoded(self.entry.bytes * rows // max(1, self.entry.rows))


def _count(entry: FileEntry | ShardEntry, meter: Meter) -> None:
    with meter.file(entry.bytes) as count:
        count.read(entry.bytes)


def _wrong(path: str, problem: str, expected: str, got: str) -> ShardResult:
    return ShardResult(0, 0, (Problem(path, problem, expected, got),))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
