"""Verifying a version: every byte against the manifest, and the manifest against itself and the ledger."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.catalog import Catalog
from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.manifest import FileEntry, Manifest, ShardEntry, UnitRecord
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import CLAIM, LEDGER, MANIFEST, RUNS, Layout, ledger_unit
from tokenlake.verify.ledger import ledger_problems, read_ledger
from tokenlake.verify.parents import parent_problems
from tokenlake.verify.report import Problem, VerifyProgress, VerifyReport
from tokenlake.verify.rows import Expected, Int64s
from tokenlake.verify.shard import ShardResult, check_shard

_CHUNK: Final = 1 << 20


def verify(
    store: ReadStore,
    dataset: str,
    version: int,
    *,
    deep: bool = False,
    workers: int = 2,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> VerifyReport:
    """Check a committed version; damage is reported, never raised.

    Always: manifest (seal, shape, account, and of a mixture its order), parents that are there, ledger, claim,
    missing and unlisted files, size and sha256 of every file, Parquet footers. With ``deep`` also: page checksums,
    nulls, counts of rows, tokens and documents, segment lengths, provenance, logical hashes.

    Args:
        workers: threads; hashing and decoding release the GIL.
        on_progress: called from the worker threads, one call at a time.

    Raises:
        NotFoundError: there is no such committed version.
    """
    layout = Layout(dataset, version)
    try:
        manifest = Catalog(store).manifest(dataset, version)
    except IntegrityError as error:
        damaged = Problem(MANIFEST, "damaged", "a sealed manifest of this version", str(error))
        return VerifyReport(
            dataset=dataset,
            version=version,
            deep=deep,
            files=0,
            bytes=0,
            rows=0,
            tokens=0,
            problems=(damaged,),
        )
    work = _Verification(store, layout, manifest, deep)
    return work.run(max(1, workers), on_progress)


@final
@dataclass(frozen=True, slots=True)
class _Verification:
    store: ReadStore
    layout: Layout
    manifest: Manifest
    deep: bool

    def run(self, workers: int, on_progress: Callable[[VerifyProgress], None] | None) -> VerifyReport:
        records, problems = read_ledger(self.store, self.layout, self.manifest.other_files)
        expected = self._expected(records)
        problems += self._account() + self._claim() + self._unlisted(expected)
        problems += parent_problems(self.store, self.manifest)
        shards = sum(entry.bytes for entry in self.manifest.files) * self.deep
        meter = _Meter(len(expected), sum(entry.bytes for entry in expected.values()) + shards, on_progress)
        results = self._read_all(expected, workers, meter)
        for result in results:
            problems += result.problems
        problems += ledger_problems(self.manifest, records, {problem.path for problem in problems})
        return VerifyReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            deep=self.deep,
            files=len(expected),
            bytes=meter.read,
            rows=sum(result.rows for result in results),
            tokens=sum(result.tokens for result in results),
            problems=tuple(
                sorted(problems, key=lambda problem: (problem.path, problem.problem, problem.expected))
            ),
        )

    def _expected(self, records: list[UnitRecord]) -> dict[str, FileEntry | ShardEntry]:
        """Return path -> entry of every file with a known hash."""
        found: dict[str, FileEntry | ShardEntry] = {shard.path: shard for shard in self.manifest.files}
        for record in records:
            if (bad := record.quarantine) is not None:
                found[bad.path] = FileEntry(bytes=bad.bytes, sha256=bad.sha256)
        return found | self.manifest.other_files

    def _account(self) -> list[Problem]:
        try:
            self.manifest.check()
        except AccountError as error:
            return [Problem(MANIFEST, "account", "an account that closes", str(error))]
        return []

    def _claim(self) -> list[Problem]:
        try:
            claim = Catalog(self.store).read_claim(self.layout.dataset, self.layout.version)
        except (IntegrityError, StoreError) as error:
            return [Problem(CLAIM, "damaged", "a sealed claim of this version", str(error))]
        if claim is None or claim.fingerprint == self.manifest.fingerprint:
            return []
        return [Problem(CLAIM, "fingerprint", self.manifest.fingerprint, claim.fingerprint)]

    def _unlisted(self, expected: dict[str, FileEntry | ShardEntry]) -> list[Problem]:
        paths = (self.layout.path(info.key) for info in self.store.list(self.layout.prefix))
        return [
            Problem(path, "unlisted", "only files that the manifest names", "a file of unknown origin")
            for path in paths
            if path not in expected and not self._is_known(path)
        ]

    def _is_known(self, path: str) -> bool:
        # Sealed ledger records prove themselves where a manifest does not list them.
        listed = any(name.startswith(f"{LEDGER}/") for name in self.manifest.other_files)
        return (
            path in (MANIFEST, CLAIM)
            or path.startswith(f"{RUNS}/")
            or (not listed and ledger_unit(path) is not None)
        )

    def _read_all(
        self, expected: dict[str, FileEntry | ShardEntry], workers: int, meter: _Meter
    ) -> list[ShardResult]:
        ids = np.sort(np.array([entry.file_id for entry in self.manifest.inputs], dtype=np.int64))
        pool = ThreadPoolExecutor(workers, thread_name_prefix="verify")
        try:
            futures = [pool.submit(self._read, path, expected[path], ids, meter) for path in sorted(expected)]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(
        self,
        path: str,
        entry: FileEntry | ShardEntry,
        ids: Int64s,
        meter: _Meter,
    ) -> ShardResult:
        try:
            return self._compare(path, entry, ids, meter)
        except NotFoundError:
            return _wrong(path, "missing", f"a file of {entry.bytes} bytes", "no file")
        except StoreError as error:  # a symlink, a folder, no permission, a failing disk
            return _wrong(path, "unreadable", "a regular file that can be read", str(error))
        finally:
            meter.file()

    def _compare(
        self,
        path: str,
        entry: FileEntry | ShardEntry,
        ids: Int64s,
        meter: _Meter,
    ) -> ShardResult:
        with self.store.open(self.layout.key(path)) as stream:
            if (size := stream.seek(0, 2)) != entry.bytes:
                return _wrong(path, "size", f"{entry.bytes} bytes", f"{size} bytes")
            stream.seek(0)
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                meter.add(len(chunk))
            if digest.hexdigest() != entry.sha256:
                return _wrong(path, "sha256", entry.sha256, digest.hexdigest())
            if isinstance(entry, FileEntry):
                return ShardResult(0, 0, ())
            stream.seek(0)
            result = check_shard(stream, entry, Expected.of(self.manifest), ids, deep=self.deep)
        meter.add(entry.bytes * self.deep, decoded=True)
        return result


def _wrong(path: str, problem: str, expected: str, got: str) -> ShardResult:
    return ShardResult(0, 0, (Problem(path, problem, expected, got),))


@final
class _Meter:
    """Sums progress over threads."""

    def __init__(self, files: int, size: int, report: Callable[[VerifyProgress], None] | None) -> None:
        self._files, self._size, self._report = files, size, report
        self._lock, self._done, self._decoded = threading.Lock(), 0, 0
        self.read = 0

    def add(self, size: int, *, decoded: bool = False) -> None:
        with self._lock:
            if decoded:
                self._decoded += size
            else:
                self.read += size
            self._tell()

    def file(self) -> None:
        with self._lock:
            self._done += 1
            self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._report(VerifyProgress(self._done, self._files, self.read + self._decoded, self._size))
