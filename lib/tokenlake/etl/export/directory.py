"""Targets of flat directories, which are put in their place as a whole or not at all.

Everything is written beside a target, in ``.<name>.tokenlake/`` (for a bucket: in the
scratch folder of this machine), and moved there in the end:

===========  =====================================================================================================
``new/``     the files while they are written; useless after a crash, and removed by the next run
``old/``     the previous files of the target, between the two renames of a replacement, and until they are deleted
``store/``   the private store of a build, from which an interrupted `tokenize_and_save` resumes
``shards/``  the finished files of an export of a version, and their record, from which an interrupted export resumes
===========  =====================================================================================================

A folder is never a mix of old and new. It is missing only if the process dies between
those two renames. Then ``old/`` and ``new/`` are both whole, and the next call for the
same target puts ``old/`` back first. A bucket renames nothing: there the manifest is
removed first and written last, so that a target with a manifest is whole.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base.checks import expected
from tokenlake.base.threads import in_order
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotAvailableError,
    NotFoundError,
    StoreError,
)
from tokenlake.etl.export.flat_manifest import FOLDER, MANIFEST, FlatManifest
from tokenlake.etl.export.shard_folder import SHARDS, keep_finished
from tokenlake.etl.export.shard_record import ShardRecord
from tokenlake.runtime.store.address import (
    open_read_store,
    open_store,
    options_here,
    scratch_folder,
)
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.durable_files import fsync_directory, hash_regular
from tokenlake.runtime.store.file_locks import is_still, lock
from tokenlake.runtime.store.outputs import require_outside_stores
from tokenlake.runtime.store.schemes import OBJECT_STORES, scheme_of
from tokenlake.runtime.store.url import parse_url

NEW: Final = "new"
STORE: Final = "store"
OLD: Final = "old"
"""Folders of the table above."""

_DATA: Final = re.compile(
    r"\.(parquet|arrow|jsonl|json|ndjson|csv)(\.\w+)?$", re.IGNORECASE
)
"""Names of files that are replaced whoever wrote them. Other files are replaced if
the manifest lists them.
"""

_MANIFEST: Final = f"{FOLDER}/{MANIFEST}"
_UNFINISHED: Final = f"{FOLDER}/unfinished"
"""Object of a bucket that is being written to."""

_FSYNC_THREADS: Final = 8
"""Files that wait for the disk at a time."""

_REMEDY: Final = (
    "Give another path, or overwrite its data files (overwrite=True, --overwrite)"
)


class Target(ABC):
    """A place for one flat directory.

    Attributes:
        url: Absolute path, or URL without a slash at its end.
        options: Options of the bucket; references stay references.
        beside: Folder of this machine to work in.
    """

    _option_name: str
    url: str
    options: Mapping[str, Any]
    beside: Path

    @contextmanager
    def placed(
        self,
        *,
        overwrite: bool,
        export: Mapping[str, Any] | None = None,
        discard_interrupted: bool = True,
    ) -> Generator[Path]:
        """Yield :attr:`beside`, and move its ``new`` to the target at the end.

        After an error the target stays as it was.

        Args:
            overwrite: True to replace data files in the target. Other files in it
                (notes, a README) stay.
            export: Version, format and options of an export whose finished shards stay
                after an error; None: nothing of this writer is resumed.
            discard_interrupted: True to discard the shards of another export that was
                interrupted; otherwise they are an error.

        Raises:
            ConfigError: The target is not empty and `overwrite` is false, or holds
                folders that are not ours. Another export of it was interrupted.
            StoreError: Another process writes the same target, or the storage refuses.
        """
        # 1. A call that is refused leaves no folder behind.
        self.check(overwrite=overwrite, export=export)
        new_folder = self.beside / NEW
        with _held(self.beside):
            # 2. The leftovers of a process that died, and an empty folder.
            with _system_errors(self.beside, self.url):
                self._recover()
                # Again: no other process writes now.
                self.check(overwrite=overwrite, export=export)
                self._discard_other_shards(export, discard=discard_interrupted)
                new_folder.mkdir()
            # 3. The caller writes, and only whole contents reach the target.
            try:
                yield self.beside
                with _system_errors(self.beside, self.url):
                    self._put(new_folder)
            except BaseException as error:
                # An export resumes from its finished shards, never from `new`.
                shutil.rmtree(new_folder, ignore_errors=True)
                # Finished shards stay, but those of wrong options would only stand in
                # the way. A full disk may refuse even this.
                with suppress(OSError):
                    if isinstance(error, ConfigError):
                        self._remove_shards()
                    self._remove_if_unused()
                raise
            shutil.rmtree(self.beside)

    def interrupted_export(self) -> Mapping[str, Any] | None:
        """Return version, format and options of an interrupted export.

        None if there is none, or it has no finished shards.
        """
        record = ShardRecord.read(self.beside / SHARDS)
        if record is None or not record.shards:
            return None
        return record.export

    def clear(self) -> None:
        """Remove the leftovers of a process that died after the target was whole."""
        if not self.beside.exists():
            return
        # Another process that writes the target clears up itself.
        with suppress(StoreError), _held(self.beside):
            self._recover()
            self._remove_shards()
            self._remove_if_unused()

    def _discard_other_shards(
        self, export: Mapping[str, Any] | None, *, discard: bool
    ) -> None:
        """Remove the shards of another export that was interrupted.

        Raises:
            ConfigError: It has finished some, and `discard` is false.
        """
        # The same export resumes from them.
        existing = self.interrupted_export()
        if existing == export:
            return
        if existing is not None and export is not None and not discard:
            raise _other_export(self._option_name, self.url, existing, export)
        self._remove_shards()

    def _remove_shards(self) -> None:
        if (self.beside / SHARDS).exists():
            shutil.rmtree(self.beside / SHARDS)

    def _remove_if_unused(self) -> None:
        """Remove the folder beside the target, unless a run resumes from it."""
        # A unit of a build is finished once its record lies in the ledger.
        has_shards = keep_finished(self.beside)
        has_units = any((self.beside / STORE).rglob("ledger/*.json"))
        if not has_shards and not has_units:
            shutil.rmtree(self.beside, ignore_errors=True)

    @abstractmethod
    def check(
        self, *, overwrite: bool, export: Mapping[str, Any] | None = None
    ) -> None:
        """Raise ConfigError if the target may not be written; nothing is changed.

        Args:
            overwrite: True if data files in the target may be replaced.
            export: Version, format and options of the export to it, for the message.
        """

    @abstractmethod
    def manifest(self) -> FlatManifest | None:
        """Return the manifest of the target; None if it is missing or damaged."""

    @abstractmethod
    def read_store(self) -> ReadStore:
        """Return the target as a store, whose keys are the names of its files."""

    def _refusal(
        self, holds: str, export: Mapping[str, Any] | None = None
    ) -> ConfigError:
        """Return the error for a target that is not empty.

        Args:
            holds: Name of one of its entries.
            export: Version, format and options of the export to it; None: the rows are
                those of no version.
        """
        manifest = self.manifest()
        contents = repr(holds)
        if manifest is not None:
            contents = _contents_of(manifest, export)
        return ConfigError(
            f"{self._option_name}: {self.url} is not empty (it holds {contents}); nothing was changed. {_REMEDY}",
            path=self.url,
        )

    def is_within(self, other: str) -> bool:
        """Return True if the target is a folder, or lies in it.

        Both are spelled as :attr:`url` is.
        """
        return self.url == other or self.url.startswith(f"{other}/")

    def _recover(self) -> None:
        """Clear up after a process that died."""
        if (self.beside / NEW).exists():
            shutil.rmtree(self.beside / NEW)

    @abstractmethod
    def _put(self, new_folder: Path) -> None:
        """Make the contents of a folder the contents of the target."""


def target_of(
    output_path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    option_name: str = "output_path",
    *,
    in_store: bool = False,
) -> Target:
    """Return the target at a path.

    A target is a folder of this machine, or of a bucket (``s3://``, ``gs://``).

    Args:
        output_path: Path or URL.
        storage_options: Options of a bucket; None: those of the environment.
        option_name: Name of the option that holds the path, for messages.
        in_store: True if the place is a store's own folder for exports. Other places in
            a store are refused when they are checked.

    Raises:
        ConfigError: The path is none of a directory.
        NotAvailableError: The path is a URL of an unsupported kind.
    """
    # 1. A bucket, by the scheme of the URL.
    address = os.fspath(output_path)
    is_text = isinstance(address, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_text or not address or "\x00" in address:
        raise expected(option_name, address, "the path of a directory")
    scheme = scheme_of(address)
    if scheme in OBJECT_STORES:
        bucket_url = str(parse_url(address, option_name)).rstrip("/")
        return BucketTarget(
            bucket_url, dict(storage_options or {}), option_name, in_store=in_store
        )
    if scheme:
        raise NotAvailableError(
            f"{option_name}: {scheme}:// is not available; supported: local paths, s3://bucket/folder, gs://bucket/folder"
        )
    # 2. A folder of this machine. Links are resolved, so that the folder which is
    #    renamed is the one that a link leads to.
    folder = Path(address).expanduser().resolve()
    if not folder.name:
        raise expected(
            option_name, address, "a directory below the root of the file system"
        )
    return FolderTarget(folder, option_name, in_store=in_store)


@final
class FolderTarget(Target):
    """A folder of this machine; a link to one means that folder."""

    def __init__(
        self, folder: Path, option_name: str, *, in_store: bool = False
    ) -> None:
        self.folder = folder
        self.url = str(folder)
        self.options = {}
        self._option_name = option_name
        self.beside = folder.parent / f".{folder.name}.tokenlake"
        # Looking for stores lists all folders beside the target and above it, so that
        # a target does it once.
        self._is_known_place = in_store

    def check(
        self, *, overwrite: bool, export: Mapping[str, Any] | None = None
    ) -> None:
        # A store changes by commits, `repair`, `rm` and `gc` alone.
        if not self._is_known_place:
            require_outside_stores(self.folder, self._option_name)
            self._is_known_place = True
        # A missing folder is created, and its parents with it.
        target = self.folder
        if not target.exists():
            return
        if not target.is_dir():
            raise expected(
                self._option_name,
                str(target),
                "a directory (a missing one is created), and is a file",
            )
        entries = sorted(target.iterdir())
        if entries and not overwrite:
            raise self._refusal(entries[0].name, export)
        # Folders are never deleted, apart from those of splits that we have written.
        for entry in entries:
            is_our_folder = entry.name == FOLDER or self._is_split_folder(entry)
            if not is_our_folder and not _is_file(entry):
                raise ConfigError(
                    f"{self._option_name}: {target} holds {entry.name!r}, which is not a file, so overwrite=True does "
                    "not replace it; nothing was changed. Move it away",
                    path=str(target),
                )

    def manifest(self) -> FlatManifest | None:
        # A damaged manifest proves nothing about the files, as a missing one.
        with suppress(NotFoundError, IntegrityError):
            return FlatManifest.of(self.folder)
        return None

    def read_store(self) -> ReadStore:
        return open_read_store(self.url)

    def _is_split_folder(self, folder: Path) -> bool:
        """Return True for a folder that holds data files of the manifest alone."""
        # A link may lead to data of other people.
        if folder.is_symlink() or not folder.is_dir():
            return False
        # An empty folder is known as ours if the manifest lists files in it.
        listed_names = _listed(self.manifest())
        is_listed = any(name.startswith(f"{folder.name}/") for name in listed_names)
        file_names = {f"{folder.name}/{entry.name}" for entry in folder.iterdir()}
        return is_listed and file_names <= listed_names

    def _recover(self) -> None:
        # The process died between the two renames: the old files go back first, so
        # that an error of this run cannot lose them.
        old_folder = self.beside / OLD
        if old_folder.exists() and not self.folder.exists():
            old_folder.rename(self.folder)
        for leftover in (old_folder, self.beside / NEW):
            if leftover.exists():
                shutil.rmtree(leftover)

    def _put(self, new_folder: Path) -> None:
        target = self.folder
        old_folder = self.beside / OLD
        # 1. Files that people put there by hand stay.
        listed_names = _listed(self.manifest())
        if target.exists():
            for entry in target.iterdir():
                is_rewritten = (new_folder / entry.name).exists()
                is_data = entry.name in listed_names or bool(_DATA.search(entry.name))
                if _is_file(entry) and not is_rewritten and not is_data:
                    shutil.copy2(entry, new_folder / entry.name)
        # 2. Everything is on the disk before it is renamed: after a loss of power the
        #    target must not consist of names without contents.
        #    Several files at a time: a file system commits its journal once for all of
        #    them.
        entries = [*sorted(new_folder.rglob("*")), new_folder]
        for _entry in in_order(_fsync, entries, _FSYNC_THREADS):
            pass
        # 3. The two renames. If the second one fails, the first one is undone.
        if target.exists() and any(target.iterdir()):
            target.rename(old_folder)
        try:
            new_folder.rename(target)  # also onto an empty folder, which it replaces
        except OSError:
            if old_folder.exists():
                old_folder.rename(target)
            raise
        # The new name of the folder is stored with its parent.
        fsync_directory(target.parent)


@final
class BucketTarget(Target):
    """A folder of a bucket; while it is written to, it holds an object that says so."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        option_name: str,
        *,
        in_store: bool = False,
    ) -> None:
        self.url = url
        self.options = options_here(url, options)
        self._option_name = option_name
        self.store = open_store(url, storage_options=options)
        self.beside = scratch_folder(url)
        # Looking for stores costs requests, so that a target does it once.
        self._is_known_place = in_store

    def check(
        self, *, overwrite: bool, export: Mapping[str, Any] | None = None
    ) -> None:
        if not self._is_known_place:
            require_outside_stores(
                self.url, self._option_name, storage_options=self.options
            )
            self._is_known_place = True
        # Files of an interrupted upload are this writer's own, and are replaced.
        if overwrite or self.store.exists(_UNFINISHED):
            return
        # An object of any name counts: buckets have no folders that could be empty.
        object_sizes = self._sizes()
        if object_sizes:
            raise self._refusal(min(object_sizes), export)

    def manifest(self) -> FlatManifest | None:
        with suppress(NotFoundError, IntegrityError):
            return FlatManifest.from_bytes(
                self.store.read(_MANIFEST), f"{self.url}/{_MANIFEST}"
            )
        return None

    def read_store(self) -> ReadStore:
        return self.store

    def _sizes(self) -> dict[str, int]:
        """Return name -> size of the objects there."""
        # Objects that a check of the bucket tries, and removes, are no contents of it.
        object_sizes: dict[str, int] = {}
        for entry in self.store.list(""):
            if not entry.key.startswith("_probe"):
                object_sizes[entry.key] = entry.size
        return object_sizes

    def _put(self, new_folder: Path) -> None:
        # 1. Without a manifest the target is unfinished.
        listed_names = _listed(self.manifest())
        self.store.put_new(_UNFINISHED, b"")
        with suppress(NotFoundError):
            self.store.delete(_MANIFEST)
        # 2. All files, the manifest last: a target that has one is whole.
        file_names: list[str] = []
        for entry in sorted(new_folder.rglob("*")):
            if entry.is_file():
                file_names.append(entry.relative_to(new_folder).as_posix())
        for file_name in sorted(file_names, key=_MANIFEST.__eq__):
            upload_path = self.store.temp("")
            (new_folder / file_name).replace(upload_path)
            self.store.publish(
                upload_path, file_name, hash_regular(upload_path), replace_orphan=True
            )
        # 3. Data files of the previous contents, and the mark of an unfinished target.
        for leftover in self._sizes().keys() - set(file_names):
            is_at_top = "/" not in leftover
            is_data = is_at_top and _DATA.search(leftover) is not None
            is_described = leftover.startswith(f"{FOLDER}/")
            if is_described or is_data or leftover in listed_names:
                self.store.delete(leftover)


def _other_export(
    option_name: str, url: str, existing: Mapping[str, Any], export: Mapping[str, Any]
) -> ConfigError:
    """Return the error for shards of an export with other options."""
    return ConfigError(
        f"{option_name}: an interrupted export to {url} has finished files, and is another one: "
        f"{_differences(existing, export)}. Nothing was changed. Repeat that export to finish it, or "
        "discard its files (overwrite=True, --overwrite)",
        path=url,
    )


def _differences(existing: Mapping[str, Any], export: Mapping[str, Any]) -> str:
    """Return the options in which two exports differ: ``num_shards 3, now None``."""
    # The message names the options alone in which both exports differ.
    differences: list[str] = []
    for option in sorted({*existing, *export}):
        if existing.get(option) != export.get(option):
            differences.append(
                f"{option} {existing.get(option)!r}, now {export.get(option)!r}"
            )
    return "; ".join(differences)


def _contents_of(manifest: FlatManifest, export: Mapping[str, Any] | None) -> str:
    """Return the contents of a target with a manifest: ``an export of books@v3``.

    Args:
        manifest: Manifest of the target.
        export: Version, format and options of the export to it, if there is one.
    """
    facts: Mapping[str, Any] = manifest.made_of.get("export", {})
    if not facts:
        return f"rows that Tokenlake saved, in format {manifest.format}"
    version = f"{facts.get('dataset')}@v{facts.get('version')}"
    contents = f"an export of {version} in format {manifest.format}"
    # The same version in the same format: only options tell both exports apart.
    existing = {
        "format": manifest.format,
        "compression": manifest.compression,
        **facts,
    }
    is_of_same_version = export is not None and all(
        export.get(fact) == existing[fact] for fact in ("dataset", "version", "format")
    )
    if export is not None and is_of_same_version:
        contents += f" with other options: {_differences(existing, export)}"
    return contents


def require_apart(
    option_name: str,
    target: Target,
    data_files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> None:
    """Raise ConfigError if an input lies in the target.

    An export there would replace its own input.

    Args:
        option_name: Name of the option that holds the target, for messages.
        target: Target.
        data_files: Paths and URLs of the inputs.
    """
    if isinstance(data_files, str | os.PathLike):
        data_files = [data_files]
    # Inputs may be globs: a prefix says whether any of their files lies in the target.
    for data_file in data_files:
        input_url = str(data_file)
        if "://" not in input_url:
            input_url = str(Path(data_file).expanduser().absolute())
        if input_url == target.url or input_url.startswith(f"{target.url}/"):
            raise ConfigError(
                f"{option_name}: {target.url} holds the input {str(data_file)!r}; use a separate directory"
            )


def _fsync(path: Path) -> None:
    """Bring a file or folder to the disk."""
    if path.is_dir():
        fsync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _listed(manifest: FlatManifest | None) -> set[str]:
    """Return the names of the data files of a manifest; none without a manifest."""
    if manifest is None:
        return set()
    return {file.path for file in manifest.files}


@contextmanager
def _held(work_folder: Path) -> Generator[None]:
    """Make a folder and hold its lock, which a process that dies releases."""
    while True:
        with _system_errors(work_folder, str(work_folder)):
            work_folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(
                work_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
        except FileNotFoundError:
            continue  # its last user removed it
        try:
            # Its last user may have removed the folder, and another process made a new
            # one, between opening and locking: then the lock is on nothing.
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, work_folder)
            if not is_still(descriptor, work_folder):
                continue
            yield
            return
        except BlockingIOError as error:
            raise StoreError(
                f"another process is writing {work_folder}; wait for it, or give another output_path"
            ) from error
        finally:
            os.close(descriptor)


@contextmanager
def _system_errors(place: Path, url: str) -> Generator[None]:
    """Raise StoreError for system errors in the parent folder of a place."""
    # Errors of other files, for example of an input, keep their own messages.
    try:
        yield
    except OSError as error:
        parent = str(place.parent)
        if error.filename is None or not str(error.filename).startswith(parent):
            raise
        raise StoreError(
            f"cannot write {url}: {error.strerror} ({error.filename}). Its parent folder must be writable and on the "
            "same file system (a mount point cannot be replaced)"
        ) from error
