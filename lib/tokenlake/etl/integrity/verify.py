"""Verification of a version: its bytes against the manifest, and the manifest itself.

1. The manifest is read (seal and shape). One that is damaged ends the verification.
2. The ledger is read; records that match the manifest are verified by that.
3. Account, claim, second copy of the manifest, parents, unlisted files and tags are
   checked.
4. Every other file is read once, by several threads: size, sha256, and the contents of
   shards.
5. The ledger is compared with the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from tokenlake.base.threads import Stop, available_cpus, in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.export.flat_manifest import FOLDER as EXPORT_FOLDER
from tokenlake.etl.export.flat_manifest import MANIFEST as EXPORT_MANIFEST
from tokenlake.etl.integrity.findings import (
    Entries,
    VerifyReport,
    listed_files,
)
from tokenlake.etl.integrity.manifest_copy import restored_manifest
from tokenlake.etl.integrity.verify_files import FileCheck
from tokenlake.etl.integrity.verify_ledger import Ledger, ledger_problems, read_ledger
from tokenlake.etl.integrity.verify_records import (
    account_problems,
    claim_problems,
    copy_problems,
    exists,
    parent_problems,
    tag_problems,
    unlisted_problems,
)
from tokenlake.etl.integrity.verify_shard import ShardResult
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, Reference, parted
from tokenlake.runtime.store.file_check import ByteProgress, OnProgress, Problem
from tokenlake.runtime.store.layout import (
    MANIFEST,
    MANIFEST_COPY,
    QUARANTINE,
    Layout,
)
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest


def verify(
    where: ReadStore | str | os.PathLike[str],
    name: str | None = None,
    version: int | None = None,
    *,
    deep: bool = False,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Check a committed version. Damage is reported, never raised.

    Always checked are the manifest (seal, shape, account, and the order of a mixture),
    the parents that the store has, ledger, claim, tags, missing and unlisted files,
    size and sha256 of every file, and Parquet footers. With ``deep``, also page
    checksums, nulls, counts of rows, tokens and documents, segment lengths, provenance,
    logical hashes; and, with the extra `etl`, the manifest's statements on
    configuration and tokenizers. Files are read from the store itself: caches of
    readers are not used. :func:`tokenlake.verify_export` checks an export.

    Args:
        where: Dataset, or one version of it, as :func:`tokenlake.open` takes it; or its
            store.
        name: Dataset in the store `where`: ``NAME``, which is the newest version,
            ``NAME@v3`` or ``NAME@TAG``.
        version: Number of the version, beside a bare ``NAME``.
        deep: True to decode shards, and not only compare their bytes.
        workers: Number of threads; hashing and decoding release the GIL. Default: one
            for each processor.
        on_progress: Function that receives progress, called from the worker threads,
            one call at a time.

    Returns:
        Problems found, and the amount of data that was looked at.

    Raises:
        NotFoundError: The version does not exist, or is not committed.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.verify("artifacts/books@v3", deep=True)
        >>> report.ok, report.problems
        (True, ())
    """
    place, dataset = parted(where, name)
    if isinstance(place, str):
        place = open_read_store(place)
    catalog = Catalog(place)
    if version is None:
        dataset, version = named_version(catalog, dataset)
    layout = Layout(dataset, version)
    try:
        manifest = catalog.manifest(dataset, version)
    # A version without a manifest does not exist, which is no damage.
    except NotFoundError:
        raise
    except (IntegrityError, StoreError) as error:
        return _report_on_manifest(catalog.store, layout, error, deep=deep)
    verification = _Verification(
        store=catalog.store,
        layout=layout,
        manifest=manifest,
        deep=deep,
        threads=workers or available_cpus(),
    )
    return verification.run(on_progress)


def named_version(catalog: Catalog, name: str) -> tuple[str, int]:
    """Return the dataset and the version that a name means.

    A name is ``NAME``, ``NAME@v3`` or ``NAME@TAG``.

    Raises:
        NotFoundError: There is no such dataset or tag.
    """
    reference = Reference.parse(name)
    if reference.version is None:
        try:
            return catalog.resolve(name)
        except NotFoundError as error:
            # The folder of an export looks like that of a dataset in a store.
            if not catalog.store.exists(
                f"{reference.dataset}/{EXPORT_FOLDER}/{EXPORT_MANIFEST}"
            ):
                raise
            export_path = f"{catalog.store.url.rstrip('/')}/{reference.dataset}"
            raise NotFoundError(
                f"{export_path} is no dataset of a store but an export; verify it by its path: `tokenlake verify "
                f"{export_path}`, or verify_export({export_path!r}) in Python"
            ) from error
    # The version may lack a manifest: verification reports it.
    return reference.dataset, reference.version


@final
@dataclass(slots=True, kw_only=True)
class _Verification:
    """Verification of a version whose manifest is intact.

    Attributes:
        store: Store of the version.
        layout: Keys of the version.
        manifest: Manifest of the version.
        deep: True if shards are decoded.
        threads: Number of threads.
        stop: Asks the threads to end.
        problems: Problems found so far.
        notes: Remarks that are no damage.
    """

    store: ReadStore
    layout: Layout
    manifest: Manifest
    deep: bool
    threads: int
    stop: Stop = field(default_factory=Stop)
    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])

    def run(self, on_progress: OnProgress | None) -> VerifyReport:
        """Check everything and return the report."""
        # 1. The ledger. Records with the listed bytes are verified by reading them.
        ledger = read_ledger(
            self.store, self.layout, self.manifest, threads=self.threads, stop=self.stop
        )
        self.problems += ledger.problems
        # A version that was built in this store has a claim. One without was downloaded
        # from the Hub, or copied.
        is_copied = not exists(self.store, self.layout.claim)
        expected = self._expected_files(ledger, is_copied=is_copied)
        # 2. Everything that is small.
        self._check_records(expected, is_copied=is_copied)

        # 3. All other files. Progress counts the ledger's files as done.
        progress = ByteProgress(self._work(expected), self.stop, on_progress)
        intact = sorted(expected.keys() & ledger.intact_paths)
        for path in intact:
            progress.count(path, expected[path].bytes, read=expected[path].bytes)
            progress.end(path)
        unread = sorted(expected.keys() - ledger.intact_paths)
        results = self._check_files(unread, expected, progress)

        # 4. The statements of the ledger, and of the manifest, about the files.
        for result in results:
            self.problems += result.problems
        if ledger.records is not None:
            reported_paths = {problem.path for problem in self.problems}
            self.problems += ledger_problems(
                self.manifest, ledger.records, reported_paths
            )
        return VerifyReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            deep=self.deep,
            listed=self.store.can_list,
            files=len(expected),
            bytes=progress.read_bytes,
            rows=sum(result.rows for result in results),
            tokens=sum(result.tokens for result in results),
            problems=_sorted_problems(self.problems),
            notes=tuple(self.notes),
        )

    def _expected_files(self, ledger: Ledger, *, is_copied: bool) -> Entries:
        """Return path -> entry of every file with a recorded hash."""
        # Bad records of older versions are listed by their unit's record only.
        entries: Entries = {}
        for record in ledger.records or ():
            if record.quarantine is not None:
                quarantine = record.quarantine
                entries[quarantine.path] = FileEntry(
                    bytes=quarantine.bytes, sha256=quarantine.sha256
                )
        entries |= listed_files(self.manifest)
        if is_copied:
            # Bad records are never published.
            for path in list(entries):
                is_quarantine = path.startswith(f"{QUARANTINE}/")
                if is_quarantine and not exists(self.store, self.layout.key(path)):
                    del entries[path]
        return entries

    def _check_records(self, expected: Entries, *, is_copied: bool) -> None:
        """Check all that is small: records, configuration, parents and tags."""
        self.problems += account_problems(self.manifest)
        self.problems += claim_problems(self.store, self.layout, self.manifest)
        if self.deep:
            self.problems += _config_problems(self.store, self.layout, self.manifest)
        if not is_copied:  # a copied version has no `runs/`
            problems, notes = copy_problems(self.store, self.layout)
            self.problems += problems
            self.notes += notes
        self.problems += parent_problems(self.store, self.manifest)
        if self.store.can_list:
            self.problems += unlisted_problems(
                self.store, self.layout, self.manifest, expected, is_copied=is_copied
            )
            self.problems += tag_problems(self.store, self.layout, self.manifest)

    def _work(self, expected: Entries) -> dict[str, int]:
        """Return path -> bytes of work.

        Shards are read and, in a deep verification, decoded too: they count twice.
        """
        work: dict[str, int] = {}
        for path, entry in expected.items():
            is_decoded = self.deep and isinstance(entry, ShardEntry)
            work[path] = entry.bytes
            if is_decoded:
                work[path] += entry.bytes
        return work

    def _check_files(
        self, paths: list[str], expected: Entries, progress: ByteProgress
    ) -> list[ShardResult]:
        """Read files in parallel and return a result for each."""
        check = FileCheck(
            self.store, self.layout, self.manifest, progress, deep=self.deep
        )

        def check_file(path: str) -> ShardResult:
            result = check.result(path, expected[path])
            progress.end(path)
            return result

        # The largest first would end sooner; in the order of their names they lie
        # together on a disk.
        return list(in_order(check_file, paths, self.threads, stop=self.stop))


def _sorted_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return each problem once, sorted by path."""

    def problem_key(problem: Problem) -> tuple[str, str, str]:
        return problem.path, problem.problem, problem.expected

    return tuple(sorted(set(problems), key=problem_key))


def _report_on_manifest(
    store: ReadStore, layout: Layout, error: Exception, *, deep: bool
) -> VerifyReport:
    """Return the report on a version whose manifest cannot be used."""
    word = "unreadable"
    if isinstance(error, IntegrityError):
        word = "damaged"
    problem = Problem(MANIFEST, word, "a sealed manifest of this version", str(error))
    return VerifyReport(
        dataset=layout.dataset,
        version=layout.version,
        deep=deep,
        listed=False,
        problems=(problem,),
        notes=(_note_on_restoring(store, layout),),
    )


def _note_on_restoring(store: ReadStore, layout: Layout) -> str:
    """Return a sentence that says whether the copy can restore a damaged manifest."""
    try:
        restored_manifest(store, layout)
    except (IntegrityError, StoreError) as error:
        return str(error)
    return (
        f"{MANIFEST_COPY}, the second copy of the manifest, is intact; "
        f"`tokenlake repair {layout.dataset}@v{layout.version}` restores {MANIFEST} from it"
    )


def _config_problems(
    store: ReadStore, layout: Layout, manifest: Manifest
) -> list[Problem]:
    """Compare configuration and tokenizers with the manifest.

    This needs the extra `etl`, without which nothing is compared.
    """
    try:
        # A trainer's installation has neither tokenizers nor YAML.
        from tokenlake.etl.integrity.verify_config import config_problems
    except ImportError:
        return []
    return config_problems(store, layout, manifest)
