"""Verifying a version: every byte against the manifest, and the manifest against itself and the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import Any, BinaryIO, Final, cast, final

from tokenlake.base.threads import Stop, available_cpus, in_order
from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl.integrity.findings import (
    Entries,
    Entry,
    Problem,
    VerifyProgress,
    VerifyReport,
    listed_files,
)
from tokenlake.etl.integrity.manifest_copy import copy_state, restored_manifest
from tokenlake.etl.integrity.verify_shard import RowRules, ShardResult, check_shard
from tokenlake.runtime.reading.pages import SeenLevels
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, Reference, lists_ledger, parted, read_record
from tokenlake.runtime.store.layout import (
    CLAIM,
    LEDGER,
    MANIFEST,
    MANIFEST_COPY,
    QUARANTINE,
    RUNS,
    Layout,
    ledger_path,
    ledger_unit,
    tag_of,
    tags_prefix,
)
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.tags import stored_tag

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
    what the manifest states of configuration and tokenizers (:mod:`tokenlake.etl.integrity.verify_config`).
    What is wrong
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
        note = _note_on_restoring(catalog.store, Layout(dataset, version))
        return VerifyReport(
            dataset=dataset, version=version, deep=deep, listed=False, problems=(damaged,), notes=(note,)
        )
    store, layout = catalog.store, Layout(dataset, version)
    threads, stop = workers or available_cpus(), Stop()
    records, intact, problems = _read_ledger(store, layout, manifest, threads=threads, stop=stop)
    from_hub = not _exists(store, layout.claim)  # a version that was built here has its claim
    expected = _expected(store, layout, manifest, records or [], from_hub)
    problems += _own_problems(store, layout, manifest, deep=deep)
    # What was copied from elsewhere has no `runs/`.
    of_copy, notes = ([], []) if from_hub else _look_at_copy(store, layout)
    problems += of_copy
    problems += _parent_problems(store, manifest)
    if store.can_list:
        problems += _listable(".", lambda: _unlisted(store, layout, manifest, expected, from_hub))
        problems += _listable("../tags", lambda: _tag_problems(store, layout, manifest))
    # Shards are read, and where it is deep decoded too.
    work = {
        path: each.bytes * (1 + (deep and isinstance(each, ShardEntry))) for path, each in expected.items()
    }
    progress = _Progress(work, stop, on_progress)
    for path in expected.keys() & intact:
        progress.count(path, expected[path].bytes, read=expected[path].bytes)
        progress.end(path)
    rules, seen = RowRules.of(manifest), SeenLevels(manifest.width or 1)
    check = partial(check_shard, rules=rules, seen=seen, deep=deep)

    def read(path: str) -> ShardResult:
        result = _read(store, layout.key(path), path, expected[path], progress, check)
        progress.end(path)
        return result

    # The largest first would end sooner; in order of their names they lie together on a disk.
    results = list(in_order(read, sorted(expected.keys() - intact), threads, stop=stop))
    problems += [problem for result in results for problem in result.problems]
    if records is not None:
        problems += _ledger_problems(manifest, records, {problem.path for problem in problems})
    return VerifyReport(
        dataset=dataset,
        version=version,
        deep=deep,
        listed=store.can_list,
        files=len(expected),
        bytes=progress.read_bytes,
        rows=sum(result.rows for result in results),
        tokens=sum(result.tokens for result in results),
        problems=tuple(sorted(set(problems), key=lambda one: (one.path, one.problem, one.expected))),
        notes=tuple(notes),
    )


def _look_at_copy(store: ReadStore, layout: Layout) -> tuple[list[Problem], list[str]]:
    """Return what is wrong with the second copy of an intact manifest, and notes on it."""
    try:
        state = copy_state(store, layout)
    except StoreError as error:
        return [Problem(MANIFEST_COPY, "unreadable", "a regular file that can be read", str(error))], []
    if state == "damaged":
        return [Problem(MANIFEST_COPY, "damaged", f"the bytes of {MANIFEST}", "other bytes")], []
    if state == "another":
        return [Problem(MANIFEST_COPY, "copy", f"the bytes of {MANIFEST}", "another sealed manifest")], []
    if state == "missing":
        name = f"{layout.dataset}@v{layout.version}"
        return [], [
            f"{MANIFEST_COPY}, the second copy of the manifest, is missing: an older release wrote the version, or "
            f"somebody removed {RUNS}/. `tokenlake repair {name}` writes it"
        ]
    return [], []


def _note_on_restoring(store: ReadStore, layout: Layout) -> str:
    """Say whether a damaged manifest can be restored from its copy."""
    try:
        restored_manifest(store, layout)
    except (IntegrityError, StoreError) as error:
        return str(error)
    return (
        f"{MANIFEST_COPY}, the second copy of the manifest, is intact; "
        f"`tokenlake repair {layout.dataset}@v{layout.version}` restores {MANIFEST} from it"
    )


def named_version(catalog: Catalog, name: str) -> tuple[str, int]:
    """Return the dataset and the version that ``NAME``, ``NAME@v3`` or ``NAME@TAG`` means."""
    found = Reference.parse(name)
    # A version that is named is looked at, whatever is in the place of its manifest.
    return catalog.resolve(name) if found.version is None else (found.dataset, found.version)


def _exists(store: ReadStore, key: str) -> bool:
    try:
        return store.exists(key)
    except StoreError:
        return True  # whatever it is, it is there, and is looked at


def _expected(
    store: ReadStore, layout: Layout, manifest: Manifest, records: list[UnitRecord], from_hub: bool
) -> Entries:
    """Return path -> entry of every file with a known hash that should be there."""
    held = [record.quarantine for record in records if record.quarantine is not None]
    found: Entries = {bad.path: FileEntry(bytes=bad.bytes, sha256=bad.sha256) for bad in held}
    found |= listed_files(manifest)
    if from_hub:  # bad records are never published
        bad_records = [path for path in found if path.startswith(f"{QUARANTINE}/")]
        for path in bad_records:
            if not _exists(store, layout.key(path)):
                del found[path]
    return found


def _own_problems(store: ReadStore, layout: Layout, manifest: Manifest, *, deep: bool) -> list[Problem]:
    """Look at account and claim, and with `deep` at what the version's files say of its configuration."""
    found: list[Problem] = []
    try:
        manifest.check()
    except AccountError as error:
        found.append(Problem(MANIFEST, "account", "an account that closes", str(error)))
    try:
        claim = Catalog(store).read_claim(layout.dataset, layout.version)
        if claim is not None and claim.fingerprint != manifest.fingerprint:
            found.append(Problem(CLAIM, "fingerprint", manifest.fingerprint, claim.fingerprint))
    except IntegrityError as error:
        found.append(Problem(CLAIM, "damaged", "a sealed claim of this version", str(error)))
    except StoreError as error:
        found.append(Problem(CLAIM, "unreadable", "a regular file that can be read", str(error)))
    if deep:
        try:
            from tokenlake.etl.integrity.verify_config import config_problems
        except ImportError:  # a trainer's installation has neither tokenizers nor YAML
            return found
        found += config_problems(store, layout, manifest)
    return found


def _listable(path: str, look: Callable[[], list[Problem]]) -> list[Problem]:
    try:
        return look()
    except StoreError as error:
        return [Problem(path, "unreadable", "a folder that can be listed", str(error))]


def _unlisted(
    store: ReadStore, layout: Layout, manifest: Manifest, expected: Collection[str], from_hub: bool
) -> list[Problem]:
    listed = lists_ledger(manifest)
    known = (f"{RUNS}/", *_HUB_MARKS) if from_hub else (f"{RUNS}/",)
    return [
        Problem(path, "unlisted", "only files that the manifest names", "a file of unknown origin")
        for path in (layout.path(info.key) for info in store.list(layout.prefix))
        if path not in expected
        and path not in (MANIFEST, CLAIM)
        and not path.startswith(known)
        # Sealed ledger records prove themselves where a manifest does not list them.
        and (listed or ledger_unit(path) is None)
    ]


def _read(
    store: ReadStore,
    key: str,
    path: str,
    entry: Entry,
    progress: _Progress,
    check: Callable[..., ShardResult],
) -> ShardResult:
    """Read a file, compare it with its entry, and look into it where it is a shard."""
    shard = entry if isinstance(entry, ShardEntry) else None

    def on_read(size: int) -> None:
        progress.count(path, size, read=size)

    def on_decoded(rows: int) -> None:
        progress.count(path, entry.bytes * rows // max(1, shard.rows if shard else 1))

    try:
        whole = read_whole(store, key, entry.bytes, keep=shard is not None, on_read=on_read)
        with whole as (size, sha256, stream):
            if sha256 is None:
                return _wrong(path, "size", f"{entry.bytes} bytes", f"{size} bytes")
            if sha256 != entry.sha256:
                return _wrong(path, "sha256", entry.sha256, sha256)
            if shard is None or stream is None:
                return ShardResult(0, 0, ())
            return check(stream, shard, on_decoded=on_decoded)
    except NotFoundError:
        return _wrong(path, "missing", f"a file of {entry.bytes} bytes", "no file")
    except (StoreError, IntegrityError) as error:  # a symlink, a folder, no permission, a failing disk
        return _wrong(path, "unreadable", "a regular file that can be read", str(error))


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

    def count(self, path: str, size: int, *, read: int = 0) -> None:
        """Count bytes of a file that were read, or decoded."""
        self.stop.check()
        self._count(path, size, read, 0)

    def end(self, path: str) -> None:
        """Count the rest of a file, also where damage was found first."""
        self._count(path, self._left[path], 0, 1)

    def _count(self, path: str, size: int, read: int, files: int) -> None:
        with self._lock:
            size = min(size, self._left[path])
            self._left[path] -= size
            self._done += size
            self.read_bytes += read
            self._done_files += files
            if self._report is not None:
                self._report(VerifyProgress(self._done_files, self._files, self._done, self._bytes))


@contextlib.contextmanager
def read_whole(
    store: ReadStore, key: str, size: int, *, keep: bool, on_read: Callable[[int], None]
) -> Generator[tuple[int, str | None, BinaryIO | None]]:
    """Read a file whole, once.

    What is decoded was compared with its hash before: decoders of Parquet are written for files that are whole. A file
    of this machine is read again from the page cache; what lies elsewhere is kept in a nameless file of the local disk
    meanwhile, so that it is fetched once and memory does not depend on its size.

    Args:
        size: it should have.
        keep: whether its bytes are looked into.
        on_read: called with the size of each piece; what it raises ends the reading.

    Yields:
        its size in bytes; its sha256 (hex), None where the size is not the wanted one and nothing was read; and its
        bytes, at the beginning, where they are looked into.

    Raises:
        NotFoundError: there is none.
        StoreError: it cannot be read.
    """
    # Without size and hash: what is stored is asked for, and no copy of it.
    with contextlib.ExitStack() as held:
        stream = held.enter_context(contextlib.closing(store.open(key)))
        near = isinstance(stream, io.BufferedReader)
        if (found := stream.seek(0, io.SEEK_END)) != size:
            yield found, None, None
            return
        stream.seek(0)
        spool = None if near or not keep else cast("BinaryIO", held.enter_context(tempfile.TemporaryFile()))
        # The buffer of the stream would only be filled to be copied from.
        source: Any = stream.raw if isinstance(stream, io.BufferedReader) else stream
        digest, buffer = hashlib.sha256(), memoryview(bytearray(min(_NEAR if near else _FAR, size + 1)))
        done = 0
        # A byte too many is enough: a file that grows while it is read is not read for ever.
        while done <= size and (count := source.readinto(buffer)):
            digest.update(buffer[:count])
            if spool is not None:
                spool.write(buffer[:count])
            done += count
            on_read(count)
        kept = stream if spool is None else spool
        kept.seek(0)
        yield size, digest.hexdigest(), kept if keep else None


def _read_ledger(
    store: ReadStore, layout: Layout, manifest: Manifest, *, threads: int, stop: Stop
) -> tuple[list[UnitRecord] | None, frozenset[str], list[Problem]]:
    """Read every ledger record that belongs to the version and can be read.

    Where the manifest lists ledger records, it lists all of them: one that is not listed is no record of this version,
    and one that is not as it is listed is left to whoever compares bytes, and says so.

    Returns:
        the records, None where it cannot be known which ones there are; paths of files whose bytes are those that the
        manifest lists; and what is wrong with others.
    """
    listed = sorted(path for path in manifest.other_files if path.startswith(f"{LEDGER}/"))
    if not listed and not store.can_list:
        return None, frozenset(), []
    try:
        paths = listed or [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
    except StoreError as error:
        problem = Problem(LEDGER, "unreadable", "a folder that can be listed", str(error))
        return None, frozenset(), [problem]

    def read(path: str) -> UnitRecord | Problem | None:
        unit = ledger_unit(path)
        try:
            return None if unit is None else read_record(store, layout, unit, manifest)
        except (IntegrityError, StoreError) as error:
            return None if listed else Problem(path, "damaged", "a sealed ledger record", str(error))

    found = dict(zip(paths, in_order(read, paths, threads, stop=stop), strict=True))
    records = {path: record for path, record in found.items() if isinstance(record, UnitRecord)}
    problems = [problem for problem in found.values() if isinstance(problem, Problem)]
    return list(records.values()), frozenset(records if listed else ()), problems


def _ledger_problems(manifest: Manifest, records: list[UnitRecord], seen: Collection[str]) -> list[Problem]:
    """Compare the records with the manifest.

    Args:
        seen: paths that are reported already; what follows from their absence is not repeated.
    """
    found: list[Problem] = []
    shards = {shard.path: shard for shard in manifest.files}
    inputs = set(manifest.inputs)
    for record in records:
        path = ledger_path(record.unit)
        unlike = [part for part in record.parts if shards.get(part.path) != part]
        found += [Problem(path, "parts", f"{shards.get(part.path)}", f"{part}") for part in unlike]
        if any(entry.file not in inputs for entry in record.inputs):
            found.append(Problem(path, "inputs", "files of the manifest's inputs", "others"))
        try:
            record.account.check(manifest.width, where=path)
            for source, share in record.shares.items():
                share.check(where=f"{path}: share of {source!r}")
        except AccountError as error:
            found.append(Problem(path, "account", "an account that closes", str(error)))
    units = {record.unit for record in records}
    absent = sorted({shard.unit for shard in manifest.files} - units)
    missing = [path for path in map(ledger_path, absent) if path not in seen]
    found += [Problem(path, "missing", "a ledger record of the unit", "no file") for path in missing]
    if missing or any(path.startswith(f"{LEDGER}/") for path in seen):
        return found
    held = {part.path for record in records for part in record.parts}
    strays = [shard.path for shard in manifest.files if shard.path not in held]
    found += [Problem(path, "parts", "named by its unit's ledger record", "not named") for path in strays]
    shares = [record.by_source() for record in records]
    for source in sorted(manifest.accounts.keys() | {name for share in shares for name in share}):
        expected = Account.total(share[source] for share in shares if source in share)
        found += _differ(f"account of {source}", expected, manifest.accounts.get(source))
    if manifest.mixture is not None:  # the rows of mixed units, which are of no one source
        rows = Account.total(record.account for record in records).of_rows
        found += _differ("rows of the mixture", rows, manifest.mixture.rows)
    return found


def _differ(problem: str, expected: Account, got: Account | None) -> list[Problem]:
    # A mixed unit may name a source that has no weight in it, and is none of the version.
    if Account.total([expected]) == Account.total([] if got is None else [got]):
        return []
    return [Problem(MANIFEST, problem, f"the ledger's sum {expected}", f"{got}")]


def _parent_problems(store: ReadStore, manifest: Manifest) -> list[Problem]:
    """Compare what a manifest says of its parents with those that the store has; one that is gone is no problem."""
    catalog, found = Catalog(store), list[Problem]()
    for parent in manifest.parents:
        name = f"{parent.dataset}@v{parent.version}"
        try:
            there = catalog.manifest(parent.dataset, parent.version)
        except NotFoundError:
            continue
        except (IntegrityError, StoreError) as error:
            found.append(Problem(MANIFEST, f"parent {name}", "a sealed manifest", str(error)))
            continue
        if there.sha256 != parent.sha256:
            found.append(Problem(MANIFEST, f"parent {name}", parent.sha256, there.sha256))
            continue
        for source_name, source in manifest.mixture.sources.items() if manifest.mixture else ():
            if (source.dataset, source.version) != (parent.dataset, parent.version):
                continue
            shards = [shard for shard in there.files if shard.split == source.split]
            rows, groups = sum(each.rows for each in shards), sum(len(each.row_groups) for each in shards)
            window = max(1, -(-rows // max(1, groups)))
            expected = {"rows": rows, "tokens": sum(each.tokens for each in shards), "window": window}
            got = {key: getattr(source, key) for key in expected}
            if expected != got:
                found.append(Problem(MANIFEST, f"mixture source {source_name}", f"{expected}", f"{got}"))
    return found


def _tag_problems(store: ReadStore, layout: Layout, manifest: Manifest) -> list[Problem]:
    """Compare tags with the version that they are of.

    A damaged one may be of any version, and one whose version is gone is of none: every version reports both.

    Raises:
        StoreError: the tags cannot be listed.
    """
    found: list[Problem] = []
    for key in [info.key for info in store.list(tags_prefix(layout.dataset))]:
        path, name = f"../{key.removeprefix(f'{layout.dataset}/')}", tag_of(key)
        if name is None:
            found.append(Problem(path, "unlisted", "only tags", "a file that is no tag"))
            continue
        try:
            stored = stored_tag(store, layout.dataset, name)
        except IntegrityError as error:
            found.append(Problem(path, "damaged", "a sealed tag", str(error)))
        except StoreError as error:
            found.append(Problem(path, "unreadable", "a regular file that can be read", str(error)))
        else:
            if stored is None:
                continue
            tag = stored[0]
            if tag.version != manifest.version:
                if not store.exists(Layout(tag.dataset, tag.version).manifest):
                    expected = f"version v{tag.version}, which it names"
                    found.append(Problem(path, "tag", expected, "no such version"))
            elif tag.manifest_sha256 != manifest.sha256:
                found.append(Problem(path, "tag", f"the manifest {tag.manifest_sha256}", manifest.sha256))
    return found
