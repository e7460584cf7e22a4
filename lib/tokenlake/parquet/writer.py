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

from tokenlake.arrays import FlatRows
from tokenlake.parquet.form import (
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
from tokenlake.parquet.identity_dictionary import MOST_ENTRIES, STEP, identity_dictionary
from tokenlake.parquet.pages import (
    DICTIONARY_PAGE,
    WrittenPage,
    all_ones,
    data_page,
    fixed_levels,
    list_levels,
    with_length,
    written_page,
)
from tokenlake.parquet.thrift_writer import BINARY, I32, I64, Fields, Written, thrift, unsigned
from tokenlake.schema import open_writer

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
    """What writes a shard: Arrow's writer, or the one for packed rows."""

    def write_batch(self, rows: Any, /, row_group_size: int) -> None:
        """Write rows, so many in a row group."""
        ...

    def close(self) -> None:
        """Write the footer."""
        ...


def open_shard(sink: Any, schema: pa.Schema) -> RowGroupWriter:
    """Return the writer of a shard.

    Args:
        sink: a binary file.
        schema: of its rows, one of :mod:`tokenlake.schema`.
    """
    packed = pa.types.is_fixed_size_list(schema.field(0).type)
    return PackedWriter(sink, schema) if packed else open_writer(sink, schema)


@final
class PackedWriter:
    """Writes row groups of :func:`tokenlake.schema.packed_schema`.

    Args:
        sink: where the bytes go; it is not closed.
        schema: of the rows: lists of bool, int32 or int64, of one length or any, or of structs of these; no nulls. Its
            metadata are the file's key-values.
    """

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._sink = sink
        self._form = parquet_form(schema.serialize().to_pybytes())
        self._at = 0
        self._rows, self._groups = 0, list[bytes]()
        self._held = bytearray()
        # Pages are made in memory that is used again: fresh memory for each would cost a tenth of writing it.
        self._memory = np.empty(0, np.uint8)
        self._put(_MAGIC)

    def write_batch(self, rows: FlatRows | pa.RecordBatch, row_group_size: int) -> None:
        """Write rows, so many in a row group; those that are taken apart already are one.

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
        metadata = {1: 2, 2: form.elements, 3: self._rows, 4: self._groups, 5: form.described, 6: _CREATED_BY}
        footer = thrift(_FILE, metadata)
        self._put(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._flush()

    def _write(self, rows: FlatRows) -> None:
        chunks, decoded, start = list[Fields](), 0, self._at
        for column in self._form.columns:
            (_, lengths, _), *inner = rows.levels[column.name]
            begins: npt.NDArray[np.int64] | int = column.length
            if lengths is not None:
                if len(empty := np.flatnonzero(lengths <= 0)):
                    raise ValueError(
                        f"{column.name}: row {empty[0]} has no values; expected at least one in every row"
                    )
                begins = np.cumsum(lengths, dtype=np.int64) - lengths
            held = (own for _, own, _ in inner if own is not None)
            for kind, values in zip(column.leaves, held, strict=True):
                facts = self._chunk(kind, values, begins)
                chunks.append({2: 0, 3: facts})
                decoded += facts[6]
        group = {1: chunks, 2: decoded, 3: rows.count, 6: self._at - start}
        self._groups.append(thrift(_GROUP, group))
        self._rows += rows.count
        self._flush()

    def _chunk(self, kind: LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int) -> Fields:
        """Write the values of all rows; returns what the footer says of it.

        `begins`: where each row begins, int64[rows]; the length of all rows where they have one.
        """
        start, stored, decoded, entries = self._at, list[int](), 0, 0
        if isinstance(begins, int) and kind.values == INT32 and len(values) >= LEAST_INDICES:
            largest = int(values.view(np.uint32).max())  # a negative number is a large one
            entries = -(-(largest + 1) // STEP) * STEP if largest < MOST_ENTRIES else 0
        for page in self._pages(kind, values, begins, entries):
            self._put(page.header)
            self._put(page.body)
            stored.append(len(page.header) + len(page.body))
            decoded += len(page.header) + page.size
        facts = {**kind.facts[entries > 0], 5: len(values), 6: decoded, 7: sum(stored), 9: start}
        return {**facts, 9: start + stored[0], 11: start} if entries else facts

    def _pages(
        self, kind: LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int, entries: int
    ) -> Iterator[WrittenPage]:
        """Yield the pages of a column, of indices where it has a dictionary; each is good until the next."""
        size, bits = len(values), kind.values == BOOL
        if bits:  # eight in a byte, the first lowest
            values = np.packbits(values, bitorder="little")
        if entries:
            detail = {7: {1: entries, 2: PLAIN}}
            yield written_page(DICTIONARY_PAGE, identity_dictionary(entries), 4 * entries, detail)
        for begin in range(0, size, PAGE_VALUES):
            end = min(size, begin + PAGE_VALUES)
            if isinstance(begins, int):
                levels = fixed_levels(begins, begin, end - begin)
            else:
                levels = list_levels(begins, begin, end)
            places = slice(begin // 8, (end + 7) // 8) if bits else slice(begin, end)
            if entries:
                yield self._indices(levels, values[places])
            else:
                yield self._plain(end - begin, levels, values[places])

    def _plain(self, count: int, repetition: bytes, values: npt.NDArray[Any]) -> WrittenPage:
        """Return a page of so many values, as they lie in memory."""
        data = values.view(np.uint8)
        body, place = self._body(with_length(repetition) + with_length(all_ones(count)), len(data))
        place[:] = data
        return data_page(_VALUES, body, count, PLAIN)

    def _indices(self, repetition: bytes, numbers: npt.NDArray[np.int32]) -> WrittenPage:
        """Return a page of indices, each below 65,536; they lie at an even place of the body."""
        groups = (len(numbers) + 7) // 8
        width = bytes([BITS]) + unsigned(groups << 1 | 1)
        levels = with_length(repetition) + with_length(
            all_ones(len(numbers), len(repetition) + 8 + len(width))
        )
        body, place = self._body(levels + width, BITS * groups)
        indices = place.view("<u2")
        indices[: len(numbers)], indices[len(numbers) :] = numbers, 0
        return data_page(_INDICES, body, len(numbers), RLE_DICTIONARY)

    def _body(self, head: bytes, size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return memory for a body, and what of it follows the head, which is there already."""
        whole = len(head) + size
        if len(self._memory) < whole:
            self._memory = np.empty(whole, np.uint8)
        body = self._memory[:whole]
        body[: len(head)] = np.frombuffer(head, np.uint8)
        return body, body[len(head) :]

    def _put(self, data: bytes | memoryview) -> None:
        """Write data, after the small ones before it: each call of the sink takes as long as hashing 10 KB."""
        self._at += len(data)
        if len(data) < _SMALL:
            self._held += data
            return
        self._flush()
        self._sink.write(data)

    def _flush(self) -> None:
        # Let go of first: a write that fails may be followed by another.
        held, self._held = self._held, bytearray()
        if held:
            self._sink.write(held)
