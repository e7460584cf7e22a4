"""A flat directory: its manifest, and putting it in its place whole or not at all.

Everything is written beside the target, in ``.<name>.tokenlake/``, and moved there in the end:

===========  =====================================================================================================
``new/``     the files while they are written; of no use to anybody after a crash, and removed by the next run
``old/``     what the target held, between the two renames of a replacement, and until it is deleted
``store/``   the private store of a build, from which an interrupted `tokenize_and_save` goes on
===========  =====================================================================================================

A target is never a mix of old and new. It is missing only if the process dies between those two renames, which is a
moment; ``old/`` and ``new/`` are both whole then, and the next call for the same target puts ``old/`` back first.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

import msgspec

from tokenlake.errors import ConfigError, IntegrityError, NotAvailableError, NotFoundError, StoreError
from tokenlake.fingerprint import canonical_texts
from tokenlake.store.local_files import fsync_directory, hash_regular, lock
from tokenlake.store.sealed import FORMAT_VERSION, Count, Sha256, seal_texts, unseal

FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"


def _nothing() -> dict[str, Any]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """A data file: its name, split, size, sha256 (hex) and rows."""

    path: str
    split: str
    bytes: Count
    sha256: Sha256
    rows: Count


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """What rows are and what they were made of, as :class:`FlatManifest` says it."""

    kind: str = "rows"
    made_of: dict[str, Any] = field(default_factory=_nothing)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatManifest:
    """What a flat directory is: sealed canonical JSON without clock, host or user.

    Attributes:
        kind: ``rows``, ``tokens`` (a row per document) or ``packed``.
        format, compression: of the files.
        columns: name to Arrow type; empty where lines have no schema.
        files: in the order of the rows.
        made_of: the configuration, tokenizers and inputs where they are known (of a pipeline or a build; of a build
            also its fingerprint and account), else empty.
        produced_by: names and versions of what wrote it.
    """

    kind: str
    format: str
    compression: str
    columns: dict[str, str]
    files: tuple[FlatFile, ...]
    made_of: dict[str, Any] = field(default_factory=_nothing)
    produced_by: dict[str, str] = field(default_factory=_nothing)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return seal_texts(self._texts())

    def _texts(self) -> dict[str, str]:
        return canonical_texts(
            {"format_version": FORMAT_VERSION, **asdict(self), "files": msgspec.to_builtins(self.files)}
        )

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST) -> Self:
        """Read a manifest; any change after it was written is an IntegrityError."""
        document = unseal(data, where)
        found = cls(
            kind=document.get("kind", str),
            format=document.get("format", str),
            compression=document.get("compression", str),
            columns=document.get("columns", dict[str, str]),
            files=document.get("files", tuple[FlatFile, ...]),
            made_of=document.get("made_of", dict[str, Any]),
            produced_by=document.get("produced_by", dict[str, str]),
        )
        for index, file in enumerate(found.files):
            if "/" in file.path or file.path in ("", ".", ".."):
                document.fail(f"files[{index}].path", "the name of a file in the directory", file.path)
        document.end(found._texts())
        return found

    @classmethod
    def of(cls, directory: str | Path) -> Self:
        """Read the manifest of a flat directory.

        Raises:
            NotFoundError: it has none.
            IntegrityError: it was changed.
        """
        path = Path(directory) / FOLDER / MANIFEST
        if not path.is_file():
            raise NotFoundError(
                f"{path}: there is no such file; {directory} was not written by tokenlake, or not whole"
            )
        return cls.from_bytes(path.read_bytes(), str(path))

    def check(self, directory: str | Path) -> None:
        """Compare the files of a directory with this manifest.

        Raises:
            IntegrityError: one is missing or has other bytes.
        """
        for file in self.files:
            path = Path(directory) / file.path
            if not path.is_file():
                raise IntegrityError(f"{path}: missing, but the manifest lists it", file=file.path)
            if (found := hash_regular(path)) != file.sha256:
                raise IntegrityError(
                    f"{path}: its sha256 is {found}, expected {file.sha256}; the file was changed or damaged. "
                    "Write it again",
                    file=file.path,
                )


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DATA: Final = re.compile(r"\.(parquet|arrow|jsonl|json|ndjson|csv)(\.\w+)?$", re.IGNORECASE)


@final
@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a result is made.

    Attributes:
        new: an empty folder for its files.
        store: folder for the private store of a build; kept when the build fails, so that it can go on.
    """

    new: Path
    store: Path


@contextmanager
def placed(output_path: str | os.PathLike[str], *, overwrite: bool) -> Generator[Workplace]:
    """Yield a workplace, and put its ``new`` folder at `output_path` at the end, unless an error is raised.

    With `overwrite` data files in the target are replaced, and other files in it (notes, a README) stay.

    Raises:
        ConfigError: the target is not empty and `overwrite` is false, or holds folders that are not ours.
        NotAvailableError: it is a URL.
        StoreError: another process writes the same target, or the file system refuses.
    """
    target = local_target(output_path)
    check_target(target, overwrite=overwrite)
    beside = target.parent / f".{target.name}.tokenlake"
    place = Workplace(beside / "new", beside / "store")
    with _held(beside):
        with _system_errors(target):
            _recover(target, beside)
            check_target(target, overwrite=overwrite)  # again: nobody else writes now
            place.new.mkdir()
        try:
            yield place
            with _system_errors(target):
                _keep_others(target, place.new)
                _make_durable(place.new)
                _swap(place.new, target, beside / "old")
        except BaseException:
            shutil.rmtree(place.new, ignore_errors=True)
            if not any(place.store.rglob("ledger/*.json")):
                shutil.rmtree(beside, ignore_errors=True)
            raise
        shutil.rmtree(beside)


def local_target(output_path: str | os.PathLike[str]) -> Path:
    """Return the path of a target; a link to a folder means that folder."""
    text = os.fspath(output_path)
    if not isinstance(text, str) or not text or "\x00" in text:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"output_path: got {output_path!r}, must be the path of a directory")
    if _URL.match(text):
        raise NotAvailableError(
            f"output_path: {text.split('://')[0]}:// is not available yet; today: paths of this machine"
        )
    target = Path(text).expanduser().resolve()
    if not target.name:
        raise ConfigError(f"output_path: {text!r} is the root of the file system; give a directory below it")
    return target


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise ConfigError if `target` may not be written; look, and change nothing."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"output_path: {target} is a file; give a directory (it is made when missing)")
    entries = sorted(target.iterdir())
    if entries and not overwrite:
        raise ConfigError(
            f"output_path: {target} is not empty (it holds {entries[0].name!r}); nothing was changed. "
            "Give another path, or overwrite=True to replace its data files",
            path=str(target),
        )
    folders = [entry.name for entry in entries if entry.name != FOLDER and not _is_file(entry)]
    if folders:
        raise ConfigError(
            f"output_path: {target} holds {folders[0]!r}, which is no file, so overwrite=True does not replace it; "
            "nothing was changed. Move that away, or give another path",
            path=str(target),
        )


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def _held(beside: Path) -> Generator[None]:
    """Make a folder and hold its lock; a process that dies lets go of it."""
    while True:
        with _system_errors(beside):
            beside.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its last user removed it
        try:
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, beside)
            if not _is_same(descriptor, beside):
                continue
            yield
            return
        except BlockingIOError as error:
            raise StoreError(
                f"another process is writing {beside}; wait for it, or give another output_path"
            ) from error
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _recover(target: Path, beside: Path) -> None:
    """Clear up after a process that died: see the module's table."""
    old = beside / "old"
    if old.exists() and not target.exists():
        old.rename(target)
    for left in (old, beside / "new"):
        if left.exists():
            shutil.rmtree(left)


def _keep_others(target: Path, new: Path) -> None:
    """Take over what lies in the target and is no data: what people put there by hand."""
    if not target.exists():
        return
    ours = _ours(target)
    for entry in target.iterdir():
        if entry.name != FOLDER and entry.name not in ours and not _DATA.search(entry.name):
            shutil.copy2(entry, new / entry.name)


def _ours(target: Path) -> set[str]:
    try:
        return {file.path for file in FlatManifest.of(target).files}
    except Exception:
        return set()  # without a manifest that can be read, data files are known by their names


def _swap(new: Path, target: Path, old: Path) -> None:
    if target.exists() and any(target.iterdir()):
        target.rename(old)
    try:
        new.rename(target)  # also onto an empty folder, which it replaces
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    fsync_directory(target.parent)


def _make_durable(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    fsync_directory(folder)


@contextmanager
def _system_errors(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(target.parent)):
            raise
        raise StoreError(
            f"cannot write {target}: {error.strerror} ({error.filename}). Its parent folder must be writable and on "
            "the same file system (a mount point itself cannot be replaced)"
        ) from error


def write_manifest(folder: Path, manifest: FlatManifest) -> None:
    """Write ``_tokenlake/manifest.json`` below `folder`."""
    (folder / FOLDER).mkdir(exist_ok=True)
    path = folder / FOLDER / MANIFEST
    path.write_bytes(manifest.to_bytes())
    path.chmod(file_mode(folder))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStats:
    """What was written.

    Attributes:
        num_examples: rows.
        num_shards: files.
        total_bytes: of all files, as stored.
        output_paths: of the files, in the order of their rows.
        num_tokens: ids in all rows, those around documents included, padding not; None where rows hold no tokens.
    """

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]
    num_tokens: int | None = None

    @classmethod
    def of(cls, manifest: FlatManifest, target: Path, num_tokens: int | None = None) -> WriteStats:
        """Sum up what lies at `target`."""
        return cls(
            num_examples=manifest.rows,
            num_shards=len(manifest.files),
            total_bytes=sum(file.bytes for file in manifest.files),
            output_paths=[str(target / file.path) for file in manifest.files],
            num_tokens=num_tokens,
        )


def file_mode(folder: Path) -> int:
    """Return the permissions that a file of `folder` gets: the folder's own, without execution."""
    return folder.stat().st_mode & 0o666
