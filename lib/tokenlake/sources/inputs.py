"""One input file as the plan knows it, a range of it, and its bytes wherever they are stored.

Formats read through :class:`InputBytes` alone: a local file and an object in a bucket look the same to them.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias, final

from tokenlake.arrays import RandomAccessFile
from tokenlake.config.formats import FORMATS, Format, FormatFacts
from tokenlake.errors import DamagedFileError, InputChangedError, SourceError, UnsuitableFileError
from tokenlake.fingerprint import file_id
from tokenlake.sources.formats import Compression, compression_of, format_for

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_SHOWN_NAMES: Final = 20  # columns of a file in a message


_LARGEST: Final = 1 << 50  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file as it was when the build was planned; JSON-able by ``dataclasses.asdict``.

    Attributes:
        source: name of the source it belongs to.
        path: relative to the listing's root, with ``/``; identity, together with size and token.
        url: absolute local path, or a URL with its scheme and without credentials; not identity.
        size: bytes as they are stored.
        token: version token: ``sha256:<hex>`` of a local file's bytes, else what the store calls the
            version, such as ``etag:<value>`` or ``generation:<number>``.
        stat: (inode, mtime_ns, ctime_ns) of a local file when it was hashed, re-checked by every
            read; empty for a URL, whose token is.
        format: what it holds.
        compression: how its bytes are compressed as a whole, None for plain files and Parquet.
        file_id: signed 64-bit identity of (source, path), stored as provenance.
        text_mode: for format ``text``: ``document`` (a file is a document) or ``lines``.
        origin: what a person should know of where it comes from, such as the Hub's commit, or ""; not identity.
        kept_bytes: of remote blocks that the reading machine keeps; None: as its environment says; not identity.
    """

    source: str
    path: str
    url: str
    size: int
    token: str
    stat: tuple[int, ...]
    format: Format
    compression: Compression | None
    file_id: int
    text_mode: str = "document"
    origin: str = ""
    kept_bytes: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, not an object at a URL."""
        return "://" not in self.url

    @property
    def facts(self) -> FormatFacts:
        """What is known of its format."""
        return FORMATS[self.format]

    @property
    def is_lines(self) -> bool:
        """Whether its records are lines, whose positions are byte offsets."""
        return self.facts.layout == "lines" and (self.format != "text" or self.text_mode == "lines")

    @property
    def has_blocks(self) -> bool:
        """Whether it has row groups or record batches (an Arrow stream has none that are listed)."""
        return self.facts.layout == "blocks"


def planned(
    source: ResolvedSource,
    path: str,
    url: str,
    *,
    size: int,
    token: str,
    stat: tuple[int, ...] = (),
    compression: Compression | None = None,
    origin: str = "",
) -> InputFile:
    """Return an input of `source` as a listing found it; see :class:`InputFile`.

    Args:
        compression: what the storage says, where the name says nothing.

    Raises:
        ConfigError: neither the extension nor the source's type says what it holds.
        SourceError: a storage says that it has more bytes than any file.
    """
    if size > _LARGEST:
        # Planning would cut it into as many pieces as that takes.
        raise SourceError(
            f"{url}: the storage says that the file has {size} bytes, more than any file has; expected at most "
            f"{_LARGEST}",
            file=path,
            got=size,
        )
    return InputFile(
        source=source.name,
        path=path,
        url=url,
        size=size,
        token=token,
        stat=stat,
        format=format_for(path, url, source.type),
        compression=compression_of(path) or compression,
        file_id=file_id(source.name, path),
        text_mode=source.text_mode,
        origin=origin,
        kept_bytes=source.remote_cache_bytes,
    )


def is_url(entry: str) -> bool:
    """Say whether an entry names an object of another storage; ``file://`` is this machine's."""
    scheme, separator, _ = entry.partition("://")
    return bool(separator) and scheme.lower() != "file"


def is_hub_url(entry: str) -> bool:
    """Say whether an entry names files of a dataset on the Hub."""
    return entry.startswith("hf://datasets/")


def changed(file: InputFile, what: str) -> InputChangedError:
    """Return the error for a file that is not what it was when the build was planned."""
    return InputChangedError(
        f"{file.url}: the input changed since the build was planned: {what}. Inputs must stay as they are "
        "during a build; run again to plan with the file as it is now.",
        file=file.path,
    )


def damaged(file: InputFile, what: str, **details: object) -> DamagedFileError:
    """Return the error for a file that cannot be trusted as a whole."""
    return DamagedFileError(
        f"{file.url}: the file is damaged: {what}. Damaged files are never read in part: replace it, "
        "or leave it out of data_files.",
        file=file.path,
        problem=what,
        **details,
    )


def unsuitable(file: InputFile, what: str, how: str, **details: object) -> UnsuitableFileError:
    """Return the error for a file that is whole, but not what is expected.

    Args:
        what: what it is, and what was expected.
        how: what to do about it, as an imperative.
    """
    return UnsuitableFileError(
        f"{file.url}: {what}. {how[:1].upper()}{how[1:]}, or leave the file out of data_files.",
        file=file.path,
        problem=f"{what}; {how}",
        **details,
    )


def no_column(file: InputFile, name: str, names: Sequence[str], option: str = "") -> UnsuitableFileError:
    """Return the error of a file that has no column `name`.

    Args:
        names: the columns that it has.
        option: the option that names it, as it is shown.
    """
    shown = ", ".join(names[:_SHOWN_NAMES]) + (" ..." if len(names) > _SHOWN_NAMES else "")
    told = f"it has no column {name!r}{option}; its columns are {shown or 'none'}"
    return unsuitable(file, told, "name one of them", column=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A part of a file.

    Attributes:
        file: the file.
        start, stop: byte offsets for plain line formats (the range owns the lines that START in
            ``[start, stop)``); row groups for Parquet; record batches for Arrow files (not streams); 0 and
            the file's size for everything else.
        rows: read at most so many records of it, good or bad; None for all.
        weight: how much there is to read: bytes on disk, for Parquet uncompressed bytes of the row groups.
        records: how many there are, where the file says so without being read; None where it does not.
            For planning only: no reader looks at it.
    """

    file: InputFile
    start: int
    stop: int
    weight: int
    rows: int | None = None
    records: int | None = None


class InputBytes(ABC):
    """An open input. Whoever opened it has checked that it is the planned one, and checks again at the end.

    Attributes:
        file: what was planned.
        max_expansion: how many times its stored bytes a compressed input may unfold to.
        read_ahead: bytes of a compressed input that are read at once; its decompressor asks for 64 KiB, which may be
            a request each.
    """

    file: InputFile
    max_expansion: float = 1000.0
    read_ahead: int = 1 << 20

    @abstractmethod
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from byte `offset` on; return how many bytes came, fewer only at the end.

        Raises:
            InputChangedError: the object is gone or another one.
            SourceError: it cannot be read, after retries.
        """

    def as_file(self) -> RandomAccessFile:
        """Return a new file of these bytes."""
        return RandomAccessFile(self.file.size, self.pread)

    def for_arrow(self) -> Any:
        """Return what Arrow's readers take: a path, or a new random-access file of their own."""
        return self.as_file()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:  # noqa: B027
        """Note the stretches [start, stop) that will be read through, of so many columns side by side."""

    def check_unchanged(self) -> None:  # noqa: B027 - most inputs need it not
        """Raise InputChangedError unless it is still the planned one; nothing to do where every read makes sure."""

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer only at the end."""
        data = bytearray(size)
        with memoryview(data) as view:
            got = self.read_into(view, offset)
        return bytes(data[:got]) if got < size else bytes(data)


@final
class LocalBytes(InputBytes):
    """A file of this machine."""

    def __init__(self, file: InputFile) -> None:
        """Open `file`; InputChangedError if it is gone or not the planned one."""
        try:
            self._descriptor = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise changed(file, "the file is gone") from error
        self.file = file
        try:
            self._check(os.fstat(self._descriptor))
        except BaseException:
            self.close()
            raise

    def read_into(self, view: memoryview, offset: int) -> int:
        # A signal, a network file system or the 2 GiB of one call may cut a read short.
        at = 0
        while at < len(view) and (got := os.preadv(self._descriptor, [view[at:]], offset + at)):
            at += got
        return at

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def for_arrow(self) -> Any:
        return self.file.url

    def check_unchanged(self) -> None:
        self._check(os.fstat(self._descriptor))
        if os.stat(self.file.url).st_ino != self.file.stat[0]:  # noqa: PTH116 - no Path per file
            raise changed(self.file, "another file has taken its name")

    def close(self) -> None:
        os.close(self._descriptor)

    def _check(self, stat: os.stat_result) -> None:
        if stat.st_size != self.file.size:
            raise changed(self.file, f"it has {stat.st_size} bytes, planned were {self.file.size}")
        if state(stat) != tuple(self.file.stat):
            what = f"(inode, mtime, ctime) is {state(stat)}, planned was {tuple(self.file.stat)}"
            raise changed(self.file, what)


PIECE_BYTES: Final = 8 << 20
_STRETCH: Final = 16 << 20  # a larger read is done in such steps, so that pieces do not pile up
_LEAST_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 256 << 10  # an object up to this size is fetched at once
_BUDGET: Final = 40 << 20  # of all pieces together, those on their way included
_AHEAD: Final = 2
_TURNS: Final = 4  # pieces of a column held while columns take turns, and are looked at ahead of decoding
_GAP: Final = 64 << 10  # not worth a request of its own

Fetch = Callable[[int, int], Future[Any]]
"""Begins to fetch so many bytes (second) from an offset on (first)."""


@final
@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of the object, here or on its way."""

    start: int
    size: int
    data: Future[Any]
    run: int  # bytes that follow each other without a gap, up to its end
    sequential: bool  # it continues a piece of an earlier read
    spent: bool = False  # its last byte was asked for

    @property
    def stop(self) -> int:
        return self.start + self.size


class ReadAheadBytes(InputBytes):
    """An object that is read by ranges; usable from threads, one read at a time.

    Few large pieces are fetched, the next ones early, in bounded memory. What continues earlier pieces is fetched in
    pieces that grow with the length of the run, up to 8 MiB; once a reader goes on and on, the next two are on their
    way before it asks. At most as much is fetched in vain as was used.
    """

    def __init__(self, file: InputFile, fetch: Fetch) -> None:
        self.file, self._size, self._request = file, file.size, fetch
        self._pieces: list[_Piece] = []  # the least recently used first
        self._stretches, self._turn = [(0, 0)], PIECE_BYTES
        self._lock = threading.Lock()

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        """See :meth:`InputBytes.expect`: these are fetched in large pieces at once, and nothing beyond their ends."""
        joined = [(0, 0)]
        for start, stop in sorted(stretches):
            if start <= joined[-1][1] + _GAP:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((start, stop))
        with self._lock:
            self._stretches = joined
            self._turn = min(max(_BUDGET // (_TURNS * max(columns, 1)), _SMALL_BYTES), PIECE_BYTES)

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        while at < len(view):
            spans = self.spans(offset + at, min(len(view) - at, _STRETCH))
            if not spans:
                break
            for span in spans:
                view[at : at + len(span)] = span
                at += len(span)
        return at

    def pread(self, size: int, offset: int) -> bytes:
        return b"".join(self.spans(offset, size)) if size <= _STRETCH else super().pread(size, offset)

    def close(self) -> None:
        with self._lock:
            self._clear()

    def spans(self, start: int, size: int) -> list[memoryview]:
        """Return the bytes from `start` on, in stretches; what fetching raised is raised."""
        stop = min(start + size, self._size)
        with self._lock:
            pieces = self._covering(start, stop)
            for piece in pieces:
                piece.spent = piece.spent or piece.stop <= stop
            if pieces:
                self._look_ahead(pieces[-1], stop)
            self._evict(keep=pieces)
            try:
                found = [(memoryview(piece.data.result()), piece.start) for piece in pieces]
                return [data[max(start - first, 0) : stop - first] for data, first in found]
            except BaseException:
                self._clear()
                raise

    def _clear(self) -> None:
        for piece in self._pieces:
            piece.data.cancel()
        self._pieces.clear()

    def _left(self, offset: int) -> int:
        """Return how much of an expected stretch lies behind `offset`."""
        _, stop = self._stretches[max(bisect_right(self._stretches, (offset, self._size)) - 1, 0)]
        return max(stop - offset, 0)

    def _covering(self, start: int, stop: int) -> list[_Piece]:
        earlier, found, at = set(self._pieces), list[_Piece](), start
        while at < stop:
            piece = self._at(at)
            if piece is None:
                before = next((one for one in self._pieces if one.stop == at), None)
                piece = self._begin(at, stop - at, before, sequential=before in earlier)
            found.append(piece)
            at = piece.stop
        for piece in found:  # now the most recently used ones
            self._pieces.remove(piece)
            self._pieces.append(piece)
        return found

    def _at(self, offset: int) -> _Piece | None:
        return next((one for one in self._pieces if one.start <= offset < one.stop), None)

    def _begin(self, start: int, wanted: int, before: _Piece | None, *, sequential: bool) -> _Piece:
        """Begin a piece, up to the next one that is known."""
        run = before.run if before else 0
        if self._size <= _SMALL_BYTES:
            start, wanted = 0, self._size
        later = min((one.start for one in self._pieces if one.start > start), default=self._size)
        likely = min(self._left(start), self._turn) or max(run, _LEAST_BYTES)
        size = min(max(wanted, likely), PIECE_BYTES, later - start)
        piece = _Piece(start, size, self._request(start, size), run + size, sequential)
        self._pieces.append(piece)
        return piece

    def _look_ahead(self, last: _Piece, used: int) -> None:
        """Begin the pieces after `last`, which is used up to offset `used`."""
        limit = used + last.run - (last.stop - used)
        for _ in range(_AHEAD):
            if (
                not last.sequential
                or (self._left(last.start) and not self._left(last.stop))
                or last.stop >= self._size
                or last.stop + min(last.run, PIECE_BYTES) > limit
            ):
                return
            last = self._at(last.stop) or self._begin(last.stop, 1, last, sequential=True)

    def _evict(self, keep: list[_Piece]) -> None:
        total = sum(piece.size for piece in self._pieces)
        ahead = {piece.stop for piece in keep}
        for piece in sorted(self._pieces, key=lambda one: not one.spent):  # spent ones first, then by age
            if total <= _BUDGET:
                return
            if piece not in keep and piece.start not in ahead:
                piece.data.cancel()
                self._pieces.remove(piece)
                total -= piece.size


@final
class FileStat(NamedTuple):
    """What of :func:`os.stat` tells two states of a local file apart, under the names that it has there."""

    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """Return what a file is now; OSError where there is none."""
        stat = os.stat(path)  # noqa: PTH116 - no Path per file
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


Stat: TypeAlias = os.stat_result | FileStat


def state(stat: Stat) -> tuple[int, int, int]:
    """Return what tells two states of a local file apart: (inode, mtime_ns, ctime_ns)."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def stat_token(stat: Stat) -> str:
    """Return the version token of a local file that was not read."""
    return "stat:" + "-".join(map(str, state(stat)))


_EVERY: Final = 0.2  # seconds between two reports

Step = Literal["listing", "hashing", "splitting", "counting"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one step of a listing is.

    Attributes:
        step: ``listing`` (looking for files), ``hashing``, ``splitting`` (reading footers), ``counting``
            (records, up to a source's `num_rows`).
        files, bytes: done so far.
        all_files, all_bytes: in all; 0 where that is not known yet.
    """

    step: Step
    files: int
    all_files: int
    bytes: int
    all_bytes: int


OnProgress = Callable[[Progress], None]


@final
class ProgressMeter:
    """Adds up what several threads have done; reports are rare, but the last one is always made."""

    def __init__(self, step: Step, files: int, size: int, report: OnProgress | None) -> None:
        self._step: Step = step
        self._all_files, self._all_bytes, self._report = files, size, report
        self._files = self._bytes = 0
        self._lock = threading.Lock()
        self._next = 0.0

    def add(self, files: int, size: int) -> None:
        """Count more files and bytes."""
        with self._lock:
            self._files += files
            self._bytes += size
            now = time.monotonic()
            last = self._files == self._all_files > 0
            if self._report and (now >= self._next or last):
                self._next = now + _EVERY
                done = Progress(self._step, self._files, self._all_files, self._bytes, self._all_bytes)
                self._report(done)
