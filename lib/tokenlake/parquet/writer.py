"""Shards of packed rows, written without what a general writer does for columns that are not known ahead.

All rows have one length and nothing is null, so that levels are known without a look at the rows. Ids below 65,536,
where there are enough of them, are stored as indices of 16 bits into :func:`identity_dictionary`, which is half of what
Parquet's PLAIN takes: to every reader a column of int32 with a dictionary. Others are PLAIN.

A page is a header, then its compressed body: levels, each kind after its length in four bytes, then values. Headers and
the footer are structs of Thrift's compact protocol. The format: https://parquet.apache.org/docs/file-format/.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import FlatRows
from tokenlake.schema import open_writer

PAGE_VALUES: Final = 1 << 18
"""Of a page: a full row group has one page of ids."""

LEAST_INDICES: Final = 1 << 16
"""Values of a column chunk, from which on indices save more than their dictionary takes, some 4 KiB."""

MOST_ENTRIES: Final = 1 << 16
STEP: Final = 256
"""A dictionary has a multiple of so many entries, at most :data:`MOST_ENTRIES`."""
BITS: Final = 16
"""Of an index."""

PLAIN: Final = 0
RLE: Final = 3
RLE_DICTIONARY: Final = 8

_SMALL: Final = 1 << 14  # bytes that are held back
_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"tokenlake version 1.0"
_ZSTD: Final = 6
_REQUIRED, _REPEATED, _LIST = 0, 2, 3
_BITS, _INT32 = pa.bool_(), pa.int32()
_TYPES: Final[dict[Any, int]] = {_BITS: 0, _INT32: 1, pa.int64(): 2}
_DATA, _DICTIONARY = 0, 2
_SHORT: Final = 64  # values of a row, up to which levels as bits are shorter than two runs
_ALIGNED: Final = 64  # levels that are a run of their own, of three bytes

# Of indices, level 3 makes a thirtieth less and takes a third longer (measured on text, code and other languages).
_INDICES: Final = pa.Codec("zstd", compression_level=2)
_VALUES: Final = pa.Codec("zstd", compression_level=3)

_RAW, _COMPRESSED = 0, 2
_BLOCK: Final = 4 * STEP  # bytes of the entries that share all but their lowest byte
# Magic; one segment, the content's size in four bytes, no checksum.
_HEADER: Final = bytes.fromhex("28b52ffd a0")
_THREE: Final = 0  # the code of a match of three bytes
_SAME_OFFSET: Final = 0  # the code of the offset of the sequence before
_FAR: Final = 10  # the code of offsets 1021 .. 2044: it takes ten bits more

Written: TypeAlias = "int | list[Written] | dict[int, Written]"
"""What a value is written as: numbers and bytes by Thrift's number of their type, a list by the type of its values, and
a struct by those of its fields."""

_I32, _I64, _BINARY = 5, 6, 8
_LISTED, _STRUCT = 9, 12
_ELEMENT: Final[Written] = {1: _I32, 3: _I32, 4: _BINARY, 5: _I32, 6: _I32, 10: {3: {}}}
_FACTS: Final[dict[int, Written]] = {
    1: _I32,
    2: [_I32],
    3: [_BINARY],
    4: _I32,
    **dict.fromkeys((5, 6, 7, 9, 11), _I64),
}
_GROUP: Final[Written] = {1: [{2: _I64, 3: _FACTS}], 2: _I64, 3: _I64, 6: _I64}
_KEY_VALUES: Final[Written] = [{1: _BINARY, 2: _BINARY}]
_FILE: Final[Written] = {1: _I32, 2: [_ELEMENT], 3: _I64, 4: [_GROUP], 5: _KEY_VALUES, 6: _BINARY}
_PAGE: Final[Written] = {
    **dict.fromkeys((1, 2, 3, 4), _I32),
    5: dict.fromkeys((1, 2, 3, 4), _I32),
    7: {1: _I32, 2: _I32},
}


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
        self._form = _form(schema.serialize().to_pybytes())
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

    def _chunk(
        self, kind: _LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int
    ) -> Fields:
        """Write the values of all rows; returns what the footer says of it.

        `begins`: where each row begins, int64[rows]; the length of all rows where they have one.
        """
        start, stored, decoded, entries = self._at, list[int](), 0, 0
        if isinstance(begins, int) and kind.values == _INT32 and len(values) >= LEAST_INDICES:
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
        self, kind: _LeafKind, values: npt.NDArray[Any], begins: npt.NDArray[np.int64] | int, entries: int
    ) -> Iterator[WrittenPage]:
        """Yield the pages of a column, of indices where it has a dictionary; each is good until the next."""
        size, bits = len(values), kind.values == _BITS
        if bits:  # eight in a byte, the first lowest
            values = np.packbits(values, bitorder="little")
        if entries:
            detail = {7: {1: entries, 2: PLAIN}}
            yield _page(_DICTIONARY, identity_dictionary(entries), 4 * entries, detail)
        for begin in range(0, size, PAGE_VALUES):
            end = min(size, begin + PAGE_VALUES)
            if isinstance(begins, int):
                levels = _fixed_levels(begins, begin, end - begin)
            else:
                levels = _list_levels(begins, begin, end)
            places = slice(begin // 8, (end + 7) // 8) if bits else slice(begin, end)
            if entries:
                yield self._indices(levels, values[places])
            else:
                yield self._plain(end - begin, levels, values[places])

    def _plain(self, count: int, repetition: bytes, values: npt.NDArray[Any]) -> WrittenPage:
        """Return a page of so many values, as they lie in memory."""
        data = values.view(np.uint8)
        body, place = self._body(_prefixed(repetition) + _prefixed(_ones(count)), len(data))
        place[:] = data
        return _data_page(_VALUES, body, count, PLAIN)

    def _indices(self, repetition: bytes, numbers: npt.NDArray[np.int32]) -> WrittenPage:
        """Return a page of indices, each below 65,536; they lie at an even place of the body."""
        groups = (len(numbers) + 7) // 8
        width = bytes([BITS]) + unsigned(groups << 1 | 1)
        levels = _prefixed(repetition) + _prefixed(_ones(len(numbers), len(repetition) + 8 + len(width)))
        body, place = self._body(levels + width, BITS * groups)
        indices = place.view("<u2")
        indices[: len(numbers)], indices[len(numbers) :] = numbers, 0
        return _data_page(_INDICES, body, len(numbers), RLE_DICTIONARY)

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


class _LeafKind(NamedTuple):
    """What all column chunks of some values have in common: their type in Arrow, and what the footer says of them.

    `facts`: of a chunk whose values are as they are, and of one of indices.
    """

    values: pa.DataType
    facts: tuple[Fields, Fields]


class _Column(NamedTuple):
    """A column of lists.

    Attributes:
        name: of the field.
        length: of each list; 0: any.
        leaves: of its values, or of the fields of the structs that they are.
    """

    name: str
    length: int
    leaves: tuple[_LeafKind, ...]


class _Form(NamedTuple):
    """A schema as the writer needs it, and as the footer has it.

    Attributes:
        columns: in order.
        elements: the schema as Parquet has it, written.
        described: the file's key-values, written.
    """

    columns: tuple[_Column, ...]
    elements: bytes
    described: bytes


@cache
def _form(serialized: bytes) -> _Form:
    """Return the Parquet form of a schema, computed once for the thousands of small shards that share it.

    Args:
        serialized: the schema as an Arrow IPC message. A schema with metadata has no hash in pyarrow below 26.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    elements, columns = [_element("schema", children=len(schema.names))], list[_Column]()
    for field in schema:
        # A list is a group of a repeated group of its values.
        kind: Any = field.type
        held, path = kind.value_type, (field.name, "list", "element")
        elements.append(_element(field.name, _REQUIRED, children=1, is_list=True))
        elements.append(_element("list", _REPEATED, children=1))
        if pa.types.is_struct(held):
            elements.append(_element("element", _REQUIRED, children=held.num_fields))
            leaves = [(each.type, (*path, each.name)) for each in held]
        else:
            leaves = [(held, path)]
        elements += [_element(names[-1], _REQUIRED, kind=_TYPES[values]) for values, names in leaves]
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else 0
        columns.append(_Column(field.name, length, tuple(_leaf_kind(*leaf) for leaf in leaves)))
    described = {**(schema.metadata or {}), b"ARROW:schema": base64.b64encode(serialized)}
    return _Form(
        columns=tuple(columns),
        elements=thrift([_ELEMENT], elements),
        described=thrift(_KEY_VALUES, [{1: key, 2: value} for key, value in described.items()]),
    )


def _leaf_kind(values: pa.DataType, path: tuple[str, ...]) -> _LeafKind:
    # Lists that are the same in every chunk are written once.
    names = thrift([_BINARY], [name.encode() for name in path])
    plain, indices = (
        {1: _TYPES[values], 2: thrift([_I32], encodings), 3: names, 4: _ZSTD}
        for encodings in ((PLAIN, RLE), (PLAIN, RLE, RLE_DICTIONARY))
    )
    return _LeafKind(values, (plain, indices))


def _element(
    name: str, form: int | None = None, *, kind: int | None = None, children: int = 0, is_list: bool = False
) -> Fields:
    fields = {
        1: kind,
        3: form,
        4: name.encode(),
        5: children or None,
        6: _LIST if is_list else None,
        10: {3: {}} if is_list else None,
    }
    return {number: value for number, value in fields.items() if value is not None}


class WrittenPage(NamedTuple):
    """A page.

    Attributes:
        header, body: its bytes.
        size: bytes of the body before it was compressed.
    """

    header: bytes
    body: bytes | memoryview
    size: int


def _data_page(codec: pa.Codec, body: npt.NDArray[np.uint8], count: int, encoding: int) -> WrittenPage:
    # Arrow's memory is used again, too; its own view of a buffer is as long as what was reserved for it.
    given: Any = body
    stored: Any = codec.compress(given)
    return _page(
        _DATA, memoryview(stored)[: stored.size], len(body), {5: {1: count, 2: encoding, 3: RLE, 4: RLE}}
    )


def _page(kind: int, body: bytes | memoryview, size: int, detail: Fields) -> WrittenPage:
    crc = zlib.crc32(body)
    crc -= crc >> 31 << 32  # it is written as a signed number
    header = {1: kind, 2: size, 3: len(body), 4: crc, **detail}
    return WrittenPage(thrift(_PAGE, header), body, size)


@lru_cache(maxsize=64)
def _fixed_levels(length: int, begin: int, count: int) -> bytes:
    """Return levels of the values from `begin` on, of rows of one length: 0 where a row begins, else 1."""
    before = min(-begin % length, count)
    if length < _SHORT:
        return _list_levels(np.arange(before, count, length), 0, count)
    rows, rest = divmod(count - before, length)
    return _run(before, 1) + _row(length) * rows + _row(rest)


def _list_levels(begins: npt.NDArray[np.int64], begin: int, end: int) -> bytes:
    """Return levels of the values from `begin` to `end`, as one run of bits; rows begin at `begins`, ascending."""
    levels = np.ones(end - begin, np.uint8)
    levels[begins[slice(*np.searchsorted(begins, (begin, end)))] - begin] = 0
    bits = np.packbits(levels, bitorder="little")
    return unsigned(len(bits) << 1 | 1) + bits.tobytes()


def _row(length: int) -> bytes:
    return _run(1, 0) + _run(length - 1, 1) if length else b""


def _run(count: int, level: int) -> bytes:
    """One level, repeated."""
    return unsigned(count << 1) + bytes([level]) if count else b""


def _ones(count: int, before: int = 0) -> bytes:
    """Levels of 1, in as many bytes as let what stands `before` bytes further begin at an even place."""
    whole = _run(count, 1)
    if (before + len(whole)) % 2 == 0 or count < 3 * _ALIGNED:
        return whole
    parted = _run(_ALIGNED, 1) + _run(count - _ALIGNED, 1)
    return parted if (before + len(parted)) % 2 == 0 else whole


def _prefixed(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


@lru_cache(maxsize=4)
def identity_dictionary(entries: int) -> bytes:
    """Return int32 0, 1, ..., entries - 1, little-endian, as a zstd frame.

    Args:
        entries: a multiple of :data:`STEP`, at most :data:`MOST_ENTRIES`.

    The entries say nothing, and a frame can say so: its 13 bytes for 256 entries are put together here (RFC 8878,
    "Zstandard Compression and the 'application/zstd' Media Type", sections 3.1.1.1 to 3.1.1.3); zstd would take as much
    for all entries as the ids take. Entry ``256 b + k`` is the bytes ``k b 0 0``. So from the second byte of entry 256
    b on, 256 times: the literal b, then three bytes ``0 0 k+1`` that stand 1,024 bytes before. The first 256 entries,
    the first byte of the next and the last three bytes of all lie there as they are.
    """
    if entries % STEP or not 0 < entries <= MOST_ENTRIES:
        raise ValueError(
            f"a dictionary of {entries} entries; expected a multiple of {STEP} up to {MOST_ENTRIES}"
        )
    first = b"".join(entry.to_bytes(4, "little") for entry in range(STEP))
    high = entries // STEP
    blocks = [(_RAW, first + b"\0" * (high > 1))]
    blocks += [(_COMPRESSED, _entries(number, STEP - (number == high - 1))) for number in range(1, high)]
    if high > 1:
        blocks.append((_RAW, bytes([high - 1, 0, 0])))
    frame = bytearray(_HEADER + (4 * entries).to_bytes(4, "little"))
    for number, (kind, body) in enumerate(blocks):
        last = number == len(blocks) - 1
        frame += (len(body) << 3 | kind << 1 | last).to_bytes(3, "little") + body
    return bytes(frame)


def _entries(high: int, count: int) -> bytes:
    """The body of a block of so many sequences: the literal `high`, then three bytes of the block before."""
    literals = (count << 4 | 0b0101).to_bytes(2, "little") + bytes([high])  # one byte, so often
    head = (bytes([0x80 | count >> 8, count & 0xFF]) if count > 127 else bytes([count])) + b"\x54\x01"
    if high > 1:
        return literals + head + bytes([_SAME_OFFSET, _THREE, 1])
    # The value of an offset is three more than it is; a bit of 1 ends the bits of all.
    bits = sum((_BLOCK + 3 - (1 << _FAR)) << _FAR * place for place in range(count)) | 1 << _FAR * count
    return literals + head + bytes([_FAR, _THREE]) + bits.to_bytes(_FAR * count // 8 + 1, "little")


Fields: TypeAlias = Mapping[int, Any]
"""A struct of Thrift: the values of its fields by their ids, which rise, each at most 15 more than the one before."""


def thrift(kind: Written, value: Any) -> bytes:
    """Return a value as Thrift's compact protocol has it.

    Args:
        value: a number; bytes; a sequence of values; or a struct (:data:`Fields`). In the place of a list or a struct,
            bytes are what this returned for it before.
    """
    if isinstance(value, bytes):
        return unsigned(len(value)) + value if kind == _BINARY else value
    if isinstance(kind, int):
        return unsigned(value << 1 ^ value >> 63)
    if isinstance(kind, list):
        (each,), size = kind, len(value)
        head = bytes([size << 4 | _code(each)]) if size < 15 else bytes([0xF0 | _code(each)]) + unsigned(size)
        return head + b"".join([thrift(each, item) for item in value])
    found, last = bytearray(), 0
    kinds: Mapping[int, Any] = kind
    for number, item in value.items():
        inner = kinds[number]
        if isinstance(item, int):  # as most are: to call for each would take as long again
            found.append(number - last << 4 | inner)
            found += unsigned(item << 1 ^ item >> 63)
        else:
            found.append(number - last << 4 | _code(inner))
            found += thrift(inner, item)
        last = number
    found.append(0)
    return bytes(found)


def _code(kind: Written) -> int:
    """Return Thrift's number of a type."""
    return kind if isinstance(kind, int) else _LISTED if isinstance(kind, list) else _STRUCT


@lru_cache(maxsize=1 << 12)
def unsigned(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
