"""Inputs that are files of an export: compared with the manifest of their directory.

Ids of a damaged file are wrong or unknown to the tokenizer, and an error on a record
would lead people to the wrong remedy. The manifest knows the size and hash of each file
before its records are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tokenlake.errors import DamagedFileError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl.export.flat_manifest import FOLDER, FlatFile, FlatManifest
from tokenlake.etl.export.verification import file_problems, in_words, manifest_in
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.file_check import Problem
from tokenlake.runtime.store.schemes import OBJECT_STORES, scheme_of

_SHA256: Final = "sha256:"
"""Beginning of the version token of an input that was hashed."""

_NAMED: Final = 3
"""Damaged files that a message describes."""


def export_at(path: str) -> tuple[ReadStore, FlatManifest] | None:
    """Return an export as a store, with its manifest; None if a path is that of none.

    Args:
        path: Path of a folder, or URL in a bucket.

    Raises:
        DamagedFileError: The manifest is damaged.
    """
    # Other URLs are files, or repositories with a layout of their own.
    scheme = scheme_of(path)
    if scheme in OBJECT_STORES:
        address = path.rstrip("/")
    elif scheme:
        return None
    else:
        folder = Path(path).expanduser()
        if not (folder / FOLDER).is_dir():
            return None
        address = str(folder.resolve())
    # A bucket that cannot be read is an error of the plan, which names the option.
    with suppress(NotFoundError, StoreError):
        store = open_read_store(address)
        return store, _manifest_of(store)
    return None


def splits_of(manifest: FlatManifest) -> list[str]:
    """Return the splits of an export that have rows, in the order of their files."""
    splits: dict[str, None] = {}
    for file in manifest.files:
        if file.split and file.rows:
            splits[file.split] = None
    return list(splits)


def require_whole(store: ReadStore, manifest: FlatManifest, split: str | None) -> None:
    """Check the names and sizes of the files of an export.

    Args:
        store: Export.
        manifest: Its manifest.
        split: Name of the only split that is read; None: all.

    Raises:
        DamagedFileError: A file is missing, or has another size.
    """
    # Files of no split describe those of all.
    read_files: list[FlatFile] = []
    for file in manifest.files:
        if split is None or file.split in ("", split):
            read_files.append(file)
    problems = file_problems(store, read_files, with_hashes=False)
    if problems:
        raise _damaged(store.url, manifest, problems)


def require_as_exported(files: Iterable[InputFile]) -> None:
    """Compare inputs of this machine with the manifest of the export that they are in.

    Inputs that lie in no export are not looked at. Inputs have been hashed for the plan,
    so that this reads no byte of them.

    Raises:
        DamagedFileError: An input differs from the manifest.
    """
    manifests: dict[Path, FlatManifest | None] = {}
    listed_files: dict[Path, dict[str, FlatFile]] = {}
    problems: dict[Path, list[Problem]] = {}
    for file in files:
        if scheme_of(file.url):
            continue
        # A data file lies in the directory itself, or in the folder of its split.
        for input_file in (file, *file.companions):
            input_path = Path(input_file.url)
            for directory in (input_path.parent, input_path.parent.parent):
                manifest = _manifest_beside(directory, manifests)
                if manifest is None:
                    continue
                if directory not in listed_files:
                    listed_files[directory] = {
                        file.path: file for file in manifest.files
                    }
                name = input_path.relative_to(directory).as_posix()
                listed_file = listed_files[directory].get(name)
                problem = _problem_of_input(listed_file, input_file)
                if problem is not None:
                    problems.setdefault(directory, []).append(problem)
                break
    for directory, directory_problems in problems.items():
        manifest = manifests[directory]
        assert manifest is not None
        raise _damaged(str(directory), manifest, directory_problems)


def _manifest_beside(
    directory: Path, manifests: dict[Path, FlatManifest | None]
) -> FlatManifest | None:
    """Return the manifest of a directory; None if it is no export.

    Args:
        directory: Directory.
        manifests: Manifests of the directories that were looked at, which is added to.
    """
    if directory not in manifests:
        manifests[directory] = None
        export = export_at(str(directory))
        if export is not None:
            _store, manifests[directory] = export
    return manifests[directory]


def _manifest_of(store: ReadStore) -> FlatManifest:
    """Return the manifest of an export; DamagedFileError if it was changed."""
    try:
        return manifest_in(store)
    except IntegrityError as error:
        raise DamagedFileError(
            f"{error} It is the manifest of the export in {store.url}. Export the version again; to import the files "
            f"without a comparison, remove the folder {FOLDER}"
        ) from error


def _problem_of_input(file: FlatFile | None, input_file: InputFile) -> Problem | None:
    """Compare an input with its entry in the manifest.

    None if they agree, or there is no entry.
    """
    if file is None:
        return None
    if file.bytes != input_file.size:
        expected_size = f"{file.bytes} bytes"
        return Problem(file.path, "size", expected_size, f"{input_file.size} bytes")
    # Other tokens are versions of a bucket, which say nothing about the bytes.
    if not input_file.token.startswith(_SHA256):
        return None
    sha256 = input_file.token.removeprefix(_SHA256)
    if sha256 != file.sha256:
        return Problem(file.path, "sha256", file.sha256, sha256)
    return None


def _damaged(
    url: str, manifest: FlatManifest, problems: Sequence[Problem]
) -> DamagedFileError:
    """Return the error for files of an export that differ from its manifest."""
    descriptions = "; ".join(in_words(problem) for problem in problems[:_NAMED])
    if len(problems) > _NAMED:
        descriptions += f"; and {len(problems) - _NAMED} more"
    remedy = "Write the directory again"
    facts = manifest.made_of.get("export", {})
    if facts:
        remedy = f"Export {facts.get('dataset')}@v{facts.get('version')} again"
    return DamagedFileError(
        f"{url} is an export of Tokenlake, and differs from its manifest: {descriptions}. {remedy}; to import the "
        f"files as they are, remove its folder {FOLDER}",
        path=url,
        files=[problem.path for problem in problems],
    )
