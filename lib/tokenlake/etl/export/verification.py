"""Verification of a flat directory: its files against the manifest beside them.

The manifest states the size and SHA-256 of every data file, so that a copy of an export
can be checked without the store that it came from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.base.threads import Stop, available_cpus, in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.export.flat_manifest import (
    FOLDER,
    MANIFEST,
    FlatFile,
    FlatManifest,
)
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.file_check import (
    PROBLEM_COLUMNS,
    ByteProgress,
    OnProgress,
    Problem,
    problem_rows,
    read_file,
    verdict_on,
)
from tokenlake.runtime.store.schemes import scheme_of

_MANIFEST_KEY: Final = f"{FOLDER}/{MANIFEST}"

_NAMED_FILES: Final = 5
"""Unlisted files that a note names."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Result of verifying one export.

    Attributes:
        path: Path or URL of the directory.
        dataset: Name of the exported dataset; None if the rows are of no version, or
            the manifest is damaged.
        version: Number of the exported version; None likewise.
        format: Format of the files; empty if the manifest is damaged.
        files: Number of files that the manifest lists.
        bytes: Number of bytes that were read.
        problems: Problems, sorted by path, in the words of :func:`tokenlake.verify`;
            empty if nothing is damaged.
        notes: Remarks that are no damage: files that the manifest does not list.

    Example:
        >>> import tokenlake as tl
        >>> _stats = tl.export_version("artifacts/books@v3", "checked", "jsonl")
        >>> report = tl.verify_export("checked")
        >>> report.ok, report.dataset, report.version
        (True, 'books', 3)
    """

    path: str
    dataset: str | None = None
    version: int | None = None
    format: str = ""
    files: int = 0
    bytes: int = 0
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self)}

    def __repr__(self) -> str:
        files = numbers.plural(self.files, "file")
        size = numbers.size(self.bytes)
        return f"ExportReport({one_line(self.path)}: {verdict_on(self.problems)}, {files}, {size})"

    def _repr_html_(self) -> str:
        facts = {
            "found": verdict_on(self.problems),
            "dataset": self.dataset,
            "version": self.version,
            "format": self.format or None,
            "files": self.files,
            "bytes": self.bytes,
        }
        rows = problem_rows(self.problems)
        return named_facts(f"Verification of {self.path}", facts, PROBLEM_COLUMNS, rows)


def verify_export(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Check an export, or other saved rows. Damage is reported, never raised.

    Every data file is compared with the size and SHA-256 that ``_tokenlake/`` records.
    The store that the rows came from is not needed. Files that the manifest does not
    list are named in a note.

    Args:
        path: Directory: a path, or a URL such as ``s3://bucket/folder``.
        storage_options: Options of a bucket; None: those of the environment.
        workers: Number of threads. Default: one for each processor.
        on_progress: Function that receives progress, called from the threads, one call
            at a time.

    Returns:
        Problems found, and the amount of data that was read.

    Raises:
        NotFoundError: The directory has no manifest of Tokenlake.

    Example:
        >>> import tokenlake as tl
        >>> _stats = tl.export_version("artifacts/books@v3", "to-check", "jsonl")
        >>> tl.verify_export("to-check").problems
        ()
    """
    # 1. The manifest. Links are followed, as an export to the directory does.
    address = os.fspath(path)
    if not scheme_of(address):
        address = str(Path(address).expanduser().resolve())
    store = open_read_store(address, storage_options=storage_options)
    try:
        manifest = manifest_in(store)
    except IntegrityError as error:
        problem = Problem(
            _MANIFEST_KEY, "damaged", "a sealed manifest of a directory", str(error)
        )
        return ExportReport(path=store.url, problems=(problem,))
    # 2. The files.
    stop = Stop()
    progress = ByteProgress(
        {file.path: file.bytes for file in manifest.files}, stop, on_progress
    )
    problems = _problems_of_bytes(
        store, manifest.files, progress, stop, workers or available_cpus()
    )
    # 3. Files of others in the directory.
    notes: list[str] = []
    unlisted = _unlisted_files(store, manifest)
    if unlisted:
        names = ", ".join(unlisted[:_NAMED_FILES])
        if len(unlisted) > _NAMED_FILES:
            names += ", ..."
        notes.append(
            f"{numbers.plural(len(unlisted), 'file')} that the manifest does not list: {names}"
        )
    export_facts: Mapping[str, Any] = manifest.made_of.get("export", {})
    return ExportReport(
        path=store.url,
        dataset=export_facts.get("dataset"),
        version=export_facts.get("version"),
        format=manifest.format,
        files=len(manifest.files),
        bytes=progress.read_bytes,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def manifest_in(store: ReadStore) -> FlatManifest:
    """Return the manifest of a flat directory that is opened as a store.

    Raises:
        NotFoundError: The directory has none.
        IntegrityError: The manifest was changed.
    """
    manifest_url = f"{store.url}/{_MANIFEST_KEY}"
    try:
        content = store.read(_MANIFEST_KEY)
    except NotFoundError as error:
        # The manifest is written last: without one the files may be incomplete.
        raise NotFoundError(
            f"{manifest_url}: missing; {store.url} is no export, or one that was not written completely"
        ) from error
    return FlatManifest.from_bytes(content, manifest_url)


def file_problems(
    store: ReadStore, files: Sequence[FlatFile], *, with_hashes: bool
) -> list[Problem]:
    """Compare files with their manifest, and return the problems, sorted by path.

    Args:
        store: Flat directory.
        files: Files of its manifest.
        with_hashes: True to read every byte; otherwise names and sizes are compared.
    """
    if with_hashes:
        stop = Stop()
        work = {file.path: file.bytes for file in files}
        progress = ByteProgress(work, stop, None)
        return _problems_of_bytes(store, files, progress, stop, available_cpus())
    # One listing has the sizes of all files.
    file_sizes: dict[str, int] = {}
    if store.can_list:
        file_sizes = {entry.key: entry.size for entry in store.list("")}
    problems: list[Problem] = []
    for file in sorted(files, key=_path_of):
        file_size = file_sizes.get(file.path)
        if not store.can_list:
            file_size = store.size(file.path)
        if file_size is None:
            problems.append(_missing(file))
        elif file_size != file.bytes:
            problems.append(_other_size(file, file_size))
    return problems


def in_words(problem: Problem) -> str:
    """Return a problem as a clause: ``a.mds is missing, expected a file of 9 bytes``."""
    if problem.problem == "missing":
        return f"{problem.path} is missing, expected {problem.expected}"
    if problem.problem == "size":
        return f"{problem.path} has {problem.got}, expected {problem.expected}"
    if problem.problem == "sha256":
        return f"{problem.path} has sha256 {problem.got}, expected {problem.expected}"
    return f"{problem.path} is {problem.problem}: {problem.got}"


def _problems_of_bytes(
    store: ReadStore,
    files: Sequence[FlatFile],
    progress: ByteProgress,
    stop: Stop,
    threads: int,
) -> list[Problem]:
    """Read all files, and return the problems, sorted by path."""

    def check(file: FlatFile) -> Problem | None:
        problem = _problem_of_bytes(store, file, progress)
        progress.end(file.path)
        return problem

    ordered_files = sorted(files, key=_path_of)
    problems: list[Problem] = []
    for problem in in_order(check, ordered_files, threads, stop=stop):
        if problem is not None:
            problems.append(problem)
    return problems


def _problem_of_bytes(
    store: ReadStore, file: FlatFile, progress: ByteProgress
) -> Problem | None:
    """Compare a file with its size and hash; None if they are those of the manifest."""

    def on_read(size: int) -> None:
        progress.count(file.path, size, read=size)

    try:
        with read_file(
            store, file.path, file.bytes, keep=False, on_read=on_read
        ) as content:
            # The size is compared first: it costs no reading.
            if content.sha256 is None:
                return _other_size(file, content.bytes)
            if content.sha256 != file.sha256:
                return Problem(file.path, "sha256", file.sha256, content.sha256)
            return None
    except NotFoundError:
        return _missing(file)
    # A symlink, a folder, no permission, a failing disk.
    except (StoreError, IntegrityError) as error:
        return Problem(
            file.path, "unreadable", "a regular file that can be read", str(error)
        )


def _missing(file: FlatFile) -> Problem:
    return Problem(file.path, "missing", f"a file of {file.bytes} bytes", "no file")


def _other_size(file: FlatFile, file_size: int) -> Problem:
    return Problem(file.path, "size", f"{file.bytes} bytes", f"{file_size} bytes")


def _path_of(file: FlatFile) -> str:
    return file.path


def _unlisted_files(store: ReadStore, manifest: FlatManifest) -> list[str]:
    """Return the paths of files that the manifest does not list.

    Empty for a web server, which does not list its files.
    """
    if not store.can_list:
        return []
    listed_paths = {file.path for file in manifest.files}
    unlisted: list[str] = []
    for entry in store.list(""):
        is_described = entry.key.startswith(f"{FOLDER}/")
        if not is_described and entry.key not in listed_paths:
            unlisted.append(entry.key)
    return unlisted
