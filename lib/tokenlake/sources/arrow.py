"""Arrow IPC: files, whose batches can be read in any order, and streams; their first bytes tell them apart.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process. Every message is judged by its
metadata before pyarrow decodes it: where its buffers lie, what they take once decompressed, and that no batch is
missing. A stream that was cut between two batches looks whole to pyarrow; here the marker of its end must be there.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tokenlake.arrays import Int64s
from tokenlake.reading.page_headers import Bomb, Pread, check_unfolded
from tokenlake.sources.arrow_messages import (
    BATCH,
    DICTIONARY,
    FILE_START,
    MAGIC,
    SCHEMA,
    Block,
    Message,
    batch_message,
    column_buffers,
    decoded_bytes,
    is_file,
    metadata_size,
    parse_message,
    read_footer,
    read_metadata,
)
from tokenlake.sources.batch import Parsed, Want
from tokenlake.sources.columnar import (
    Windows,
    as_text,
    check_names,
    pick,
    plain_type,
    reading,
    row_records,
    sizes_unfolded,
    text_path,
    text_records,
    unfolded,
)
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.where import Predicate

_SLICE_BYTES: Final = 16 << 20
_PIECE_ROWS: Final = 1 << 16
_MAX_TEXT: Final = 1 << 30
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_COMPUTE: Final[Any] = pc
_IPC: Final[Any] = pyarrow.ipc
MAX_BATCH_BYTES: Final = 1 << 30
SLICED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 16 << 20
_COUNTED_ROWS: Final = 1 << 20
_DRAIN: Final = 1 << 20
_GAP: Final = 64 << 10  # not worth a request of its own


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
    """A stream that holds what was put in, and hands it out without a copy where it is asked for as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[memoryview] = deque()

    def put(self, data: Any) -> None:
        if len(data):
            self._parts.append(memoryview(data))

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
class BatchDecoder:
    """The columns that are wanted of the batches of one Arrow file or stream.

    Attributes:
        schema: of the whole file.
        text: where the text is, () where none is wanted.
        names: the columns that are wanted as rows.
    """

    def __init__(self, file: InputFile, schema_message: bytes, want: Want) -> None:
        """Begin with the message of the schema, the length in front of it included.

        Raises:
            DamagedFileError: a wanted column is missing or there twice, or the text is not one of strings.
            ArrowException: this is no schema.
        """
        self.schema: pa.Schema = _IPC.read_schema(pa.py_buffer(schema_message))
        names: list[str] = self.schema.names
        self.names: tuple[str, ...] = want.names(names)
        check_names(file, names, self.names)
        self.text: tuple[str, ...] = text_path(file, self.schema, want.text) if want.text is not None else ()
        self._included = [at for at, name in enumerate(names) if name in (*self.names, *self.text[:1])]
        fields = [self.schema.field(at) for at in self._included]
        self._plain = pa.schema(
            [pa.field(field.name, plain_type(field.type), field.nullable) for field in fields]
        )
        self._feed, self._reader = _Feed(), None
        self._feed.put(schema_message)

    def wanted(self, message: Message) -> list[int]:
        """Return the numbers of the buffers that are read of a batch; of a dictionary all."""
        if message.kind != BATCH:
            return list(range(len(message.buffers)))
        columns = column_buffers(self.schema, message)
        return [number for at in self._included for number in columns[at]]

    def sliceable(self, message: Message) -> bool:
        """Say whether nothing but a large column of plain strings is wanted of a batch that is not compressed."""
        if message.compressed or self.names or len(self.text) != 1 or message.kind != BATCH:
            return False
        size = sum(message.buffers[number][1] for number in self.wanted(message))
        return size > SLICED_BYTES and (
            pa.types.is_string(self._kind) or pa.types.is_large_string(self._kind)
        )

    def slices(self, message: Message, pread: Callable[[int, int], bytes]) -> Iterator[pa.LargeStringArray]:
        """Yield the texts of a batch that is sliceable; `pread` reads from its body."""
        buffers = [message.buffers[number] for number in self.wanted(message)]
        large = pa.types.is_large_string(self._kind)
        return sliced_texts(pread, buffers, message.rows, large=large)

    @property
    def _kind(self) -> Any:
        return self.schema.field(self.text[0]).type

    def check(self, message: Message, pread: Callable[[int, int], bytes]) -> None:
        """Raise Bomb if the wanted part of a message takes too much; `pread` reads from its body."""
        size = decoded_bytes(message, self.wanted(message), pread)
        if size > MAX_BATCH_BYTES:
            raise Bomb(
                f"a batch takes {size} bytes in memory, more than {MAX_BATCH_BYTES}; "
                "write the file with fewer rows in a batch"
            )
        check_unfolded(8 * message.rows, message.body)

    def add_dictionary(self, metadata: bytes, body: Any) -> None:
        """Note the message of a dictionary, its length in front of it included."""
        self._feed.put(metadata)
        self._feed.put(body)

    def decode(self, metadata: bytes, body: Any) -> pa.RecordBatch:
        """Return the wanted columns of a batch, their offsets checked.

        Raises:
            ArrowException: the message, or something in the batch, does not hold together.
        """
        if not self._included:
            raise ValueError("nothing is wanted of the batches")
        self.add_dictionary(metadata, body)
        batch: pa.RecordBatch = self._opened().read_next_batch()
        batch.validate()
        for column in batch.columns:
            _validate(column)
        return batch

    def _opened(self) -> Any:
        if self._reader is None:
            options = _IPC.IpcReadOptions(included_fields=self._included, use_threads=False)
            self._reader = _IPC.open_stream(pa.PythonFile(self._feed, mode="r"), options=options)
        return self._reader

    def texts(self, batch: pa.RecordBatch) -> Iterator[pa.LargeStringArray]:
        """Yield the texts of a batch in pieces of about 16 MB."""
        column = pick(batch, self.text)
        if pa.types.is_dictionary(column.type):
            sizes = sizes_unfolded(column)
        else:
            sizes = _COMPUTE.binary_length(_viewless(column)).fill_null(0).to_numpy(zero_copy_only=False)
        start, taken = 0, 0
        for row, size in enumerate(sizes.tolist()) if sizes.sum() > _PIECE_BYTES else ():
            if taken and taken + size > _PIECE_BYTES:
                yield as_text(column.slice(start, row - start))
                start, taken = row, 0
            taken += size
        yield as_text(column.slice(start))

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.LargeStringArray | None]]:
        """Yield (wanted columns, text if it is wanted) in pieces of about 16 MB."""
        pieces = max(1, -(-batch.nbytes // _PIECE_BYTES))
        size = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, size):
            for piece in unfolded(batch.slice(start, size), self._plain):
                text = as_text(pick(piece, self.text)) if self.text else None
                yield piece.select(list(self.names)), text


def _viewless(column: Any) -> Any:
    return column.cast(pa.large_string(), safe=False) if pa.types.is_string_view(column.type) else column


def _validate(column: Any) -> None:
    """Check all offsets and indices of a column; whether strings are UTF-8 is another matter."""
    # A view of nulls inside of lists or structs has the wrong length (Arrow 26), and would look like damage.
    seen = column if _holds_nulls(column.type) else column.view(_as_bytes(column.type))
    seen.validate(full=True)


def _holds_nulls(kind: Any) -> bool:
    """Say whether a type has the type of nulls anywhere inside."""
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_null(kind) or any(map(_holds_nulls, inside))


def _as_bytes(kind: Any) -> Any:
    """Return the type with the layout of `kind` in which strings are mere bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(kind.storage_type)
    plain = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _as_bytes(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([_field_as_bytes(kind.field(at)) for at in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_as_bytes(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field), kind.list_size)
    return pa.list_(_field_as_bytes(kind.value_field)) if pa.types.is_list(kind) else kind


def _field_as_bytes(field: Any) -> Any:
    return field.with_type(_as_bytes(field.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a record batch stands.

    Attributes:
        index: its number in the file.
        first: the number of its first row.
        bytes_read: what it counts as.
        max_record_bytes: a longer text is a bad record.
    """

    file: InputFile
    index: int
    first: int
    bytes_read: int
    max_record_bytes: int


def batch_records(
    decoder: BatchDecoder, place: BatchPlace, message: Message, metadata: bytes, box: list[Any]
) -> Iterator[Parsed]:
    """Yield the records of a batch.

    Args:
        metadata: of the message, with its length in front of it.
        box: the message's body alone, taken out so that nobody else keeps it alive.

    Raises:
        DamagedFileError: something in the batch does not hold together.
    """
    if not decoder.names and not decoder.text:
        yield from _counted(place, message.rows)
        return
    with reading(place.file, f"record batch {place.index}"):
        batch = decoder.decode(metadata, box.pop())
        if batch.num_rows != message.rows:
            raise ValueError(f"it holds {batch.num_rows} rows, its metadata counts {message.rows}")
        if decoder.names:
            done, left = place.first, place.bytes_read
            for rows, text in decoder.rows(batch):
                yield row_records(rows, text, done, left, place.max_record_bytes)
                done, left = done + rows.num_rows, 0
        else:
            yield from text_pieces(decoder.texts(batch), place)


def text_pieces(texts: Iterator[pa.LargeStringArray], place: BatchPlace) -> Iterator[Parsed]:
    """Yield the records of a batch of which nothing but the text is wanted; DamagedFileError as above."""
    done, left = place.first, place.bytes_read
    with reading(place.file, f"record batch {place.index}"):
        for text in texts:
            held = [text_records(text, done, left, place.max_record_bytes)]
            done, left = done + len(text), 0
            del text
            yield held.pop()


def _counted(place: BatchPlace, rows: int) -> Iterator[Parsed]:
    for done in range(0, max(rows, 1), _COUNTED_ROWS):
        positions = np.arange(
            place.first + done, place.first + min(done + _COUNTED_ROWS, rows), dtype=np.int64
        )
        yield Parsed(text=None, positions=positions, bad=(), bytes_read=0 if done else place.bytes_read)


def read_stream(part: FileRange, data: InputBytes, want: Want) -> Iterator[Parsed]:
    """Read a stream, or a file that is compressed as a whole, from its beginning.

    Raises:
        DamagedFileError: it is cut, also between two batches, or corrupt, or a batch is too large.
    """
    stream = ByteStream(data)
    messages = _Messages(part.file, stream)
    with reading(part.file, "its schema"):
        metadata, message = messages.first()
        if message.kind != SCHEMA:
            raise ValueError("it does not begin with a schema; expected an Arrow file or stream")
        decoder = BatchDecoder(part.file, metadata, want)
    row, index = 0, 0
    while True:
        with reading(part.file, f"record batch {index}"):
            found = messages.next()
            if not found:
                break
            metadata, message = found
            body = messages.body(message)
            decoder.check(message, lambda size, at, body=body: body[at : at + size])
            if message.kind == DICTIONARY:
                decoder.add_dictionary(metadata, body)
                continue
        place = BatchPlace(
            file=part.file,
            index=index,
            first=row,
            bytes_read=stream.consumed(),
            max_record_bytes=want.max_record_bytes,
        )
        box = [body]
        del body
        yield from batch_records(decoder, place, message, metadata, box)
        row, index = row + message.rows, index + 1
    with reading(part.file, "its end"):
        messages.finish()


@final
class _Messages:
    """The messages of a stream: the bytes of one, then those of its body."""

    def __init__(self, file: InputFile, stream: ByteStream) -> None:
        self._file, self._stream, self._at, self._framed = file, stream, 0, False

    def first(self) -> tuple[bytes, Message]:
        head = self._read(FILE_START)
        self._framed = head.startswith(MAGIC)
        found = self._message(self._read(8) if self._framed else head)
        if not found:
            raise ValueError("it ends before there is a schema")
        return found

    def next(self) -> tuple[bytes, Message] | None:
        """Return a message with its length in front of it, None at the marker of the end."""
        found = self._message(self._read(8, may_end=True))
        if found and found[1].kind not in (BATCH, DICTIONARY):
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
            tail = (tail + data)[-len(MAGIC) :]
        if self._framed and tail != MAGIC:
            raise ValueError("the file does not end with the bytes ARROW1; it is cut or was never finished")

    def _message(self, prefix: bytes) -> tuple[bytes, Message] | None:
        length, size = metadata_size(prefix)
        if not size:
            return None
        rest = self._read(size - (8 - length))
        message = parse_message((prefix + rest)[length:])
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
    return _read_file(part, data, want) if is_file(data) else read_stream(part, data, want)


def _read_file(part: FileRange, data: InputBytes, want: Want) -> Iterator[Parsed]:
    blocks = read_footer(data)
    windows = Windows(data)
    pread = windows.pread
    decoder = _decoder(part, windows, want)
    for number, block in enumerate(blocks.dictionaries):
        with reading(part.file, f"dictionary {number}"):
            _add_dictionary(decoder, data, pread, block)
    first = 0
    for index in range(part.stop):
        message = batch_message(part.file, pread, blocks.batches, index)
        if index >= part.start:
            place = BatchPlace(
                file=part.file,
                index=index,
                first=first,
                bytes_read=blocks.batches[index].size,
                max_record_bytes=want.max_record_bytes,
            )
            yield from _batch(decoder, data, pread, place, message, blocks.batches[index])
        first += message.rows


def _decoder(part: FileRange, windows: Windows, want: Want) -> BatchDecoder:
    with reading(part.file, "its schema"):
        place = windows.for_arrow()
        source = _ARROW.OSFile(place) if isinstance(place, str) else _ARROW.PythonFile(place, mode="r")
        with source, _IPC.open_file(source) as whole:
            schema: pa.Schema = whole.schema
        length, size = metadata_size(windows.pread(8, FILE_START).ljust(8, b"\0"))
        metadata = windows.pread(length + size, FILE_START)
        if not size or len(metadata) < length + size or parse_message(metadata[length:]).kind != SCHEMA:
            raise ValueError("there is none behind the file's first bytes")
        decoder = BatchDecoder(part.file, metadata, want)
        if not decoder.schema.equals(schema):
            raise ValueError("it is another one at the beginning of the file than in its footer")
        return decoder


def _add_dictionary(decoder: BatchDecoder, data: InputBytes, pread: Pread, block: Block) -> None:
    message = parse_message(read_metadata(pread, block))
    if message.kind != DICTIONARY or message.body > block.body:
        raise ValueError(f"at byte {block.offset} there is no dictionary of {block.body} bytes")
    decoder.check(message, _body_reader(pread, block))
    decoder.add_dictionary(pread(block.metadata, block.offset), _body(decoder, data, block, message))


def _batch(
    decoder: BatchDecoder, data: InputBytes, pread: Pread, place: BatchPlace, message: Message, block: Block
) -> Iterator[Parsed]:
    with reading(place.file, f"record batch {place.index}"):
        if decoder.sliceable(message):
            from_body = _body_reader(data.pread, block)
            yield from text_pieces(decoder.slices(message, from_body), place)
            return
        decoder.check(message, _body_reader(pread, block))
        metadata = pread(block.metadata, block.offset)
        box = [_body(decoder, data, block, message)]
    yield from batch_records(decoder, place, message, metadata, box)


def _body_reader(pread: Pread, block: Block) -> Callable[[int, int], bytes]:
    start = block.offset + block.metadata
    return lambda size, at: pread(size, start + at).ljust(size, b"\0")


def _body(decoder: BatchDecoder, data: InputBytes, block: Block, message: Message) -> Any:
    """Return a body in which only what is wanted was read; the rest is memory that nobody touches."""
    body: Any = np.empty(message.body, np.uint8)
    start = block.offset + block.metadata
    with memoryview(body) as view:
        for begin, end in _stretches(message, decoder.wanted(message)):
            if data.read_into(view[begin:end], start + begin) < end - begin:
                raise ValueError(f"the file ends before byte {start + end}")
    return body


def _stretches(message: Message, numbers: list[int]) -> list[tuple[int, int]]:
    """Return the stretches [start, stop) of a body in which the buffers `numbers` lie, small gaps included."""
    merged: list[tuple[int, int]] = []
    for start, size in sorted(message.buffers[number] for number in numbers):
        if merged and start <= merged[-1][1] + _GAP:
            merged[-1] = merged[-1][0], max(start + size, merged[-1][1])
        else:
            merged.append((start, start + size))
    return merged
