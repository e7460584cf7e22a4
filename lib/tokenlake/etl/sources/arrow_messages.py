"""The place and content of messages in Arrow IPC files and streams, from metadata.

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
# A damaged length must not make the reader ask for gigabytes of metadata.
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
    """Return the content of a message's metadata.

    Args:
        metadata: Bytes of the metadata, without the length in front of them.

    Raises:
        ValueError: The metadata is not consistent.
    """
    # The header of a batch is the batch; that of a dictionary holds it.
    root = FlatTable(metadata)
    kind = root.scalar(_MESSAGE_KIND, "<B")
    body_bytes = root.scalar(_MESSAGE_BODY, "<q")
    batch_table = root.table(_MESSAGE_HEADER)
    if batch_table is not None and kind == DICTIONARY:
        batch_table = batch_table.table(_DICTIONARY_DATA)
    elif kind != BATCH:
        batch_table = None

    # Every buffer must lie inside of the body.
    row_count = 0
    buffers: list[tuple[int, ...]] = []
    variadic: list[int] = []
    is_compressed = False
    if batch_table is not None:
        row_count = batch_table.scalar(_BATCH_ROWS, "<q")
        buffers = batch_table.structs(_BATCH_BUFFERS, "<qq")
        is_compressed = batch_table.table(_BATCH_COMPRESSION) is not None
        for (buffer_count,) in batch_table.structs(_BATCH_VARIADIC_COUNTS, "<q"):
            variadic.append(buffer_count)
    is_outside = False
    for offset, size in buffers:
        if offset < 0 or size < 0 or offset + size > body_bytes:
            is_outside = True
    if body_bytes < 0 or row_count < 0 or is_outside:
        raise ValueError(
            f"a message records {row_count} rows and {body_bytes} bytes, but its buffers are outside of them"
        )
    return Message(
        kind=kind,
        rows=row_count,
        body=body_bytes,
        buffers=buffers,
        compressed=is_compressed,
        variadic=variadic,
    )


def metadata_size(prefix: bytes) -> tuple[int, int]:
    """Return the sizes in bytes of the length field and of the metadata behind it.

    The size 0 of metadata marks the end of a stream. Streams before Arrow 0.15 have no
    continuation marker.

    Args:
        prefix: First 8 bytes of a message.

    Raises:
        ValueError: The metadata would be negative or too large.
    """
    length_size = 8 if prefix[:4] == CONTINUATION else 4
    metadata_bytes = int(struct.unpack_from("<i", prefix, length_size - 4)[0])
    if not 0 <= metadata_bytes <= _MAX_METADATA:
        raise ValueError(
            f"the metadata of a message has a stated size of {metadata_bytes} bytes"
        )
    return length_size, metadata_bytes


def file_blocks(pread: Pread, size: int) -> FileBlocks:
    """Return the messages that a footer lists.

    Args:
        pread: Function of (size, offset) that returns bytes of the file.
        size: Size of the file in bytes.

    Raises:
        ValueError: The footer is not consistent.
    """
    # The file is read from its end: the magic, before it the length of the footer in
    # four bytes, before that the footer.

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
    all_blocks = dictionaries + batches
    for block in all_blocks:
        is_inside = (
            block.offset >= FILE_START and block.offset + block.size <= footer_stop
        )
        if not is_inside or min(block.metadata, block.body) < 0:
            raise ValueError(
                f"it lists a block at byte {block.offset} that is outside the file"
            )
    _check_complete(pread, all_blocks, footer_start)
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
    # Metadata of the schema is not listed as a block. The first block begins behind it.
    length_size, metadata_bytes = metadata_size(pread(8, FILE_START).ljust(8, b"\0"))
    expected = FILE_START + length_size + metadata_bytes
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
    metadata_block = pread(block.metadata, block.offset)
    prefix_bytes, metadata_bytes = metadata_size(metadata_block[:8].ljust(8, b"\0"))
    if prefix_bytes + metadata_bytes > len(metadata_block):
        raise ValueError(
            f"the message at byte {block.offset} is longer than the footer records"
        )
    message = parse_message(
        metadata_block[prefix_bytes : prefix_bytes + metadata_bytes]
    )
    if message.kind != kind or message.body > block.body:
        noun = "batch" if kind == BATCH else "dictionary"
        raise ValueError(
            f"at byte {block.offset} there is no {noun} of {block.body} bytes"
        )
    return message


def column_buffers(schema: pa.Schema, message: Message) -> list[list[int]]:
    """Return the indices of each top-level column's buffers.

    Raises:
        ValueError: The schema needs another number of buffers.
    """
    variadic = iter(message.variadic)
    counts = [_count_buffers(field.type, variadic) for field in schema]
    if sum(counts) != len(message.buffers):
        raise ValueError(
            f"a batch has {len(message.buffers)} buffers, its schema needs {sum(counts)}"
        )
    # Buffers of all columns, children included, lie one after the other in the order
    # of the schema.
    indices_of_columns: list[list[int]] = []
    first_index = 0
    for count in counts:
        indices_of_columns.append(list(range(first_index, first_index + count)))
        first_index += count
    return indices_of_columns


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
    """Return the number of bytes that some buffers of a message take in memory.

    Compressed and decompressed bytes count: both are in memory while a buffer is
    decompressed.

    Args:
        message: The message.
        buffers: (offset, size) of the buffers in its body.
        pread: Function of (size, offset) that returns bytes of the body.
    """
    total_bytes = 0
    for offset, size in buffers:
        total_bytes += size
        # A compressed buffer begins with its decompressed size. The size -1 marks a
        # buffer that was stored plain because compression would not have made it
        # smaller.
        if message.compressed and size >= _PREFIX:
            (decompressed_size,) = struct.unpack("<q", pread(_PREFIX, offset))
            is_stored_plain = decompressed_size == -1
            total_bytes += size if is_stored_plain else max(decompressed_size, 0)
    return total_bytes


def is_file(data: InputBytes) -> bool:
    """Say whether an input has the file format, not the stream format.

    The first bytes tell them apart.

    Raises:
        DamagedFileError: The input is empty, an old Feather file, or no Arrow at all.
    """
    if not data.file.size:
        raise damaged(
            data.file, "it is empty; even an Arrow file without rows has some bytes"
        )
    # A compressed file cannot be read from its end without decompressing all of it. It
    # is read from the beginning, as a stream.
    if data.file.compression:
        return False
    first_bytes = data.pread(len(MAGIC), 0)
    if first_bytes.startswith(FEATHER_V1):
        raise unsuitable(
            data.file,
            "it is a Feather file of version 1",
            "write it again with pyarrow.feather",
        )
    if first_bytes == MAGIC:
        return True
    error = wrong_magic(data, STREAM_MARK, "Arrow file or stream")
    if error is not None:
        raise error
    return False


def batch_sizes(
    file: InputFile, storage_options: Mapping[str, Any] | None = None
) -> list[int] | None:
    """Return the size in bytes of every record batch; None for a stream.

    Only the footer of the file is read.
    """
    with opened(file, storage_options) as data:
        if not is_file(data):
            return None
        return [block.size for block in read_footer(data).batches]


def read_footer(data: InputBytes) -> FileBlocks:
    """Return the messages that the footer of an Arrow file lists.

    Raises:
        DamagedFileError: The footer cannot be read.
    """
    with reading(data.file, "its footer"):
        return file_blocks(data.pread, data.file.size)


def batch_starts(data: InputBytes) -> list[int]:
    """Return the row index of the first row of every batch, followed by the row count.

    Raises:
        DamagedFileError: The file is cut or corrupt.
    """
    row_counts: list[int] = []
    for batch_index, block in enumerate(read_footer(data).batches):
        with reading(data.file, f"record batch {batch_index}"):
            row_counts.append(read_message(data.pread, block, BATCH).rows)
    return list(accumulate(row_counts, initial=0))
