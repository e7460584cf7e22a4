"""Arrow IPC: files, whose batches can be read in any order, and streams; their first bytes tell them apart.

pyarrow decodes both. Four things are checked before it does, because it does not check them:

- a file's footer lists all of its batches: the blocks fill the file from its schema to its footer;
- a stream ends with the marker of its end: a stream that was cut between two batches looks whole to pyarrow;
- the buffers of a message lie inside of its body;
- they do not take too much memory once they are decompressed.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, repeat
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from tokenlake.base.arrays import Pread
from tokenlake.etl.sources import arrow_messages, columnar
from tokenlake.etl.sources.arrow_messages import (
    BATCH,
    DICTIONARY,
    FILE_START,
    MAGIC,
    SCHEMA,
    FileBlocks,
    Message,
)
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.where import Predicate
from tokenlake.runtime.reading.unfolding import Bomb, check_unfolded

_SLICE_BYTES: Final = 16 << 20
_PIECE_ROWS: Final = 1 << 16
_MAX_TEXT: Final = 1 << 30
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_IPC: Final[Any] = pyarrow.ipc
MAX_BATCH_BYTES: Final = 1 << 30
SLICED_BYTES: Final = 64 << 20
_DRAIN: Final = 1 << 20
_Pieces = Iterator[tuple[pa.RecordBatch | None, pa.LargeStringArray | None]]


class StoredBatch(NamedTuple):
    """A record batch of a file or stream that is not decoded yet.

    Attributes:
        message: Metadata of the batch.
        size: Number of stored bytes that count as read with it.
        read: (size, offset) -> bytes of its body.
        decode: Function that returns the wanted columns as pyarrow decodes them.
    """

    message: Message
    size: int
    read: Pread
    decode: Callable[[], pa.RecordBatch]


def read_arrow(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the record batches of `part`; extension columns come as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, what is wanted of it is missing, the text is
            not one of strings, or a batch would take too much memory.
    """
    file, limit = part.file, want.max_record_bytes
    open_batches = _open_file if arrow_messages.is_file(data) else _open_stream
    columns, batches = open_batches(part, data, want)
    first_row = 0
    for index in count():
        with columnar.reading(file, f"record batch {index}"):
            batch = next(batches, None)
            if batch is None:
                return
            message = batch.message
            if index < part.start:
                first_row += message.rows
                continue
            weight = _at_once(batch.size)
            if columns.sliceable(message):
                records = columnar.numbered(columns.slices(batch), first_row, weight, limit)
            else:
                columns.check(message, batch.read)
                if columns.nothing:
                    records = columnar.counted_records(first_row, message.rows, weight)
                else:
                    records = columnar.numbered(_decoded(batch, columns), first_row, weight, limit)
            del batch  # only who reads the records keeps what they are made of alive
            yield from records
            del records
        first_row += message.rows


def _at_once(size: int) -> Callable[[int], int]:
    """Return a weight of pieces: that of all of them is the first one's."""
    left = chain([size], repeat(0))
    return lambda _: next(left)


def _decoded(stored: StoredBatch, columns: WantedColumns) -> _Pieces:
    """Return a batch as pyarrow decodes it, in pieces; its offsets are checked here."""
    batch = stored.decode()
    if batch.num_rows != stored.message.rows:
        raise ValueError(f"it holds {batch.num_rows} rows, its metadata counts {stored.message.rows}")
    batch.validate()
    for column in batch.columns:
        columnar.check_offsets(column)
    return columns.rows(batch)


def _open_file(part: FileRange, data: InputBytes, want: Want) -> tuple[WantedColumns, Iterator[StoredBatch]]:
    """Return the wanted columns of a file, and its batches up to the last one of `part`."""
    blocks = arrow_messages.read_footer(data)
    with columnar.reading(part.file, "its schema"):
        schema = _first_schema(data)
        with _for_pyarrow(data) as source:
            if not schema.equals(_IPC.open_file(source).schema):
                raise ValueError("it is another one at the beginning of the file than in its footer")
        columns = WantedColumns(part.file, schema, want)
    return columns, _batches_of_file(part, data, blocks, columns)


def _first_schema(data: InputBytes) -> pa.Schema:
    """Return the schema at the beginning of a file, which stands in its footer, too."""
    length, size = arrow_messages.metadata_size(data.pread(8, FILE_START).ljust(8, b"\0"))
    metadata = data.pread(length + size, FILE_START)
    is_whole = size > 0 and len(metadata) == length + size
    if not is_whole or arrow_messages.parse_message(metadata[length:]).kind != SCHEMA:
        raise ValueError("there is none behind the file's first bytes")
    return _IPC.read_schema(pa.py_buffer(metadata))


def _for_pyarrow(data: InputBytes) -> Any:
    """Return a new file of pyarrow's."""
    place = data.for_arrow()
    return _ARROW.OSFile(place) if isinstance(place, str) else _ARROW.PythonFile(place, mode="r")


def _batches_of_file(
    part: FileRange, data: InputBytes, blocks: FileBlocks, columns: WantedColumns
) -> Iterator[StoredBatch]:
    # pyarrow decodes all dictionaries with the first batch.
    for number, block in enumerate(blocks.dictionaries):
        with columnar.reading(part.file, f"dictionary {number}"):
            message = arrow_messages.read_message(data.pread, block, DICTIONARY)
            columns.check(message, _body_of(data, block.offset + block.metadata))
    with _for_pyarrow(data) as source:
        reader = _IPC.open_file(source, options=columns.options)
        for number, block in enumerate(blocks.batches[: part.stop]):
            message = arrow_messages.read_message(data.pread, block, BATCH)
            body = _body_of(data, block.offset + block.metadata)
            yield StoredBatch(message, block.size, body, partial(reader.get_batch, number))


def _body_of(data: InputBytes, start: int) -> Pread:
    """Return what reads from the body of a message that begins at byte `start` of a file."""

    def read(size: int, offset: int) -> bytes:
        return data.pread(size, start + offset).ljust(size, b"\0")

    return read


def _open_stream(
    part: FileRange, data: InputBytes, want: Want
) -> tuple[WantedColumns, Iterator[StoredBatch]]:
    """Return the wanted columns of a stream, or of a file that is compressed as a whole, and its batches."""
    messages = _messages_of_stream(data)
    with columnar.reading(part.file, "its schema"):
        schema = next(messages)
        columns = WantedColumns(part.file, _IPC.read_schema(pa.py_buffer(schema.metadata)), want)
    return columns, _batches_of_stream(schema, messages, columns)


def _batches_of_stream(
    schema: StreamMessage, messages: Iterator[StreamMessage], columns: WantedColumns
) -> Iterator[StoredBatch]:
    feed = _Feed()
    feed.put(schema.metadata)
    reader = _IPC.open_stream(pa.PythonFile(feed, mode="r"), options=columns.options)
    for sent in messages:
        if sent.message.kind == DICTIONARY:
            columns.check(sent.message, sent.read)
            feed.put(sent.metadata, sent.body)
            continue

        def decode(sent: StreamMessage = sent) -> pa.RecordBatch:
            feed.put(sent.metadata, sent.body)
            return reader.read_next_batch()

        yield StoredBatch(sent.message, sent.size, sent.read, decode)
        del decode
        del sent  # else the body would be kept while the next one is read


class StreamMessage(NamedTuple):
    """A message of a stream.

    Attributes:
        metadata: Bytes of its metadata, including the length in front of them.
        message: Content of the metadata.
        body: Bytes of its body.
        size: Number of stored bytes that count as read with it.
    """

    metadata: bytes
    message: Message
    body: bytes
    size: int

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes of the body."""
        return self.body[offset : offset + size]


def _messages_of_stream(data: InputBytes) -> Iterator[StreamMessage]:
    """Yield the messages of a stream, or of a file that is compressed as a whole, from its beginning."""
    file, stream, at = data.file, ByteStream(data), 0

    def read(size: int, *, may_end: bool = False) -> bytes:
        nonlocal at
        left = file.size - at
        if size > left and not file.compression and not may_end:
            raise ValueError(f"{size} bytes are expected at byte {at}, {left} are there: it is cut")
        found = stream.read(size)
        at += len(found)
        if len(found) < size and not (may_end and found == bytes(4)):  # an end as it was before Arrow 0.15
            what = "in the middle of a message"
            if not found:
                what = "without the marker of a stream's end: it was cut between two batches"
            raise ValueError(f"it ends at byte {at} {what}")
        return found.ljust(size, b"\0")

    prefix = read(FILE_START)
    framed, expected = prefix.startswith(MAGIC), (SCHEMA,)
    prefix = read(8) if framed else prefix
    while True:
        length, size = arrow_messages.metadata_size(prefix)
        if not size:
            break
        metadata = prefix + read(size - (8 - length))
        message = arrow_messages.parse_message(metadata[length:])
        if message.body > MAX_BATCH_BYTES:
            raise ValueError(f"a message has {message.body} bytes, more than {MAX_BATCH_BYTES}")
        if message.kind not in expected:
            raise ValueError(
                "it does not begin with a schema; expected an Arrow file or stream"
                if expected == (SCHEMA,)
                else "there is another schema, or something unknown, between the batches"
            )
        expected = (BATCH, DICTIONARY)
        body = read(message.body)
        stored = stream.consumed() if message.kind == BATCH else 0
        yield StreamMessage(metadata, message, body, stored)
        del body
        prefix = read(8, may_end=True)
    if expected == (SCHEMA,):
        raise ValueError("it ends before there is a schema")
    with columnar.reading(file, "its end"):
        tail = b""
        while found := stream.read(_DRAIN):
            if not framed:
                raise ValueError("other bytes follow the marker of the stream's end")
            tail = (tail + found)[-len(MAGIC) :]
        if framed and tail != MAGIC:
            raise ValueError("the file does not end with the bytes ARROW1; it is cut or was never finished")


def _sliced_texts(
    pread: Pread, buffers: list[tuple[int, ...]], rows: int, *, large: bool
) -> Iterator[pa.LargeStringArray]:
    """Yield the texts of a column of strings.

    Args:
        pread: (size, offset) -> bytes of the batch's body.
        buffers: (offset, length) of validity, offsets and data.
        rows: how many there are.
        large: whether offsets have 64 bits.

    Raises:
        ValueError: offsets do not ascend or leave the data, or the buffers are too short.
        Bomb: one text has more than 1 GiB.
    """
    width = np.dtype("<i8" if large else "<i4")
    (bits, bits_size), (places, places_size), (data, data_size) = buffers
    if places_size < width.itemsize * (rows + 1) or 0 < bits_size < (rows + 7) // 8:
        raise ValueError(f"its buffers are too short for {rows} rows")
    at = 0
    while at < rows:
        count = min(_PIECE_ROWS, rows - at)
        raw = pread(width.itemsize * (count + 1), places + width.itemsize * at)
        offsets = np.frombuffer(raw, width, count + 1).astype(np.int64)
        if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > data_size:
            raise ValueError("an offset descends, or lies outside the data")
        count = max(1, int(np.searchsorted(offsets, offsets[0] + _SLICE_BYTES, side="right")) - 1)
        if offsets[count] - offsets[0] > _MAX_TEXT:
            raise Bomb(f"one text has {offsets[count] - offsets[0]} bytes, more than {_MAX_TEXT}")
        first, last = int(offsets[0]), int(offsets[count])
        offsets = offsets[: count + 1] - first
        valid = None
        if bits_size:
            # Pieces begin at multiples of eight rows only by chance: the bits are unpacked and packed anew.
            bytes_ = np.frombuffer(pread(at % 8 + count + 7 >> 3, bits + at // 8), np.uint8)
            unpacked = np.unpackbits(bytes_, bitorder="little")[at % 8 : at % 8 + count]
            valid = _ARROW.py_buffer(np.packbits(unpacked, bitorder="little").tobytes())
        texts = _ARROW.py_buffer(pread(last - first, data + first))
        yield _ARROW.LargeStringArray.from_buffers(count, _ARROW.py_buffer(offsets), texts, valid)
        del texts
        at += count


@final
class _Feed(io.RawIOBase):
    """A stream of messages that are put in one by one, and handed out without a copy."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[memoryview] = deque()

    def put(self, *parts: bytes) -> None:
        self._parts.extend(memoryview(part) for part in parts if part)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> Any:
        if not self._parts:
            return b""
        part = self._parts.popleft()
        if len(part) > size:
            self._parts.appendleft(part[size:])
        return part[:size]


@final
class WantedColumns:
    """The columns that are wanted of the batches of one Arrow file or stream.

    Attributes:
        text: where the text is, () where none is wanted.
        names: the columns that are wanted as rows.
        options: for pyarrow's readers: nothing else is decoded.
    """

    def __init__(self, file: InputFile, schema: pa.Schema, want: Want) -> None:
        """Raise DamagedFileError if a wanted column is missing or there twice, or the text is not one of strings."""
        names: list[str] = schema.names
        self.names: tuple[str, ...] = want.names(names)
        columnar.check_names(file, names, self.names)
        self.text: tuple[str, ...] = (
            columnar.text_path(file, schema, want.text) if want.text is not None else ()
        )
        self._schema = schema
        self._stored = 0  # bytes of the wanted part of messages
        self._unfolded = 0  # bytes of the rows that they made
        self._included = [at for at, name in enumerate(names) if name in (*self.names, *self.text[:1])]
        self.options = _IPC.IpcReadOptions(included_fields=self._included, use_threads=False)
        fields = [schema.field(at) for at in self._included]
        self._plain = pa.schema(
            [pa.field(field.name, columnar.plain_type(field.type), field.nullable) for field in fields]
        )

    @property
    def nothing(self) -> bool:
        """Whether records are only counted."""
        return not self._included

    def check(self, message: Message, read: Pread) -> None:
        """Raise Bomb if the wanted part of a message takes too much; `read` reads from its body."""
        size = arrow_messages.decoded_bytes(message, self.buffers(message), read)
        if size > MAX_BATCH_BYTES:
            raise Bomb(
                f"a batch takes {size} bytes in memory, more than {MAX_BATCH_BYTES}; "
                "write the file with fewer rows in a batch"
            )
        check_unfolded(8 * message.rows, message.body)
        self._stored += size

    def sliceable(self, message: Message) -> bool:
        """Say whether nothing but a large column of plain strings is wanted of a batch that is not compressed."""
        if message.compressed or self.names or len(self.text) != 1:
            return False
        kind: Any = self._schema.field(self.text[0]).type
        size = sum(length for _, length in self.buffers(message))
        return size > SLICED_BYTES and (pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def slices(self, batch: StoredBatch) -> _Pieces:
        """Yield the texts of a batch that is sliceable."""
        buffers = self.buffers(batch.message)
        large = pa.types.is_large_string(self._schema.field(self.text[0]).type)
        return ((None, text) for text in _sliced_texts(batch.read, buffers, batch.message.rows, large=large))

    def rows(self, batch: pa.RecordBatch) -> _Pieces:
        """Yield (wanted columns, text), each if it is wanted, in pieces of about 16 MB.

        Raises:
            Bomb: with those before they are much more than the messages can account for.
        """
        for piece in columnar.unfolded(batch, self._plain):
            self._unfolded += columnar.unfolded_bytes(piece)
            check_unfolded(self._unfolded, self._stored)
            text = columnar.as_text(columnar.pick(piece, self.text)) if self.text else None
            yield piece.select(list(self.names)) if self.names else None, text

    def buffers(self, message: Message) -> list[tuple[int, ...]]:
        """Return (offset, length) of the buffers that are decoded: of a dictionary all."""
        if message.kind != BATCH:
            return message.buffers
        columns = arrow_messages.column_buffers(self._schema, message)
        return [message.buffers[number] for at in self._included for number in columns[at]]
