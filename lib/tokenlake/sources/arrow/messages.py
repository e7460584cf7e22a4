"""The messages of Arrow IPC files and streams, from their metadata alone: where they lie and what they hold."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from tokenlake.sources.arrow.flatbuffer import Table
from tokenlake.sources.columnar.access import Pread

MAGIC: Final = b"ARROW1"
FEATHER_V1: Final = b"FEA1"
CONTINUATION: Final = b"\xff\xff\xff\xff"
FILE_START: Final = 8  # the magic and two bytes of padding

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_MAX_METADATA: Final = 256 << 20
_TAIL: Final = 10
_PADDING: Final = 128  # alignment and an end mark may stand between messages; none is as small


class Block(NamedTuple):
    """Where a message of a file lies: `metadata` bytes, the length in front of them included, then `body` bytes."""

    offset: int
    metadata: int
    body: int

    @property
    def size(self) -> int:
        """Bytes of the whole message."""
        return self.metadata + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the metadata of a message says.

    Attributes:
        kind: SCHEMA, DICTIONARY, BATCH, or something else.
        rows: of a batch.
        body: bytes that follow the metadata.
        buffers: (offset, length) in the body.
        compressed: whether every buffer begins with the size it has once decompressed.
        variadic: how many data buffers each column of views has.
    """

    kind: int
    rows: int
    body: int
    buffers: list[tuple[int, ...]]
    compressed: bool
    variadic: list[int]


def parse_message(metadata: bytes) -> Message:
    """Return what `metadata` says, without the length in front of it; ValueError if that makes no sense."""
    root = Table(metadata)
    kind, body, header = root.scalar(1, "<B"), root.scalar(3, "<q"), root.table(2)
    batch = header.table(1) if header and kind == DICTIONARY else header if kind == BATCH else None
    buffers = batch.structs(2, "<qq") if batch else []
    rows = batch.scalar(0, "<q") if batch else 0
    if body < 0 or rows < 0 or any(at < 0 or size < 0 or at + size > body for at, size in buffers):
        raise ValueError(f"a message counts {rows} rows and {body} bytes, its buffers lie outside of them")
    return Message(
        kind=kind,
        rows=rows,
        body=body,
        buffers=buffers,
        compressed=batch is not None and batch.table(3) is not None,
        variadic=[count for (count,) in batch.structs(4, "<q")] if batch else [],
    )


def metadata_size(prefix: bytes) -> tuple[int, int]:
    """Return (bytes of the length field, bytes of the metadata behind it) for the 8 bytes a message begins with.

    The size 0 marks the end of a stream. Streams before Arrow 0.15 have no continuation marker.
    """
    length = 8 if prefix[:4] == CONTINUATION else 4
    size = int(struct.unpack_from("<i", prefix, length - 4)[0])
    if not 0 <= size <= _MAX_METADATA:
        raise ValueError(f"a message's metadata claims to have {size} bytes")
    return length, size


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlocks:
    """What the footer of an Arrow file lists."""

    dictionaries: list[Block]
    batches: list[Block]


def file_blocks(pread: Pread, size: int) -> FileBlocks:
    """Return the blocks of an Arrow file of `size` bytes; ValueError if its footer makes no sense."""
    tail = pread(_TAIL, max(size - _TAIL, 0))
    if len(tail) < _TAIL or tail[4:] != MAGIC:
        raise ValueError("it does not end with the bytes ARROW1; the file is cut or was never finished")
    length = int(struct.unpack_from("<i", tail)[0])
    end = size - _TAIL
    if not 0 < length <= end - FILE_START:
        raise ValueError(f"it claims to have {length} bytes")
    table = Table(pread(length, end - length))
    dictionaries, batches = (
        [Block(at, meta, body) for at, meta, body in table.structs(field, "<qi4xq")] for field in (2, 3)
    )
    for block in (*dictionaries, *batches):
        if (
            block.offset < FILE_START
            or min(block.metadata, block.body) < 0
            or block.offset + block.size > end
        ):
            raise ValueError(f"it lists a block at byte {block.offset} that lies outside the file")
    _check_complete(pread, dictionaries + batches, end - length)
    return FileBlocks(dictionaries=dictionaries, batches=batches)


def _check_complete(pread: Pread, blocks: list[Block], footer: int) -> None:
    """Raise ValueError unless the blocks fill the file from its schema to its footer.

    A footer has no checksum: a flipped bit in it can leave batches out, whose bytes are then nobody's.
    """
    length, size = metadata_size(pread(8, FILE_START).ljust(8, b"\0"))
    at = FILE_START + length + size
    for block in sorted(blocks):
        if not at <= block.offset < at + _PADDING:
            raise ValueError(f"it lists a block at byte {block.offset} where one at byte {at} is expected")
        at = block.offset + block.size
    if not at <= footer < at + _PADDING:
        raise ValueError(f"the blocks that it lists end at byte {at}, and it begins at byte {footer}")


def read_metadata(pread: Pread, block: Block) -> bytes:
    """Return the metadata of a block without the length in front of it."""
    data = pread(block.metadata, block.offset)
    length, size = metadata_size(data[:8].ljust(8, b"\0"))
    if length + size > len(data):
        raise ValueError(f"the message at byte {block.offset} is longer than the footer says")
    return data[length : length + size]
