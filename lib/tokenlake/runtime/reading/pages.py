"""Pages of a column chunk as our writers lay them out, decoded without Arrow.

A column chunk is a sequence of pages. A page is a header, then its compressed body:
levels, then values. Of all that Parquet allows, only the output of
:class:`tokenlake.runtime.parquet.writer.PackedWriter` and of
:func:`tokenlake.runtime.schema.open_writer` is decoded here:

- zstd; data pages of version 1 with a checksum; no nulls and no empty lists;
- values that are PLAIN, or indices of 16 bits into a dictionary whose entries are 0, 1,
  2, ...

Any other layout raises :class:`~tokenlake.runtime.reading.levels.Unfamiliar`, and the
caller reads the file with Arrow. An error that no layout explains is a ValueError.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tokenlake.runtime.parquet.dictionary_page import (
    MOST_ENTRIES,
    STEP,
    identity_dictionary,
)
from tokenlake.runtime.parquet.page_headers import PageHeader, parse_header
from tokenlake.runtime.parquet.thrift_writer import unsigned
from tokenlake.runtime.parquet.writer import BITS
from tokenlake.runtime.reading.levels import Unfamiliar
from tokenlake.runtime.reading.token_ids import Ids, check_ids, refuse_id

VALUE_BITS: Final = {0: 1, 1: 32}
"""Bits of a value that is decoded here, by Parquet's number of its type: booleans
and 32-bit integers.
"""

_CODEC: Final = pa.Codec("zstd")

_ENTRY_BYTES: Final = 4  # of a dictionary
# Of a page with few values; levels of many take far less than a byte for each.
_MOST_LEVEL_BYTES: Final = 64


class DecodedPage(NamedTuple):
    """Decompressed page of values.

    Attributes:
        values: Number of values.
        repetition: Repetition levels as stored.
        definition: Definition levels as stored.
        data: Values as stored.
        indices: True if the values are indices of 16 bits. Each index is also the
            number that it stands for.
    """

    values: int
    repetition: bytes
    definition: bytes
    data: memoryview
    indices: bool

    @property
    def numbers(self) -> Ids:
        """Values of a page of 32-bit integers.

        They are int32[values], or uint16[values] where they are stored as indices.
        """
        return np.frombuffer(self.data, "<u2" if self.indices else "<i4", self.values)


def _pool_of_pages() -> pa.MemoryPool:
    """Return the pool of memory for decoded pages.

    A loader holds hundreds of pages of half a megabyte, in an order of its own.
    Measured on 800 of them, jemalloc takes 5% more memory than they have, the system's
    allocator 20%, and Arrow's default pool 30%.
    """
    if "jemalloc" in pa.supported_memory_backends():
        return pa.jemalloc_memory_pool()
    return pa.system_memory_pool()


_MEMORY: Final = _pool_of_pages()


def pages_of(
    chunk: memoryview, values: int, bits: int, limit: int | None = None
) -> Iterator[DecodedPage]:
    """Yield the pages of values of a column chunk.

    Args:
        chunk: Bytes of the column chunk.
        values: Number of values that the chunk must hold.
        bits: Bits of a value, 1 or 32.
        limit: Upper bound of the values, which are ids from 0 to `limit` - 1; None for
            any numbers.

    Raises:
        Unfamiliar: A page has another layout than that of our writers.
        ValueError, OSError: The pages hold another number of values, have impossible
            sizes, or are damaged.
    """
    # Page by page. The first page may be a dictionary; all pages after it hold indices,
    # and without one none does.
    byte_offset = 0
    missing_values = values
    dictionary_entries = 0  # 0 until a dictionary was read
    while byte_offset < len(chunk):
        header = parse_header(chunk, byte_offset)
        if not header.ours:
            raise Unfamiliar("the header of a page has another form")
        stored = stored_body(chunk, header)
        is_first_page = byte_offset == 0
        if header.dictionary and is_first_page and bits == 32:
            dictionary_entries = _entries_of_identity(bytes(stored), header)
        elif header.dictionary or header.indices != (dictionary_entries > 0):
            raise Unfamiliar("pages of several forms")
        elif not 0 < header.values <= missing_values:
            raise ValueError(
                f"a page of {header.values} values; expected 1 to {missing_values}"
            )
        else:
            missing_values -= header.values
            yield _decoded(stored, header, bits, dictionary_entries, limit)
        byte_offset = header.begin + header.stored
    if missing_values:
        raise ValueError(
            f"pages of {values - missing_values} values; expected {values}"
        )


def stored_body(chunk: memoryview, header: PageHeader) -> memoryview:
    """Return the body of a page as stored.

    Raises:
        ValueError: The body is cut off, or its checksum is not that of the header.
    """
    # The size comes from the header, which has no checksum of its own.
    end = header.begin + header.stored
    if header.stored < 0 or end > len(chunk):
        raise ValueError(
            f"a page of {header.stored} bytes; {len(chunk) - header.begin} are there"
        )
    body = chunk[header.begin : end]
    checksum = zlib.crc32(body)
    if checksum != header.crc:
        raise ValueError(
            f"the checksum of a page is {checksum:08x}; expected {header.crc:08x}"
        )
    return body


def _entries_of_identity(stored: bytes, header: PageHeader) -> int:
    """Return the number of entries of an identity dictionary.

    In it each entry is its own index.
    """
    # Our writers store a dictionary in which entry i is i: indices are the ids, and need
    # no look-up.
    entries = header.values
    is_possible = 0 < entries <= MOST_ENTRIES and entries % STEP == 0
    if not is_possible or stored != identity_dictionary(entries):
        raise Unfamiliar("a dictionary of other entries than their indices")
    if header.size != _ENTRY_BYTES * entries:
        raise ValueError(
            f"a dictionary of {header.size} bytes; expected {entries} entries of {_ENTRY_BYTES}"
        )
    return entries


def _decoded(
    stored: memoryview,
    header: PageHeader,
    bits: int,
    dictionary_entries: int,
    limit: int | None,
) -> DecodedPage:
    """Decompress a page of values.

    Args:
        stored: Body of the page as stored.
        header: Header of the page.
        bits: Bits of a value that is stored as it is.
        dictionary_entries: Number of entries of the dictionary; 0 if values are stored
            as they are.
        limit: Upper bound of ids; None for any numbers.
    """
    # 1. The sizes that the number of values prescribes. Indices are one run of groups
    #    of 8, 16 bits each.
    run_head = b""
    value_bytes = (header.values * bits + 7) // 8
    if dictionary_entries:
        groups = (header.values + 7) // 8
        run_head = bytes([BITS]) + unsigned(groups << 1 | 1)
        value_bytes = BITS * groups
    if not value_bytes < header.size <= value_bytes + header.values + _MOST_LEVEL_BYTES:
        raise ValueError(
            f"a page of {header.size} bytes decompressed; expected {value_bytes} of values, and levels"
        )

    # 2. The parts of the body: repetition levels, definition levels, head of the run of
    #    indices, values.
    buffer: Any = _CODEC.decompress(stored, header.size, memory_pool=_MEMORY)
    body = memoryview(buffer)
    repetition, repetition_end = _levels_at(body, 0)
    definition, begin = _levels_at(body, repetition_end)
    if bytes(body[begin : begin + len(run_head)]) != run_head:
        raise Unfamiliar("indices in several runs, or of another width")
    begin += len(run_head)
    if len(body) - begin != value_bytes:
        raise Unfamiliar(f"{len(body) - begin} bytes of values; expected {value_bytes}")
    page = DecodedPage(
        header.values, repetition, definition, body[begin:], dictionary_entries > 0
    )

    # 3. The range of the numbers.
    if dictionary_entries:
        largest = int(page.numbers.max())
        if largest >= dictionary_entries:
            raise ValueError(
                f"the index {largest} into a dictionary of {dictionary_entries} entries"
            )
        if limit is not None and largest >= limit:
            refuse_id(largest, limit)
    elif limit is not None:
        check_ids(page.numbers, limit)
    return page


def _levels_at(body: memoryview, at: int) -> tuple[bytes, int]:
    """Return the levels at an offset, and the offset after them.

    Before the levels their length stands in four bytes.
    """
    begin = at + 4
    end = begin + int.from_bytes(body[at:begin], "little")
    if end > len(body):
        raise Unfamiliar("levels that are longer than the page")
    return bytes(body[begin:end]), end
