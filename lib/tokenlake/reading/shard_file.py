"""Open shards: their bytes by place, and as Parquet for what Arrow decodes of them.

Whoever writes a manifest writes its hashes, too: that a shard is what its manifest says makes it no shard of ours. 500
bytes can stand for 10 GB, in a dictionary, in runs, or in a page that is all zeros. So before a row group is decoded
the headers of its pages are looked at, which is what the decoder will believe; and the footer, which counts the pages.

A shard is open once, whatever number of threads read it: a positional read moves nothing that they share.
"""

from __future__ import annotations

import io
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, BinaryIO, Final, NoReturn, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.reading.footer import Footer
from tokenlake.reading.pages import DELTA_BYTE_ARRAY, PageHeader, check_unfolded, walk_chunk

KEPT_OPEN: Final = 32  # of each of the datasets of a mixture; a process may have some 1,000 files open

#: Bytes of a value, by Parquet's number of its type; 0: as long as it is.
_WIDTHS: Final = (1, 4, 8, 12, 4, 8, 0, 0)
_AHEAD: Final = 4096
_LEVELS: Final = 4  # bytes of the two levels of a value


@final
class ShardBytes:
    """The bytes of an open shard; may be used by several threads. It is closed when nobody refers to it any more.

    Args:
        stream: as :meth:`tokenlake.store.base.ReadStore.open` gives it.
        known: its footer, from when it was open before.

    Attributes:
        size: bytes of the file.
        local: whether it is of this machine, and a read is no request.
    """

    def __init__(self, stream: BinaryIO, known: Footer | None = None) -> None:
        self.size, self.local = stream.seek(0, io.SEEK_END), not hasattr(stream, "read_at")
        self._read, self._known = _reader(stream), known
        self._footer: Footer | None = None
        self._metadata: pq.FileMetaData | None = None
        weakref.finalize(self, stream.close)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        data = self._read(offset, size)
        while len(data) < size:  # one read gives at most 2 GiB
            if not (more := self._read(offset + len(data), size - len(data))):
                missing = size - len(data)
                raise ValueError(f"the file ends {missing} bytes before byte {offset + size}")
            data += more
        return data

    @property
    def footer(self) -> Footer:
        """What the footer says of places, read once; ValueError where it is damaged."""
        if self._footer is None:
            known = self._known
            # A file that was closed meanwhile may have been replaced; an object of a remote store is created once.
            same = known is not None and (not self.local or known.is_of(self))
            self._footer = known if known is not None and same else Footer.read(self)
        return self._footer

    def parquet(self) -> ShardFile:
        """Return the shard as Parquet, for one thread; Arrow parses its footer the first time."""
        file = ShardFile(self, self._metadata)
        self._metadata = file.metadata
        return file


def _reader(stream: BinaryIO) -> Callable[[int, int], bytes]:
    """Return (offset, size) -> bytes, for any number of threads."""
    if (read_at := getattr(stream, "read_at", None)) is not None:
        return read_at
    try:
        number = stream.fileno()
    except OSError:  # it lies in memory
        lock = Lock()

        def read(offset: int, size: int) -> bytes:
            with lock:
                stream.seek(offset)
                return stream.read(size)

        return read
    return lambda offset, size: os.pread(number, size, offset)


@final
class _ShardStream(io.RawIOBase):
    """The bytes of a shard as Arrow wants them: a file with a place of its own."""

    def __init__(self, source: ShardBytes) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._source.size - self._at)
        data = self._source.read(self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data


@final
class ShardFile(pq.ParquetFile):
    """A ParquetFile whose row groups are looked at before they are decoded.

    Args:
        source: the shard. Where it is of this machine, page headers are looked at; elsewhere each would cost a request,
            and no more than the sum of the footer is.
        metadata: the footer as Arrow knows it already.
    """

    def __init__(self, source: ShardBytes, metadata: pq.FileMetaData | None = None) -> None:
        # A footer is small; the pages of a row group are read when it is, without keeping them.
        super().__init__(
            cast("BinaryIO", _ShardStream(source)),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
        )
        self.source = source

    def read_row_group(
        self,
        i: int,
        columns: Iterable[str] | None = None,
        use_threads: bool = False,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode a row group.

        Raises:
            ValueError: what it unfolds to cannot be what was written, or there is no such row group.
            pa.ArrowException, OSError: it is damaged.
        """
        return self.read_row_groups([i], columns, use_threads, use_pandas_metadata)

    def read_row_groups(
        self,
        row_groups: Iterable[int],
        columns: Iterable[str] | None = None,
        use_threads: bool = False,
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

    def _look_at(self, groups: Sequence[int]) -> None:
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                raise ValueError(f"there is no row group {group}; it has {self.num_row_groups}")
            if self.source.local:
                _check(self.source, group)
            else:
                check_unfolded(self.metadata.row_group(group).total_byte_size, 0)


def _check(source: ShardBytes, group: int) -> None:
    chunks = source.footer.chunks
    if group >= len(chunks):
        raise ValueError(f"there is no row group {group}")
    stored, decoded, window = 0, 0, _HeaderWindow(source)
    # Not Arrow's own account of the columns: of a damaged footer it ends the process.
    for kind, values, size, begin in chunks[group].tolist():
        pages = walk_chunk(window.read, begin, size, values)
        stored += size
        for page_bytes in _unfolded(pages, _WIDTHS[kind] if 0 <= kind < len(_WIDTHS) else 0):
            decoded += page_bytes
            check_unfolded(decoded, stored)


@final
class _HeaderWindow:
    """The bytes of a file, read a little further than is asked for: the small columns of a row group lie together."""

    def __init__(self, source: ShardBytes) -> None:
        self._source, self._begin, self._held = source, 0, b""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        at = offset - self._begin
        if not 0 <= at <= len(self._held) - size:
            there = max(0, min(max(size, _AHEAD), self._source.size - offset))
            self._begin, self._held, at = offset, self._source.read(offset, there), 0
        return self._held[at : at + size]


def _unfolded(pages: Iterable[PageHeader], width: int) -> Iterable[int]:
    """Yield of each page at most how many bytes it decodes to; an entry of a dictionary is at most all of it."""
    entry = 0
    for page in pages:
        if page.dictionary:
            entry = max(entry, width or page.size)
        # Where values share the beginning of the one before, each may be as long as all that is written of them.
        each = entry if page.indices else page.size if page.encoding == DELTA_BYTE_ARRAY else width
        yield max(page.size, page.values * (each + _LEVELS))


@final
class OpenShards:
    """The shards of a version that were read last.

    Args:
        open_shard: opens a shard by its number.
        kept: how many stay open.
    """

    def __init__(self, open_shard: Callable[[int], BinaryIO], *, kept: int = KEPT_OPEN) -> None:
        self._open_shard, self._kept, self._lock = open_shard, kept, Lock()
        self._open: OrderedDict[int, ShardBytes] = OrderedDict()
        self._footers: dict[int, Footer] = {}

    def of(self, shard: int) -> ShardBytes:
        """Return a shard, and open it where it is not."""
        with self._lock:
            if (found := self._open.get(shard)) is not None:
                self._open.move_to_end(shard)
                return found
        opened = ShardBytes(self._open_shard(shard), self._footers.get(shard))
        with self._lock:
            self._open[shard] = opened
            if len(self._open) > self._kept:
                self._open.popitem(last=False)
        return opened

    def with_footer(self, shard: int) -> tuple[ShardBytes, Footer]:
        """Return a shard and its footer, which is parsed once, however often it is opened.

        Raises:
            ValueError: it has no footer, or not one that can be.
        """
        source = self.of(shard)
        self._footers[shard] = source.footer
        return source, source.footer

    def close(self, shard: int | None = None) -> None:
        """Let go of one shard or of all; who reads one just now reads on."""
        with self._lock:
            if shard is None:
                self._open.clear()
            else:
                self._open.pop(shard, None)
