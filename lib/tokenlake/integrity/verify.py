"""Verifying a version: every byte against the manifest, and the manifest against itself and the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast, final

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.integrity.findings import Entries, Entry, Problem, VerifyProgress, VerifyReport, listed_files
from tokenlake.integrity.verify_records import ledger_problems, parent_problems, read_ledger, tag_problems
from tokenlake.integrity.verify_shard import RowRules, ShardResult, check_shard
from tokenlake.reading.pages import SeenLevels
from tokenlake.store.address import open_read_store
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog, Reference, lists_ledger, parted
from tokenlake.store.entries import FileEntry, ShardEntry
from tokenlake.store.layout import CLAIM, MANIFEST, QUARANTINE, RUNS, Layout, ledger_unit
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.threads import Stop, available_cpus, in_order

_NEAR: Final = 1 << 20  # bytes read at once: they stay in the processor's cache until they are hashed
_FAR: Final = 8 << 20  # where each read is a request
_HUB_MARKS: Final = (".gitattributes", ".cache/huggingface/")  # files that come with a download from the Hub

OnProgress = Callable[[VerifyProgress], None]


def verify(
    where: ReadStore | str | os.PathLike[str],
    name: str | None = None,
    version: int | None = None,
    *,
    deep: bool = False,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Check a committed version; damage is reported, never raised.

    Always: manifest (seal, shape, account, and of a mixture its order), parents that are there, ledger, claim, tags,
    missing and unlisted files, size and sha256 of every file, Parquet footers. With ``deep`` also: page checksums,
    nulls, counts of rows, tokens and documents, segment lengths, provenance, logical hashes; and, with the extra `etl`,
    what the manifest states of configuration and tokenizers (:mod:`tokenlake.integrity.verify_config`). What is wrong
    with whole files is found in the bytes that the store gives: what it caches for readers is not looked at.

    ::

        tl.verify("artifacts/code@v3", deep=True).ok

    Args:
        where: the dataset, or one version of it, as :func:`tokenlake.open` takes it; or its store.
        name: of the dataset in the store `where`: ``NAME``, which is the newest version, ``NAME@v3`` or ``NAME@TAG``.
        version: its number, beside a bare ``NAME``.
        workers: threads; hashing and decoding release the GIL. Default: one for each processor.
        on_progress: called from the worker threads, one call at a time.

    Raises:
        NotFoundError: there is no such committed version.
    """
    place, dataset = parted(where, name)
    catalog = Catalog(open_read_store(place) if isinstance(place, str) else place)
    if version is None:
        dataset, version = named_version(catalog, dataset)
    try:
        manifest = catalog.manifest(dataset, version)
    except NotFoundError:
        raise
    except (IntegrityError, StoreError) as error:
        problem = "damaged" if isinstance(error, IntegrityError) else "unreadable"
        damaged = Problem(MANIFEST, problem, "a sealed manifest of this version", str(error))
        return VerifyReport(dataset=dataset, version=version, deep=deep, listed=False, problems=(damaged,))
    work = _Verification(catalog.store, Layout(dataset, version), manifest, deep, workers or available_cpus())
    return work.run(on_progress)


def named_version(catalog: Catalog, name: str) -> tuple[str, int]:
    """Return the dataset and the version that ``NAME``, ``NAME@v3`` or ``NAME@TAG`` means."""
    found = Reference.parse(name)
    # A version that is named is looked at, whatever is in the place of its manifest.
    return catalog.resolve(name) if found.version is None else (found.dataset, found.version)


@final
@dataclass(frozen=True, slots=True)
class _Verification:
    store: ReadStore
    layout: Layout
    manifest: Manifest
    deep: bool
    threads: int

    def run(self, on_progress: OnProgress | None) -> VerifyReport:
        stop = Stop()
        ledger = read_ledger(self.store, self.layout, self.manifest, threads=self.threads, stop=stop)
        expected = self._expected(ledger.records or [])
        problems = [*ledger.problems, *self._account(), *self._claim(), *self._config()]
        problems += parent_problems(self.store, self.manifest)
        if self.store.can_list:
            problems += self._unreadable(".", lambda: self._unlisted(expected))
            problems += self._unreadable(
                "../tags", lambda: tag_problems(self.store, self.layout, self.manifest)
            )
        progress = _Progress({path: self._work(entry) for path, entry in expected.items()}, stop, on_progress)
        results = self._read_all(expected, ledger.intact, progress)
        problems += [problem for result in results for problem in result.problems]
        if ledger.records is not None:
            problems += ledger_problems(self.manifest, ledger.records, {problem.path for problem in problems})
        return VerifyReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            deep=self.deep,
            listed=self.store.can_list,
            files=len(expected),
            bytes=progress.read_bytes,
            rows=sum(result.rows for result in results),
            tokens=sum(result.tokens for result in results),
            problems=tuple(sorted(set(problems), key=lambda one: (one.path, one.problem, one.expected))),
        )

    def _expected(self, records: list[UnitRecord]) -> Entries:
        """Return path -> entry of every file with a known hash that should be there."""
        held = [record.quarantine for record in records if record.quarantine is not None]
        found: Entries = {bad.path: FileEntry(bytes=bad.bytes, sha256=bad.sha256) for bad in held}
        found |= listed_files(self.manifest)
        if not self._from_hub():
            return found
        # Bad records are never published.
        return {
            path: entry
            for path, entry in found.items()
            if not path.startswith(f"{QUARANTINE}/") or self._exists(path)
        }

    def _from_hub(self) -> bool:
        """Whether the version was downloaded from the Hub: one that was built here has its claim."""
        return not self._exists(CLAIM)

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

    def _config(self) -> list[Problem]:
        if not self.deep:
            return []
        try:
            from tokenlake.integrity.verify_config import config_problems
        except ImportError:  # a trainer's installation has neither tokenizers nor YAML
            return []
        return config_problems(self.store, self.layout, self.manifest)

    def _unreadable(self, path: str, look: Callable[[], list[Problem]]) -> list[Problem]:
        try:
            return look()
        except StoreError as error:
            return [Problem(path, "unreadable", "a folder that can be listed", str(error))]

    def _unlisted(self, expected: Collection[str]) -> list[Problem]:
        from_hub, listed = self._from_hub(), lists_ledger(self.manifest)
        known = (f"{RUNS}/", *_HUB_MARKS) if from_hub else (f"{RUNS}/",)
        return [
            Problem(path, "unlisted", "only files that the manifest names", "a file of unknown origin")
            for path in (self.layout.path(info.key) for info in self.store.list(self.layout.prefix))
            if path not in expected
            and path not in (MANIFEST, CLAIM)
            and not path.startswith(known)
            # Sealed ledger records prove themselves where a manifest does not list them.
            and (listed or ledger_unit(path) is None)
        ]

    def _work(self, entry: Entry) -> int:
        """Bytes of work on a file: shards are read, and decoded too where it is `deep`."""
        return entry.bytes * (2 if self.deep and isinstance(entry, ShardEntry) else 1)

    def _read_all(self, expected: Entries, intact: Collection[str], progress: _Progress) -> list[ShardResult]:
        """Read all files but those which are known to be intact."""
        for path in expected.keys() & intact:
            progress.on_read(path, expected[path].bytes)
            progress.end(path)
        rules, seen = RowRules.of(self.manifest), SeenLevels(self.manifest.width or 1)

        def read(path: str) -> ShardResult:
            result = self._read(path, expected[path], rules, seen, progress)
            progress.end(path)
            return result

        # The largest first would end sooner; in order of their names they lie together on a disk.
        paths = sorted(expected.keys() - intact)
        return list(in_order(read, paths, self.threads, stop=progress.stop))

    def _read(
        self, path: str, entry: Entry, rules: RowRules, seen: SeenLevels, progress: _Progress
    ) -> ShardResult:
        try:
            return self._compare(path, entry, rules, seen, progress)
        except NotFoundError:
            return _wrong(path, "missing", f"a file of {entry.bytes} bytes", "no file")
        except (StoreError, IntegrityError) as error:  # a symlink, a folder, no permission, a failing disk
            return _wrong(path, "unreadable", "a regular file that can be read", str(error))

    def _compare(
        self, path: str, entry: Entry, rules: RowRules, seen: SeenLevels, progress: _Progress
    ) -> ShardResult:
        shard = entry if isinstance(entry, ShardEntry) else None
        key = self.layout.key(path)

        def on_read(size: int) -> None:
            progress.on_read(path, size)

        def on_decoded(rows: int) -> None:
            progress.on_decoded(path, entry.bytes * rows // max(1, shard.rows if shard else 1))

        with read_whole(self.store, key, entry.bytes, keep=shard is not None, on_read=on_read) as whole:
            if whole.sha256 is None:
                return _wrong(path, "size", f"{entry.bytes} bytes", f"{whole.size} bytes")
            if whole.sha256 != entry.sha256:
                return _wrong(path, "sha256", entry.sha256, whole.sha256)
            if shard is None or whole.stream is None:
                return ShardResult(0, 0, ())
            return check_shard(whole.stream, shard, rules, seen, deep=self.deep, on_decoded=on_decoded)


def _wrong(path: str, problem: str, expected: str, got: str) -> ShardResult:
    return ShardResult(0, 0, (Problem(path, problem, expected, got),))


@final
class _Progress:
    """How far a verification is, summed over its threads.

    Args:
        work: path -> bytes of work; no file counts for more than was announced.
        stop: ends the verification at the next step.
        report: is called with every step, by one thread at a time.
    """

    def __init__(self, work: dict[str, int], stop: Stop, report: OnProgress | None) -> None:
        self._left, self._files, self._bytes = dict(work), len(work), sum(work.values())
        self.stop, self._report, self._lock = stop, report, threading.Lock()
        self._done_files = self._done = self.read_bytes = 0

    def on_read(self, path: str, size: int) -> None:
        """Count bytes of a file that were read."""
        self.stop.check()
        self._count(path, size, read=size)

    def on_decoded(self, path: str, size: int) -> None:
        """Count bytes of a file that were decoded."""
        self.stop.check()
        self._count(path, size)

    def end(self, path: str) -> None:
        """Count the rest of a file, also where damage was found first."""
        self._count(path, self._left[path], files=1)

    def _count(self, path: str, size: int, *, read: int = 0, files: int = 0) -> None:
        with self._lock:
            size = min(size, self._left[path])
            self._left[path] -= size
            self._done += size
            self.read_bytes += read
            self._done_files += files
            if self._report is not None:
                self._report(VerifyProgress(self._done_files, self._files, self._done, self._bytes))


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
    """Read a file whole, once.

    What is decoded was compared with its hash before: decoders of Parquet are written for files that are whole. A file
    of this machine is read again from the page cache; what lies elsewhere is kept in a nameless file of the local disk
    meanwhile, so that it is fetched once and memory does not depend on its size.

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
