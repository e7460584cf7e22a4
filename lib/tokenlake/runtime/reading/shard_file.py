"""Open shards: their bytes by offset, their footers, and Parquet files for Arrow.

The author of a manifest also writes its hashes: a shard that matches its manifest need
not be a shard of ours. 500 bytes can stand for 10 GB: in a dictionary, in runs, or in a
page that is all zeros. So before a row group is decoded, the headers of its pages are
read, whose sizes the decoder will believe; and the footer, which counts the values.

A shard is open once, however many threads read it: a positional read moves nothing that
they share. The places of its columns are read from its footer without Arrow, as plain
numbers.
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
from tokenlake.runtime.parquet.page_headers import (
    DELTA_BYTE_ARRAY,
    PageHeader,
    walk_chunk,
)
from tokenlake.runtime.parquet.thrift import Struct, read_struct
from tokenlake.runtime.reading.unfolding import check_unfolded

KEPT_OPEN: Final = 32
"""Number of shards of each dataset that stay open; a process may have some 1,000
files open.
"""

#: Bytes of a decoded value, by Parquet's number of its type; 0 if values have many lengths.
_VALUE_BYTES: Final = (1, 4, 8, 12, 4, 8, 0, 0)
_READ_AHEAD: Final = 4096
_LEVEL_BYTES: Final = 4  # of the two levels of a value

# Numbers of Thrift fields: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and
# ColumnMetaData.
_SCHEMA, _GROUPS = 2, 4
_TYPE, _REPETITION, _NAME, _CHILDREN = 1, 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_META = 3
_META_TYPE, _CODEC, _VALUES, _SIZE, _DATA, _DICTIONARY = 1, 4, 5, 7, 9, 11

_MAGIC: Final = b"PAR1"
# End of a file that is read at once; it holds most footers.
_TAIL_BYTES: Final = 1 << 16
_ZSTD: Final = 6
_REQUIRED: Final = 0
_REPEATED: Final = 2
_UNKNOWN_TYPE: Final = -1


class ColumnChunk(NamedTuple):
    """Column of a row group.

    Attributes:
        begin: Offset of its first byte in the file.
        size: Number of its bytes.
        values: Number of values; an empty list counts as one.
        kind: Parquet's number of the type of the values if it is a list that our
            writers may have written (zstd, nothing may be null); otherwise -1.
    """

    begin: int
    size: int
    values: int
    kind: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """Footer of a shard.

    Attributes:
        rows: Number of rows of each row group, int64[groups].
        sizes: Number of bytes of each row group in the file, int64[groups].
        values: Number of values of each leaf of the schema in each row group,
            int64[groups, leaves]; an empty list counts as one.
        lists: Fields of :class:`ColumnChunk` in all row groups, int64[groups, 4], for
            each column that is a list of plain values.
        digest: Checksum of the footer's bytes.
        chunks: Parquet's number of the type, number of values, number of bytes and
            offset of each column chunk, int64[groups, leaves, 4].
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
            ValueError: The shard has no footer, or it does not describe column chunks
                that follow each other.
        """
        data = _footer_bytes(source)
        try:
            metadata, _ = read_struct(data)
            return cls._of(metadata, zlib.crc32(data), source.size - len(data))
        except (
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise ValueError(f"the footer is incomplete: {error!r}") from error

    @classmethod
    def _of(cls, metadata: Struct, digest: int, end: int) -> Self:
        """Return the footer that Thrift metadata describe.

        Args:
            metadata: Metadata of the file.
            digest: Checksum of the footer's bytes.
            end: Offset of the footer in the file.
        """
        # 1. A table of the facts of all column chunks.
        groups: Sequence[Struct] = metadata[_GROUPS]
        rows = np.array([group[_ROWS] for group in groups], np.int64)
        facts = [_facts_of_group(group) for group in groups]
        leaves = len(facts[0]) if facts else 0
        table = np.array(facts, np.int64).reshape(len(facts), leaves, 5)
        chunks = table[:, :, :4]
        types, values, sizes, begins = np.moveaxis(chunks, 2, 0)
        is_zstd = table[:, :, 4] == 1
        # 2. The places of the column chunks, which must follow each other.
        _check_places(begins.ravel(), sizes.ravel(), end)
        # 3. The list columns; -1 as type where a chunk is not laid out as ours.
        lists: dict[str, Int64] = {}
        for column in _list_columns(metadata[_SCHEMA]):
            leaf = column.leaf
            is_ours = (
                is_zstd[:, leaf] & (types[:, leaf] == column.kind) & column.is_required
            )
            kinds = np.where(is_ours, column.kind, _UNKNOWN_TYPE)
            columns = [begins[:, leaf], sizes[:, leaf], values[:, leaf], kinds]
            lists[column.name] = np.stack(columns, axis=1)
        return cls(rows, sizes.sum(axis=1), values, lists, digest, chunks)

    def is_of(self, source: ShardBytes) -> bool:
        """Return whether a shard has this footer."""
        return zlib.crc32(_footer_bytes(source)) == self.digest

    def chunk(self, group: int, column: str) -> ColumnChunk:
        """Return a column chunk; ValueError if it does not exist."""
        if group >= len(self.rows) or column not in self.lists:
            raise ValueError(f"there is no column {column} of row group {group}")
        return ColumnChunk(*self.lists[column][group].tolist())


def _footer_bytes(source: ShardBytes) -> bytes:
    """Return the end of a file: the footer's Thrift, its length, and ``PAR1``.

    The length has four bytes.
    """
    # One read is enough for most footers; a longer one is read again as a whole.
    file_size = source.size
    tail_size = min(file_size, _TAIL_BYTES)
    tail = source.read(file_size - tail_size, tail_size)
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("no Parquet magic bytes at the end of the file")
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if length > file_size - len(_MAGIC):
        raise ValueError(f"a footer of {length} bytes; the file has {file_size}")
    if length <= len(tail):
        return tail[-length:]
    return source.read(file_size - length, length)


class _ListColumn(NamedTuple):
    """Column that is a list of plain values.

    Attributes:
        name: Name of the column.
        leaf: Index of its values among the leaves of the schema.
        kind: Parquet's number of the type of its values.
        is_required: True if neither lists nor values can be null.
    """

    name: str
    leaf: int
    kind: int
    is_required: bool


def _list_columns(schema: Sequence[Struct]) -> list[_ListColumn]:
    """Return the columns of a schema that are lists of plain values.

    The elements of a schema stand in depth-first order, after the root. A list is three
    elements: a group that contains one repeated group, which contains the values.
    """
    # Column by column: `element` is its first element, `leaf_number` the number of
    # leaves before it.
    columns: list[_ListColumn] = []
    element = 1
    leaf_number = 0
    while element < len(schema):
        next_element = _end_of_element(schema, element)
        # Three elements may also be a group of two columns, whose middle element is not
        # repeated.
        if next_element - element == 3:
            outer, middle, inner = schema[element:next_element]
            if middle.get(_REPETITION) == _REPEATED and _TYPE in inner:
                is_required = (
                    outer.get(_REPETITION) == inner.get(_REPETITION) == _REQUIRED
                )
                columns.append(
                    _ListColumn(
                        outer[_NAME].decode(), leaf_number, inner[_TYPE], is_required
                    )
                )
        for schema_element in schema[element:next_element]:
            if not schema_element.get(_CHILDREN):
                leaf_number += 1
        element = next_element
    return columns


def _end_of_element(schema: Sequence[Struct], at: int) -> int:
    """Return the index after an element of a schema and all elements below it."""
    # Depth-first order: each element answers one expectation and adds its children.
    missing = 1
    while missing:
        missing += schema[at].get(_CHILDREN, 0) - 1
        at += 1
    return at


_ChunkFacts = tuple[int, int, int, int, bool]
"""Parquet's number of the type, number of values, number of bytes, offset of the
first byte, and whether it is zstd.
"""


def _facts_of_group(group: Struct) -> list[_ChunkFacts]:
    """Return the facts of the column chunks of a row group."""
    facts: list[_ChunkFacts] = []
    for column in group[_COLUMNS]:
        chunk: Struct = column[_META]
        begin = chunk.get(_DICTIONARY) or chunk[_DATA]  # a dictionary comes first
        is_zstd = chunk[_CODEC] == _ZSTD
        facts.append((chunk[_META_TYPE], chunk[_VALUES], chunk[_SIZE], begin, is_zstd))
    return facts


def _check_places(begin: Int64, size: Int64, end: int) -> None:
    """Raise ValueError unless column chunks follow each other from the first byte on.

    This is how writers lay them out.

    Otherwise a flipped bit in a footer could lead from one valid page to another.

    Args:
        begin: Offset of each column chunk, int64[n].
        size: Number of bytes of each column chunk, int64[n].
        end: Offset of the footer.
    """
    if len(size) and not 0 <= size.min() <= size.max() <= end:
        raise ValueError(
            f"a column chunk of {size.min()} to {size.max()} bytes; expected 0 to {end}"
        )
    # Each chunk begins where the one before ends.
    expected = len(_MAGIC) + np.cumsum(size) - size
    wrong = np.flatnonzero(begin != expected)
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"a column chunk at byte {begin[first]}; expected byte {expected[first]}, where the last one ends"
        )
    last_byte = len(_MAGIC) + int(size.sum())
    if last_byte > end:
        raise ValueError(
            f"column chunks up to byte {last_byte}; the footer begins at {end}"
        )


@final
class ShardBytes:
    """Bytes of an open shard, which several threads may use.

    It is closed when nobody refers to it any more.

    Args:
        stream: Stream that :meth:`tokenlake.runtime.store.base.ReadStore.open` returns.
        known: Footer that was read when the shard was open before; None if there is
            none.

    Attributes:
        size: Number of bytes of the file.
        local: True for a file of this machine, of which a read is no request.
    """

    def __init__(self, stream: BinaryIO, known: Footer | None = None) -> None:
        self.size = stream.seek(0, io.SEEK_END)
        # Streams of remote stores have a method for positional reads.
        self.local = not hasattr(stream, "read_at")
        self._pread = _positional_reader(stream)
        self._known_footer = known
        self._footer: Footer | None = None
        self._metadata: pq.FileMetaData | None = None
        # A thread may still read a shard that is no longer kept open: the file is
        # closed with the last reference.
        weakref.finalize(self, stream.close)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from an offset on; ValueError if the file has fewer."""
        # One read returns at most 2 GiB, and nothing at the end of the file.
        data = self._pread(offset, size)
        while len(data) < size:
            next_data = self._pread(offset + len(data), size - len(data))
            if not next_data:
                missing = size - len(data)
                raise ValueError(
                    f"the file ends {missing} bytes before byte {offset + size}"
                )
            data += next_data
        return data

    @property
    def footer(self) -> Footer:
        """Footer, read once; ValueError if it is damaged."""
        if self._footer is None:
            self._footer = self._same_footer() or Footer.read(self)
        return self._footer

    def _same_footer(self) -> Footer | None:
        """Return the footer that was read before, if it is still that of the shard."""
        known_footer = self._known_footer
        if known_footer is None:
            return None
        # A file that was closed meanwhile may have been replaced; an object of a remote
        # store is created once.
        if self.local and not known_footer.is_of(self):
            return None
        return known_footer

    def parquet(self) -> ShardFile:
        """Return the shard as a Parquet file for one thread.

        Arrow parses the footer the first time.
        """
        file = ShardFile(self, self._metadata)
        self._metadata = file.metadata
        return file


def _positional_reader(stream: BinaryIO) -> Callable[[int, int], bytes]:
    """Return a function of an offset and a size that returns bytes.

    Any number of threads may call it.
    """
    read_at: Callable[[int, int], bytes] | None = getattr(stream, "read_at", None)
    if read_at is not None:
        return read_at
    try:
        descriptor = stream.fileno()
    except OSError:  # the stream lies in memory
        # Seeking and reading are two steps, which another thread must not part.
        lock = Lock()

        def read_in_memory(offset: int, size: int) -> bytes:
            with lock:
                stream.seek(offset)
                return stream.read(size)

        return read_in_memory
    return lambda offset, size: os.pread(descriptor, size, offset)


@final
class ShardFile(pq.ParquetFile):
    """ParquetFile that checks the decoded size of row groups before it decodes them.

    Args:
        source: Bytes of the shard. Page headers of a local file are checked. Each
            header of a remote file would cost a request, so that only the sum in its
            footer is checked.
        metadata: Footer as Arrow parsed it before; None if it did not.
    """

    def __init__(
        self, source: ShardBytes, metadata: pq.FileMetaData | None = None
    ) -> None:
        # A footer is small; the pages of a row group are read when it is, without
        # keeping them.
        super().__init__(
            cast(
                "BinaryIO",
                RandomAccessFile(
                    source.size, lambda size, offset: source.read(offset, size)
                ),
            ),
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
            ValueError: Its decoded size cannot be that of written rows, or it does not
                exist.
            pa.ArrowException, OSError: It is damaged.
        """
        return self.read_row_groups([i], columns, use_threads, use_pandas_metadata)

    def read_row_groups(
        self,
        row_groups: Iterable[int],
        columns: Iterable[str] | None = None,
        use_threads: bool = False,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode row groups together.

        The errors are those of :meth:`read_row_group`.
        """
        groups = list(row_groups)
        self._check_decoded_size(groups)
        names: list[str] | None = None
        if columns is not None:
            names = list(columns)
        return super().read_row_groups(groups, names, use_threads, use_pandas_metadata)

    def read(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a shard is read by row groups."""
        raise TypeError(
            "a shard cannot be read as a whole: expected read_row_group or read_row_groups, which check pages first"
        )

    iter_batches = read

    def _check_decoded_size(self, groups: Sequence[int]) -> None:
        """Raise ValueError if a row group is missing or decodes to too many bytes.

        The limit depends on the bytes that the row group has in the file.
        """
        # Arrow allocates the decoded size that headers state. A few bytes could claim
        # any number, so that the sizes are compared first.
        source = self.source
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                raise ValueError(
                    f"there is no row group {group}; it has {self.num_row_groups}"
                )
            if not source.local:
                check_unfolded(self.metadata.row_group(group).total_byte_size, 0)
                continue
            chunks = source.footer.chunks
            if group >= len(chunks):
                raise ValueError(f"there is no row group {group}")
            # Sums of all pages of the row group so far.
            stored = 0
            decoded = 0
            window = _HeaderWindow(source)
            # Not Arrow's own description of the columns: for a damaged footer it ends
            # the process.
            for kind, values, size, begin in chunks[group].tolist():
                value_bytes = 0
                if 0 <= kind < len(_VALUE_BYTES):
                    value_bytes = _VALUE_BYTES[kind]
                stored += size
                pages = walk_chunk(window.read, begin, size, values)
                for page_bytes in _decoded_sizes(pages, value_bytes):
                    decoded += page_bytes
                    check_unfolded(decoded, stored)


@final
class _HeaderWindow:
    """Bytes of a file, read a little further than requested.

    The small columns of a row group lie together.
    """

    def __init__(self, source: ShardBytes) -> None:
        self._source = source
        self._begin = 0
        self._data = b""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from an offset on, fewer only at the end of the file."""
        # Headers are read in ascending order: the next one is mostly in the window.
        place_in_window = offset - self._begin
        if not 0 <= place_in_window <= len(self._data) - size:
            window_size = max(
                0, min(max(size, _READ_AHEAD), self._source.size - offset)
            )
            self._begin = offset
            self._data = self._source.read(offset, window_size)
            place_in_window = 0
        return self._data[place_in_window : place_in_window + size]


def _decoded_sizes(pages: Iterable[PageHeader], value_bytes: int) -> Iterable[int]:
    """Yield an upper bound of the bytes that each page decodes to.

    Args:
        pages: Pages of a column chunk.
        value_bytes: Bytes of a decoded value; 0 if values have many lengths.
    """
    largest_entry = 0  # an entry of a dictionary is at most all of it
    for page in pages:
        if page.dictionary:
            largest_entry = max(largest_entry, value_bytes or page.size)
        largest_value = value_bytes
        if page.indices:
            largest_value = largest_entry
        elif page.encoding == DELTA_BYTE_ARRAY:
            # Values share the beginning of the one before: each may be as long as all
            # that is written of them.
            largest_value = page.size
        yield max(page.size, page.values * (largest_value + _LEVEL_BYTES))


@final
class OpenShards:
    """Shards of a version; those that were read last stay open.

    Args:
        open_shard: Function that opens a shard by its number.
        kept: Number of shards that stay open.
    """

    def __init__(
        self, open_shard: Callable[[int], BinaryIO], *, kept: int = KEPT_OPEN
    ) -> None:
        self._open_shard = open_shard
        self._most_open = kept
        self._lock = Lock()
        # The one that was used longest ago first.
        self._open: OrderedDict[int, ShardBytes] = OrderedDict()
        self._footers: dict[int, Footer] = {}

    def of(self, shard: int) -> ShardBytes:
        """Return an open shard; it is opened if it is not."""
        with self._lock:
            source = self._open.get(shard)
            if source is not None:
                self._open.move_to_end(shard)
                return source
        # Opened without the lock, because it may take a request. If two threads open
        # it, the later one is kept.
        source = ShardBytes(self._open_shard(shard), self._footers.get(shard))
        with self._lock:
            self._open[shard] = source
            if len(self._open) > self._most_open:
                # Its file is closed when the last thread that reads it is done.
                self._open.popitem(last=False)
        return source

    def with_footer(self, shard: int) -> tuple[ShardBytes, Footer]:
        """Return an open shard and its footer.

        The footer is parsed once, however often the shard is opened.

        Raises:
            ValueError: The footer is missing or invalid.
        """
        source = self.of(shard)
        self._footers[shard] = source.footer
        return source, source.footer

    def close(self, shard: int | None = None) -> None:
        """Release one shard, or all for None.

        A thread that reads a shard at the moment reads on.
        """
        with self._lock:
            if shard is None:
                self._open.clear()
            else:
                self._open.pop(shard, None)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch.

    Nothing is copied if its columns are in one piece, as those of a row group are.
    """
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    return table.combine_chunks().to_batches()[0]
