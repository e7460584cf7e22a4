"""Shards of packed rows, written without what a general writer does for columns that are not known ahead.

All rows have one length and nothing is null, so that levels are known without a look at the rows. Ids below 65,536,
where there are enough of them, are stored as indices of 16 bits into
:func:`tokenlake.parquet.dictionary.identity_dictionary`: to every reader a column of int32. Others are PLAIN. The
format: https://parquet.apache.org/docs/file-format/.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import values
from tokenlake.parquet.dictionary import MOST_ENTRIES, STEP
from tokenlake.parquet.pages import (
    PLAIN,
    RLE,
    RLE_DICTIONARY,
    PageEncoder,
    WrittenPage,
    dictionary_page,
    fixed_levels,
    list_levels,
)
from tokenlake.parquet.thrift import Encoded, int32, int64, listed, struct, text
from tokenlake.schema import open_writer

PAGE_VALUES: Final = 1 << 18
"""Of a page: a full row group has one page of ids."""

LEAST_INDICES: Final = 1 << 16
"""Values of a column chunk, from which on indices save more than their dictionary takes, some 4 KiB."""

_SMALL: Final = 1 << 14  # bytes that are held back
_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"tokenlake version 1.0"
_ZSTD: Final = 6
_REQUIRED, _REPEATED, _LIST = 0, 2, 3
_TYPES: Final[dict[Any, int]] = {pa.bool_(): 0, pa.int32(): 1, pa.int64(): 2}


class RowGroupWriter(Protocol):
    """What writes a shard: Arrow's writer, or the one for packed rows."""

    def write_batch(self, rows: pa.RecordBatch, /, row_group_size: int) -> None:
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
        self._sink, self._schema, self._at = sink, schema, 0
        self._rows, self._groups = 0, list[Encoded]()
        self._held = bytearray()
        self._encoder = PageEncoder()
        self._put(_MAGIC)

    def write_batch(self, rows: pa.RecordBatch, row_group_size: int) -> None:
        """Write rows, so many in a row group.

        Raises:
            ValueError: a list is empty.
        """
        for begin in range(0, len(rows), row_group_size):
            self._write(rows.slice(begin, row_group_size))

    def close(self) -> None:
        """Write the footer."""
        serialized = base64.b64encode(self._schema.serialize().to_pybytes())
        described = {**(self._schema.metadata or {}), b"ARROW:schema": serialized}
        metadata = {
            1: int32(2),
            2: _elements(self._schema),
            3: int64(self._rows),
            4: listed(self._groups),
            5: listed([struct({1: text(key), 2: text(value)}) for key, value in described.items()]),
            6: text(_CREATED_BY),
        }
        footer = struct(metadata)[1]
        self._put(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._flush()

    def _write(self, rows: pa.RecordBatch) -> None:
        chunks, decoded, begin = list[Encoded](), 0, self._at
        for field in self._schema:
            for leaf in _leaves(field, rows.column(field.name)):
                metadata, size = self._chunk(leaf)
                chunks.append(metadata)
                decoded += size
        group = {1: listed(chunks), 2: int64(decoded), 3: int64(len(rows)), 6: int64(self._at - begin)}
        self._groups.append(struct(group))
        self._rows += len(rows)
        self._flush()

    def _chunk(self, leaf: _Leaf) -> tuple[Encoded, int]:
        """Write a column chunk; returns what the footer says of it, and its bytes without compression."""
        begin, stored, decoded = self._at, list[int](), 0
        for page in _pages(leaf, self._encoder):
            self._put(page.header)
            self._put(page.body)
            stored.append(page.stored)
            decoded += page.decoded
        facts = {
            1: int32(_TYPES[leaf.kind]),
            2: listed([int32(each) for each in (PLAIN, RLE, RLE_DICTIONARY)[: 2 + (leaf.entries > 0)]]),
            3: listed([text(name.encode()) for name in leaf.path]),
            4: int32(_ZSTD),
            5: int64(leaf.size),
            6: int64(decoded),
            7: int64(sum(stored)),
            9: int64(begin + stored[0] if leaf.entries else begin),
            **({11: int64(begin)} if leaf.entries else {}),
        }
        return struct({2: int64(0), 3: struct(facts)}), decoded

    def _put(self, data: bytes | memoryview) -> None:
        """Write data, after the small ones before it: each call of the sink takes as long as hashing 10 KB."""
        self._at += len(data)
        if len(data) < _SMALL:
            self._held += data
            return
        self._flush()
        self._sink.write(data)

    def _flush(self) -> None:
        held, self._held = (
            self._held,
            bytearray(),
        )  # let go of first: a write that fails may be followed by another
        if held:
            self._sink.write(held)


class _Leaf(NamedTuple):
    """A column of values.

    Attributes:
        path: its name, and those of what is in it.
        kind: of its values.
        values: of all rows; of bits, eight in a byte, the first lowest.
        size: how many they are.
        begins: where each row begins, int64[rows]; the length of all rows where they have one.
        entries: of the dictionary into which they are indices; 0: there is none.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    values: npt.NDArray[Any]
    size: int
    begins: npt.NDArray[np.int64] | int
    entries: int


def _leaves(field: Any, column: Any) -> Iterator[_Leaf]:
    path = (field.name, "list", "element")
    if pa.types.is_fixed_size_list(field.type):
        length = field.type.list_size
        flat = column.values.slice(column.offset * length, len(column) * length)
        found = _bits(flat) if flat.type == pa.bool_() else values(flat)
        entries = _entries(found) if flat.type == pa.int32() else 0
        yield _Leaf(path, flat.type, found, len(flat), length, entries)
        return
    offsets = values(column.offsets).astype(np.int64)
    if len(empty := np.flatnonzero(offsets[1:] <= offsets[:-1])):
        raise ValueError(f"{field.name}: row {empty[0]} has no values; expected at least one in every row")
    flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    begins = offsets[:-1] - offsets[0]
    if not pa.types.is_struct(flat.type):
        yield _Leaf(path, flat.type, values(flat), len(flat), begins, 0)
        return
    # A field of a struct does not know where a slice of the struct begins; flatten does.
    for child, data in zip(flat.type, flat.flatten(), strict=True):
        yield _Leaf((*path, child.name), child.type, values(data), len(data), begins, 0)


def _pages(leaf: _Leaf, encoder: PageEncoder) -> Iterator[WrittenPage]:
    """Yield the pages of a column; the body of each is good until the next."""
    if leaf.entries:
        yield dictionary_page(leaf.entries)
    for begin in range(0, leaf.size, PAGE_VALUES):
        end = min(leaf.size, begin + PAGE_VALUES)
        if isinstance(leaf.begins, int):
            levels = fixed_levels(leaf.begins, begin, end - begin)
        else:
            levels = list_levels(leaf.begins, begin, end)
        if leaf.entries:
            yield encoder.indices(levels, leaf.values[begin:end])
        else:
            places = slice(begin // 8, (end + 7) // 8) if leaf.kind == pa.bool_() else slice(begin, end)
            yield encoder.plain(end - begin, levels, leaf.values[places])


def _bits(array: Any) -> npt.NDArray[np.uint8]:
    """Return bits, eight in a byte, the first lowest; a view of them where they begin with a byte."""
    if array.offset % 8:
        return np.packbits(values(array), bitorder="little")
    return np.frombuffer(array.buffers()[1], np.uint8, (len(array) + 7) // 8, array.offset // 8)


def _entries(numbers: npt.NDArray[Any]) -> int:
    """Return how many entries the dictionary of int32 numbers has; 0 where they have none.

    They have none where some are too large or below 0, or where they are few.
    """
    if len(numbers) < LEAST_INDICES:
        return 0
    largest = int(numbers.view(np.uint32).max())  # a negative number is a large one
    return -(-(largest + 1) // STEP) * STEP if largest < MOST_ENTRIES else 0


@cache
def _elements(schema: pa.Schema) -> Encoded:
    """Return a schema as Parquet has it: made once, where thousands of small shards have the same."""
    return listed([_element("schema", children=len(schema.names)), *_fields(schema)])


def _fields(schema: pa.Schema) -> Iterator[Encoded]:
    """Yield the fields as Parquet's schema has them: a list is a group of a repeated group of its values."""
    for field in schema:
        element: Any = field.type.value_type
        yield _element(field.name, _REQUIRED, children=1, is_list=True)
        yield _element("list", _REPEATED, children=1)
        if not pa.types.is_struct(element):
            yield _element("element", _REQUIRED, kind=_TYPES[element])
            continue
        yield _element("element", _REQUIRED, children=element.num_fields)
        yield from (_element(child.name, _REQUIRED, kind=_TYPES[child.type]) for child in element)


def _element(
    name: str, form: int | None = None, *, kind: int | None = None, children: int = 0, is_list: bool = False
) -> Encoded:
    fields = {
        1: None if kind is None else int32(kind),
        3: None if form is None else int32(form),
        4: text(name.encode()),
        5: int32(children) if children else None,
        6: int32(_LIST) if is_list else None,
        10: struct({3: struct({})}) if is_list else None,
    }
    return struct({number: value for number, value in fields.items() if value is not None})
