"""Parquet files written byte by byte, so that a test can declare whatever it likes
in them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_BYTE_ARRAY, _OPTIONAL, _UTF8 = 6, 1, 0
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
DATA_PAGE, DICTIONARY_PAGE = 0, 2
CODECS = {"none": 0, "snappy": 1, "zstd": 6}


class Long(int):
    """A 64-bit integer; a plain `int` is one of 32 bits."""


def varint(value: int) -> bytes:
    """Return an unsigned integer in groups of seven bits, the lowest first."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def thrift(fields: Mapping[int, Any]) -> bytes:
    """Return a struct {field id: value} in Thrift's compact form."""
    data, before = b"", 0
    for number, value in fields.items():
        kind = _kind(value)
        data += bytes([(number - before) << 4 | kind]) + _encoded(value)
        before = number
    return data + b"\0"


def _kind(value: Any) -> int:
    if isinstance(value, int):
        return _I64 if isinstance(value, Long) else _I32
    return {bytes: _BINARY, list: _LIST, dict: _STRUCT}[type(value)]


def _encoded(value: Any) -> bytes:
    if isinstance(value, int):
        return varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if isinstance(value, bytes):
        return varint(len(value)) + value
    if isinstance(value, dict):
        return thrift(value)
    head = bytes([len(value) << 4 | _kind(value[0])])
    return head + b"".join(_encoded(item) for item in value)


def page(
    kind: int,
    body: bytes,
    values: int,
    encoding: int,
    *,
    stored: bytes | None = None,
    size: int | None = None,
) -> bytes:
    """Return a page with its header; `stored` is what `body` is compressed to,
    `size` what it claims to be.
    """
    stored = body if stored is None else stored
    details = {
        1: values,
        2: encoding,
        **({3: RLE, 4: RLE} if kind == DATA_PAGE else {}),
    }
    header = {
        1: kind,
        2: len(body) if size is None else size,
        3: len(stored),
        4: _signed(zlib.crc32(stored)),
        5 if kind == DATA_PAGE else 7: details,
    }
    return thrift(header) + stored


def _signed(value: int) -> int:
    return struct.unpack("<i", struct.pack("<I", value))[0]


def run(value: int, count: int) -> bytes:
    """Return the same level `count` times, as one run."""
    data = varint(count << 1) + bytes([value])
    return struct.pack("<i", len(data)) + data


def indices(value: int, count: int) -> bytes:
    """Return the same index into a dictionary `count` times, as one run of 8-bit
    indices.
    """
    return bytes([8]) + varint(count << 1) + bytes([value])


def write_by_hand(
    path: Path,
    pages: Sequence[bytes],
    rows: int,
    *,
    dictionary: bool = False,
    codec: str = "none",
    claimed: int | None = None,
) -> Path:
    """Write a file of one row group of one optional column of strings, `text`, that
    consists of `pages`.
    """
    body = b"".join(pages)
    size = Long(len(body) if claimed is None else claimed)
    column = {
        1: _BYTE_ARRAY,
        2: [PLAIN, RLE, RLE_DICTIONARY],
        3: [b"text"],
        4: CODECS[codec],
        5: Long(rows),
        6: size,
        7: Long(len(body)),
        9: Long(4 + len(pages[0]) if dictionary else 4),
        **({11: Long(4)} if dictionary else {}),
    }
    schema = [
        {4: b"schema", 5: 1},
        {1: _BYTE_ARRAY, 3: _OPTIONAL, 4: b"text", 6: _UTF8},
    ]
    group = {1: [{2: Long(4), 3: column}], 2: size, 3: Long(rows)}
    footer = thrift({1: 2, 2: schema, 3: Long(rows), 4: [group]})
    path.write_bytes(b"PAR1" + body + footer + struct.pack("<i", len(footer)) + b"PAR1")
    return path


def null_bomb(path: Path, rows: int) -> Path:
    """Write `rows` nulls in some hundred bytes."""
    return write_by_hand(path, [page(DATA_PAGE, run(0, rows), rows, PLAIN)], rows)


def dictionary_bomb(path: Path, rows: int, size: int, pages: int = 1) -> Path:
    """Write `rows` times the same text of `size` bytes, in about `size` bytes."""
    text = b"x" * size
    dictionary = page(DICTIONARY_PAGE, struct.pack("<i", size) + text, 1, PLAIN)
    each = rows // pages
    data = [
        page(DATA_PAGE, run(1, each) + indices(0, each), each, RLE_DICTIONARY)
        for _ in range(pages)
    ]
    return write_by_hand(path, [dictionary, *data], each * pages, dictionary=True)


def plain_texts(texts: Sequence[bytes]) -> bytes:
    """Return the body of a page of texts that are all there."""
    return run(1, len(texts)) + b"".join(
        struct.pack("<i", len(text)) + text for text in texts
    )
