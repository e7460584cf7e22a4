"""Interface of a store: named objects, created once and verified when written.

An object is never half visible.

The bytes that arrive may differ from the bytes that are stored: a bit that flipped on
its way is right the next time, and no finished work may be thrown away for it. So an
object with a wrong hash is read once more.

The bytes that arrive may differ from the bytes that are stored: a bit that flipped on
its way is right the next time, and no finished work may be thrown away for it. So an
object with a wrong hash is read once more.
"""

from __future__ import annotations

import builtins
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store.ledger import FileEntry, QuarantineEntry, ShardEntry
from tokenlake.runtime.store.writes import (
    ByteTarget,
    HashingTarget,
    Orphan,
    Outcome,
    Put,
)

# Bytes read at a time when an object is hashed or copied.
_PIECE: Final = 1 << 20
_Made = TypeVar("_Made")


@final
# The class has slots of plain values: a listing of a large store makes millions of
# them.
@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object.

    Attributes:
        key: Key of the object.
        size: Size in bytes.
        modified: Time of the last change by the storage's clock, in seconds since the
            epoch; None if unknown.
        token: Token of its version (ETag or generation) in storages that change no
            object in place; "" in others.
        links: Number of names of the same bytes, as hard links make them.
        inode: Identity of bytes that have several names: device and inode. "" for bytes
            with one name, and in storages without hard links.
    """

    key: str
    size: int
    modified: float | None = None
    token: str = ""
    links: int = 1
    inode: str = ""


@final
@dataclass(frozen=True, slots=True)
class Leftover:
    """Something unpublished in a store: a temporary file, or an upload in parts.

    No listing shows it.

    Attributes:
        name: Name for people, by which :meth:`Store.remove_leftover` finds it. In a
            bucket it begins with its kind:
            ``upload:ID:code/v1/data/train-00000-00.parquet``.
        bytes: Size, as far as it is known.
        modified: Time of the last change by the storage's clock, in seconds since the
            epoch. A change of an unpublished thing is a change of its build.
        dead: The process that made it ran on this machine and is gone.
        key: Key below which it lies, without its kind:
            ``code/v1/data/train-00000-00.parquet``.
    """

    name: str
    bytes: int
    modified: float
    dead: bool
    key: str


class ReadStore(ABC):
    """Objects under one root, for reading.

    Keys are relative POSIX paths (:mod:`tokenlake.runtime.store.layout`).

    All methods raise StoreError for an unsafe key or a storage that fails, and may be
    called from several threads and processes at once.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Path or URL of the store, without credentials.

        :func:`tokenlake.runtime.store.address.open_read_store` takes it.
        """

    @property
    def can_list(self) -> bool:
        """Whether :meth:`list` and :meth:`list_dirs` work.

        Web servers do not list their files.
        """
        return True

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return the bytes of an object; NotFoundError if it does not exist."""

    @abstractmethod
    def open(
        self, key: str, *, size: int | None = None, sha256: str | None = None
    ) -> BinaryIO:
        """Open an object as a seekable file; NotFoundError if it does not exist.

        A remote object of known size costs no request until it is read; if it is
        missing, reading fails. A remote file is a file of this machine with a
        descriptor, or has ``read_at(offset, size) -> bytes``, which any number of
        threads may call at once.

        Args:
            key: Key of the object.
            size: Size in bytes, as a manifest states it. It saves a remote store
                requests.
            sha256: Hash, hex, as a manifest states it. With both a remote store can
                keep a copy. Local files are opened without a check.
        """

    def discard(self, key: str) -> bool:
        """Drop this store's own copy of an object; return whether there was one.

        Meant for a reader that found damage: after a copy was dropped, opening the
        object fetches it again.
        """
        return False

    def digest(self, key: str) -> FileEntry:
        """Read a whole object once, and return its size and hash.

        Raises:
            NotFoundError: The object does not exist.
        """
        target = HashingTarget()
        self._pour(key, target)
        return target.finish()

    def download(self, key: str, path: Path) -> FileEntry:
        """Write an object to a new file of this machine.

        Args:
            key: Key of the object.
            path: Path of the new file.

        Returns:
            Size and hash of the bytes written.

        Raises:
            NotFoundError: The object does not exist.
            StoreError: It cannot be read, or the file cannot be written.
        """
        # "xb" refuses an existing file: a copy never overwrites anything.
        try:
            file = path.open("xb")
        except OSError as error:
            raise StoreError(
                f"cannot write a copy of {key}: {error.strerror} ({path})", key=key
            ) from error
        try:
            with file:
                target = HashingTarget(file)
                self._pour(key, target)
                return target.finish()
        except BaseException:
            # A partial copy is not left behind, also after Ctrl-C.
            path.unlink(missing_ok=True)
            raise

    def _pour(self, key: str, target: ByteTarget) -> None:
        """Hand all bytes of an object to a target."""
        with self.open(key) as stream:
            while chunk := stream.read(_PIECE):
                target.write(chunk)

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it does not exist."""

    def exists(self, key: str) -> bool:
        """Return whether an object exists."""
        return self.size(key) is not None

    # Listings, in the order of keys.

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects below the folder ``prefix`` ("" = all), sorted by key.

        Temporary files are left out.
        """

    @abstractmethod
    def list_dirs(self, prefix: str) -> builtins.list[str]:
        """Return the sorted names of the folders right below the folder ``prefix``."""


class Store(ReadStore):
    """Objects under one root, for reading and writing.

    Publishing is create-only: of two writers of one key exactly one creates it, and the
    other learns whether the object is equal to its own.

    Attributes:
        at_once: Number of objects that are worth having under way at a time.
    """

    at_once: int = 1

    def local_path(self, key: str) -> Path:
        """Return the path of an object on this machine; the object need not exist.

        Only local stores have paths; the others raise StoreError.
        """
        raise StoreError(
            f"{self.url} is not on this machine: {key} has no path", key=key
        )

    def preflight(self) -> None:
        """Check by a trial that the storage keeps the conditions of publishing.

        Raises StoreError if it does not.

        It must refuse to create a key twice, and to swap a version that does not exist
        any more. Stores whose storage may lack this call it themselves, once, before
        they write. File systems need no trial.
        """
        return

    # Creating and replacing objects. Each method is a put with another condition.

    def put_new(
        self, key: str, data: bytes, *, replace_orphan: Orphan = False
    ) -> Outcome:
        """Create an object.

        Args:
            key: Key of the object.
            data: Its bytes.
            replace_orphan: Condition for replacing an unequal object, as in
                :meth:`publish`.

        Returns:
            ``"created"``; ``"equal"`` if an object of the same bytes exists.

        Raises:
            VersionConflictError: An object of other bytes exists; the message names
                both hashes.
        """
        return self._put(
            [Put(key=key, data=data, sha256=_sha256(data), orphan=replace_orphan)]
        )[0]

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Create many objects as :meth:`put_new` does, several at a time.

        All of them are durable when it returns.
        """
        puts: list[Put] = []
        for key, data in objects.items():
            puts.append(Put(key=key, data=data, sha256=_sha256(data)))
        self._put(puts)

    def publish(
        self, temp: Path, key: str, sha256: str, *, replace_orphan: Orphan = False
    ) -> Outcome:
        """Turn a temporary file into an object, create-only.

        The temporary name is removed.

        Args:
            temp: File of :meth:`temp`, written and closed.
            key: Key of the object.
            sha256: Hash, hex, as computed while writing; the file is read back and
                compared.
            replace_orphan: Replace an unequal object instead of raising a conflict.
                Pass it only for objects of an uncommitted version without a ledger
                record. A callable is called again at the last moment, with other
                replacing writers of this machine locked out.

        Raises:
            VersionConflictError: An unequal object exists; the message names both
                hashes.
            StoreError: The file that was read back has another hash.
        """
        return self._put(
            [Put(key=key, data=temp, sha256=sha256, orphan=replace_orphan)]
        )[0]

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        """Replace a small object if it has not changed since the caller saw it.

        This is a compare-and-swap.

        Readers see the old bytes or the new ones. Of several writers that expect the
        same bytes, one succeeds.

        Args:
            key: Key of the object.
            data: New bytes.
            expected: Bytes to replace; None: the object must not exist.

        Returns:
            ``"created"`` or ``"replaced"``; ``"equal"`` if the object has the new bytes
            already, whatever was expected.

        Raises:
            VersionConflictError: The object has other bytes, or does not exist; nothing
                was changed.
        """
        # Objects are compared by their hash, so that the old bytes are not kept.
        seen = None if expected is None else _sha256(expected)
        return self._put(
            [Put(key=key, data=data, sha256=_sha256(data), expected=seen)]
        )[0]

    def replace(
        self, data: bytes | Path, key: str, sha256: str, damaged_sha256: str | None
    ) -> Outcome:
        """Replace a damaged object by good bytes; only repair replaces committed bytes.

        A reader that has the old object open keeps it. A temporary name is removed.

        Args:
            data: Good bytes, or a file of :meth:`temp`, written and closed.
            key: Key of the object.
            sha256: Hash of the good bytes, hex; they are read back and compared.
            damaged_sha256: Hash of the damaged bytes as the caller saw them, hex; None:
                there was no object.

        Returns:
            ``"created"`` or ``"replaced"``; ``"equal"`` if the object has the good
            bytes already.

        Raises:
            VersionConflictError: The object has neither the good nor the damaged bytes;
                nothing was changed.
            StoreError: The bytes that were read back have another hash.
        """
        return self._put(
            [Put(key=key, data=data, sha256=sha256, expected=damaged_sha256)]
        )[0]

    def link(
        self, src_key: str, dst_key: str, sha256: str, *, replace_orphan: Orphan = False
    ) -> Outcome:
        """Reuse an object under a second key, after checking its hash.

        It is a hard link where the storage has links, else a copy.

        Raises:
            NotFoundError: The source does not exist.
            IntegrityError: The source has another hash, or is not the version that was
                seen.
            VersionConflictError: An unequal object exists, as in :meth:`publish`.
        """
        link = Link(
            source=src_key, target=dst_key, size=0, sha256=sha256, orphan=replace_orphan
        )
        # An error of the source is a result there, because it must not stop the others.
        [result] = self.link_all([link])
        if isinstance(result, Exception):
            raise result
        return result

    @abstractmethod
    def link_all(
        self, links: Sequence[Link]
    ) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        """Reuse many objects, several at a time; all are durable when it returns.

        Returns:
            For each link its outcome, or the error of its source.
        """

    # Temporary files, deletion and folders.

    @abstractmethod
    def temp(self, prefix: str) -> Path:
        """Create an empty temporary file for :meth:`publish`.

        An object of ``prefix`` can be published from it.
        """

    @abstractmethod
    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        """Create or replace objects, several at a time.

        All of them are durable when it returns.

        Each is read back before it is published. Temporary files are removed, unless
        they are not ours.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; NotFoundError if it does not exist."""

    def sweep_temp(self, prefix: str) -> int:
        """Remove temporary files below ``prefix`` that dead processes left.

        The result is the number of removed files.
        """
        removed_count = 0
        for leftover in self.leftovers(prefix):
            if leftover.dead and self.remove_leftover(leftover):
                removed_count += 1
        return removed_count

    @abstractmethod
    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        """Return the unpublished things below the folder ``prefix``, sorted by name.

        The prefix "" means all of the store.

        Those that a running build is about to publish are among them: age and ``dead``
        tell them apart.
        """

    @abstractmethod
    def remove_leftover(self, leftover: Leftover) -> bool:
        """Remove one of :meth:`leftovers`; return False if it is gone already."""

    def remove_folder(self, prefix: str) -> bool:
        """Remove an empty folder; return whether it was removed.

        Only file systems have folders.
        """
        return False


def caught(act: Callable[[], _Made]) -> _Made | NotFoundError | IntegrityError:
    """Return the result of a call, or its NotFoundError or IntegrityError."""
    try:
        return act()
    except (NotFoundError, IntegrityError) as error:
        return error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def looked_twice(read: Callable[[], _Made]) -> _Made:
    """Return the result of `read`; call it once more if it raises IntegrityError."""
    try:
        return read()
    except IntegrityError:
        # The error of the second read is raised: it is that of the stored bytes.
        return read()


def require_digest(
    store: ReadStore, key: str, expected: FileEntry | ShardEntry | QuarantineEntry
) -> None:
    """Read an object and compare its size and hash with an entry.

    Raises:
        NotFoundError: The object does not exist.
        IntegrityError: The object differs, also when it is read again.
    """

    # Size and hash are compared together, as the writer recorded them.
    def look() -> None:
        got = store.digest(key)
        if (got.bytes, got.sha256) != (expected.bytes, expected.sha256):
            raise IntegrityError(
                f"{key}: it has {got.bytes} bytes with sha256 {got.sha256}; expected {expected.bytes} bytes with "
                f"sha256 {expected.sha256}, as written",
                file=key,
                expected=expected.sha256,
                got=got.sha256,
            )

    looked_twice(look)


def read_files(
    store: ReadStore, prefix: str, hashes: Mapping[str, str]
) -> dict[str, bytes]:
    """Return small files by name, after comparing their hashes.

    Args:
        store: The store.
        prefix: Folder of the files.
        hashes: Expected sha256 (hex) of each file, by name.

    Raises:
        NotFoundError: A file does not exist.
        IntegrityError: A file differs, also when it is read again.
    """

    def read(name: str, expected: str) -> bytes:
        data = store.read(f"{prefix}/{name}")
        # A build writes these files before it uses them, and can write them again.
        got = _sha256(data)
        if got != expected:
            raise IntegrityError(
                f"{prefix}/{name}: its sha256 is {got}, expected {expected}, as the build wrote it. Run the build "
                "again: it writes the file again",
                file=f"{prefix}/{name}",
                expected=expected,
                got=got,
            )
        return data

    files: dict[str, bytes] = {}
    for file_name, expected in hashes.items():
        files[file_name] = looked_twice(partial(read, file_name, expected))
    return files


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An object to reuse under a second key; see :meth:`Store.link_all`.

    Attributes:
        source: Key of the object.
        target: Its second key.
        size: Size of the source in bytes.
        sha256: Hash of the source, hex.
        seen: Listing of the source, if the caller knows that this version has the hash.
            A storage with versions then copies only this version, without reading it.
        orphan: Condition for replacing an unequal object, as in :class:`Put`.
    """

    source: str
    target: str
    size: int
    sha256: str
    seen: ObjectInfo | None = None
    orphan: Orphan = field(default=False, compare=False)

    def put(self, data: bytes | Path = b"") -> Put:
        """Return the put of the target, for :meth:`Put.judge`."""
        return Put(key=self.target, data=data, sha256=self.sha256, orphan=self.orphan)

    def damaged(self, sha256: str) -> IntegrityError:
        """Return the error of a source with another sha256 (hex)."""
        return IntegrityError(
            f"cannot reuse {self.source} as {self.target}: its sha256 is {sha256}, expected {self.sha256}. "
            "Verify the version it belongs to; without reuse the unit is built again.",
            file=self.source,
        )
