"""Column chunks as our own writer lays them out, decoded without a detour.

A column chunk is a run of pages; a page is a header, then its compressed body: levels, then values. Of all that
Parquet allows only what :class:`tokenlake.runtime.parquet.writer.PackedWriter` and
:func:`tokenlake.runtime.schema.open_writer` write
is understood here: zstd, data pages of version 1 with a checksum, no nulls, no empty lists; PLAIN, or indices of 16
bits into the dictionary that says of each the same number. Whatever is another way raises :class:`Unfamiliar`, and the
caller lets Arrow read it; what cannot be right in any file is a ValueError.

Where a column chunk is one page of indices, its numbers stay where they were decompressed. Else they are copied: a page
is decompressed to the same memory as the one before, which is in the processor's cache.

Headers come first, of any writer's pages: where they lie, and what decoding them can cost. A footer may say anything of
a chunk's size; a page's header says what a decoder will believe.
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Bools, Int32, Int64, Pread
from tokenlake.runtime.parquet.form import PLAIN, RLE_DICTIONARY
from tokenlake.runtime.parquet.identity_dictionary import MOST_ENTRIES, STEP, identity_dictionary
from tokenlake.runtime.parquet.pages import RLE
from tokenlake.runtime.parquet.thrift import Truncated, read_struct, read_unsigned
from tokenlake.runtime.parquet.thrift_writer import unsigned
from tokenlake.runtime.parquet.writer import BITS

UNFOLDED_BYTES: Final = 1 << 30  # what little may unfold to
VALUE_BITS: Final = {0: 1, 1: 32}
"""Of a value that is decoded here, by Parquet's number of its type: booleans and 32-bit integers."""
PLAIN_DICTIONARY: Final = 2
DELTA_BYTE_ARRAY: Final = 7

_UNFOLDED_TIMES: Final = 100
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # the header's field for each kind of page
_OURS: Final = {1, 2, 3, 4, 5}  # fields of data pages; statistics, the last, are empty or left out
_HEADER_SIZES: Final = (192, 64 << 10, 16 << 20)  # nearly all fit the first; statistics may be long


_KEPT: Final = 128 << 20  # bytes of free blocks of one size, or two blocks


@final
class Blocks:
    """Blocks of memory, each of them used by one owner at a time; may be used by several threads.

    Fresh memory is dear: the system gives it page by page, and each page is a fault at its first touch, which for a row
    group comes to a tenth of decoding it. What a cache lets go of is therefore written again by the next row group.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[Any]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes of any content, uint8[size].

        They are given to others when nothing refers to this array any more, nor to any view of it.
        """
        whole = _rounded(size)
        free = self._free.get(whole)
        if free is None:
            free = self._free.setdefault(whole, deque(maxlen=max(2, _KEPT // whole)))
        try:
            block: Any = free.pop()
        except IndexError:
            block = pa.allocate_buffer(whole)
        # A view of an array refers to the array that the memory belongs to. Since that of a block belongs to a
        # buffer, which is no array, all views refer to this one.
        taken = np.ndarray(size, np.uint8, block)
        # May be called at any moment, by any thread: it takes no lock. What does not fit pushes the oldest out.
        weakref.finalize(taken, free.append, block).atexit = False
        return taken


BLOCKS: Final = Blocks()
"""Those of this process: row groups of all datasets have much the same size."""


def _rounded(size: int) -> int:
    """Return at most an eighth more, so that there are few sizes."""
    step = max(1 << 12, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step


class Bomb(ValueError):
    """Decoding would take far more memory than what is stored can account for."""


def check_unfolded(decoded: int, stored: int) -> None:
    """Raise Bomb if `decoded` bytes came, or will come, out of `stored` ones that cannot account for them."""
    if decoded > UNFOLDED_BYTES and decoded > _UNFOLDED_TIMES * stored:
        raise Bomb(f"{stored} bytes of pages unfold to {decoded} bytes and more, as in a decompression bomb")


class PageHeader(NamedTuple):
    """What a page says of itself; -1 where it does not say a number.

    Attributes:
        dictionary: whether it holds a dictionary, not values.
        size: bytes of its body once it is decompressed.
        values: how many values it holds, nulls included; of a dictionary, its entries.
        encoding: Parquet's number of it.
        begin: where its body begins.
        stored: bytes of its body in the file.
        crc: of the body in the file, unsigned.
        known: False for a page of another kind, which decoders pass over.
        ours: whether it is laid out as our writers do: version 1, PLAIN or indices, levels in runs, a checksum, no
            statistics; or a PLAIN dictionary with a checksum.
    """

    dictionary: bool
    size: int
    values: int
    encoding: int
    begin: int = 0
    stored: int = 0
    crc: int = 0
    known: bool = True
    ours: bool = False

    @property
    def indices(self) -> bool:
        """Whether it holds indices into the dictionary."""
        return not self.dictionary and self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


def parse_header(data: bytes | memoryview, at: int = 0) -> PageHeader:
    """Read the header that begins at a place; ValueError where there is none, Truncated where it has no end."""
    header, begin = read_struct(data, at)
    kind = header.get(1)
    detail = _DETAILS.get(kind, 0) if isinstance(kind, int) else 0
    found: Any = header.get(detail)
    known = isinstance(found, dict)
    details: dict[int, Any] = found if known else {}
    if kind == _DICTIONARY:
        ours = details.keys() == {1, 2} and details[2] == PLAIN
    else:
        levels = details.get(3) == details.get(4) == RLE and details.get(5, {}) == {}
        values = details.keys() <= _OURS and details.get(2) in (PLAIN, RLE_DICTIONARY)
        ours = kind == _DATA and levels and values
    return PageHeader(
        dictionary=known and kind == _DICTIONARY,
        size=_number(header, 2),
        values=_number(details, 1),
        encoding=_number(details, 4 if kind == _DATA_V2 else 2),
        begin=begin,
        stored=_number(header, 3),
        crc=_number(header, 4) & 0xFFFFFFFF,
        known=known,
        ours=ours and header.keys() == {1, 2, 3, 4, detail},
    )


def walk_pages(pread: Pread, column: pq.ColumnChunkMetaData) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk in order, until there are as many values as its footer counts.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    return walk_chunk(pread, chunk_start(column), column.total_compressed_size, column.num_values)


def walk_chunk(pread: Pread, at: int, size: int, values: int) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk of `size` bytes from `at` on, until there are so many values.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    end, left = at + size, values
    while left > 0:
        if at >= end:
            raise ValueError(f"its pages hold {left} values fewer than the {values} of the footer")
        page = _header_at(pread, at)
        if page.stored < 0 or (page.known and (page.size < 0 or page.values < 0)):
            raise ValueError(f"the page header at byte {at} counts less than nothing")
        if page.known:
            left -= 0 if page.dictionary else page.values
            yield page
        at += page.begin + page.stored


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    """Return the offset of a column chunk's first page."""
    first: int = column.data_page_offset
    dictionary: int | None = column.dictionary_page_offset
    return dictionary if dictionary and dictionary < first else first


def _header_at(pread: Pread, at: int) -> PageHeader:
    for size in _HEADER_SIZES:
        data = pread(size, at)
        try:
            return parse_header(data)
        except Truncated:
            if len(data) < size:
                break
        except ValueError as error:
            raise ValueError(f"the page header at byte {at} is none: {error}") from error
    raise ValueError(f"the page header at byte {at} has no end")


def _number(struct: dict[int, Any], field: int) -> int:
    value = struct.get(field)
    return value if isinstance(value, int) else -1


UInt8 = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int32 | np.uint16]
"""Numbers as they are stored: of 32 bits, or of 16."""

_CODEC: Final = pa.Codec("zstd")
_SEEN: Final = 128


class Unfamiliar(Exception):
    """Bytes that may be good Parquet, but are not laid out as our writer lays them out."""


MOST_IDS: Final = 1 << 31
"""One more than the largest id that 32 bits hold."""


def check_ids(numbers: npt.NDArray[np.int32 | np.uint16], limit: int) -> None:
    """Raise ValueError unless all numbers are ids below a limit, and none is negative."""
    if not numbers.size:
        return
    # Seen as unsigned, a negative number is larger than every id: one pass finds both.
    unsigned_ids = numbers.view(np.uint32) if numbers.dtype == np.int32 else numbers
    largest = int(unsigned_ids.max())
    if largest >= limit:
        _refuse_id(largest, limit)


def _refuse_id(number: int, limit: int) -> NoReturn:
    shown = number - (1 << 32) if number >= MOST_IDS else number
    raise ValueError(f"the id {shown} is none of its tokenizer; expected 0 to {limit - 1}")


def fixed_numbers(
    chunk: memoryview, rows: int, length: int, seen: SeenLevels, limit: int | None = None
) -> Ids:
    """Return a column of rows of `length` numbers, [rows, length] that cannot be written to.

    Args:
        chunk: The bytes of the column chunk.
        rows, length: Rows, and numbers of each.
        seen: Levels that were right before.
        limit: Numbers are ids below it; None: any numbers.

    Raises:
        Unfamiliar: the pages are laid out in another way, or not all rows have so many values.
        ValueError, OSError: they are damaged, or a number is no id below `limit`.
    """
    found: Ids | None = None
    at, values = 0, rows * length
    for page in pages_of(chunk, values, 32, limit):
        seen.check(at % length, page)
        numbers = page.numbers
        if page.indices and page.values == values:
            return _sealed(numbers).reshape(rows, length)
        if found is None:
            found = BLOCKS.take(values * numbers.itemsize).view(numbers.dtype)
        found[at : at + page.values] = numbers
        at += page.values
        del page, numbers  # their memory is that of the next one
    found = np.zeros(0, np.int32) if found is None else found
    return _sealed(found).reshape(rows, length)


def fixed_bits(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Bools:
    """Return a column of rows of `length` bits, bool[rows, length]; errors as of :func:`fixed_numbers`."""
    parts: list[UInt8] = []
    at = 0
    for page in pages_of(chunk, rows * length, 1):
        seen.check(at % length, page)
        parts.append(np.unpackbits(np.frombuffer(page.data, np.uint8), count=page.values, bitorder="little"))
        at += page.values
    return _sealed(_joined(parts).view(np.bool_)).reshape(rows, length)


def list_numbers(chunk: memoryview, values: int) -> tuple[Int32, Int64]:
    """Return the `values` numbers of n lists, one list after the other, and where each begins and the last ends.

    Returns:
        int32[values] that cannot be written to, and int64[n + 1] from 0.

    Raises:
        Unfamiliar: the pages are laid out in another way, or a list is null or empty.
        ValueError, OSError: they are damaged.
    """
    parts: list[Int32] = []
    levels: list[UInt8] = []
    for page in pages_of(chunk, values, 32):
        if not _all_ones(page.definition, page.values):
            raise Unfamiliar("lists that are null or empty")
        levels.append(decode_levels(page.repetition, page.values))
        parts.append(page.numbers.astype(np.int32))
    begins = np.flatnonzero(_joined(levels) == 0)
    if not len(begins) or begins[0]:
        raise Unfamiliar("a list that begins before the first page")
    offsets = np.empty(len(begins) + 1, np.int64)
    offsets[:-1], offsets[-1] = begins, values
    return _sealed(_joined(parts)), offsets


@final
class SeenLevels:
    """Levels of rows of one length, compared with what they must be; what was found right once is known by its bytes.

    Args:
        length: values of a row.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._right: set[tuple[int, int, bytes, bytes]] = set()

    def check(self, phase: int, page: DecodedPage) -> None:
        """Raise Unfamiliar unless rows begin where they must in a page.

        Args:
            phase: values of the first row that lie in pages before.
        """
        key = (phase, page.values, page.repetition, page.definition)
        if key in self._right:
            return
        expected = np.ones(page.values, np.uint8)
        expected[-phase % self._length :: self._length] = 0
        right = np.array_equal(decode_levels(page.repetition, page.values), expected)
        if not right or not _all_ones(page.definition, page.values):
            raise Unfamiliar(f"rows that do not all have {self._length} values")
        if len(self._right) >= _SEEN:
            self._right.clear()
        self._right.add(key)


class DecodedPage(NamedTuple):
    """A decompressed page.

    Attributes:
        values: how many.
        repetition, definition: the levels, as they are stored.
        data: the values, as they are stored.
        indices: whether these are indices, each of which stands for the same number.
    """

    values: int
    repetition: bytes
    definition: bytes
    data: memoryview
    indices: bool

    @property
    def numbers(self) -> Ids:
        """The values, if each has 32 bits: int32[values], or the uint16[values] they are stored as."""
        return np.frombuffer(self.data, "<u2" if self.indices else "<i4", self.values)


def pages_of(chunk: memoryview, values: int, bits: int, limit: int | None = None) -> Iterator[DecodedPage]:
    """Yield the pages of a column chunk that holds so many values of some bits each, ids below `limit` if there is one.

    Raises:
        Unfamiliar: a page is not of the one kind that is understood.
        ValueError, OSError: the pages hold another number of values, have sizes that cannot be, or are damaged.
    """
    at, left, entries = 0, values, 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        if not header.ours:
            raise Unfamiliar("the header of a page has another form")
        stored = stored_body(chunk, header)
        if header.dictionary and not at and bits == 32:
            entries = _identity(bytes(stored), header)
        elif header.dictionary or header.indices != (entries > 0):
            raise Unfamiliar("pages of several forms")
        elif not 0 < header.values <= left:
            raise ValueError(f"a page of {header.values} values; expected 1 to {left}")
        else:
            left -= header.values
            yield _decoded(stored, header, bits, entries, limit)
        at = header.begin + header.stored
    if left:
        raise ValueError(f"pages of {values - left} values; expected {values}")


def stored_body(chunk: memoryview, header: PageHeader) -> memoryview:
    """Return the body of a page as it is stored; ValueError where it is cut, or not what its checksum says."""
    end = header.begin + header.stored
    if header.stored < 0 or end > len(chunk):
        raise ValueError(f"a page of {header.stored} bytes; {len(chunk) - header.begin} are there")
    stored = chunk[header.begin : end]
    if (found := zlib.crc32(stored)) != header.crc:
        raise ValueError(f"the checksum of a page is {found:08x}; expected {header.crc:08x}")
    return stored


def _identity(stored: bytes, header: PageHeader) -> int:
    """Return the entries of a dictionary page, each of which is its own index."""
    entries = header.values
    if not 0 < entries <= MOST_ENTRIES or entries % STEP or stored != identity_dictionary(entries):
        raise Unfamiliar("a dictionary of other entries than their indices")
    if header.size != 4 * entries:
        raise ValueError(f"a dictionary of {header.size} bytes; expected {entries} entries of 4")
    return entries


def _decoded(
    stored: memoryview, header: PageHeader, bits: int, entries: int, limit: int | None
) -> DecodedPage:
    """Decompress a page of values that have some bits each, or are indices into so many entries."""
    before, wide = b"", (header.values * bits + 7) // 8
    if entries:
        groups = (header.values + 7) // 8
        before, wide = bytes([BITS]) + unsigned(groups << 1 | 1), 16 * groups
    # Levels take far less than a byte each, but for what a few of them begin with.
    if not wide < header.size <= wide + header.values + 64:
        raise ValueError(f"a page of {header.size} bytes decompressed; expected {wide} of values, and levels")
    buffer: Any = _CODEC.decompress(stored, header.size)
    body = memoryview(buffer)
    repetition, middle = _levels(body, 0)
    definition, begin = _levels(body, middle)
    if bytes(body[begin : begin + len(before)]) != before:
        raise Unfamiliar("indices in several runs, or of another width")
    begin += len(before)
    if len(body) - begin != wide:
        raise Unfamiliar(f"{len(body) - begin} bytes of values; expected {wide}")
    page = DecodedPage(header.values, repetition, definition, body[begin:], entries > 0)
    if entries:
        largest = int(page.numbers.max())
        if largest >= entries:
            raise ValueError(f"the index {largest} into a dictionary of {entries} entries")
        if limit is not None and largest >= limit:
            _refuse_id(largest, limit)
    elif limit is not None:
        check_ids(page.numbers, limit)
    return page


def _levels(body: memoryview, at: int) -> tuple[bytes, int]:
    """Return levels, which their number of bytes stands before, and where they end."""
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    if end > len(body):
        raise Unfamiliar("levels that are longer than the page")
    return bytes(body[at + 4 : end]), end


def decode_levels(data: bytes, count: int) -> UInt8:
    """Return `count` levels of lists that are never null and never empty, uint8[count] of 0 and 1.

    The repetition level is 0 where a row begins; the definition level is 1 for every value. They are stored as runs: a
    varint, odd for a run of bits (its half: bytes of eight levels each, the first lowest), even for one level repeated
    (its half: how often; the level follows in a byte).

    Raises:
        Unfamiliar: they are fewer, or something else follows them.
    """
    parts: list[UInt8] = []
    at, left = 0, count
    while left > 0:
        head, at = varint(data, at)
        length = head >> 1
        if head & 1:
            end, taken = at + length, min(8 * length, left)
            if not 0 < length <= (left + 7) >> 3 or end > len(data):
                raise Unfamiliar("a run of levels that goes on too long")
            bits = np.frombuffer(data, np.uint8, length, at)
            parts.append(np.unpackbits(bits, count=taken, bitorder="little"))
        else:
            end, taken = at + 1, length
            if not 0 < length <= left or end > len(data) or data[at] > 1:
                raise Unfamiliar("a run of levels that goes on too long, or of another level than 0 and 1")
            parts.append(np.full(length, data[at], np.uint8))
        at, left = end, left - taken
    if at != len(data):
        raise Unfamiliar("bytes after the last level")
    return _joined(parts)


def _all_ones(data: bytes, count: int) -> bool:
    return bool(decode_levels(data, count).all())


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number, and where it ends; Unfamiliar where it does not."""
    try:
        return read_unsigned(data, at)
    except (IndexError, ValueError) as error:
        raise Unfamiliar("a run of levels without an end") from error


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
