"""Arrow IPC: files, whose batches can be read in any order, and streams; told apart by their first bytes.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process. Every message
is judged by its metadata before Arrow decodes it: where its buffers lie, and what they will take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from tokenlake.predicate.where import Predicate
from tokenlake.sources.arrow.decoder import BatchDecoder
from tokenlake.sources.arrow.footer import batch_message, is_file, read_footer
from tokenlake.sources.arrow.messages import (
    DICTIONARY,
    FILE_START,
    SCHEMA,
    Block,
    Message,
    metadata_size,
    parse_message,
    read_metadata,
)
from tokenlake.sources.arrow.records import BatchPlace, batch_records, text_pieces
from tokenlake.sources.arrow.stream import read_stream
from tokenlake.sources.columnar.access import Pread, reading
from tokenlake.sources.columnar.windows import WindowFile, Windows
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.want import Want

_GAP: Final = 64 << 10  # not worth a request of its own
_IPC: Final[Any] = pyarrow.ipc
_ARROW: Final[Any] = pa  # the stub demands a mode of OSFile


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
