"""Check of files: each is read once and compared with its size and sha256.

Versions and exports are verified with these parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias, cast, final

from tokenlake.base import numbers
from tokenlake.base.threads import Stop
from tokenlake.runtime.store.base import ReadStore


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a version, or of an export.

    Attributes:
        path: Path of the file, relative to the version or export. Tags are beside
            versions: ``../tags/prod.json``.
        problem: Kind of the problem, in the words of
            :mod:`tokenlake.etl.integrity.findings`.
        expected: Expected value, in words for people.
        got: Value that was found, in words for people.
    """

    path: str
    problem: str
    expected: str
    got: str


PROBLEM_COLUMNS: Final = ("file", "problem", "expected", "got")
"""Headings of a table of problems."""


def problem_rows(problems: Sequence[Problem]) -> list[tuple[str, ...]]:
    """Return the rows of a table of problems, under :data:`PROBLEM_COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for problem in problems:
        rows.append((problem.path, problem.problem, problem.expected, problem.got))
    return rows


def verdict_on(problems: Sequence[Problem]) -> str:
    """Return ``intact``, or the number of problems in words."""
    if not problems:
        return "intact"
    return numbers.plural(len(problems), "problem")


@final
@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Progress of a verification.

    Attributes:
        files: Files that are done.
        files_total: All files.
        bytes: Bytes that are done; bytes of shards count twice if they are decoded too.
        bytes_total: All bytes.
    """

    files: int
    files_total: int
    bytes: int
    bytes_total: int


OnProgress: TypeAlias = Callable[[VerifyProgress], None]
"""Function that receives the progress of a verification."""

# Bytes of one read from a local file: they stay in the processor's cache until they are
# hashed.
_LOCAL_READ_BYTES: Final = 1 << 20

# Bytes of one read from a store where each read is a request.
_REMOTE_READ_BYTES: Final = 8 << 20


@final
class ByteProgress:
    """Progress of a verification, summed over its threads.

    Args:
        work: Path -> bytes of work. No file counts for more than that.
        stop: Ends the verification at the next step.
        report: Function that is called with every step, by one thread at a time.

    Attributes:
        read_bytes: Bytes that were read.
    """

    def __init__(
        self, work: Mapping[str, int], stop: Stop, report: OnProgress | None
    ) -> None:
        self._bytes_left = dict(work)
        self._files_total = len(work)
        self._bytes_total = sum(work.values())
        self._stop = stop
        self._report = report
        self._lock = threading.Lock()
        self._files_done = 0
        self._bytes_done = 0
        # Progress may count bytes that were not read, such as those of damaged files.
        self.read_bytes = 0

    def count(self, path: str, size: int, *, read: int = 0) -> None:
        """Count bytes of a file that were read, or decoded.

        Args:
            path: Path of the file.
            size: Bytes of work that are done.
            read: Bytes that were read.

        Raises:
            Stopped: The verification is to end.
        """
        self._stop.check()
        self._count(path, size, read=read, files=0)

    def end(self, path: str) -> None:
        """Count the rest of a file, even if damage ended its check early."""
        self._count(path, self._bytes_left[path], read=0, files=1)

    def _count(self, path: str, size: int, *, read: int, files: int) -> None:
        """Count bytes and files, and report the sums under a lock."""
        with self._lock:
            # A file counts as its work at most, even if it is read again.
            size = min(size, self._bytes_left[path])
            self._bytes_left[path] -= size
            self._bytes_done += size
            self.read_bytes += read
            self._files_done += files
            if self._report is not None:
                progress = VerifyProgress(
                    files=self._files_done,
                    files_total=self._files_total,
                    bytes=self._bytes_done,
                    bytes_total=self._bytes_total,
                )
                self._report(progress)


@final
@dataclass(frozen=True, slots=True)
class FileBytes:
    """A file that was read.

    Attributes:
        bytes: Size of the file.
        sha256: Hash of its bytes (hex); None if its size is not the expected one, so
            that nothing was read.
        stream: Its bytes, positioned at the beginning; None if they were not to be
            kept.
    """

    bytes: int
    sha256: str | None
    stream: BinaryIO | None


@contextlib.contextmanager
def read_file(
    store: ReadStore, key: str, size: int, *, keep: bool, on_read: Callable[[int], None]
) -> Generator[FileBytes]:
    """Read a whole file, once.

    Shards are compared with their hash before they are decoded: decoders of Parquet are
    written for intact files. A local file is then read again from the page cache. A
    remote one is kept in a nameless file of the local disk, so that it is fetched once
    and memory does not depend on its size.

    Args:
        store: Store of the file.
        key: Key of the file in the store.
        size: Size that the file should have.
        keep: True if its bytes are looked into afterwards.
        on_read: Function that is called with the size of each piece. Its errors end the
            reading.

    Raises:
        NotFoundError: There is no such file.
        StoreError: The file cannot be read.
    """
    with contextlib.ExitStack() as resources:
        # Without size and hash, the store itself is read and no cached copy.
        stream = resources.enter_context(contextlib.closing(store.open(key)))
        stored_size = stream.seek(0, io.SEEK_END)
        if stored_size != size:
            yield FileBytes(stored_size, None, None)
            return
        stream.seek(0)
        # 1. A local file is read without its own buffer, which would only be filled to
        #    be copied from.
        source: Any = stream
        copy: BinaryIO | None = None
        read_bytes = _REMOTE_READ_BYTES
        if isinstance(stream, io.BufferedReader):
            source = stream.raw
            read_bytes = _LOCAL_READ_BYTES
        elif keep:
            copy = cast("BinaryIO", resources.enter_context(tempfile.TemporaryFile()))
        # 2. Read and hash. One byte more than expected is enough: a file that grows is
        #    not read for ever.
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(read_bytes, size + 1)))
        done = 0
        while done <= size:
            count = source.readinto(buffer)
            if not count:
                break
            digest.update(buffer[:count])
            if copy is not None:
                copy.write(buffer[:count])
            done += count
            on_read(count)
        # 3. Hand on the bytes, at the beginning.
        kept_stream: BinaryIO | None = None
        if keep:
            kept_stream = copy or stream
            kept_stream.seek(0)
        yield FileBytes(size, digest.hexdigest(), kept_stream)
