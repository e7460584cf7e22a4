"""Messages of Arrow streams, and of files that are compressed as a whole.

pyarrow decodes them, but takes a stream that was cut between two batches for a whole
one. The messages are therefore read here, up to the marker of the stream's end, and
handed to pyarrow one by one.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import pyarrow as pa
import pyarrow.ipc

from tokenlake.etl.sources import arrow_messages, columnar
from tokenlake.etl.sources.arrow_columns import (
    MAX_BATCH_BYTES,
    StoredBatch,
    WantedColumns,
)
from tokenlake.etl.sources.arrow_messages import (
    BATCH,
    DICTIONARY,
    MAGIC,
    SCHEMA,
    Message,
)
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.parsed import Want

_PREFIX_BYTES: Final = 8
"""Size of the beginning of a message, marker and length of its metadata; the magic
of a file has as many bytes.
"""
# Bytes read at a time to find the end of a compressed file: its footer is not needed.
_DRAIN_BYTES: Final = 1 << 20
_OLD_END: Final = bytes(4)  # end of a stream before Arrow 0.15
_IPC: Final[Any] = pyarrow.ipc


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


def open_stream(
    part: FileRange, data: InputBytes, want: Want
) -> tuple[WantedColumns, Iterator[StoredBatch]]:
    """Return the wanted columns of a stream or a compressed file, and its batches.

    Raises:
        DamagedFileError: The schema cannot be read, or a wanted column is missing.
    """
    messages = _read_messages(data)
    with columnar.reading(part.file, "its schema"):
        schema = next(messages)
        columns = WantedColumns(
            part.file, _IPC.read_schema(pa.py_buffer(schema.metadata)), want
        )
    return columns, _batches(schema, messages, columns)


def _batches(
    schema: StreamMessage, messages: Iterator[StreamMessage], columns: WantedColumns
) -> Iterator[StoredBatch]:
    """Yield the batches behind a schema.

    Dictionaries are handed to pyarrow as they come.
    """
    feed = _Feed()
    feed.put(schema.metadata)
    reader = _IPC.open_stream(pa.PythonFile(feed, mode="r"), options=columns.options)
    # Batches are put into the feed only when they are decoded. Dictionaries go there at
    # once: later batches refer to them.
    for stored_message in messages:
        if stored_message.message.kind == DICTIONARY:
            columns.check(stored_message.message, stored_message.read)
            feed.put(stored_message.metadata, stored_message.body)
            continue

        def decode(stored_message: StreamMessage = stored_message) -> pa.RecordBatch:
            feed.put(stored_message.metadata, stored_message.body)
            return reader.read_next_batch()

        yield StoredBatch(
            stored_message.message, stored_message.size, stored_message.read, decode
        )
        # Otherwise the body would be kept while the next one is read.
        del decode
        del stored_message


def _read_messages(data: InputBytes) -> Iterator[StreamMessage]:
    """Yield the messages from the beginning of a stream to its end.

    Raises:
        ValueError: The stream is cut, is none, or something follows its end.
    """
    reader = _StreamReader(data)
    prefix = reader.read(_PREFIX_BYTES)
    is_file = prefix.startswith(MAGIC)  # a file that is compressed as a whole
    if is_file:
        prefix = reader.read(_PREFIX_BYTES)

    # 1. The messages: a schema first, then dictionaries and batches.
    expected_kinds: tuple[int, ...] = (SCHEMA,)
    while True:
        # The size 0 is the mark of the end.
        length_bytes, metadata_bytes = arrow_messages.metadata_size(prefix)
        if not metadata_bytes:
            break
        metadata = prefix + reader.read(metadata_bytes + length_bytes - _PREFIX_BYTES)
        message = arrow_messages.parse_message(metadata[length_bytes:])
        if message.body > MAX_BATCH_BYTES:
            raise ValueError(
                f"a message has {message.body} bytes, more than {MAX_BATCH_BYTES}"
            )
        if message.kind not in expected_kinds:
            if expected_kinds == (SCHEMA,):
                raise ValueError(
                    "it does not begin with a schema; expected an Arrow file or stream"
                )
            raise ValueError(
                "there is another schema, or an unknown message, between the batches"
            )
        # Behind the schema, dictionaries and batches follow in any order.
        expected_kinds = (BATCH, DICTIONARY)
        body_bytes = reader.read(message.body)
        bytes_read = reader.consumed() if message.kind == BATCH else 0
        yield StreamMessage(metadata, message, body_bytes, bytes_read)
        del body_bytes  # before the next message is read
        prefix = reader.read(_PREFIX_BYTES, may_end=True)

    # 2. The end: nothing follows a stream, and a footer follows the messages of a file.
    if expected_kinds == (SCHEMA,):
        raise ValueError("it ends before the schema")
    with columnar.reading(data.file, "its end"):
        reader.check_end(is_file=is_file)


@final
class _StreamReader:
    """Reads exact numbers of bytes; ValueError where the stream ends before."""

    def __init__(self, data: InputBytes) -> None:
        self._file = data.file
        self._stream = ByteStream(data)
        self._offset = 0  # in the decompressed stream

    def read(self, size: int, *, may_end: bool = False) -> bytes:
        """Return `size` bytes.

        Args:
            size: Number of bytes.
            may_end: Whether a stream of old Arrow releases may end here, with four zero
                bytes.

        Raises:
            ValueError: The stream is cut.
        """
        bytes_left = self._file.size - self._offset
        if size > bytes_left and not self._file.compression and not may_end:
            # Checked before the bytes are read: a damaged length may ask for any number
            # of them.
            raise ValueError(
                f"{size} bytes are expected at byte {self._offset}, {bytes_left} exist: it is truncated"
            )
        chunk = self._stream.read(size)
        self._offset += len(chunk)
        is_old_end = may_end and chunk == _OLD_END
        if len(chunk) < size and not is_old_end:
            end_description = "in the middle of a message"
            if not chunk:
                end_description = "without the end marker of a stream: it was truncated between two batches"
            raise ValueError(f"it ends at byte {self._offset} {end_description}")
        return chunk.ljust(size, b"\0")

    def consumed(self) -> int:
        """Return the number of stored bytes read since the last call."""
        return self._stream.consumed()

    def check_end(self, *, is_file: bool) -> None:
        """Read to the end of the stream.

        Raises:
            ValueError: Something follows the stream, or a file has no magic at its end.
        """
        # The last bytes of a file are kept across reads: the magic may lie in two of
        # them.
        last_bytes = b""
        while chunk := self._stream.read(_DRAIN_BYTES):
            if not is_file:
                raise ValueError("other bytes follow the end marker of the stream")
            last_bytes = (last_bytes + chunk)[-len(MAGIC) :]
        if is_file and last_bytes != MAGIC:
            raise ValueError(
                "the file does not end with the bytes ARROW1; it is truncated or was never finished"
            )


@final
class _Feed(io.RawIOBase):
    """A stream of messages, put in one by one and handed to pyarrow without a copy."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[memoryview] = deque()

    def put(self, *parts: bytes) -> None:
        """Append the parts of a message.

        Empty parts are left out, because they would look like the end of the stream.
        """
        self._parts.extend(memoryview(part) for part in parts if part)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> Any:
        if not self._parts:
            return b""
        message_part = self._parts.popleft()
        if len(message_part) > size:
            self._parts.appendleft(message_part[size:])
        return message_part[:size]
