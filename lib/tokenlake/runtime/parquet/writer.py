"""Writer of shards of packed rows.

All rows of such a shard have one length and nothing is null, so that this writer knows
the levels without a look at the rows. A file is written from its begin to its end
(https://parquet.apache.org/docs/file-format/)::

    PAR1
    row group        one column chunk after the other
      column chunk   [dictionary page]  data page  data page ...
        page         header | compressed body
          body       length, repetition levels | length, definition levels | values
    ...
    footer           schema, row groups, key-values; then its length in four bytes
    PAR1

A row group is written in these steps, for each column and each of its leaves
(:meth:`PackedWriter._write_row_group`):

1. Choose the encoding. At least 65,536 ids that are all below 65,536 are stored as
   *indices*: 16 bits each, into a dictionary whose entry k is the number k. That takes
   half the bytes of PLAIN; to every reader it is a column of int32 with a dictionary.
   Other values are stored as they are (PLAIN).
2. Cut the values into pages of at most 262,144.
3. Write the levels of a page from the lengths of the rows, then its values; compress
   them.
4. Remember sizes and offsets of the column chunk for the footer.

Example: a row group of 128 rows of 2,048 ids, the largest id being 50,256, is written
as a dictionary page of 50,432 entries (a multiple of 256) and one data page. Its body
has

- repetition levels: for each row ``02 00`` (level 0, once) and ``fe 1f 01`` (level 1,
  2,047 times),
- definition levels: ``80 80 20 01`` (level 1, 262,144 times), or the same in two runs,
  so that indices begin at an even byte,
- the width of an index (16), the head of the run of indices, and the indices: 524,288
  bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import FlatRows, UInt8
from tokenlake.runtime.parquet.dictionary_page import (
    MOST_ENTRIES,
    STEP,
    identity_dictionary,
)
from tokenlake.runtime.parquet.fields import (
    ColumnChunkField,
    ColumnMetaDataField,
    DictionaryPageHeaderField,
    FileMetaDataField,
    PageHeaderField,
    RowGroupField,
)
from tokenlake.runtime.parquet.form import (
    BOOL,
    ELEMENT,
    FACTS,
    INT32,
    KEY_VALUES,
    PLAIN,
    RLE_DICTIONARY,
    LeafKind,
    parquet_form,
)
from tokenlake.runtime.parquet.pages import (
    DICTIONARY_PAGE,
    WrittenPage,
    all_ones,
    data_page,
    fixed_levels,
    list_levels,
    with_length,
    written_page,
)
from tokenlake.runtime.parquet.thrift_writer import (
    BINARY,
    I32,
    I64,
    Fields,
    Written,
    unsigned,
    write_thrift,
)
from tokenlake.runtime.schema import open_writer

PAGE_VALUES: Final = 1 << 18
"""Number of values in a page. A full row group has one page of ids."""

LEAST_INDICES: Final = 1 << 16
"""Least number of values of a column chunk with indices.

They save more than their dictionary takes, some 4 KiB.
"""

BITS: Final = 16
"""Number of bits of an index."""

_BUFFERED_BYTES: Final = 1 << 14  # smaller data are collected before they are written
_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"tokenlake version 1.0"  # part of the golden bytes

# For indices, level 3 saves a thirtieth and takes a third longer (measured on text,
# code and other languages).
_INDICES_CODEC: Final = pa.Codec("zstd", compression_level=2)
_VALUES_CODEC: Final = pa.Codec("zstd", compression_level=3)

# Types of the fields of Thrift structs, by field number.
# A row group has column chunks (an offset and their metadata), two sizes and a count.
_ROW_GROUP: Final[Written] = {1: [{2: I64, 3: FACTS}], 2: I64, 3: I64, 6: I64}

# The footer: version, schema, rows, row groups, key-values, writer.
_FILE: Final[Written] = {
    1: I32,
    2: [ELEMENT],
    3: I64,
    4: [_ROW_GROUP],
    5: KEY_VALUES,
    6: BINARY,
}

RowBegins = npt.NDArray[np.int64] | int
"""Value at which each row begins, int64[rows].

It is the length of a row if all rows have one length.
"""


class RowGroupWriter(Protocol):
    """Writer of a shard: Arrow's, or the one for packed rows."""

    def write_batch(self, rows: Any, /, row_group_size: int) -> None:
        """Write rows, `row_group_size` in a row group."""
        ...

    def close(self) -> None:
        """Write the footer."""
        ...


def open_shard(sink: Any, schema: pa.Schema) -> RowGroupWriter:
    """Return the writer of a shard.

    Args:
        sink: Binary file to write to.
        schema: Schema of the rows, one of :mod:`tokenlake.runtime.schema`.
    """
    if pa.types.is_fixed_size_list(schema.field(0).type):
        return PackedWriter(sink, schema)
    return open_writer(sink, schema)


@final
class PackedWriter:
    """Writes row groups of :func:`tokenlake.runtime.schema.packed_schema`.

    Args:
        sink: Binary file to write to; it is not closed.
        schema: Schema of the rows: lists of bool, int32 or int64, or of structs of
            these, of one length or any, without nulls. Its metadata become the file's
            key-values.
    """

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._sink = sink
        self._form = parquet_form(schema.serialize().to_pybytes())
        self._offset = 0  # bytes written so far, buffered ones included
        self._rows = 0
        self._row_groups: list[bytes] = []  # their structs for the footer
        self._buffered = bytearray()
        # Pages are made in memory that is used again: new memory for each would cost a
        # tenth of writing it.
        self._page_memory = np.empty(0, np.uint8)
        self._put(_MAGIC)

    def write_batch(self, rows: FlatRows | pa.RecordBatch, row_group_size: int) -> None:
        """Write rows.

        Args:
            rows: Record batch, or flat rows, which are one row group.
            row_group_size: Number of rows in a row group of a record batch.

        Raises:
            ValueError: A list is empty.
        """
        if isinstance(rows, FlatRows):
            self._write_row_group(rows)
            return
        for first_row in range(0, len(rows), row_group_size):
            self._write_row_group(FlatRows.of(rows.slice(first_row, row_group_size)))

    def close(self) -> None:
        """Write the footer."""
        form = self._form
        metadata = {
            FileMetaDataField.VERSION: 2,
            FileMetaDataField.SCHEMA: form.elements,
            FileMetaDataField.NUM_ROWS: self._rows,
            FileMetaDataField.ROW_GROUPS: self._row_groups,
            FileMetaDataField.KEY_VALUES: form.described,
            FileMetaDataField.CREATED_BY: _CREATED_BY,
        }
        footer = write_thrift(_FILE, metadata)
        self._put(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._flush()

    def _write_row_group(self, rows: FlatRows) -> None:
        """Write the column chunks of a row group, and keep its struct for the footer.

        Args:
            rows: Rows of the row group.
        """
        row_group_start = self._offset
        chunks: list[Fields] = []
        uncompressed_size = 0
        for column in self._form.columns:
            # The first level of a column has the lengths of its lists, the others the
            # values of its leaves.
            (_, lengths, _), *inner_levels = rows.levels[column.name]
            begins: RowBegins = column.length
            if lengths is not None:
                begins = _begins_of(column.name, lengths)
            leaf_values = [
                values for _, values, _ in inner_levels if values is not None
            ]
            # One column chunk for each leaf.
            for leaf_kind, values in zip(column.leaves, leaf_values, strict=True):
                metadata = self._write_chunk(leaf_kind, values, begins)
                chunk = {
                    ColumnChunkField.FILE_OFFSET: 0,
                    ColumnChunkField.META_DATA: metadata,
                }
                chunks.append(chunk)
                uncompressed_size += metadata[ColumnMetaDataField.UNCOMPRESSED_SIZE]
        # The struct is written now, so that the footer takes little memory until the
        # end.
        row_group = {
            RowGroupField.COLUMNS: chunks,
            RowGroupField.UNCOMPRESSED_SIZE: uncompressed_size,
            RowGroupField.NUM_ROWS: rows.count,
            RowGroupField.COMPRESSED_SIZE: self._offset - row_group_start,
        }
        self._row_groups.append(write_thrift(_ROW_GROUP, row_group))
        self._rows += rows.count
        self._flush()

    def _write_chunk(
        self, kind: LeafKind, values: npt.NDArray[Any], begins: RowBegins
    ) -> Fields:
        """Write a column chunk, and return its metadata for the footer.

        Args:
            kind: Kind of the values.
            values: Values of all rows of the row group.
            begins: Begins of the rows.
        """
        # 1. Choose the encoding.
        entries = _dictionary_entries(kind, values, begins)
        chunk_start = self._offset
        page_sizes: list[int] = []
        # 2. and 3. Pages are written as they are made.
        uncompressed_size = 0
        for page in self._pages(kind, values, begins, entries):
            self._put(page.header)
            self._put(page.body)
            page_sizes.append(len(page.header) + len(page.body))
            uncompressed_size += len(page.header) + page.size
        # 4. Sizes and offsets for the footer.
        metadata: dict[int, Any] = {
            **(kind.indices if entries else kind.plain),
            ColumnMetaDataField.NUM_VALUES: len(values),
            ColumnMetaDataField.UNCOMPRESSED_SIZE: uncompressed_size,
            ColumnMetaDataField.COMPRESSED_SIZE: sum(page_sizes),
            ColumnMetaDataField.DATA_PAGE_OFFSET: chunk_start,
        }
        if entries:  # the dictionary is the first page
            metadata[ColumnMetaDataField.DATA_PAGE_OFFSET] = chunk_start + page_sizes[0]
            metadata[ColumnMetaDataField.DICTIONARY_PAGE_OFFSET] = chunk_start
        return metadata

    def _pages(
        self, kind: LeafKind, values: npt.NDArray[Any], begins: RowBegins, entries: int
    ) -> Iterator[WrittenPage]:
        """Yield the pages of a column chunk.

        A page is valid until the next one is requested.

        Args:
            kind: Kind of the values.
            values: Values of all rows of the row group.
            begins: Begins of the rows.
            entries: Number of entries of the dictionary; 0 if the values are stored as
                they are.
        """
        if entries:
            yield _dictionary_page(entries)
        # A page holds values of whole rows or parts of rows; levels and values are cut
        # at the same places.
        value_count = len(values)
        values_per_item = 1
        if kind.values == BOOL:  # eight in a byte, the first lowest
            values_per_item = 8
            values = np.packbits(values, bitorder="little")
        for page_begin in range(0, value_count, PAGE_VALUES):
            page_end = min(value_count, page_begin + PAGE_VALUES)
            if isinstance(begins, int):
                levels = fixed_levels(begins, page_begin, page_end - page_begin)
            else:
                levels = list_levels(begins, page_begin, page_end)
            page_values = values[
                page_begin // values_per_item : -(-page_end // values_per_item)
            ]
            if entries:
                yield self._page_of_indices(levels, page_values)
            else:
                yield self._plain_page(page_end - page_begin, levels, page_values)

    def _plain_page(
        self, count: int, repetition: bytes, values: npt.NDArray[Any]
    ) -> WrittenPage:
        """Return a page of `count` values as they are in memory."""
        value_bytes = values.view(np.uint8)
        levels = with_length(repetition) + with_length(all_ones(count))
        body, values_place = self._body(levels, len(value_bytes))
        values_place[:] = value_bytes
        return data_page(_VALUES_CODEC, body, count, PLAIN)

    def _page_of_indices(
        self, repetition: bytes, numbers: npt.NDArray[np.int32]
    ) -> WrittenPage:
        """Return a page of indices, each from 0 to 65,535.

        They begin at an even byte of the body.
        """
        # Indices are one run of groups of 8, 16 bits each; the last group is filled
        # with zeros.
        group_count = (len(numbers) + 7) // 8
        run_head = bytes([BITS]) + unsigned(group_count << 1 | 1)
        lengths_of_levels = 8  # bytes: four before the levels of each kind
        bytes_before = len(repetition) + lengths_of_levels + len(run_head)
        definition = all_ones(len(numbers), bytes_before)
        body_head = with_length(repetition) + with_length(definition) + run_head
        body, values_place = self._body(body_head, BITS * group_count)
        indices = values_place.view("<u2")
        indices[: len(numbers)] = numbers
        indices[len(numbers) :] = 0
        return data_page(_INDICES_CODEC, body, len(numbers), RLE_DICTIONARY)

    def _body(self, head: bytes, size: int) -> tuple[UInt8, UInt8]:
        """Return memory for a body that begins with `head`, and the part after it."""
        # The memory grows to the largest page, and is used for all of them.
        body_size = len(head) + size
        if len(self._page_memory) < body_size:
            self._page_memory = np.empty(body_size, np.uint8)
        body = self._page_memory[:body_size]
        body[: len(head)] = np.frombuffer(head, np.uint8)
        return body, body[len(head) :]

    def _put(self, data: bytes | memoryview) -> None:
        """Write data.

        Small data are buffered, because a call of the sink takes as long as hashing 10
        KB.
        """
        self._offset += len(data)
        if len(data) < _BUFFERED_BYTES:
            self._buffered += data
            return
        self._flush()
        self._sink.write(data)

    def _flush(self) -> None:
        """Write the buffered data."""
        # The buffer is emptied first: a write that fails may be followed by another.
        buffered_data = self._buffered
        self._buffered = bytearray()
        if buffered_data:
            self._sink.write(buffered_data)


def _begins_of(name: str, lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the value at which each row begins, int64[rows].

    Args:
        name: Name of the column, for the message.
        lengths: Number of values of each row.

    Raises:
        ValueError: A row has no values.
    """
    empty_rows = np.flatnonzero(lengths <= 0)
    if len(empty_rows):
        raise ValueError(
            f"{name}: row {empty_rows[0]} has no values; expected at least one in every row"
        )
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _dictionary_entries(
    kind: LeafKind, values: npt.NDArray[Any], begins: RowBegins
) -> int:
    """Return the number of entries of a column chunk's dictionary.

    It is as large as the largest id needs, and 0 if the values are stored as they are.
    """
    # Columns of int32 in rows of one length hold ids of tokens or of segments.
    has_ids_of_rows = isinstance(begins, int) and kind.values == INT32
    if not has_ids_of_rows or len(values) < LEAST_INDICES:
        return 0
    # As unsigned, so that a negative number is too large.
    largest = int(values.view(np.uint32).max())
    if largest >= MOST_ENTRIES:
        return 0
    return (largest // STEP + 1) * STEP


def _dictionary_page(entries: int) -> WrittenPage:
    """Return the dictionary page of a column chunk with indices."""
    detail = {
        PageHeaderField.DICTIONARY_PAGE: {
            DictionaryPageHeaderField.NUM_VALUES: entries,
            DictionaryPageHeaderField.ENCODING: PLAIN,
        }
    }
    return written_page(
        DICTIONARY_PAGE, identity_dictionary(entries), 4 * entries, detail
    )
