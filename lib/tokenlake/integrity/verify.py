"""Verifying a version: every byte against the manifest, and the manifest against itself and the ledger.

A version that came from the Hub: it has no claim, what is never published is not there, and the Hub left marks.

A version that was built here has its claim, and nothing of this holds for it.

How far a verification is, summed over its threads.

A file of a version, read whole once: its size, its sha256, and its bytes to be looked into.

What is decoded was compared with its hash before: decoders of Parquet are written for files that are whole. A file of
this machine is read again from the page cache; what lies elsewhere is kept in a nameless file of the local disk
meanwhile, so that it is fetched once and memory does not depend on its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast, final

import numpy as np

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.integrity.findings import Problem, VerifyProgress, VerifyReport
from tokenlake.integrity.verify_records import (
    Stop,
    each,
    ledger_problems,
    parent_problems,
    read_ledger,
    tag_problems,
)
from tokenlake.integrity.verify_shard import Expected, Int64s, ShardResult, check_shard
from tokenlake.reading.pages import SeenLevels
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog, lists_ledger
from tokenlake.store.entries import FileEntry, ShardEntry
from tokenlake.store.layout import CLAIM, MANIFEST, QUARANTINE, RUNS, Layout, ledger_unit
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest

_MARKS: Final = (".gitattributes", ".cache/huggingface/")


def never_published(path: str) -> bool:
    """Return whether a listed file stays behind when its version is published."""
    return path.startswith(f"{QUARANTINE}/")


def is_mark(path: str) -> bool:
    """Return whether a file comes with a download from the Hub and is of no version."""
    return path == _MARKS[0] or path.startswith(_MARKS[1])


@final
class Meter:
    """Counts files and bytes; any number of threads.

    Args:
        files, size: of all there is to do.
        report: is called with every step, by one thread at a time.

    Attributes:
        read: bytes that were read.
    """

    def __init__(self, files: int, size: int, report: Callable[[VerifyProgress], None] | None) -> None:
        self._files, self._size, self._report = files, size, report
        self._lock = threading.Lock()
        self._files_done = self._done = self.read = 0

    @contextlib.contextmanager
    def file(self, work: int) -> Generator[FileMeter]:
        """Count a file; when it is done, all its work is, also where damage was found first."""
        own = FileMeter(self, work)
        yield own
        own.end()

    def add(self, done: int, *, read: int = 0, files: int = 0) -> None:
        """Count work that was done, what of it was reading, and files that are done."""
        with self._lock:
            self._done += done
            self.read += read
            self._files_done += files
            if self._report is not None:
                self._report(VerifyProgress(self._files_done, self._files, self._done, self._size))


@final
class FileMeter:
    """Counts the work on one file, which is never more than was announced."""

    def __init__(self, meter: Meter, work: int) -> None:
        self._meter, self._left = meter, work

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        self._meter.add(self._taken(size), read=size)

    def decoded(self, size: int) -> None:
        """Count bytes that were decoded."""
        self._meter.add(self._taken(size))

    def end(self) -> None:
        """Count the rest."""
        self._meter.add(self._taken(self._left), files=1)

    def _taken(self, size: int) -> int:
        taken = min(size, self._left)
        self._left -= taken
        return taken


_NEAR: Final = 1 << 20  # bytes read at once: they stay in the processor's cache until they are hashed
_FAR: Final = 8 << 20  # where each read is a request


@final
@dataclass(frozen=True, slots=True)
class Whole:
    """A file that was read.

    Attributes:
        size: in bytes.
        sha256: hex; None where the size is not the wanted one, and nothing was read.
        stream: its bytes, at the beginning; only where they are to be looked into.
    """

    size: int
    sha256: str | None
    stream: BinaryIO | None


@contextlib.contextmanager
def read_whole(
    store: ReadStore, key: str, size: int, *, keep: bool, on_read: Callable[[int], None]
) -> Generator[Whole]:
    """Read a file.

    Args:
        size: it should have.
        keep: whether its bytes are looked into.
        on_read: called with the size of each piece; what it raises ends the reading.

    Raises:
        NotFoundError: there is none.
        StoreError: it cannot be read.
    """
    # Without size and hash: what is stored is asked for, and no copy of it.
    with contextlib.ExitStack() as held:
        stream = held.enter_context(contextlib.closing(store.open(key)))
        near = isinstance(stream, io.BufferedReader)
        if (found := stream.seek(0, io.SEEK_END)) != size:
            yield Whole(found, None, None)
            return
        stream.seek(0)
        spool = None if near or not keep else cast("BinaryIO", held.enter_context(tempfile.TemporaryFile()))
        sha256 = _hashed(stream, size, _NEAR if near else _FAR, spool, on_read)
        kept = stream if spool is None else spool
        kept.seek(0)
        yield Whole(size, sha256, kept if keep else None)


def _hashed(
    stream: BinaryIO, size: int, piece: int, spool: BinaryIO | None, on_read: Callable[[int], None]
) -> str:
    # The buffer of the stream would only be filled to be copied from.
    source: Any = stream.raw if isinstance(stream, io.BufferedReader) else stream
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(piece, size + 1)))
    done = 0
    # A byte too many is enough: a file that grows while it is read is not read for ever.
    while done <= size and (count := source.readinto(buffer)):
        digest.update(buffer[:count])
        if spool is not None:
            spool.write(buffer[:count])
        done += count
        on_read(count)
    return digest.hexdigest()


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
    what the manifest states of configuration and tokenizers (``verify_config.py``). What is wrong with
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
            from tokenlake.integrity.verify_config import origin_problems
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
