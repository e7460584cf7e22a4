"""Open shards: their bytes by place, and as Parquet for what Arrow decodes of them.

Whoever writes a manifest writes its hashes, too: that a shard is what its manifest says makes it no shard of ours. 500
bytes can stand for 10 GB, in a dictionary, in runs, or in a page that is all zeros. So before a row group is decoded
the headers of its pages are looked at, which is what the decoder will believe; and the footer, which counts the pages.

A shard is open once, whatever number of threads read it: a positional read moves nothing that they share. What its
footer says of where its columns lie is read without Arrow, as plain numbers.
"""

from __future__ import annotations

import io
import os
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn, Self, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Int64, RandomAccessFile
from tokenlake.runtime.parquet.page_headers import DELTA_BYTE_ARRAY, PageHeader, walk_chunk
from tokenlake.runtime.parquet.thrift import Struct, read_struct
from tokenlake.runtime.reading.unfolding import check_unfolded

KEPT_OPEN: Final = 32  # of each of the datasets of a mixture; a process may have some 1,000 files open

#: Bytes of a value, by Parquet's number of its type; 0: as long as it is.
_WIDTHS: Final = (1, 4, 8, 12, 4, 8, 0, 0)
_AHEAD: Final = 4096
_LEVELS: Final = 4  # bytes of the two levels of a value

# Ids of Thrift fields: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData.
_SCHEMA, _GROUPS = 2, 4
_REPETITION, _NAME, _CHILDREN = 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_META = 3
_TYPE, _CODEC, _VALUES, _SIZE, _DATA, _DICTIONARY = 1, 4, 5, 7, 9, 11

_MAGIC: Final = b"PAR1"
_TAIL: Final = 1 << 16  # bytes that hold most footers, read at once
_ZSTD: Final = 6
_REQUIRED, _REPEATED = 0, 2


class ColumnChunk(NamedTuple):
    """A column of a row group.

    Attributes:
        begin, size: its bytes in the file.
        values: how many it holds, empty lists counted as one.
        kind: Parquet's number of the type its values have, if it is a list that our writers might have written (zstd,
            nothing may be null); else -1.
    """

    begin: int
    size: int
    values: int
    kind: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """A shard's footer.

    Attributes:
        rows: of each row group, int64[groups].
        sizes: bytes of each row group in the file, int64[groups].
        values: of each row group, how many each leaf of the schema has, int64[groups, leaves]; an empty list is one.
        lists: of each column that is a list of plain values: :class:`ColumnChunk` of all row groups, int64[groups, 4].
        digest: of the footer's bytes.
        chunks: of each column chunk: Parquet's number of its type, its values, its bytes, and where it begins,
            int64[groups, leaves, 4].
    """

    rows: Int64
    sizes: Int64
    values: Int64
    lists: dict[str, Int64]
    digest: int
    chunks: Int64

    @classmethod
    def read(cls, source: ShardBytes) -> Self:
        """Read the footer of a shard.

        Raises:
            ValueError: there is none, or what it describes is not one column chunk after the other.
        """
        data = _footer_bytes(source)
        try:
            return cls._of(read_struct(data)[0], zlib.crc32(data), source.size - len(data))
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the footer lacks what it must have: {error!r}") from error

    @classmethod
    def _of(cls, metadata: Struct, digest: int, end: int) -> Self:
        groups: Sequence[Struct] = metadata[_GROUPS]
        rows = np.array([group[_ROWS] for group in groups], np.int64)
        found = [[_facts(column[_META]) for column in group[_COLUMNS]] for group in groups]
        leaves = len(found[0]) if found else 0
        facts = np.array(found, np.int64).reshape(len(found), leaves, 5)
        chunks, written = facts[:, :, :4], facts[:, :, 4] == 1
        _check_places(chunks[:, :, 3].ravel(), chunks[:, :, 2].ravel(), end)
        types, values, sizes, begins = np.moveaxis(chunks, 2, 0)
        lists: dict[str, Int64] = {}
        for name, (leaf, kind, whole) in _lists(metadata[_SCHEMA]).items():
            ours = written[:, leaf] & (types[:, leaf] == kind) & whole
            place = begins[:, leaf], sizes[:, leaf], values[:, leaf], np.where(ours, kind, -1)
            lists[name] = np.stack(place, axis=1)
        return cls(rows, sizes.sum(axis=1), values, lists, digest, chunks)

    def is_of(self, source: ShardBytes) -> bool:
        """Return whether a shard has this footer."""
        return zlib.crc32(_footer_bytes(source)) == self.digest

    def chunk(self, group: int, column: str) -> ColumnChunk:
        """Return a column chunk; ValueError where there is none."""
        if group >= len(self.rows) or column not in self.lists:
            raise ValueError(f"there is no column {column} of row group {group}")
        return ColumnChunk(*self.lists[column][group].tolist())


def _footer_bytes(source: ShardBytes) -> bytes:
    """The end of a file: the footer's Thrift, its length in four bytes, ``PAR1``."""
    size = source.size
    tail = source.read(size - min(size, _TAIL), min(size, _TAIL))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("no Parquet magic bytes at the end of the file")
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if length > size - len(_MAGIC):
        raise ValueError(f"a footer of {length} bytes; the file has {size}")
    return tail[-length:] if length <= len(tail) else source.read(size - length, length)


def _lists(schema: Sequence[Struct]) -> dict[str, tuple[int, int, bool]]:
    """Return of each list: where it stands among the leaves, the type of its values, whether none can be null."""
    found: dict[str, tuple[int, int, bool]] = {}
    at, leaf = 1, 0
    while at < len(schema):
        end, below = at, 1  # where the elements below it end; they follow it
        while below:
            below, end = below - 1 + schema[end].get(_CHILDREN, 0), end + 1
        if end - at == 3:
            outer, middle, values = schema[at:end]
            forms = outer.get(_REPETITION), middle.get(_REPETITION), values.get(_REPETITION)
            if forms[1] == _REPEATED and _TYPE in values:
                whole = forms == (_REQUIRED, _REPEATED, _REQUIRED)
                found[outer[_NAME].decode()] = leaf, values[_TYPE], whole
        leaf += sum(not element.get(_CHILDREN) for element in schema[at:end])
        at = end
    return found


def _facts(chunk: Struct) -> tuple[int, int, int, int, bool]:
    """Type, values, bytes, first byte (a dictionary comes first), and whether it is compressed as our writers do."""
    dictionary = chunk.get(_DICTIONARY)
    return chunk[_TYPE], chunk[_VALUES], chunk[_SIZE], dictionary or chunk[_DATA], chunk[_CODEC] == _ZSTD


def _check_places(begin: Int64, size: Int64, end: int) -> None:
    """Raise ValueError unless column chunks follow each other from the first byte on, as writers lay them.

    A flipped bit in a footer could else lead from one good page to another.
    """
    if len(size) and not 0 <= size.min() <= size.max() <= end:
        raise ValueError(f"a column chunk of {size.min()} to {size.max()} bytes; expected 0 to {end}")
    expected = len(_MAGIC) + np.cumsum(size) - size
    wrong = np.flatnonzero(begin != expected)
    if len(wrong):
        raise ValueError(
            f"a column chunk at byte {begin[wrong[0]]}; expected byte {expected[wrong[0]]}, where the last one ends"
        )
    at = len(_MAGIC) + int(size.sum())
    if at > end:
        raise ValueError(f"column chunks up to byte {at}; the footer begins at {end}")


@final
class ShardBytes:
    """The bytes of an open shard; may be used by several threads. It is closed when nobody refers to it any more.

    Args:
        stream: as :meth:`tokenlake.runtime.store.base.ReadStore.open` gives it.
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
            cast("BinaryIO", RandomAccessFile(source.size, lambda size, offset: source.read(offset, size))),
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
        source = self.source
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                raise ValueError(f"there is no row group {group}; it has {self.num_row_groups}")
            if not source.local:
                check_unfolded(self.metadata.row_group(group).total_byte_size, 0)
                continue
            if group >= len(chunks := source.footer.chunks):
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


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, without a copy where its columns are whole, as those of a row group are."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]
