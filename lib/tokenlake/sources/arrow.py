"""Arrow IPC: files, whose batches can be read in any order, and streams; their first bytes tell them apart.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process. Every message is judged by its
metadata before pyarrow decodes it: where its buffers lie, what they take once decompressed, and that no batch is
missing. A stream that was cut between two batches looks whole to pyarrow; here the marker of its end must be there.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from tokenlake.arrays import Int64s
from tokenlake.reading.pages import Bomb, Pread, check_unfolded
from tokenlake.sources import arrow_messages, columnar
from tokenlake.sources.arrow_messages import Block, Message
from tokenlake.sources.batch import Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.where import Predicate

_SLICE_BYTES: Final = 16 << 20
_PIECE_ROWS: Final = 1 << 16
_MAX_TEXT: Final = 1 << 30
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_IPC: Final[Any] = pyarrow.ipc
MAX_BATCH_BYTES: Final = 1 << 30
SLICED_BYTES: Final = 64 << 20
_DRAIN: Final = 1 << 20


def sliced_texts(
    pread: Callable[[int, int], bytes], buffers: list[tuple[int, ...]], rows: int, *, large: bool
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
        count = _fitting(offsets, data_size)
        offsets = offsets[: count + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        # Pieces begin at multiples of eight rows only by chance: the bits are unpacked and packed anew.
        valid = pread(at % 8 + count + 7 >> 3, bits + at // 8) if bits_size else b""
        yield _texts(offsets - first, pread(last - first, data + first), valid, at % 8)
        at += count


def _fitting(offsets: Int64s, size: int) -> int:
    """Return how many of the texts between `offsets` make a piece; all offsets are checked."""
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > size:
        raise ValueError("an offset descends, or lies outside the data")
    count = max(1, int(np.searchsorted(offsets, offsets[0] + _SLICE_BYTES, side="right")) - 1)
    if offsets[count] - offsets[0] > _MAX_TEXT:
        raise Bomb(f"one text has {offsets[count] - offsets[0]} bytes, more than {_MAX_TEXT}")
    return count


def _texts(offsets: Int64s, data: bytes, valid: bytes, skip: int) -> pa.LargeStringArray:
    count = len(offsets) - 1
    bits = None
    if valid:
        unpacked = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[skip : skip + count]
        bits = _ARROW.py_buffer(np.packbits(unpacked, bitorder="little").tobytes())
    buffers = _ARROW.py_buffer(offsets), _ARROW.py_buffer(data), bits
    return _ARROW.LargeStringArray.from_buffers(count, *buffers)


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

    def check(self, message: Message, pread: Callable[[int, int], bytes]) -> None:
        """Raise Bomb if the wanted part of a message takes too much; `pread` reads from its body."""
        size = arrow_messages.decoded_bytes(message, self._buffers(message), pread)
        if size > MAX_BATCH_BYTES:
            raise Bomb(
                f"a batch takes {size} bytes in memory, more than {MAX_BATCH_BYTES}; "
                "write the file with fewer rows in a batch"
            )
        check_unfolded(8 * message.rows, message.body)

    def sliceable(self, message: Message) -> bool:
        """Say whether nothing but a large column of plain strings is wanted of a batch that is not compressed."""
        if message.compressed or self.names or len(self.text) != 1:
            return False
        kind: Any = self._schema.field(self.text[0]).type
        size = sum(message.buffers[number][1] for number in self._buffers(message))
        return size > SLICED_BYTES and (pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def slices(self, message: Message, pread: Callable[[int, int], bytes]) -> Iterator[pa.LargeStringArray]:
        """Yield the texts of a batch that is sliceable; `pread` reads from its body."""
        buffers = [message.buffers[number] for number in self._buffers(message)]
        large = pa.types.is_large_string(self._schema.field(self.text[0]).type)
        return sliced_texts(pread, buffers, message.rows, large=large)

    def _buffers(self, message: Message) -> list[int]:
        """Return the numbers of the buffers that are decoded: of a dictionary all."""
        if message.kind != arrow_messages.BATCH:
            return list(range(len(message.buffers)))
        columns = arrow_messages.column_buffers(self._schema, message)
        return [number for at in self._included for number in columns[at]]

    def rows(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[pa.RecordBatch | None, pa.LargeStringArray | None]]:
        """Yield (wanted columns, text), each if it is wanted, in pieces of about 16 MB."""
        for piece in columnar.unfolded(batch, self._plain):
            text = columnar.as_text(columnar.pick(piece, self.text)) if self.text else None
            yield piece.select(list(self.names)) if self.names else None, text


@final
class _Batches:
    """What is read of the batches of a file or stream, one after the other, as records."""

    def __init__(self, file: InputFile, columns: WantedColumns, want: Want) -> None:
        self._file, self._columns, self._limit = file, columns, want.max_record_bytes
        self.index = 0  # of the next batch
        self.first = 0  # number of its first row

    def skip(self, message: Message) -> None:
        """Pass over a batch."""
        self.index, self.first = self.index + 1, self.first + message.rows

    @contextmanager
    def reading(self) -> Generator[None]:
        """Turn what is wrong with the next batch into DamagedFileError."""
        with columnar.reading(self._file, f"record batch {self.index}"):
            yield

    def counted(self, message: Message, size: int) -> Iterator[Parsed]:
        """Yield the records of the next batch, of which nothing is wanted."""
        yield from columnar.counted_records(self.first, message.rows, _at_once(size))
        self.skip(message)

    def decoded(self, message: Message, size: int, batch: pa.RecordBatch) -> Iterator[Parsed]:
        """Yield the records of the next batch, as pyarrow decoded it; its offsets are checked here."""
        with self.reading():
            if batch.num_rows != message.rows:
                raise ValueError(f"it holds {batch.num_rows} rows, its metadata counts {message.rows}")
            batch.validate()
            for column in batch.columns:
                columnar.check_offsets(column)
        yield from self.pieces(message, size, self._columns.rows(batch))

    def pieces(
        self,
        message: Message,
        size: int,
        pieces: Iterator[tuple[pa.RecordBatch | None, pa.LargeStringArray | None]],
    ) -> Iterator[Parsed]:
        """Yield the records of the next batch, which come as (columns, text)."""
        with self.reading():
            yield from columnar.numbered(pieces, self.first, _at_once(size), self._limit)
        self.skip(message)


def _at_once(size: int) -> Callable[[int], int]:
    """Return a weight of pieces: that of all of them is the first one's."""
    left = chain([size], repeat(0))
    return lambda _: next(left)


def read_stream(part: FileRange, data: InputBytes, want: Want) -> Iterator[Parsed]:
    """Read a stream, or a file that is compressed as a whole, from its beginning.

    Raises:
        DamagedFileError: it is cut, also between two batches, or corrupt, or a batch is too large.
    """
    stream, feed, reader = ByteStream(data), _Feed(), None
    messages = _Messages(part.file, stream)
    with columnar.reading(part.file, "its schema"):
        metadata, message = messages.first()
        if message.kind != arrow_messages.SCHEMA:
            raise ValueError("it does not begin with a schema; expected an Arrow file or stream")
        columns = WantedColumns(part.file, _IPC.read_schema(pa.py_buffer(metadata)), want)
        feed.put(metadata)
    batches = _Batches(part.file, columns, want)
    while True:
        with batches.reading():
            message = _fed(messages, feed, columns)
            if message is None:
                break
            if message.kind == arrow_messages.DICTIONARY:
                continue
            if not columns.nothing:
                reader = reader or _IPC.open_stream(pa.PythonFile(feed, mode="r"), options=columns.options)
        size = stream.consumed()
        if reader is None:
            yield from batches.counted(message, size)
        else:
            with batches.reading():
                records = batches.decoded(message, size, reader.read_next_batch())
            yield from records
            del records
    with columnar.reading(part.file, "its end"):
        messages.finish()


def _fed(messages: _Messages, feed: _Feed, columns: WantedColumns) -> Message | None:
    """Put the next message and its body into `feed`, once its size is judged; None at the end."""
    found = messages.next()
    if not found:
        return None
    metadata, message = found
    body = messages.body(message)
    columns.check(message, lambda size, at: body[at : at + size])
    if not columns.nothing:
        feed.put(metadata, body)
    return message


@final
class _Messages:
    """The messages of a stream: the bytes of one, then those of its body."""

    def __init__(self, file: InputFile, stream: ByteStream) -> None:
        self._file, self._stream, self._at, self._framed = file, stream, 0, False

    def first(self) -> tuple[bytes, Message]:
        head = self._read(arrow_messages.FILE_START)
        self._framed = head.startswith(arrow_messages.MAGIC)
        found = self._message(self._read(8) if self._framed else head)
        if not found:
            raise ValueError("it ends before there is a schema")
        return found

    def next(self) -> tuple[bytes, Message] | None:
        """Return a message with its length in front of it, None at the marker of the end."""
        found = self._message(self._read(8, may_end=True))
        if found and found[1].kind not in (arrow_messages.BATCH, arrow_messages.DICTIONARY):
            raise ValueError("there is another schema, or something unknown, between the batches")
        return found

    def body(self, message: Message) -> bytes:
        return self._read(message.body)

    def finish(self) -> None:
        """Raise ValueError unless nothing follows the end but, in a file, its footer."""
        tail = b""
        while data := self._stream.read(_DRAIN):
            if not self._framed:
                raise ValueError("other bytes follow the marker of the stream's end")
            tail = (tail + data)[-len(arrow_messages.MAGIC) :]
        if self._framed and tail != arrow_messages.MAGIC:
            raise ValueError("the file does not end with the bytes ARROW1; it is cut or was never finished")

    def _message(self, prefix: bytes) -> tuple[bytes, Message] | None:
        length, size = arrow_messages.metadata_size(prefix)
        if not size:
            return None
        rest = self._read(size - (8 - length))
        message = arrow_messages.parse_message((prefix + rest)[length:])
        if message.body > MAX_BATCH_BYTES:
            raise ValueError(f"a message has {message.body} bytes, more than {MAX_BATCH_BYTES}")
        return prefix + rest, message

    def _read(self, size: int, *, may_end: bool = False) -> bytes:
        left = self._file.size - self._at
        if size > left and not self._file.compression and not may_end:
            raise ValueError(f"{size} bytes are expected at byte {self._at}, {left} are there: it is cut")
        data = self._stream.read(size)
        self._at += len(data)
        if len(data) < size and not (may_end and data == bytes(4)):  # an end as it was before Arrow 0.15
            what = "without the marker of a stream's end: it was cut between two batches" if not data else ""
            raise ValueError(f"it ends at byte {self._at} {what or 'in the middle of a message'}")
        return data.ljust(size, b"\0")


def read_arrow(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the record batches of `part`; extension columns come as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, what is wanted of it is missing, the text is
            not one of strings, or a batch would take too much memory.
    """
    return _read_file(part, data, want) if arrow_messages.is_file(data) else read_stream(part, data, want)


def _read_file(part: FileRange, data: InputBytes, want: Want) -> Iterator[Parsed]:
    blocks = arrow_messages.read_footer(data)
    columns = WantedColumns(part.file, _schema(part, data), want)
    for number, block in enumerate(blocks.dictionaries):
        with columnar.reading(part.file, f"dictionary {number}"):
            _check_dictionary(columns, data.pread, block)
    batches = _Batches(part.file, columns, want)
    with _opened(data, columns.options) as reader:
        for index, block in enumerate(blocks.batches[: part.stop]):
            message = arrow_messages.batch_message(part.file, data.pread, blocks.batches, index)
            if index < part.start:
                batches.skip(message)
                continue
            with batches.reading():
                records = _records(columns, batches, message, block, data, reader)
            yield from records
            del records


def _records(
    columns: WantedColumns,
    batches: _Batches,
    message: Message,
    block: Block,
    data: InputBytes,
    reader: Any,
) -> Iterator[Parsed]:
    """Return the records of the next batch of a file."""
    if columns.sliceable(message):
        texts = columns.slices(message, _body_reader(data.pread, block))
        return batches.pieces(message, block.size, ((None, text) for text in texts))
    columns.check(message, _body_reader(data.pread, block))
    if columns.nothing:
        return batches.counted(message, block.size)
    return batches.decoded(message, block.size, reader.get_batch(batches.index))


@contextmanager
def _opened(data: InputBytes, options: Any = None) -> Generator[Any]:
    """Open a file with pyarrow, which reads no other columns than the options name."""
    place = data.for_arrow()
    with (
        _ARROW.OSFile(place) if isinstance(place, str) else _ARROW.PythonFile(place, mode="r") as source,
        _IPC.open_file(source, options=options) as reader,
    ):
        yield reader


def _schema(part: FileRange, data: InputBytes) -> pa.Schema:
    """Return the schema, which stands at the beginning of a file and in its footer."""
    with columnar.reading(part.file, "its schema"):
        with _opened(data) as whole:
            schema: pa.Schema = whole.schema
        length, size = arrow_messages.metadata_size(data.pread(8, arrow_messages.FILE_START).ljust(8, b"\0"))
        metadata = data.pread(length + size, arrow_messages.FILE_START)
        if (
            not size
            or len(metadata) < length + size
            or arrow_messages.parse_message(metadata[length:]).kind != arrow_messages.SCHEMA
        ):
            raise ValueError("there is none behind the file's first bytes")
        if not _IPC.read_schema(pa.py_buffer(metadata)).equals(schema):
            raise ValueError("it is another one at the beginning of the file than in its footer")
        return schema


def _check_dictionary(columns: WantedColumns, pread: Pread, block: Block) -> None:
    message = arrow_messages.parse_message(arrow_messages.read_metadata(pread, block))
    if message.kind != arrow_messages.DICTIONARY or message.body > block.body:
        raise ValueError(f"at byte {block.offset} there is no dictionary of {block.body} bytes")
    columns.check(message, _body_reader(pread, block))


def _body_reader(pread: Pread, block: Block) -> Callable[[int, int], bytes]:
    start = block.offset + block.metadata
    return lambda size, at: pread(size, start + at).ljust(size, b"\0")
