"""The messages of Arrow IPC files and streams, from their metadata alone: where they lie and what they hold.

Metadata is FlatBuffers, as far as Arrow's messages use them; every access is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from tokenlake.base.arrays import Pread
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
FILE_START: Final = 8  # the magic and two bytes of padding
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_BYTES: Final = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})
_MAX_METADATA: Final = 256 << 20
_TAIL: Final = 10
_PADDING: Final = 128  # alignment and an end mark may stand between messages; none is as small
_PREFIX: Final = 8


@final
class FlatTable:
    """One table: fields are found through a table of offsets that lies elsewhere in the same bytes.

    All methods raise ValueError where the bytes do not hold together.
    """

    def __init__(self, data: bytes, at: int | None = None) -> None:
        """Read the table at `at`, by default the root."""
        self._data = data
        self._at = self._number("<I", 0) if at is None else at
        self._fields = self._at - self._number("<i", self._at)
        self._size = self._number("<H", self._fields)

    def scalar(self, field: int, layout: str, default: int = 0) -> int:
        """Return the number in field `field`, whose form is that of :mod:`struct`."""
        at = self._place(field)
        return self._number(layout, at) if at else default

    def table(self, field: int) -> FlatTable | None:
        """Return the table that `field` points at."""
        at = self._place(field)
        return FlatTable(self._data, at + self._number("<I", at)) if at else None

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return the vector of structs, or of numbers, that `field` points at."""
        at = self._place(field)
        if not at:
            return []
        at += self._number("<I", at)
        count, size = self._number("<I", at), struct.calcsize(layout)
        if at + 4 + count * size > len(self._data):
            raise ValueError(f"a vector of {count} items ends beyond the metadata")
        return list(struct.iter_unpack(layout, self._data[at + 4 : at + 4 + count * size]))

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        offset = self._number("<H", self._fields + entry) if entry < self._size else 0
        return self._at + offset if offset else 0

    def _number(self, layout: str, at: int) -> int:
        if at < 0:
            raise ValueError(f"an offset of {at} bytes lies outside the metadata")
        try:
            return struct.unpack_from(layout, self._data, at)[0]
        except struct.error as error:
            raise ValueError(f"an offset of {at} bytes lies outside the metadata") from error


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
    root = FlatTable(metadata)
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
    table = FlatTable(pread(length, end - length))
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


def read_message(pread: Pread, block: Block, kind: int) -> Message:
    """Return the metadata of the message in a block.

    Raises:
        ValueError: it makes no sense, or is not of a message of that kind.
    """
    data = pread(block.metadata, block.offset)
    length, size = metadata_size(data[:8].ljust(8, b"\0"))
    if length + size > len(data):
        raise ValueError(f"the message at byte {block.offset} is longer than the footer says")
    message = parse_message(data[length : length + size])
    if message.kind != kind or message.body > block.body:
        what = "batch" if kind == BATCH else "dictionary"
        raise ValueError(f"at byte {block.offset} there is no {what} of {block.body} bytes")
    return message


def column_buffers(schema: pa.Schema, message: Message) -> list[list[int]]:
    """Return for every top-level column the numbers of its buffers; ValueError if there are others."""
    variadic = iter(message.variadic)
    counts = [_count(field.type, variadic) for field in schema]
    if sum(counts) != len(message.buffers):
        raise ValueError(f"a batch has {len(message.buffers)} buffers, its schema needs {sum(counts)}")
    numbers = iter(range(sum(counts)))
    return [[next(numbers) for _ in range(count)] for count in counts]


def _count(kind: Any, variadic: Iterator[int]) -> int:
    types, own = pa.types, 2
    if isinstance(kind, pa.BaseExtensionType):
        return _count(kind.storage_type, variadic)
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        own = 0
    elif types.is_struct(kind) or types.is_fixed_size_list(kind):
        own = 1
    elif types.is_union(kind):
        own = 1 if kind.mode == "sparse" else 2
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        own = 2 + next(variadic, 0)
    elif kind in _BYTES or types.is_list_view(kind) or types.is_large_list_view(kind):
        own = 3
    inside = range(kind.num_fields) if types.is_nested(kind) else ()
    return own + sum(_count(kind.field(at).type, variadic) for at in inside)


def decoded_bytes(message: Message, buffers: Iterable[tuple[int, ...]], pread: Pread) -> int:
    """Return what some buffers of a message take in memory; `pread` reads from its body."""
    total = 0
    for offset, size in buffers:
        if message.compressed and size >= _PREFIX:
            (declared,) = struct.unpack("<q", pread(_PREFIX, offset))
            total += size if declared == -1 else max(declared, 0)  # -1: stored as it is
        total += size
    return total


def is_file(data: InputBytes) -> bool:
    """Say whether an input has the file format, not the stream format; its first bytes tell.

    Raises:
        DamagedFileError: it is empty, or an old Feather file.
    """
    if not data.file.size:
        raise damaged(data.file, "it is empty, not even an Arrow file of no rows")
    if data.file.compression:
        return False
    head = data.pread(len(MAGIC), 0)
    if head.startswith(FEATHER_V1):
        raise unsuitable(
            data.file, "it is a Feather file of version 1", "write it again with pyarrow.feather"
        )
    if head != MAGIC and (error := wrong_magic(data, STREAM_MARK, "Arrow file or stream")) is not None:
        raise error
    return head == MAGIC


def batch_sizes(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> list[int] | None:
    """Return the bytes of every record batch of an Arrow file, None for a stream; only the footer is read."""
    with opened(file, storage_options) as data:
        return [block.size for block in read_footer(data).batches] if is_file(data) else None


def read_footer(data: InputBytes) -> FileBlocks:
    """Return what the footer of an Arrow file lists; DamagedFileError if it cannot be read."""
    with reading(data.file, "its footer"):
        return file_blocks(data.pread, data.file.size)


def batch_starts(data: InputBytes) -> list[int]:
    """Return the number of the first row of every record batch of an Arrow file, and behind them that of rows.

    Raises:
        DamagedFileError: the file is cut or corrupt.
    """
    rows: list[int] = []
    for at, block in enumerate(read_footer(data).batches):
        with reading(data.file, f"record batch {at}"):
            rows.append(read_message(data.pread, block, BATCH).rows)
    return list(accumulate(rows, initial=0))
