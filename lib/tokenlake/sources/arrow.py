"""Arrow IPC: files, whose batches can be read in any order, and streams; their first bytes tell them apart.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process. Every message is judged by its
metadata before pyarrow decodes it: where its buffers lie, what they take once decompressed, and that no batch is
missing. A stream that was cut between two batches looks whole to pyarrow; here the marker of its end must be there.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tokenlake.arrays import Int64s
from tokenlake.reading.page_headers import Bomb, Pread, check_unfolded
from tokenlake.sources.batch import Parsed, Want
from tokenlake.sources.columnar import (
    WindowFile,
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
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile, damaged
from tokenlake.sources.opening import opened
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.where import Predicate

_SLICE_BYTES: Final = 16 << 20
_PIECE_ROWS: Final = 1 << 16
_MAX_TEXT: Final = 1 << 30
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_COMPUTE: Final[Any] = pc
_IPC: Final[Any] = pyarrow.ipc


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


def read_metadata(pread: Pread, block: Block) -> bytes:
    """Return the metadata of a block without the length in front of it."""
    data = pread(block.metadata, block.offset)
    length, size = metadata_size(data[:8].ljust(8, b"\0"))
    if length + size > len(data):
        raise ValueError(f"the message at byte {block.offset} is longer than the footer says")
    return data[length : length + size]


_PREFIX: Final = 8


def column_buffers(schema: pa.Schema, message: Message) -> list[list[int]]:
    """Return for every top-level column the numbers of its buffers; ValueError if there are others."""
    variadic = iter(message.variadic)
    counts = [_count(field.type, variadic) for field in schema]
    if sum(counts) != len(message.buffers):
        raise ValueError(f"a batch has {len(message.buffers)} buffers, its schema needs {sum(counts)}")
    numbers = iter(range(sum(counts)))
    return [[next(numbers) for _ in range(count)] for count in counts]


def _count(kind: Any, variadic: Iterator[int]) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _count(kind.storage_type, variadic)
    if pa.types.is_dictionary(kind):
        return 2
    own = _own(kind, variadic)
    if pa.types.is_nested(kind):
        return own + sum(_count(kind.field(at).type, variadic) for at in range(kind.num_fields))
    return own


def _own(kind: Any, variadic: Iterator[int]) -> int:
    types = pa.types
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_union(kind):
        return 1 if kind.mode == "sparse" else 2
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return 2 + next(variadic, 0)
    three = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
    return 3 if three else 2


def decoded_bytes(message: Message, numbers: list[int], pread: Callable[[int, int], bytes]) -> int:
    """Return what the buffers `numbers` take in memory; `pread` (size, offset) reads from the message's body."""
    total = 0
    for number in numbers:
        offset, size = message.buffers[number]
        if message.compressed and size >= _PREFIX:
            (declared,) = struct.unpack("<q", pread(_PREFIX, offset))
            total += size if declared == -1 else max(declared, 0)  # -1: stored as it is
        total += size
    return total


def all_numbers(columns: list[list[int]]) -> list[int]:
    """Return the buffers of all `columns`."""
    return list(chain.from_iterable(columns))


MAX_BATCH_BYTES: Final = 1 << 30
SLICED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 16 << 20


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
        return all_numbers([columns[at] for at in self._included])

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


_COUNTED_ROWS: Final = 1 << 20


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


_DRAIN: Final = 1 << 20


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
        raise damaged(data.file, "it is a Feather file of version 1; write it anew with pyarrow.feather")
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
    pread = data.pread if data.file.is_local else Windows(data).pread
    blocks = read_footer(data).batches
    rows = [batch_message(data.file, pread, blocks, at).rows for at in range(len(blocks))]
    return list(accumulate(rows, initial=0))


def batch_message(file: InputFile, pread: Pread, blocks: list[Block], at: int) -> Message:
    """Return what the metadata of the batch numbered `at` says; DamagedFileError if it cannot be read."""
    with reading(file, f"record batch {at}"):
        message = parse_message(read_metadata(pread, blocks[at]))
        if message.kind != BATCH or message.body > blocks[at].body:
            raise ValueError(f"at byte {blocks[at].offset} there is no batch of {blocks[at].body} bytes")
        return message


_GAP: Final = 64 << 10  # not worth a request of its own


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
    pread = data.pread if data.file.is_local else windows.pread
    decoder = _decoder(part, data, windows, pread, want)
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


def _decoder(part: FileRange, data: InputBytes, windows: Windows, pread: Pread, want: Want) -> BatchDecoder:
    with reading(part.file, "its schema"):
        source = (
            _ARROW.OSFile(part.file.url)
            if data.file.is_local
            else _ARROW.PythonFile(WindowFile(windows, part.file.size), mode="r")
        )
        with source, _IPC.open_file(source) as whole:
            schema: pa.Schema = whole.schema
        length, size = metadata_size(pread(8, FILE_START).ljust(8, b"\0"))
        metadata = pread(length + size, FILE_START)
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
