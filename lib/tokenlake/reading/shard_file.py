"""Open shards: as Parquet, for what Arrow decodes of them, and as bytes by their place.

Whoever writes a manifest writes its hashes, too: that a shard is what its manifest says makes it no shard of ours. 500
bytes can stand for 10 GB, in a dictionary, in runs, or in a page that is all zeros. So before a row group is decoded
the headers of its pages are looked at, which is what the decoder will believe; and the footer, which counts the pages.

A file of this machine is read through its descriptor: a positional read moves nothing that threads share, so that one
descriptor serves them all. What the store opens otherwise is a stream that one thread uses at a time.
"""

from __future__ import annotations

import contextlib
import io
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, BinaryIO, Final, NoReturn, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.reading.footer import Footer
from tokenlake.reading.page_headers import DELTA_BYTE_ARRAY, PageHeader, check_unfolded, walk_chunk

KEPT_OPEN: Final = 16
RANGES_KEPT_OPEN: Final = 32  # of each of the datasets of a mixture; a process may have some 1,000 files open

_WIDTHS: Final = (
    1,
    4,
    8,
    12,
    4,
    8,
    0,
    0,
)  # bytes of a value, by Parquet's number of its type; 0: as long as it is
_AHEAD: Final = 4096
_LEVELS: Final = 4  # bytes of the two levels of a value


@final
class ShardFile(pq.ParquetFile):
    """A ParquetFile whose row groups are looked at before they are decoded.

    Args:
        stream: seekable. Where it is of this machine, page headers are looked at; of a stream from elsewhere each would
            cost a request, and no more than the sum of the footer is.
    """

    def __init__(self, stream: BinaryIO) -> None:
        # A footer is small; the pages of a row group are read when it is, without keeping them.
        super().__init__(stream, page_checksum_verification=True, pre_buffer=False)
        self._local = _file_bytes(stream)
        self._footer: Footer | None = None

    def read_row_group(
        self,
        i: int,
        columns: Iterable[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode a row group.

        Raises:
            ValueError: what it unfolds to cannot be what was written, or there is no such row group.
            pa.ArrowException, OSError: it is damaged.
        """
        self._look_at([i])
        wanted = None if columns is None else list(columns)
        return super().read_row_group(i, wanted, use_threads, use_pandas_metadata)

    def read_row_groups(
        self,
        row_groups: Iterable[int],
        columns: Iterable[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode row groups together; as :meth:`read_row_group`."""
        groups = list(row_groups)
        self._look_at(groups)
        wanted = None if columns is None else list(columns)
        return super().read_row_groups(groups, wanted, use_threads, use_pandas_metadata)

    def read(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a shard is read by row groups."""
        raise TypeError(
            "a shard is not read whole: expected read_row_group or read_row_groups, which look at pages first"
        )

    iter_batches = read

    @property
    def footer(self) -> Footer:
        """What the footer says of places.

        Raises:
            ValueError: it is damaged, or the file is not of this machine.
        """
        if self._local is None:
            raise ValueError("the places of a file that is not of this machine are not looked at")
        self._footer = self._footer or Footer.read(self._local)
        return self._footer

    def _look_at(self, groups: Sequence[int]) -> None:
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                raise ValueError(f"there is no row group {group}; it has {self.num_row_groups}")
            if self._local is None:
                check_unfolded(self.metadata.row_group(group).total_byte_size, 0)
            else:
                _check(self.footer, group, self._local)


@final
class _HeaderWindow:
    """The bytes of a file, read a little further than is asked for: the small columns of a row group lie together."""

    def __init__(self, file: FileBytes) -> None:
        self._file, self._begin, self._held = file, 0, b""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        at = offset - self._begin
        if not 0 <= at <= len(self._held) - size:
            there = max(0, min(max(size, _AHEAD), self._file.size - offset))
            self._begin, self._held, at = offset, self._file.read(offset, there), 0
        return self._held[at : at + size]


def _file_bytes(stream: BinaryIO) -> FileBytes | None:
    try:
        return FileBytes(stream.fileno())
    except (AttributeError, OSError):
        return None


def _check(footer: Footer, group: int, file: FileBytes) -> None:
    if group >= len(footer.chunks):
        raise ValueError(f"there is no row group {group}")
    stored, decoded, window = 0, 0, _HeaderWindow(file)
    # Not Arrow's own account of the columns: of a damaged footer it ends the process.
    for kind, values, size, begin in footer.chunks[group].tolist():
        pages = walk_chunk(window.read, begin, size, values)
        stored += size
        for page_bytes in _unfolded(pages, _WIDTHS[kind] if 0 <= kind < len(_WIDTHS) else 0):
            decoded += page_bytes
            check_unfolded(decoded, stored)


def _unfolded(pages: Iterable[PageHeader], width: int) -> Iterator[int]:
    """Yield of each page at most how many bytes it decodes to; an entry of a dictionary is at most all of it."""
    entry = 0
    for page in pages:
        if page.dictionary:
            entry = max(entry, width or page.size)
        # Where values share the beginning of the one before, each may be as long as all that is written of them.
        each = entry if page.indices else page.size if page.encoding == DELTA_BYTE_ARRAY else width
        yield max(page.size, page.values * (each + _LEVELS))


@final
@dataclass(slots=True)
class _OpenShard:
    shard: int
    stream: BinaryIO
    file: pq.ParquetFile | None = None

    def parquet(self) -> pq.ParquetFile:
        """Return it as Parquet; its footer is read the first time."""
        if self.file is None:
            self.file = ShardFile(self.stream)
        return self.file


@final
class OpenFiles:
    """The shards of a version that are open and idle, the one used last at the end.

    Args:
        open_shard: opens a shard by its number, seekable.
        kept: how many idle ones stay open.
    """

    def __init__(self, open_shard: Callable[[int], BinaryIO], *, kept: int = KEPT_OPEN) -> None:
        self._open, self._kept, self._lock, self._tickets = open_shard, kept, Lock(), count()
        self._idle: OrderedDict[int, _OpenShard] = OrderedDict()
        # Where nobody closes the rows, the files are closed when nobody can read them any more.
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def borrow(self, shard: int) -> Generator[pq.ParquetFile]:
        """Give a shard's file to this thread alone; after an error it is closed instead of kept."""
        with self._borrowed(shard) as opened:
            yield opened.parquet()

    @contextlib.contextmanager
    def borrow_stream(self, shard: int) -> Generator[BinaryIO]:
        """Give a shard's stream to this thread alone, wherever it stands; as :meth:`borrow`. It may be closed."""
        with self._borrowed(shard) as opened:
            yield opened.stream

    def close(self) -> None:
        """Close what is idle; the files can be borrowed again."""
        with self._lock:
            _close_all(self._idle)

    def _take(self, shard: int) -> _OpenShard | None:
        with self._lock:
            tickets = [ticket for ticket, opened in self._idle.items() if opened.shard == shard]
            return self._idle.pop(tickets[-1]) if tickets else None

    @contextlib.contextmanager
    def _borrowed(self, shard: int) -> Generator[_OpenShard]:
        opened = self._take(shard) or _OpenShard(shard, self._open(shard))
        try:
            yield opened
        except BaseException:
            opened.stream.close()
            raise
        if not opened.stream.closed:
            self._put(opened)

    def _put(self, opened: _OpenShard) -> None:
        with self._lock:
            self._idle[next(self._tickets)] = opened
            oldest = self._idle.popitem(last=False)[1] if len(self._idle) > self._kept else None
        if oldest is not None:
            oldest.stream.close()


def _close_all(idle: OrderedDict[int, _OpenShard]) -> None:
    while idle:
        idle.popitem()[1].stream.close()


@final
class FileBytes:
    """The bytes of a file of this machine; nothing of what it shares with a stream is moved.

    Args:
        number: its descriptor.

    Attributes:
        size: bytes of the file.
        footer: what was read of it, for whoever needs it.
    """

    def __init__(self, number: int) -> None:
        self._number, self.size = number, os.fstat(number).st_size
        self.footer: Footer | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        data = os.pread(self._number, size, offset)
        while len(data) < size:
            # One read gives at most 2 GiB.
            more = os.pread(self._number, size - len(data), offset + len(data))
            if not more:
                raise _too_short(offset, size, len(data))
            data += more
        return data


@final
class StreamBytes:
    """A shard that is read through streams; attributes as of :class:`FileBytes`."""

    def __init__(self, files: OpenFiles, shard: int, size: int) -> None:
        self._files, self._shard, self.size = files, shard, size
        self.footer: Footer | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        with self._files.borrow_stream(self._shard) as stream:
            stream.seek(offset)
            data = stream.read(size)
            if len(data) != size:
                raise _too_short(offset, size, len(data))
        return data


@final
class Ranges:
    """The shards of a version whose bytes were read last.

    Args:
        files: opens them.
        kept: how many stay open as descriptors.
    """

    def __init__(self, files: OpenFiles, *, kept: int = RANGES_KEPT_OPEN) -> None:
        self._files, self._kept, self._lock = files, kept, Lock()
        self._open: OrderedDict[int, FileBytes | StreamBytes] = OrderedDict()
        self._footers: dict[int, Footer] = {}

    def of(self, shard: int) -> tuple[FileBytes | StreamBytes, Footer]:
        """Return a shard and its footer, which is read once.

        Raises:
            ValueError: it has no footer, or not one that can be.
        """
        source = self._source(shard)
        if source.footer is None:
            known = self._footers.get(shard)
            # A file that was closed meanwhile may have been replaced; an object of a remote store is created once.
            if known is None or (isinstance(source, FileBytes) and not known.is_of(source)):
                known = self._footers[shard] = Footer.read(source)
            source.footer = known
        return source, source.footer

    def close(self, shard: int | None = None) -> None:
        """Let go of one shard or of all; who reads one just now reads on."""
        with self._lock:
            if shard is None:
                self._open.clear()
            else:
                self._open.pop(shard, None)

    def _source(self, shard: int) -> FileBytes | StreamBytes:
        with self._lock:
            if (found := self._open.get(shard)) is not None:
                self._open.move_to_end(shard)
                return found
        opened = self._opened(shard)
        with self._lock:
            self._open[shard] = opened
            if len(self._open) > self._kept:
                self._open.popitem(last=False)
        return opened

    def _opened(self, shard: int) -> FileBytes | StreamBytes:
        with self._files.borrow_stream(shard) as stream:
            if (file := _file(stream)) is not None:
                number = os.dup(file.fileno())
                found = FileBytes(number)
                weakref.finalize(found, os.close, number)  # when nobody reads it any more
                stream.close()
                return found
            return StreamBytes(self._files, shard, stream.seek(0, io.SEEK_END))


def _file(stream: BinaryIO) -> io.FileIO | None:
    raw = stream.raw if isinstance(stream, io.BufferedReader) else stream
    return raw if isinstance(raw, io.FileIO) and hasattr(os, "pread") else None


def _too_short(offset: int, size: int, found: int) -> ValueError:
    return ValueError(f"the file ends {size - found} bytes before byte {offset + size}")
