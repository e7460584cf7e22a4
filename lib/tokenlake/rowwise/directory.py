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
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final, get_type_hints

import msgspec

from tokenlake.config.stores import scheme_of
from tokenlake.errors import ConfigError, NotAvailableError, NotFoundError, StoreError
from tokenlake.fingerprint import canonical_texts
from tokenlake.rowwise.checks import expected
from tokenlake.store.local_files import fsync_directory, lock
from tokenlake.store.sealed import FORMAT_VERSION, Count, Sha256, seal_texts, unseal

FOLDER: Final = "_tokenlake"
MANIFEST: Final = "manifest.json"


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
    made_of: Mapping[str, Any] = field(default_factory=dict[str, Any])
    produced_by: Mapping[str, str] = field(default_factory=dict[str, str])


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
    made_of: dict[str, Any] = field(default_factory=dict[str, Any])
    produced_by: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def pad_token_id(self) -> int | None:
        """The padding of the tokenizer whose ids the rows hold, else its EOS; None where several differ, or none is
        known."""
        told: dict[str, Any] = self.made_of.get("tokenizer") or {}
        each = [told] if "pad_id" in told else list(told.values())
        found = {one["eos_id"] if one["pad_id"] is None else one["pad_id"] for one in each}
        return found.pop() if len(found) == 1 and self.kind == "tokens" else None

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return seal_texts(self._texts())

    def _texts(self) -> dict[str, str]:
        files = msgspec.to_builtins(self.files)
        return canonical_texts({"format_version": FORMAT_VERSION, **asdict(self), "files": files})

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST) -> Self:
        """Read a manifest; any change after it was written is an IntegrityError."""
        document = unseal(data, where)
        found = cls(**{name: document.get(name, kind) for name, kind in get_type_hints(cls).items()})
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
            raise NotFoundError(f"{path}: missing; {directory} was not written whole by tokenlake")
        return cls.from_bytes(path.read_bytes(), str(path))


_DATA: Final = re.compile(r"\.(parquet|arrow|jsonl|json|ndjson|csv)(\.\w+)?$", re.IGNORECASE)


NEW, STORE, OLD = "new", "store", "old"  # folders of the table above


@contextmanager
def placed(output_path: str | os.PathLike[str], *, overwrite: bool) -> Generator[Path]:
    """Yield a folder to work in, and put its ``new`` at `output_path` at the end, unless an error is raised.

    With `overwrite` data files in the target are replaced, and other files in it (notes, a README) stay.

    Raises:
        ConfigError: the target is not empty and `overwrite` is false, or holds folders that are not ours.
        NotAvailableError: it is a URL.
        StoreError: another process writes the same target, or the file system refuses.
    """
    target = local_target(output_path)
    check_target(target, overwrite=overwrite)
    beside = target.parent / f".{target.name}.tokenlake"
    new = beside / NEW
    with _held(beside):
        with _system_errors(target):
            _recover(target, beside)
            check_target(target, overwrite=overwrite)  # again: nobody else writes now
            new.mkdir()
        try:
            yield beside
            with _system_errors(target):
                _keep_others(target, new)
                _make_durable(new)
                _swap(new, target, beside / OLD)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            if not any((beside / STORE).rglob("ledger/*.json")):
                shutil.rmtree(beside, ignore_errors=True)
            raise
        shutil.rmtree(beside)


def local_target(output_path: str | os.PathLike[str]) -> Path:
    """Return the path of a target; a link to a folder means that folder."""
    text = os.fspath(output_path)
    if not isinstance(text, str) or not text or "\x00" in text:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise expected("output_path", text, "the path of a directory")
    if scheme := scheme_of(text):
        raise NotAvailableError(f"output_path: {scheme}:// is not available; today: paths of this machine")
    target = Path(text).expanduser().resolve()
    if not target.name:
        raise expected("output_path", text, "a directory below the root of the file system")
    return target


def require_apart(
    what: str, target: Path, data_files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
) -> None:
    """Raise ConfigError if an input lies in the target, where it would be replaced by what is made of it."""
    for entry in [data_files] if isinstance(data_files, str | os.PathLike) else data_files:
        if "://" not in str(entry) and Path(entry).expanduser().absolute().is_relative_to(target):
            raise ConfigError(f"{what}: {target} holds the input {str(entry)!r}; give a directory of its own")


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise ConfigError if `target` may not be written; look, and change nothing."""
    if not target.exists():
        return
    if not target.is_dir():
        raise expected("output_path", str(target), "a directory (it is made when missing), and is a file")
    entries = sorted(target.iterdir())
    if entries and not overwrite:
        how = "Give another path, or overwrite=True to replace its data files"
        held = f"is not empty (it holds {entries[0].name!r}); nothing was changed. {how}"
        raise ConfigError(f"output_path: {target} {held}", path=str(target))
    if folders := [entry.name for entry in entries if entry.name != FOLDER and not _is_file(entry)]:
        how = "which is no file, so overwrite=True does not replace it; nothing was changed. Move that away"
        raise ConfigError(f"output_path: {target} holds {folders[0]!r}, {how}", path=str(target))


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
            how = "wait for it, or give another output_path"
            raise StoreError(f"another process is writing {beside}; {how}") from error
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _recover(target: Path, beside: Path) -> None:
    """Clear up after a process that died: see the module's table."""
    old = beside / OLD
    if old.exists() and not target.exists():
        old.rename(target)
    for left in (old, beside / NEW):
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
        how = "Its parent folder must be writable and on the same file system (a mount point cannot be replaced)"
        raise StoreError(f"cannot write {target}: {error.strerror} ({error.filename}). {how}") from error


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
