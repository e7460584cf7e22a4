"""Shards of packed rows, written without what a general writer does for columns that are not known ahead.

All rows have one length and nothing is null, so that levels are known without a look at the rows. Ids below 65,536,
where there are enough of them, are stored as indices of 16 bits into :func:`identity_dictionary`, which is half of what
Parquet's PLAIN takes: to every reader a column of int32 with a dictionary. Others are PLAIN.

A page is a header, then its compressed body: levels, each kind after its length in four bytes, then values. Headers and
the footer are structs of Thrift's compact protocol. The format: https://parquet.apache.org/docs/file-format/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import FlatRows
from tokenlake.runtime.parquet.dictionary_page import MOST_ENTRIES, STEP, identity_dictionary
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
from tokenlake.runtime.parquet.thrift_writer import BINARY, I32, I64, Fields, Written, unsigned, write_thrift
from tokenlake.runtime.schema import open_writer

PAGE_VALUES: Final = 1 << 18
"""Of a page: a full row group has one page of ids."""

LEAST_INDICES: Final = 1 << 16
"""Values of a column chunk, from which on indices save more than their dictionary takes, some 4 KiB."""

BITS: Final = 16
"""Of an index."""

_SMALL: Final = 1 << 14  # bytes that are held back
_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"tokenlake version 1.0"

# Of indices, level 3 makes a thirtieth less and takes a third longer (measured on text, code and other languages).
_INDICES: Final = pa.Codec("zstd", compression_level=2)
_VALUES: Final = pa.Codec("zstd", compression_level=3)

_GROUP: Final[Written] = {1: [{2: I64, 3: FACTS}], 2: I64, 3: I64, 6: I64}

_FILE: Final[Written] = {1: I32, 2: [ELEMENT], 3: I64, 4: [_GROUP], 5: KEY_VALUES, 6: BINARY}


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
        sink: a binary file.
        schema: of its rows, one of :mod:`tokenlake.runtime.schema`.
    """
    packed = pa.types.is_fixed_size_list(schema.field(0).type)
    return PackedWriter(sink, schema) if packed else open_writer(sink, schema)


@final
class PackedWriter:
    """Writes row groups of :func:`tokenlake.runtime.schema.packed_schema`.

    Args:
        sink: Binary file to write to; it is not closed.
        schema: Schema of the rows: lists of bool, int32 or int64, or of structs of these, of one length or any, without
            nulls. Its metadata become the file's key-values.
    """

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._sink = sink
        self._form = parquet_form(schema.serialize().to_pybytes())
        self._at = 0
        self._rows = 0
        self._groups: list[bytes] = []  # written structs of the row groups
        self._held = bytearray()  # bytes that are not given to the sink yet
        # Pages are made in memory that is used again: new memory for each would cost a tenth of writing it.
        self._memory = np.empty(0, np.uint8)
        self._put(_MAGIC)

    def write_batch(self, rows: FlatRows | pa.RecordBatch, row_group_size: int) -> None:
        """Write rows, `row_group_size` in a row group; flat rows are one row group.

        Raises:
            ValueError: a list is empty.
        """
        if isinstance(rows, FlatRows):
            self._write(rows)
            return
        for begin in range(0, len(rows), row_group_size):
            self._write(FlatRows.of(rows.slice(begin, row_group_size)))

    def close(self) -> None:
        """Write the footer."""
        form = self._form
        metadata = {
            FileMetaDataField.VERSION: 2,
            FileMetaDataField.SCHEMA: form.elements,
            FileMetaDataField.NUM_ROWS: self._rows,
            FileMetaDataField.ROW_GROUPS: self._groups,
            FileMetaDataField.KEY_VALUES: form.described,
            FileMetaDataField.CREATED_BY: _CREATED_BY,
        }
        footer = write_thrift(_FILE, metadata)
        self._put(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._flush()

    def _write(self, rows: FlatRows) -> None:
        """Write a row group."""
        group_start = self._at
        chunks: list[Fields] = []
        uncompressed_size = 0
        for column in self._form.columns:
            # The first level of a column has the lengths of its lists, the others the values of its leaves.
            (_, lengths, _), *inner_levels = rows.levels[column.name]
            begins: npt.NDArray[np.int64] | int = column.length
            if lengths is not None:
                empty_rows = np.flatnonzero(lengths <= 0)
                if len(empty_rows):
                    raise ValueError(
                        f"{column.name}: row {empty_rows[0]} has no values; expected at least one in every row"
                    )
                begins = np.cumsum(lengths, dtype=np.int64) - lengths
            leaf_values = [values for _, values, _ in inner_levels if values is not None]
            for kind, values in zip(column.leaves, leaf_values, strict=True):
                metadata = self._chunk(kind, values, begins)
                chunks.append({ColumnChunkField.FILE_OFFSET: 0, ColumnChunkField.META_DATA: metadata})
                uncompressed_size += metadata[ColumnMetaDataField.UNCOMPRESSED_SIZE]
        group = {
            RowGroupField.COLUMNS: chunks,
            RowGroupField.UNCOMPRESSED_SIZE: uncompressed_size,
            RowGroupField.NUM_ROWS: rows.count,
            RowGroupField.COMPRESSED_SIZE: self._at - group_start,
        }
        self._groups.append(write_thrift(_GROUP, group))
        self._rows += rows.count
        self._flush()

    def _chunk(self, kind: LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int) -> Fields:
        """Write a column chunk, and return its metadata for the footer.

        Args:
            kind: Kind of the values.
            values: Values of all rows of the row group.
            begins: Value at which each row begins, int64[rows]; the length of a row where all have one.
        """
        # Ids from 0 to 65,535 are stored as indices of 16 bits into a dictionary of 0, 1, 2, ..., which has as many
        # entries as the largest id needs.
        entries = 0
        if isinstance(begins, int) and kind.values == INT32 and len(values) >= LEAST_INDICES:
            largest = int(values.view(np.uint32).max())  # as unsigned, so that a negative number is too large
            if largest < MOST_ENTRIES:
                entries = (largest // STEP + 1) * STEP
        start = self._at
        page_sizes: list[int] = []
        uncompressed_size = 0
        for page in self._pages(kind, values, begins, entries):
            self._put(page.header)
            self._put(page.body)
            page_sizes.append(len(page.header) + len(page.body))
            uncompressed_size += len(page.header) + page.size
        metadata: dict[int, Any] = {
            **(kind.indices if entries else kind.plain),
            ColumnMetaDataField.NUM_VALUES: len(values),
            ColumnMetaDataField.UNCOMPRESSED_SIZE: uncompressed_size,
            ColumnMetaDataField.COMPRESSED_SIZE: sum(page_sizes),
            ColumnMetaDataField.DATA_PAGE_OFFSET: start,
        }
        if entries:  # the dictionary is the first page
            metadata[ColumnMetaDataField.DATA_PAGE_OFFSET] = start + page_sizes[0]
            metadata[ColumnMetaDataField.DICTIONARY_PAGE_OFFSET] = start
        return metadata

    def _pages(
        self, kind: LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int, entries: int
    ) -> Iterator[WrittenPage]:
        """Yield the pages of a column chunk. A page may be used until the next one is asked for.

        Args:
            kind, values, begins: As for :meth:`_chunk`.
            entries: Number of entries of the dictionary; 0: the values are stored as they are.
        """
        count = len(values)
        is_bits = kind.values == BOOL
        if is_bits:  # eight in a byte, the first lowest
            values = np.packbits(values, bitorder="little")
        if entries:
            detail = {
                PageHeaderField.DICTIONARY_PAGE: {
                    DictionaryPageHeaderField.NUM_VALUES: entries,
                    DictionaryPageHeaderField.ENCODING: PLAIN,
                }
            }
            yield written_page(DICTIONARY_PAGE, identity_dictionary(entries), 4 * entries, detail)
        for begin in range(0, count, PAGE_VALUES):
            end = min(count, begin + PAGE_VALUES)
            if isinstance(begins, int):
                levels = fixed_levels(begins, begin, end - begin)
            else:
                levels = list_levels(begins, begin, end)
            page_values = values[begin // 8 : (end + 7) // 8] if is_bits else values[begin:end]
            if entries:
                yield self._indices(levels, page_values)
            else:
                yield self._plain(end - begin, levels, page_values)

    def _plain(self, count: int, repetition: bytes, values: npt.NDArray[Any]) -> WrittenPage:
        """Return a page of `count` values, as they are in memory."""
        data = values.view(np.uint8)
        body, place = self._body(with_length(repetition) + with_length(all_ones(count)), len(data))
        place[:] = data
        return data_page(_VALUES, body, count, PLAIN)

    def _indices(self, repetition: bytes, numbers: npt.NDArray[np.int32]) -> WrittenPage:
        """Return a page of indices, each of 0 to 65,535. They begin at an even byte of the body."""
        # Values are written as one run of groups of 8 values, 16 bits each; the last group is filled with zeros.
        groups = (len(numbers) + 7) // 8
        run_head = bytes([BITS]) + unsigned(groups << 1 | 1)
        lengths_of_levels = 8  # bytes: four before the levels of each kind
        definition = all_ones(len(numbers), len(repetition) + lengths_of_levels + len(run_head))
        head = with_length(repetition) + with_length(definition) + run_head
        body, place = self._body(head, BITS * groups)
        indices = place.view("<u2")
        indices[: len(numbers)] = numbers
        indices[len(numbers) :] = 0
        return data_page(_INDICES, body, len(numbers), RLE_DICTIONARY)

    def _body(self, head: bytes, size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return memory for a body that begins with `head`, and the part of it after the head, of `size` bytes."""
        whole = len(head) + size
        if len(self._memory) < whole:
            self._memory = np.empty(whole, np.uint8)
        body = self._memory[:whole]
        body[: len(head)] = np.frombuffer(head, np.uint8)
        return body, body[len(head) :]

    def _put(self, data: bytes | memoryview) -> None:
        """Write data. Small data are held back, because each call of the sink takes as long as hashing 10 KB."""
        self._at += len(data)
        if len(data) < _SMALL:
            self._held += data
            return
        self._flush()
        self._sink.write(data)

    def _flush(self) -> None:
        # Forget them first: a write that fails may be followed by another.
        held = self._held
        self._held = bytearray()
        if held:
            self._sink.write(held)
