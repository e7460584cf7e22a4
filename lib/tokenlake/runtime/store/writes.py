"""Writing: bytes that are hashed on their way, and the compare-and-swap of an object.

Compare-and-swap is the one way in which an object is created or changed, as a file or
in a bucket. Objects are compared by their hash in every storage: the existing object is
equal, may be replaced, or is a conflict. Writers hash while they write, so that
publishing needs one more pass over the bytes (reading them back), not two.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Protocol, TypeAlias, final

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.runtime.store.ledger import FileEntry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


Outcome: TypeAlias = Literal["created", "equal", "replaced"]

Orphan: TypeAlias = bool | Callable[[], bool]
"""Condition for replacing an unequal object.

:meth:`tokenlake.runtime.store.base.Store.publish` explains it.
"""

_HASHED_BYTES: Final = 1 << 20
"""Bytes of an existing file that are hashed at a time."""

# An object that vanishes between "exists" and read-back is created again, but not for
# ever.
_TRIES: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """An object to write, and the object that it may replace.

    Attributes:
        key: Key of the object.
        data: Bytes, or a written temporary file of :meth:`Store.temp`, whose name is
            removed.
        sha256: Hash of the bytes, hex.
        expected: Hash of the bytes that it replaces, hex; None: the object must not
            exist.
        orphan: Replace an unequal object, too.
    """

    key: str
    data: bytes | Path
    sha256: str
    expected: str | None = None
    orphan: Orphan = False

    def judge(self, existing_sha256: str | None) -> Outcome | None:
        """Compare the existing object with this one.

        Args:
            existing_sha256: Hash of the existing object, hex; None: it does not exist.

        Returns:
            ``"equal"``; None if it may be replaced or created.

        Raises:
            VersionConflictError: It may not be replaced; the message names both hashes.
        """
        # An equal object is success, whatever was expected: an earlier try may have
        # written it.
        if existing_sha256 == self.sha256:
            return "equal"
        if existing_sha256 == self.expected:
            return None
        # The condition is evaluated at the last moment, and only if it is needed: it
        # may read the ledger.
        if existing_sha256 is not None:
            is_orphan = self.orphan() if callable(self.orphan) else self.orphan
            if is_orphan:
                return None

        # A conflict: state both objects.
        got = "it does not exist"
        if existing_sha256 is not None:
            got = f"it already exists with other bytes: sha256 {existing_sha256}"
        if self.expected is not None:
            got += f", expected {self.expected}, which should have been replaced"
        raise VersionConflictError(
            f"{self.key}: {got}; ours is {self.sha256}. Another process or release created or changed it; nothing "
            "was written. Let that process finish, and run again.",
            key=self.key,
            expected=self.sha256,
            got=existing_sha256,
        )

    def require_written(self, sha256: str) -> None:
        """Raise StoreError unless the bytes that were read back have the sha256 (hex)."""
        if sha256 != self.sha256:
            raise StoreError(
                f"{self.key}: the bytes read back differ from those written: sha256 {sha256}, expected {self.sha256}. "
                "Nothing was published. Check the disk and the memory of this machine.",
                key=self.key,
            )


def compare_and_swap(
    put: Put,
    look: Callable[[], tuple[str, str] | None],
    send: Callable[[str | None], object],
    refused: type[Exception],
    *,
    look_first: bool = True,
) -> Outcome:
    """Create or replace an object.

    Repeat these steps until one of them ends it:

    1. Look at the existing object. An equal one is success.
    2. An object that may not be replaced is a conflict, if two looks agree: a damaged
       answer must not look like another object.
    3. Send the object, with the condition that the version has not changed since the
       look. If it is refused, repeat.

    Args:
        put: The object.
        look: Function that reads the existing object, and returns its hash and the
            token of its version; None if it does not exist.
        send: Function that writes the object over the version of a token; None:
            create-only.
        refused: Error class that `send` raises if the storage has another version.
        look_first: Look before the first try; otherwise the first try creates.

    Raises:
        VersionConflictError: The existing object may not be replaced.
        StoreError: The object appears and vanishes, or the storage fails.
    """
    # Hashes that made a conflict once. A second look at the same hash is believed.
    doubted_hashes: list[str | None] = []
    for attempt in range(_TRIES):
        # 1. Look at the existing object.
        existing_hash: str | None = None
        token: str | None = None
        if look_first or attempt:
            existing = look()
            if existing is not None:
                existing_hash, token = existing
        # 2. Compare it with ours.
        try:
            outcome = put.judge(existing_hash)
        except VersionConflictError:
            if existing_hash in doubted_hashes:
                raise
            doubted_hashes.append(existing_hash)
            continue
        if outcome is not None:
            return outcome
        # 3. Send ours, on the condition that nothing has changed since the look.
        try:
            send(token)
            return "created" if token is None else "replaced"
        except refused:
            continue
        except NotFoundError:
            # The object that should be replaced vanished: look again. For a new object
            # the error is about something else, such as a missing bucket.
            if token is None:
                raise
    raise StoreError(
        f"cannot publish {put.key}: it appears, changes and vanishes; other processes write it",
        key=put.key,
    )


class ByteTarget(Protocol):
    """Receiver of the bytes of one object, piece by piece and in order."""

    def restart(self) -> None:
        """Forget the bytes so far: the object is sent again from its beginning."""
        ...

    def write(self, data: bytes | bytearray, /) -> object:
        """Take the next bytes."""
        ...


class CopyError(StoreError):
    """A copy cannot be written to this machine's disk."""


@final
class HashingTarget:
    """Target that hashes the bytes of an object, and writes them to a file if given."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._bytes = 0

    def restart(self) -> None:
        self._hash = hashlib.sha256()
        self._bytes = 0
        if self._file is not None:
            self._file.seek(0)

    def write(self, data: bytes | bytearray, /) -> None:
        self._hash.update(data)
        view = memoryview(data)
        if self._file is None:
            self._bytes += len(view)
            return
        # One call may write less than it was given. Bytes are counted as they are
        # written, for the message of an error.
        with self._writing():
            while len(view):
                written_bytes = self._file.write(view)
                self._bytes += written_bytes
                view = view[written_bytes:]

    def finish(self) -> FileEntry:
        """Return size and hash of the bytes since the last restart.

        The file holds exactly these bytes afterwards.
        """
        # After a restart the file may be longer than the object.
        if self._file is not None:
            with self._writing():
                self._file.flush()
                self._file.truncate()
        return FileEntry(bytes=self._bytes, sha256=self._hash.hexdigest())

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        # Errors of this machine's disk are told from those of the storage that is read.
        try:
            yield
        except OSError as error:
            raise CopyError(
                f"cannot write a copy: {error.strerror} after {self._bytes} bytes"
            ) from error


# Remedies by error number. Each is a sentence with a space before it.
_HINTS = {
    errno.ENOSPC: " Free space on that file system and run again: finished work is kept.",
    errno.EDQUOT: " The quota is used up; free space and run again: finished work is kept.",
    errno.EROFS: " The file system is mounted read-only.",
    errno.EACCES: " Check the owner and the permissions.",
    errno.EPERM: " Check the permissions, and that the file system has hard links.",
    errno.ENOTSUP: " The store needs a file system with hard links.",
    errno.EFBIG: " The file-size limit (`ulimit -f`) is lower than this file, or the limit of the file system is: "
    "raise the limit, or reduce `save.max_shard_size` and run again.",
    errno.EIO: " The disk failed: check the system's log. If the failure was temporary, run again: finished work is "
    "kept.",
}


def hint_on(error: OSError) -> str:
    """Return a sentence on the remedy of an error, with a space before it.

    It is empty if none is known.
    """
    return _HINTS.get(error.errno or 0, "")


def write_all(descriptor: int, view: memoryview, path: str, before: int = 0) -> None:
    """Write all bytes of a view to an open file.

    Args:
        descriptor: Descriptor of the file.
        view: The bytes.
        path: Path of the file, for messages.
        before: Bytes written before, for messages.

    Raises:
        StoreError: The file cannot be written; the message says after how many bytes.
    """
    written_bytes = 0
    try:
        # One call may write less: at most 2 GiB, or up to a limit.
        while written_bytes < view.nbytes:
            written_bytes += os.write(descriptor, view[written_bytes:])
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror} after {before + written_bytes} bytes.{hint_on(error)}"
        ) from error


@final
class HashingFile(io.RawIOBase):
    """Write-only file that computes sha256 and size on the way, as a sink for pyarrow.

    ::

        temp = store.temp("corpus/v1")
        with HashingFile(temp) as sink, pq.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
            writer.write_table(table)
        store.publish(temp, "corpus/v1/data/train-00000-00.parquet", sink.sha256)

    Unbuffered: meant for writes of pages, not of lines. sha256 releases the GIL.

    Args:
        path: Path of the file; it is created, or emptied.
        begin: Number of bytes of an existing file that stay, and that are hashed;
            writing continues after them.
    """

    def __init__(self, path: str | os.PathLike[str], *, begin: int = 0) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._fd = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        if begin:
            flags = os.O_RDWR | os.O_CLOEXEC
        try:
            self._fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot open {self._path}: {error.strerror}.{hint_on(error)}"
            ) from error
        self._hash = hashlib.sha256()
        self._is_discarded = False
        self.bytes = 0
        if begin:
            self._continue_after(begin)

    @property
    def sha256(self) -> str:
        """The hex sha256 of everything written so far."""
        return self._hash.hexdigest()

    def _continue_after(self, begin: int) -> None:
        """Hash the first bytes of the file, and cut off the rest."""
        while self.bytes < begin:
            data = os.read(self._fd, min(_HASHED_BYTES, begin - self.bytes))
            if not data:
                self.close()
                raise StoreError(
                    f"cannot continue {self._path}: it has {self.bytes} bytes, expected at least {begin}. "
                    "Remove it, and run again"
                )
            self._hash.update(data)
            self.bytes += len(data)
        os.ftruncate(self._fd, begin)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``; returns its size in bytes.

        Raises:
            ValueError: The file is closed. Its descriptor may be that of another file
                or socket by then.
        """
        view = memoryview(data).cast("B")
        # The writer of a failed file writes its footer when it is collected.
        if self._is_discarded:
            return view.nbytes
        if self.closed:
            raise ValueError(
                f"{self._path} is closed: nothing more can be written to it"
            )
        self._hash.update(view)
        write_all(self._fd, view, self._path, self.bytes)
        self.bytes += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if not self.closed and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._fd

    def discard(self) -> None:
        """Close a file that is given up. Later writes are ignored.

        A Parquet writer that failed writes once more when it is collected.
        """
        self._is_discarded = True
        self.close()
