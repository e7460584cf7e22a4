"""Line files as blocks of whole lines, in bounded memory.

A range ``[start, stop)`` of bytes owns the lines that start inside it, blank ones
included. Both ends are moved to the next start of a line by the same function.
Neighbouring ranges therefore meet exactly, and any partition of a file reads every line
once.

Example: lines of 10 bytes, ranges [0, 15) and [15, 30). The first one reads bytes 0 to
20, the second one 20 to 30. The line that starts at byte 10 belongs to the first range,
which also reads its rest. Of these bytes, 15 to 20 are counted as read by the second
range: so the counts of all ranges sum up to the size of the file.

Byte offsets count from 0, in the decompressed file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from tokenlake.etl.sources.bad_records import RAW_LIMIT
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.parsed import BLOCK_BYTES, Parsed

SCAN_BYTES: Final = 1 << 20
"""Number of bytes that are searched for a newline at a time."""
FRAME_BYTES: Final = 5
"""Size of a byte order mark, a carriage return and a newline, which are not part of
a record.
"""
BOM: Final = b"\xef\xbb\xbf"

_NEAR_BYTES: Final = 8 << 10  # most lines end within
_TAIL_BYTES: Final = 64 << 10
_Block = TypeVar("_Block")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Whole lines.

    Attributes:
        data: Bytes of the lines; bytes behind `size` belong to the next block and are
            to be ignored.
        size: Size in bytes of the whole lines; the last one lacks its newline only at
            the end of the file.
        offset: Offset of ``data[0]`` in the (decompressed) file.
        bytes_read: Number of input bytes read since the block before.
    """

    data: bytes
    size: int
    offset: int
    bytes_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLine:
    """One line that is longer than a block, with its newline if it has one.

    Attributes:
        data: Bytes of the line, None if it is longer than `max_record_bytes`.
        head: First 64 KiB.
        size: Size in bytes.
        offset: Offset of the line in the (decompressed) file.
        bytes_read: Number of input bytes read since the block before.
    """

    data: bytearray | None
    head: bytes
    size: int
    offset: int
    bytes_read: int


def read_blocks(
    part: FileRange,
    source: InputBytes,
    max_record_bytes: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines that `part` owns, in order.

    Args:
        part: The range.
        source: The open file.
        max_record_bytes: Size of a line in bytes above which it is not held.
        block_bytes: Size of a block in bytes.

    Raises:
        DamagedFileError: A compressed stream is cut, corrupt or followed by something
            else.
        InputChangedError: The file is shorter than it was planned.
    """
    if part.file.compression is None:
        return _plain_blocks(part, source, max_record_bytes, block_bytes)
    return _compressed_blocks(source, max_record_bytes, block_bytes)


def count_lines(source: InputBytes, stop: int, start: int = 0) -> int:
    """Return the number of newlines from byte `start` to before byte `stop`.

    Args:
        source: A plain file.
        stop: Byte offset before which the last newline may be.
        start: Byte offset of the first byte that is looked at.
    """
    newline_count = 0
    for offset in range(start, stop, SCAN_BYTES):
        chunk = source.pread(min(SCAN_BYTES, stop - offset), offset)
        newline_count += chunk.count(b"\n")
    return newline_count


def read_exactly(part: FileRange, source: InputBytes, size: int, offset: int) -> bytes:
    """Return `size` bytes from `offset` on.

    Raises:
        InputChangedError: The file ends before.
    """
    read_bytes = source.pread(size, offset)
    if len(read_bytes) < size:
        raise changed(
            part.file,
            f"it ends at byte {offset + len(read_bytes)}, planned were {part.file.size}",
        )
    return read_bytes


def parsed_blocks(
    blocks: Iterator[_Block | LongLine],
    parse_long: Callable[[LongLine], Parsed],
    parse_block: Callable[[_Block], Iterator[Parsed]],
) -> Iterator[Parsed]:
    """Parse blocks of records.

    Args:
        blocks: Blocks and long lines, in order.
        parse_long: Function that parses a long line.
        parse_block: Function that parses any other block.
    """
    for block in blocks:
        if isinstance(block, LongLine):
            parsed = parse_long(block)
            del block  # a long line need not stay in memory while its text is worked on
            yield parsed
            del parsed  # nor its text while the next line is read
        else:
            yield from parse_block(block)


def _line_start(source: InputBytes, offset: int, file_size: int) -> int:
    """Return the start of the first line at or after `offset`, or the file's size."""
    if offset <= 0:
        return 0
    if offset >= file_size:
        return file_size
    # A line starts behind a newline: the search begins at the byte before `offset`.
    # Each read of an object is a request; of a local file a few bytes are enough for
    # most lines.
    position = offset - 1
    # The second read is larger: the line is a long one.
    read_bytes = _NEAR_BYTES if source.file.is_local else SCAN_BYTES
    while position < file_size:
        chunk = source.pread(min(read_bytes, file_size - position), position)
        if not chunk:
            break
        newline_index = chunk.find(b"\n")
        if newline_index >= 0:
            return position + newline_index + 1
        position += len(chunk)
        read_bytes = SCAN_BYTES
    return file_size


def _plain_blocks(
    part: FileRange, source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines that a range of an uncompressed file owns."""
    file_size = part.file.size
    range_end = _line_start(source, part.stop, file_size)
    offset = _line_start(source, part.start, file_size)
    # Bytes up to here are counted as read. The last line may reach beyond the range:
    # its rest is not counted here, but by the next range, which begins with it.
    counted_bytes = part.start
    while offset < range_end:
        block_size = min(block_bytes, range_end - offset)
        # A block that ends with a line is parsed in place. Looking for that end first
        # costs a local file nothing, but an object another request.
        if part.file.is_local and offset + block_size < range_end:
            last_size = min(_TAIL_BYTES, block_size)
            last_bytes = source.pread(last_size, offset + block_size - last_size)
            lines_size = last_bytes.rfind(b"\n") + 1
            if lines_size:
                block_size -= last_size - lines_size
        data = read_exactly(part, source, block_size, offset)
        is_last = offset + len(data) == range_end
        lines_size = len(data) if is_last else data.rfind(b"\n") + 1
        if lines_size:
            counted_end = min(offset + lines_size, part.stop)
            yield LineBlock(
                data=data,
                size=lines_size,
                offset=offset,
                bytes_read=counted_end - counted_bytes,
            )
        else:
            # No line ends in the block.
            lines_size = _line_start(source, offset + len(data), file_size) - offset
            counted_end = min(offset + lines_size, part.stop)
            yield _long_line(
                part, source, offset, lines_size, limit, counted_end - counted_bytes
            )
        offset += lines_size
        counted_bytes = counted_end


def _long_line(
    part: FileRange,
    source: InputBytes,
    offset: int,
    size: int,
    limit: int,
    bytes_read: int,
) -> LongLine:
    """Read a long line of an uncompressed file; one over the limit is not held."""
    line_bytes = None
    if size <= limit + FRAME_BYTES:
        line_bytes = bytearray(read_exactly(part, source, size, offset))
    first_bytes = source.pread(min(size, RAW_LIMIT), offset)
    return LongLine(
        data=line_bytes,
        head=first_bytes,
        size=size,
        offset=offset,
        bytes_read=bytes_read,
    )


def _compressed_blocks(
    source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a compressed file, which is one range."""
    stream = ByteStream(source)
    pending = b""  # bytes of lines that were read, and not yielded
    offset = 0
    is_final = False  # the stream ends behind `pending`

    def next_block() -> LineBlock | LongLine | None:
        nonlocal pending, offset, is_final
        data = pending
        if not is_final:
            # Bytes of a line that is not whole are kept, and count to the size of the
            # next block.
            missing_bytes = max(block_bytes - len(pending), 0)
            new_bytes = stream.read(missing_bytes)
            is_final = len(new_bytes) < missing_bytes
            data = pending + new_bytes
        if not data:
            return None
        lines_size = len(data) if is_final else data.rfind(b"\n") + 1
        block: LineBlock | LongLine
        if lines_size:
            pending = data[lines_size:]
            block = LineBlock(
                data=data, size=lines_size, offset=offset, bytes_read=stream.consumed()
            )
        else:
            block, pending = _gather_line(stream, data, limit, offset)
        offset += block.size
        return block

    # No reference to a block stays here: a line may be large.
    return iter(next_block, None)


def _gather_line(
    stream: ByteStream, begun: bytes, limit: int, offset: int
) -> tuple[LongLine, bytes]:
    """Read on until a line ends.

    Args:
        stream: The decompressed file.
        begun: Bytes of the line that were read already.
        limit: Size of a line in bytes above which it is not held.
        offset: Offset of the line in the file.

    Returns:
        The line, and the bytes of the next lines that were read with its end.
    """
    line_bytes: bytearray | None = bytearray(begun)
    line_size = len(begun)
    first_bytes = begun[:RAW_LIMIT]
    bytes_after = b""
    is_ended = False
    while not is_ended:
        chunk = stream.read(SCAN_BYTES)
        line_end = chunk.find(b"\n") + 1
        is_ended = line_end > 0 or not chunk
        if line_end:
            bytes_after = chunk[line_end:]
            chunk = chunk[:line_end]
        line_size += len(chunk)
        first_bytes += chunk[: RAW_LIMIT - len(first_bytes)]
        if line_size > limit + FRAME_BYTES:
            line_bytes = None
        elif line_bytes is not None:
            line_bytes += chunk
    line = LongLine(
        data=line_bytes,
        head=first_bytes,
        size=line_size,
        offset=offset,
        bytes_read=stream.consumed(),
    )
    return line, bytes_after
