"""What a store is: named bytes, created once, verified when written, never half visible.

What a disk or an object store holds and what arrives are two things: a bit that flipped on its way is right the next
time, and no finished work may be thrown away for it. So bytes that are not what they should be are read once more.
"""

from __future__ import annotations

import builtins
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store.ledger import FileEntry, QuarantineEntry, ShardEntry
from tokenlake.runtime.store.writes import ByteTarget, HashingTarget, Orphan, Outcome, Put

_PIECE: Final = 1 << 20
_Made = TypeVar("_Made")


@final
@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object.

    Attributes:
        key: of the object.
        size: in bytes.
        modified: seconds since the epoch, by the clock of the storage; None where it does not say.
        token: of its version, of a storage that changes no object in place: its ETag or generation; "" elsewhere.
    """

    key: str
    size: int
    modified: float | None = None
    token: str = ""


@final
@dataclass(frozen=True, slots=True)
class Leftover:
    """Something unpublished that lies in a store: a temporary file, an upload in parts. No listing shows it.

    Attributes:
        name: what it is called, for people, and what :meth:`Store.remove_leftover` finds it by.
        bytes: that it takes, as far as is known.
        modified: seconds since the epoch, by the clock of the storage.
        dead: the process that made it ran on this machine and is gone.
    """

    name: str
    bytes: int
    modified: float
    dead: bool


class ReadStore(ABC):
    """Objects under one root, to be read. Keys are relative POSIX paths (see :mod:`tokenlake.runtime.store.layout`).

    All methods raise StoreError for an unsafe key or a storage that fails, and may be called from several
    threads and processes at once.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the store is, as :func:`tokenlake.runtime.store.address.open_read_store` takes it; without
        credentials."""

    @property
    def can_list(self) -> bool:
        """Whether :meth:`list` and :meth:`list_dirs` work; web servers do not list what they have."""
        return True

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return an object's bytes; NotFoundError if there is none."""

    @abstractmethod
    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        """Open an object for reading, seekable; NotFoundError if there is none.

        A remote object of a known size costs no request until it is read, and is missed then. What a remote store
        opens has ``read_at(offset, size) -> bytes`` as well, for any number of threads at once, or is a file of this
        machine with a descriptor.

        Args:
            size: bytes, and
            sha256: hex, of the object as a manifest states them; they save a remote store requests, and with
                both it can keep a copy. Local files are opened as they are.
        """

    def discard(self, key: str) -> bool:
        """Drop a copy of an object that this store keeps of its own; say whether there was one.

        For a reader that found damage: where there was a copy, opening the object again fetches it again.
        """
        return False

    def digest(self, key: str) -> FileEntry:
        """Read an object, whole and once, and return its size and hash; NotFoundError if there is none."""
        target = HashingTarget()
        self._pour(key, target)
        return target.finish()

    def download(self, key: str, path: Path) -> FileEntry:
        """Write an object to a new file of this machine, and return the size and hash of what was written.

        Raises:
            NotFoundError: there is no such object.
            StoreError: it cannot be read, or the file cannot be written.
        """
        try:
            file = path.open("xb")
        except OSError as error:
            raise StoreError(f"cannot write a copy of {key}: {error.strerror} ({path})", key=key) from error
        try:
            with file:
                target = HashingTarget(file)
                self._pour(key, target)
                return target.finish()
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _pour(self, key: str, target: ByteTarget) -> None:
        """Hand all bytes of an object to a target."""
        with self.open(key) as stream:
            while piece := stream.read(_PIECE):
                target.write(piece)

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None if there is none."""

    def exists(self, key: str) -> bool:
        """Say whether there is such an object."""
        return self.size(key) is not None

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects below the folder ``prefix`` ("" = all), sorted by key, no temporary files."""

    @abstractmethod
    def list_dirs(self, prefix: str) -> builtins.list[str]:
        """Return the sorted names of the folders right below the folder ``prefix``."""


class Store(ReadStore):
    """Objects under one root, to be read and written.

    Publishing is create-only: of two writers of one key exactly one creates it, and the other learns whether
    the object is what it wanted to write.

    Attributes:
        at_once: how many objects are worth having under way at a time.
    """

    at_once: int = 1

    def local_path(self, key: str) -> Path:
        """Return the object's path on this machine (local stores only; the object need not exist)."""
        raise StoreError(f"{self.url} is not on this machine: {key} has no path", key=key)

    def preflight(self) -> None:
        """See that the storage keeps what publishing rests on, by a trial; StoreError says what it does not.

        A second create of one key must be refused, and a swap of what is not there any more. Stores whose storage
        may lack this call it by themselves, once, before they write; file systems do not.
        """
        return

    def put_new(self, key: str, data: bytes, *, replace_orphan: Orphan = False) -> Outcome:
        """Create an object of ``data``.

        Args:
            replace_orphan: as in :meth:`publish`.

        Returns:
            ``"created"``; ``"equal"`` if an object of the same bytes is there.

        Raises:
            VersionConflictError: an object of other bytes is there; names both hashes.
        """
        return self._put([Put(key=key, data=data, sha256=_sha256(data), orphan=replace_orphan)])[0]

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Create many objects as :meth:`put_new` does, several at a time; all are durable when it returns."""
        self._put([Put(key=key, data=data, sha256=_sha256(data)) for key, data in objects.items()])

    def publish(self, temp: Path, key: str, sha256: str, *, replace_orphan: Orphan = False) -> Outcome:
        """Make a written temporary file the object ``key``, create-only; the temporary name is gone after.

        Args:
            temp: a file of :meth:`temp`, written and closed.
            key: what it becomes.
            sha256: hex, as computed while writing; the file is read back and compared.
            replace_orphan: an unequal object that is there is replaced instead of being a conflict. Pass it
                only for objects of an uncommitted version without a ledger record; a callable is asked again
                at the last moment, with other replacing writers of this machine locked out.

        Raises:
            VersionConflictError: an unequal object is there; names both hashes.
            StoreError: what was read back is not what was written.
        """
        return self._put([Put(key=key, data=temp, sha256=sha256, orphan=replace_orphan)])[0]

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        """Replace a small object, but only if it still is what the caller saw (compare-and-swap).

        Readers see the old bytes or the new ones. Of several writers that expect the same, one succeeds.

        Args:
            expected: the bytes that are to be replaced; None: there must be no such object.

        Returns:
            ``"created"`` or ``"replaced"``; ``"equal"`` if ``data`` is there already, whatever was expected.

        Raises:
            VersionConflictError: the object is another one, or there is none; changes nothing.
        """
        seen = None if expected is None else _sha256(expected)
        return self._put([Put(key=key, data=data, sha256=_sha256(data), expected=seen)])[0]

    def replace(self, data: bytes | Path, key: str, sha256: str, found: str | None) -> Outcome:
        """Put good bytes in the place of a damaged object; nobody but repair replaces committed bytes.

        A reader that has the old object open keeps it. The temporary name is gone after.

        Args:
            data: the bytes, or a file of :meth:`temp`, written and closed.
            sha256: hex, of them; they are read back and compared.
            found: hex, of the damaged bytes as the caller saw them; None: there was no object.

        Returns:
            ``"created"`` or ``"replaced"``; ``"equal"`` if such bytes are there already.

        Raises:
            VersionConflictError: what is there is neither; nothing was changed.
            StoreError: what was read back is not what was written.
        """
        return self._put([Put(key=key, data=data, sha256=sha256, expected=found)])[0]

    def link(self, src_key: str, dst_key: str, sha256: str, *, replace_orphan: Orphan = False) -> Outcome:
        """Reuse an object under a second key (hard link, else a copy), after checking its hash.

        Raises:
            NotFoundError: no such source.
            IntegrityError: the source's bytes do not have ``sha256``, or are not the version that was seen.
            VersionConflictError: as in :meth:`publish`.
        """
        link = Link(source=src_key, target=dst_key, size=0, sha256=sha256, orphan=replace_orphan)
        [done] = self.link_all([link])
        if isinstance(done, Exception):
            raise done
        return done

    @abstractmethod
    def link_all(self, links: Sequence[Link]) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        """Reuse many objects, several at a time; all are durable when it returns.

        Returns:
            For each what became of it, or what is wrong with its source.
        """

    @abstractmethod
    def temp(self, prefix: str) -> Path:
        """Create an empty temporary file to write an object of ``prefix`` into, for :meth:`publish`."""

    @abstractmethod
    def _put(self, puts: Sequence[Put]) -> builtins.list[Outcome]:
        """Make objects, several at a time; all are durable when it returns.

        What was written is read back first. A temporary file is gone after, unless it is none of ours.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; NotFoundError if there is none."""

    def sweep_temp(self, prefix: str) -> int:
        """Remove temporary files below ``prefix`` left by dead processes of this machine; return how many."""
        return sum(self.remove_leftover(each) for each in self.leftovers(prefix) if each.dead)

    @abstractmethod
    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        """Return what was begun below the folder ``prefix`` ("" = all) and never published, sorted by name.

        Those that a running build is about to publish are among them: age and ``dead`` tell them apart.
        """

    @abstractmethod
    def remove_leftover(self, leftover: Leftover) -> bool:
        """Remove one of :meth:`leftovers`; return False if it is gone already."""

    def remove_folder(self, prefix: str) -> bool:
        """Remove a folder that holds nothing; return whether there was one. Only file systems have such."""
        return False


def caught(act: Callable[[], _Made]) -> _Made | NotFoundError | IntegrityError:
    """Return what an act gives, or that what it rests on is not there or damaged."""
    try:
        return act()
    except (NotFoundError, IntegrityError) as error:
        return error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def looked_twice(read: Callable[[], _Made]) -> _Made:
    """Return what `read` gives, the second time where it raised IntegrityError the first."""
    try:
        return read()
    except IntegrityError:
        return read()


def require_digest(store: ReadStore, key: str, expected: FileEntry | ShardEntry | QuarantineEntry) -> None:
    """Read an object and compare it with what it should be.

    Raises:
        NotFoundError: there is none.
        IntegrityError: it is another one, at the second look too.
    """

    def look() -> None:
        got = store.digest(key)
        if (got.bytes, got.sha256) != (expected.bytes, expected.sha256):
            raise IntegrityError(
                f"{key}: it has {got.bytes} bytes with sha256 {got.sha256}; expected {expected.bytes} bytes with "
                f"sha256 {expected.sha256}, as they were written",
                file=key,
                expected=expected.sha256,
                got=got.sha256,
            )

    looked_twice(look)


def read_files(store: ReadStore, prefix: str, hashes: Mapping[str, str]) -> dict[str, bytes]:
    """Return small files below `prefix`, each with the sha256 (hex) that is expected of it.

    Raises:
        NotFoundError: one is not there.
        IntegrityError: one is another, at the second look too.
    """

    def look(name: str, expected: str) -> bytes:
        data = store.read(f"{prefix}/{name}")
        if (got := _sha256(data)) != expected:
            raise IntegrityError(
                f"{prefix}/{name}: its sha256 is {got}, expected {expected}, as the build wrote it. Run the build "
                "again: it puts the file in its place",
                file=f"{prefix}/{name}",
                expected=expected,
                got=got,
            )
        return data

    return {name: looked_twice(lambda n=name, h=wanted: look(n, h)) for name, wanted in hashes.items()}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An object that is to be had under a second key; see :meth:`Store.link_all`.

    Attributes:
        size, sha256: of the source.
        seen: what a listing says of the source, where the caller knows that this version of it has the hash: where the
            storage names versions it is not read, and only this version is copied.
        orphan: as in :class:`Put`.
    """

    source: str
    target: str
    size: int
    sha256: str
    seen: ObjectInfo | None = None
    orphan: Orphan = field(default=False, compare=False)

    def put(self, data: bytes | Path = b"") -> Put:
        """Return what it puts, as far as a judge looks at it."""
        return Put(key=self.target, data=data, sha256=self.sha256, orphan=self.orphan)

    def damaged(self, found: str) -> IntegrityError:
        """Return the error of a source that has another sha256 (hex)."""
        return IntegrityError(
            f"cannot reuse {self.source} as {self.target}: its sha256 is {found}, expected {self.sha256}. "
            "Verify the version it belongs to; without reuse the unit is built again.",
            file=self.source,
        )
