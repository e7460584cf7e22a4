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
_BITS, _INT32 = pa.bool_(), pa.int32()
_TYPES: Final[dict[Any, int]] = {_BITS: 0, _INT32: 1, pa.int64(): 2}


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
        self._sink, self._form, self._at = sink, _form(schema), 0
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
        metadata = {
            1: int32(2),
            2: self._form.elements,
            3: int64(self._rows),
            4: listed(self._groups),
            5: self._form.described,
            6: text(_CREATED_BY),
        }
        footer = struct(metadata)[1]
        self._put(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._flush()

    def _write(self, rows: pa.RecordBatch) -> None:
        chunks, decoded, begin = list[Encoded](), 0, self._at
        for column in self._form.columns:
            for leaf in _leaves(column, rows.column(column.name)):
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
            **leaf.kind.facts[leaf.entries > 0],
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


class _LeafKind(NamedTuple):
    """What all column chunks of some values have in common.

    Attributes:
        values: their type in Arrow.
        facts: what the footer says of a chunk whose values are as they are, and of one of indices.
    """

    values: pa.DataType
    facts: tuple[dict[int, Encoded], dict[int, Encoded]]


class _Column(NamedTuple):
    """A column of lists.

    Attributes:
        name: of the field.
        length: of each list; 0: any.
        leaves: of its values, or of the fields of the structs that they are.
        of_structs: whether they are structs.
    """

    name: str
    length: int
    leaves: tuple[_LeafKind, ...]
    of_structs: bool


class _Form(NamedTuple):
    """A schema as the writer needs it, and as the footer has it.

    Attributes:
        columns: in order.
        elements: the schema as Parquet has it.
        described: the file's key-values.
    """

    columns: tuple[_Column, ...]
    elements: Encoded
    described: Encoded


@cache
def _form(schema: pa.Schema) -> _Form:
    """Return what a schema says: made once, where thousands of small shards have the same."""
    serialized = base64.b64encode(schema.serialize().to_pybytes())
    described = {**(schema.metadata or {}), b"ARROW:schema": serialized}
    return _Form(
        columns=tuple(_column(field) for field in schema),
        elements=listed([_element("schema", children=len(schema.names)), *_fields(schema)]),
        described=listed([struct({1: text(key), 2: text(value)}) for key, value in described.items()]),
    )


def _column(field: Any) -> _Column:
    held, path = field.type.value_type, (field.name, "list", "element")
    length = field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0
    if not pa.types.is_struct(held):
        return _Column(field.name, length, (_kind(held, path),), of_structs=False)
    leaves = tuple(_kind(child.type, (*path, child.name)) for child in held)
    return _Column(field.name, length, leaves, of_structs=True)


def _kind(values: pa.DataType, path: tuple[str, ...]) -> _LeafKind:
    plain, indices = (
        {
            1: int32(_TYPES[values]),
            2: listed([int32(each) for each in encodings]),
            3: listed([text(name.encode()) for name in path]),
            4: int32(_ZSTD),
        }
        for encodings in ((PLAIN, RLE), (PLAIN, RLE, RLE_DICTIONARY))
    )
    return _LeafKind(values, (plain, indices))


class _Leaf(NamedTuple):
    """A column of values.

    Attributes:
        kind: of the values.
        values: of all rows; of bits, eight in a byte, the first lowest.
        size: how many they are.
        begins: where each row begins, int64[rows]; the length of all rows where they have one.
        entries: of the dictionary into which they are indices; 0: there is none.
    """

    kind: _LeafKind
    values: npt.NDArray[Any]
    size: int
    begins: npt.NDArray[np.int64] | int
    entries: int


def _leaves(column: _Column, rows: Any) -> Iterator[_Leaf]:
    if length := column.length:
        kind, flat = column.leaves[0], rows.values.slice(rows.offset * length, len(rows) * length)
        found = _bits(flat) if kind.values == _BITS else values(flat)
        entries = _entries(found) if kind.values == _INT32 else 0
        yield _Leaf(kind, found, len(flat), length, entries)
        return
    offsets = values(rows.offsets).astype(np.int64)
    if len(empty := np.flatnonzero(offsets[1:] <= offsets[:-1])):
        raise ValueError(f"{column.name}: row {empty[0]} has no values; expected at least one in every row")
    flat = rows.values.slice(offsets[0], offsets[-1] - offsets[0])
    begins = offsets[:-1] - offsets[0]
    # A field of a struct does not know where a slice of the struct begins; flatten does.
    for kind, data in zip(column.leaves, flat.flatten() if column.of_structs else [flat], strict=True):
        yield _Leaf(kind, values(data), len(data), begins, 0)


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
            places = slice(begin // 8, (end + 7) // 8) if leaf.kind.values == _BITS else slice(begin, end)
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
