"""The beginning of a file, cut where a record ends, so that a reader takes it for a whole file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tokenlake.discovery.bounded import FILE_BYTES, BoundedBytes, BoundReached
from tokenlake.sources.formats import Format
from tokenlake.sources.stream import ByteStream

FIRST_BYTES: Final = 1 << 20
"""Decompressed bytes that are looked at; more, up to the bound, only where no record ends in them."""

# A string that the cut left open runs to the end.
_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]|[^"\[\]{},]++', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Decompressed bytes from the start of a file.

    Attributes:
        data: whole records.
        whole: whether they are all there are, so that the stream was read to its end.
        stored: bytes of the stored file that they come from.
    """

    data: bytes
    whole: bool
    stored: int


def read_beginning(data: BoundedBytes, kind: Format, *, document: bool = False) -> Beginning | None:
    """Return the beginning of an open file, None where its first record is longer than the bound.

    Args:
        document: the file is one text, which may be cut anywhere between two characters.

    Raises:
        DamagedFileError: the compressed stream is broken.
    """
    stream, taken, before = ByteStream(data), b"", data.bytes_read
    cut = _cut_text if document else _CUTS[kind]
    try:
        for size in (FIRST_BYTES, FILE_BYTES - FIRST_BYTES):
            wanted = min(size, FILE_BYTES - data.bytes_read) if not data.file.compression else size
            taken += (more := stream.read(wanted))
            if len(more) < wanted or (not data.file.compression and len(taken) == data.file.size):
                return Beginning(data=taken, whole=True, stored=data.file.size)
            if records := cut(taken):
                stored = _stored(data, data.bytes_read - before, records)
                return Beginning(data=records, whole=False, stored=stored)
    except BoundReached:
        return None
    return None


def _stored(data: BoundedBytes, read: int, records: bytes) -> int:
    """Return about how many stored bytes `records` come from.

    How far a decompressor has read says little, because it reads ahead; so they are compressed again.
    """
    codec = data.file.compression
    if codec is None:
        return len(records)
    again: bytes = pa.compress(records, codec=codec, asbytes=True)
    return max(1, min(read, len(again)))


def _cut_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _cut_quoted_lines(data: bytes) -> bytes:
    """Cut CSV: a line break inside quotes ends nothing."""
    end = data.rfind(b"\n") + 1
    quotes = data.count(b'"', 0, end)
    while end and quotes % 2:
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return data[:end]


def _cut_array(data: bytes) -> bytes:
    """Cut a JSON array after its last whole element, and close it."""
    depth, end = 0, 0
    for token in _JSON_TOKEN.finditer(data):
        first = token[0][:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif first == b"," and depth == 1:
            end = token.start()
    return data[:end] + b"]" if end else b""


def _cut_text(data: bytes) -> bytes:
    """Cut before a character that is not whole; what is no UTF-8 stays as it is."""
    for left_out in range(4):
        try:
            str(data[: len(data) - left_out], "utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                break
            continue
        return data[: len(data) - left_out]
    return data


_CUTS: Final[dict[Format, Callable[[bytes], bytes]]] = {
    "jsonl": _cut_lines,
    "json": _cut_array,
    "csv": _cut_quoted_lines,
    "tsv": _cut_quoted_lines,
    "text": _cut_lines,
}
