"""Line files as blocks of whole lines, in bounded memory.

A range ``[start, stop)`` owns the lines that start inside it. Both ends are moved to the next start of a line by the
same function. Neighbouring ranges therefore meet exactly, and any partition of a file reads every line once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from tokenlake.etl.sources.bad_records import RAW_LIMIT
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.parsed import BLOCK_BYTES, Parsed

SCAN_BYTES: Final = 1 << 20
_NEAR_BYTES: Final = 8 << 10
_TAIL_BYTES: Final = 64 << 10  # most lines end within
FRAME_BYTES: Final = 5  # byte order mark, carriage return and newline are not part of a record
BOM: Final = b"\xef\xbb\xbf"

_ARROW: Final[Any] = pa  # whose stub of RecordBatch knows no schema
_Block = TypeVar("_Block")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Whole lines.

    Attributes:
        data: the bytes; what follows `size` belongs to the next block and is to be ignored.
        size: length of the whole lines; the last one lacks its newline only at the end of the file.
        offset: of ``data[0]`` in the (decompressed) file.
        bytes_read: input bytes consumed since the block before.
    """

    data: bytes
    size: int
    offset: int
    bytes_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLine:
    """One line of more than a block, with its newline if it has one.

    Attributes:
        data: the bytes, None when there are more than `max_record_bytes` of them.
        head: the first 64 KiB.
        size: length in bytes.
        offset, bytes_read: as in :class:`LineBlock`.
    """

    data: bytearray | None
    head: bytes
    size: int
    offset: int
    bytes_read: int


def read_blocks(
    part: FileRange, source: InputBytes, max_record_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines that `part` owns, in order; `source` is the open file.

    Raises:
        DamagedFileError: a compressed stream is cut, corrupt or followed by something else.
        InputChangedError: the file is shorter than planned.
    """
    if part.file.compression is None:
        return _plain(part, source, max_record_bytes, block_bytes)
    return _compressed(part, source, max_record_bytes, block_bytes)


def count_lines(source: InputBytes, stop: int) -> int:
    """Return the number of newlines before byte `stop` of a plain file."""
    total = 0
    for offset in range(0, stop, SCAN_BYTES):
        total += source.pread(min(SCAN_BYTES, stop - offset), offset).count(b"\n")
    return total


def _line_start(source: InputBytes, offset: int, size: int) -> int:
    """Return where the first line that starts at or after `offset` starts; `size` if there is none."""
    if offset <= 0:
        return 0
    if offset >= size:
        return size
    # A line starts after a newline: look for one from the byte before `offset` on. Each read of an object is a request;
    # of a local file little is enough for most lines.
    position = offset - 1
    step = _NEAR_BYTES if source.file.is_local else SCAN_BYTES
    while position < size:
        data = source.pread(min(step, size - position), position)
        if not data:
            break
        newline = data.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(data)
        step = SCAN_BYTES
    return size


def _plain(
    part: FileRange, source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines that a range of an uncompressed file owns."""
    size = part.file.size
    end = _line_start(source, part.stop, size)
    offset = _line_start(source, part.start, size)
    # Bytes up to here are counted as read. The last line may reach beyond the range: its rest is not counted here, but
    # by the next range, which begins with it. So the bytes of all ranges sum to the file's.
    counted = part.start
    while offset < end:
        block_size = min(block_bytes, end - offset)
        # A block that ends with a line is parsed in place. Looking for that end first costs a local file nothing, but
        # an object another request.
        if part.file.is_local and offset + block_size < end:
            tail_size = min(_TAIL_BYTES, block_size)
            tail = source.pread(tail_size, offset + block_size - tail_size)
            lines_size = tail.rfind(b"\n") + 1
            if lines_size:
                block_size -= tail_size - lines_size
        data = read_exactly(part, source, block_size, offset)
        is_last = offset + len(data) == end
        lines_size = len(data) if is_last else data.rfind(b"\n") + 1
        if lines_size:
            counted_end = min(offset + lines_size, part.stop)
            yield LineBlock(data=data, size=lines_size, offset=offset, bytes_read=counted_end - counted)
        else:
            # No line ends in the block.
            lines_size = _line_start(source, offset + len(data), size) - offset
            counted_end = min(offset + lines_size, part.stop)
            is_kept = lines_size <= limit + FRAME_BYTES
            yield LongLine(
                data=bytearray(read_exactly(part, source, lines_size, offset)) if is_kept else None,
                head=source.pread(min(lines_size, RAW_LIMIT), offset),
                size=lines_size,
                offset=offset,
                bytes_read=counted_end - counted,
            )
        offset += lines_size
        counted = counted_end


def read_exactly(part: FileRange, source: InputBytes, size: int, offset: int) -> bytes:
    """Return `size` bytes from `offset` on; InputChangedError where the file ends before."""
    data = source.pread(size, offset)
    if len(data) < size:
        raise changed(part.file, f"it ends at byte {offset + len(data)}, planned were {part.file.size}")
    return data


def _compressed(
    part: FileRange, source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    stream = ByteStream(source)
    pending, offset, final = b"", 0, False

    def following() -> LineBlock | LongLine | None:
        nonlocal pending, offset, final
        wanted = max(block_bytes - len(pending), 0)
        data = pending if final else pending + stream.read(wanted)
        final = final or len(data) < len(pending) + wanted
        cut = len(data) if final else data.rfind(b"\n") + 1
        if not data:
            return None
        if cut:
            pending = data[cut:]
            block = LineBlock(data=data, size=cut, offset=offset, bytes_read=stream.consumed())
        else:
            block, pending = _gather(stream, data, limit, offset)
        offset += block.size
        return block

    return iter(following, None)  # no reference to a block stays here: a line may be large


def _gather(stream: ByteStream, begun: bytes, limit: int, offset: int) -> tuple[LongLine, bytes]:
    """Read on until the line ends; return it, and what was read of the next lines."""
    data: bytearray | None = bytearray(begun)
    size, head, rest, ended = len(begun), begun[:RAW_LIMIT], b"", False
    while not ended:
        chunk = stream.read(SCAN_BYTES)
        newline = chunk.find(b"\n") + 1
        ended = newline > 0 or not chunk
        if newline:
            chunk, rest = chunk[:newline], chunk[newline:]
        size += len(chunk)
        head += chunk[: RAW_LIMIT - len(head)]
        if data is not None:
            data += chunk
            data = data if size <= limit + FRAME_BYTES else None
    used = stream.consumed()
    return LongLine(data=data, head=head, size=size, offset=offset, bytes_read=used), rest


def parsed_blocks(
    blocks: Iterator[_Block | LongLine],
    long: Callable[[LongLine], Parsed],
    whole: Callable[[_Block], Iterator[Parsed]],
) -> Iterator[Parsed]:
    """Parse blocks of records; a long line need not stay in memory while its text is worked on."""
    for block in blocks:
        if isinstance(block, LongLine):
            found = [long(block)]
            del block
            yield found.pop()
        else:
            yield from whole(block)
