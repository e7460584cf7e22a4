"""The messages of Arrow IPC files and streams: their place and content, from their
metadata alone.

A message has a length, metadata (FlatBuffers) of that length, and a body of buffers::

    stream   schema, dictionaries and batches in any order, an end mark
    file     ARROW1, the same messages, a footer that lists the place of each, the footer's length, ARROW1

Batches and rows are numbered from 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tokenlake.base.arrays import Pread
from tokenlake.etl.sources.arrow_flatbuffers import FlatTable
from tokenlake.etl.sources.columnar import reading
from tokenlake.etl.sources.contents import wrong_magic
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.opening import opened

MAGIC: Final = b"ARROW1"
STREAM_MARK: Final = b"\xff\xff\xff\xff"
FEATHER_V1: Final = b"FEA1"
CONTINUATION: Final = b"\xff\xff\xff\xff"
FILE_START: Final = 8
"""Size in bytes of the magic and two bytes of padding, behind which the first
message begins.
"""
SCHEMA: Final = 1
DICTIONARY: Final = 2
BATCH: Final = 3

# Numbers of fields in the tables of Arrow's Message.fbs and File.fbs.
_MESSAGE_KIND: Final = 1
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY: Final = 3
_DICTIONARY_DATA: Final = 1
_BATCH_ROWS: Final = 0
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_BATCH_VARIADIC_COUNTS: Final = 4
_FOOTER_DICTIONARIES: Final = 2
_FOOTER_BATCHES: Final = 3

_BYTES_TYPES: Final = frozenset(
    {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
)
_MAX_METADATA: Final = 256 << 20
_TAIL_BYTES: Final = 10  # the footer's length and the magic
# Alignment and an end mark may stand between messages; no message is as small.
_PADDING: Final = 128
_PREFIX: Final = 8  # of a compressed buffer: its size once it is decompressed


class Block(NamedTuple):
    """Place of a message in a file.

    Attributes:
        offset: Offset of the message in bytes.
        metadata: Size of its metadata, the length in front included.
        body: Size of its body, which follows the metadata.
    """

    offset: int
    metadata: int
    body: int

    @property
    def size(self) -> int:
        """Size of the whole message in bytes."""
        return self.metadata + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Content of a message's metadata.

    Attributes:
        kind: SCHEMA, DICTIONARY, BATCH, or something else.
        rows: Number of rows of a batch.
        body: Size in bytes of the body, which follows the metadata.
        buffers: (offset, size) of each buffer in the body.
        compressed: Whether every buffer begins with the size it has once it is
            decompressed.
        variadic: Number of data buffers of each column of views.
    """

    kind: int
    rows: int
    body: int
    buffers: list[tuple[int, ...]]
    compressed: bool
    variadic: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlocks:
    """Messages that the footer of an Arrow file lists.

    Attributes:
        dictionaries: Places of the dictionaries.
        batches: Places of the record batches, in order.
    """

    dictionaries: list[Block]
    batches: list[Block]


def parse_message(metadata: bytes) -> Message:
    """Return the content of metadata without the length in front of it; ValueError
    if it is not consistent.
    """
    # The header of a batch is the batch; that of a dictionary holds it.
    root = FlatTable(metadata)
    kind = root.scalar(_MESSAGE_KIND, "<B")
    body = root.scalar(_MESSAGE_BODY, "<q")
    batch = root.table(_MESSAGE_HEADER)
    if batch is not None and kind == DICTIONARY:
        batch = batch.table(_DICTIONARY_DATA)
    elif kind != BATCH:
        batch = None

    # Every buffer must lie inside of the body.
    rows = 0
    buffers: list[tuple[int, ...]] = []
    variadic: list[int] = []
    is_compressed = False
    if batch is not None:
        rows = batch.scalar(_BATCH_ROWS, "<q")
        buffers = batch.structs(_BATCH_BUFFERS, "<qq")
        is_compressed = batch.table(_BATCH_COMPRESSION) is not None
        variadic = [count for (count,) in batch.structs(_BATCH_VARIADIC_COUNTS, "<q")]
    is_outside = any(
        offset < 0 or size < 0 or offset + size > body for offset, size in buffers
    )
    if body < 0 or rows < 0 or is_outside:
        raise ValueError(
            f"a message records {rows} rows and {body} bytes, but its buffers are outside of them"
        )
    return Message(
        kind=kind,
        rows=rows,
        body=body,
        buffers=buffers,
        compressed=is_compressed,
        variadic=variadic,
    )


def metadata_size(prefix: bytes) -> tuple[int, int]:
    """Return the size of the length field, and of the metadata behind it, both in
    bytes.

    The size 0 of metadata marks the end of a stream. Streams before Arrow 0.15 have no
    continuation marker.

    Args:
        prefix: First 8 bytes of a message.

    Raises:
        ValueError: The metadata would be negative or too large.
    """
    length_size = 8 if prefix[:4] == CONTINUATION else 4
    size = int(struct.unpack_from("<i", prefix, length_size - 4)[0])
    if not 0 <= size <= _MAX_METADATA:
        raise ValueError(f"the metadata of a message has a stated size of {size} bytes")
    return length_size, size


def file_blocks(pread: Pread, size: int) -> FileBlocks:
    """Return the messages that a footer lists.

    Args:
        pread: Function of (size, offset) that returns bytes of the file.
        size: Size of the file in bytes.

    Raises:
        ValueError: The footer is not consistent.
    """
    # 1. The footer's place.
    tail = pread(_TAIL_BYTES, max(size - _TAIL_BYTES, 0))
    if len(tail) < _TAIL_BYTES or tail[4:] != MAGIC:
        raise ValueError(
            "it does not end with the bytes ARROW1; the file is truncated or was never finished"
        )
    footer_size = int(struct.unpack_from("<i", tail)[0])
    footer_stop = size - _TAIL_BYTES
    if not 0 < footer_size <= footer_stop - FILE_START:
        raise ValueError(f"its stated size is {footer_size} bytes")
    footer_start = footer_stop - footer_size

    # 2. The blocks in it.
    footer = FlatTable(pread(footer_size, footer_start))
    dictionaries = _listed_blocks(footer, _FOOTER_DICTIONARIES)
    batches = _listed_blocks(footer, _FOOTER_BATCHES)
    blocks = dictionaries + batches
    for block in blocks:
        is_inside = (
            block.offset >= FILE_START and block.offset + block.size <= footer_stop
        )
        if not is_inside or min(block.metadata, block.body) < 0:
            raise ValueError(
                f"it lists a block at byte {block.offset} that is outside the file"
            )
    _check_complete(pread, blocks, footer_start)
    return FileBlocks(dictionaries=dictionaries, batches=batches)


def _listed_blocks(footer: FlatTable, field: int) -> list[Block]:
    """Return the blocks in a field of a footer."""
    structs = footer.structs(field, "<qi4xq")
    return [Block(offset, metadata, body) for offset, metadata, body in structs]


def _check_complete(pread: Pread, blocks: list[Block], footer_start: int) -> None:
    """Raise ValueError unless the blocks fill the file from its schema to its footer.

    A footer has no checksum: a flipped bit in it can leave batches out, whose bytes
    then belong to no block.
    """
    length_size, size = metadata_size(pread(8, FILE_START).ljust(8, b"\0"))
    expected = FILE_START + length_size + size
    for block in sorted(blocks):
        if not expected <= block.offset < expected + _PADDING:
            raise ValueError(
                f"it lists a block at byte {block.offset} where one at byte {expected} is expected"
            )
        expected = block.offset + block.size
    if not expected <= footer_start < expected + _PADDING:
        raise ValueError(
            f"the blocks that it lists end at byte {expected}, and it begins at byte {footer_start}"
        )


def read_message(pread: Pread, block: Block, kind: int) -> Message:
    """Return the metadata of the message in a block.

    Raises:
        ValueError: The metadata is not consistent, or not of a message of that kind.
    """
    data = pread(block.metadata, block.offset)
    length_size, size = metadata_size(data[:8].ljust(8, b"\0"))
    if length_size + size > len(data):
        raise ValueError(
            f"the message at byte {block.offset} is longer than the footer records"
        )
    message = parse_message(data[length_size : length_size + size])
    if message.kind != kind or message.body > block.body:
        noun = "batch" if kind == BATCH else "dictionary"
        raise ValueError(
            f"at byte {block.offset} there is no {noun} of {block.body} bytes"
        )
    return message


def column_buffers(schema: pa.Schema, message: Message) -> list[list[int]]:
    """Return the indices of each top-level column's buffers; ValueError if their
    number is not the schema's.
    """
    variadic = iter(message.variadic)
    counts = [_count_buffers(field.type, variadic) for field in schema]
    if sum(counts) != len(message.buffers):
        raise ValueError(
            f"a batch has {len(message.buffers)} buffers, its schema needs {sum(counts)}"
        )
    starts = accumulate(counts, initial=0)
    return [
        list(range(start, start + count))
        for start, count in zip(starts, counts, strict=False)
    ]


def _count_buffers(column_type: Any, variadic: Iterator[int]) -> int:
    """Return the number of buffers of a column, those of its children included."""
    # Buffers of the column itself: validity, and for most types data; strings and views
    # of lists have one more.
    types = pa.types
    if isinstance(column_type, pa.BaseExtensionType):
        return _count_buffers(column_type.storage_type, variadic)
    own_buffers = 2
    if types.is_null(column_type) or types.is_run_end_encoded(column_type):
        own_buffers = 0
    elif types.is_struct(column_type) or types.is_fixed_size_list(column_type):
        own_buffers = 1
    elif types.is_union(column_type):
        own_buffers = 1 if column_type.mode == "sparse" else 2
    elif types.is_string_view(column_type) or types.is_binary_view(column_type):
        own_buffers = 2 + next(variadic, 0)
    elif (
        column_type in _BYTES_TYPES
        or types.is_list_view(column_type)
        or types.is_large_list_view(column_type)
    ):
        own_buffers = 3

    # Buffers of its children.
    total = own_buffers
    if types.is_nested(column_type):
        for index in range(column_type.num_fields):
            total += _count_buffers(column_type.field(index).type, variadic)
    return total


def decoded_bytes(
    message: Message, buffers: Iterable[tuple[int, ...]], pread: Pread
) -> int:
    """Return the number of bytes that some buffers of a message take in memory,
    compressed and decompressed.

    Args:
        message: The message.
        buffers: (offset, size) of the buffers in its body.
        pread: Function of (size, offset) that returns bytes of the body.
    """
    total = 0
    for offset, size in buffers:
        total += size
        if message.compressed and size >= _PREFIX:
            (declared,) = struct.unpack("<q", pread(_PREFIX, offset))
            is_stored_plain = declared == -1
            total += size if is_stored_plain else max(declared, 0)
    return total


def is_file(data: InputBytes) -> bool:
    """Say whether an input has the file format, not the stream format; its first bytes
    tell them apart.

    Raises:
        DamagedFileError: The input is empty, an old Feather file, or no Arrow at all.
    """
    if not data.file.size:
        raise damaged(
            data.file, "it is empty; even an Arrow file without rows has some bytes"
        )
    if data.file.compression:
        return False
    head = data.pread(len(MAGIC), 0)
    if head.startswith(FEATHER_V1):
        raise unsuitable(
            data.file,
            "it is a Feather file of version 1",
            "write it again with pyarrow.feather",
        )
    if head == MAGIC:
        return True
    error = wrong_magic(data, STREAM_MARK, "Arrow file or stream")
    if error is not None:
        raise error
    return False


def batch_sizes(
    file: InputFile, storage_options: Mapping[str, Any] | None = None
) -> list[int] | None:
    """Return the size in bytes of every record batch of an Arrow file; None for a
    stream. Only the footer is read.
    """
    with opened(file, storage_options) as data:
        if not is_file(data):
            return None
        return [block.size for block in read_footer(data).batches]


def read_footer(data: InputBytes) -> FileBlocks:
    """Return the messages that the footer of an Arrow file lists; DamagedFileError
    if it cannot be read.
    """
    with reading(data.file, "its footer"):
        return file_blocks(data.pread, data.file.size)


def batch_starts(data: InputBytes) -> list[int]:
    """Return the row index of the first row of every record batch of an Arrow file,
    followed by the number of rows.

    Raises:
        DamagedFileError: The file is cut or corrupt.
    """
    rows: list[int] = []
    for number, block in enumerate(read_footer(data).batches):
        with reading(data.file, f"record batch {number}"):
            rows.append(read_message(data.pread, block, BATCH).rows)
    return list(accumulate(rows, initial=0))
