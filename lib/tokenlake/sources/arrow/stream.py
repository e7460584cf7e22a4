"""Arrow IPC streams, message by message from the beginning; the marker of the end must be there.

A stream that was cut between two batches looks whole without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from tokenlake.sources.arrow.decoder import MAX_BATCH_BYTES, BatchDecoder
from tokenlake.sources.arrow.messages import (
    BATCH,
    DICTIONARY,
    FILE_START,
    MAGIC,
    SCHEMA,
    Message,
    metadata_size,
    parse_message,
)
from tokenlake.sources.arrow.records import BatchPlace, batch_records
from tokenlake.sources.columnar.access import reading
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want

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
