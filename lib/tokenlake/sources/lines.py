"""Line files as blocks of whole lines, in bounded memory.

A range ``[start, stop)`` owns the lines that start inside it. Both ends are moved to the next start of a line by the
same function. Neighbouring ranges therefore meet exactly, and any partition of a file reads every line once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from tokenlake.sources.bad_records import RAW_LIMIT
from tokenlake.sources.byte_stream import ByteStream
from tokenlake.sources.input_bytes import InputBytes
from tokenlake.sources.input_errors import changed
from tokenlake.sources.inputs import FileRange
from tokenlake.sources.parsed import BLOCK_BYTES, Parsed

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
    # What is asked of an object is another request each time; of a local file, little is enough for most lines.
    at, step = offset - 1, _NEAR_BYTES if source.file.is_local else SCAN_BYTES
    while at < size:
        data = source.pread(min(step, size - at), at)
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at, step = at + len(data), SCAN_BYTES
    return size


def _plain(
    part: FileRange, source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    size = part.file.size
    at, mark = _line_start(source, part.start, size), part.start
    end = _line_start(source, part.stop, size)
    while at < end:
        wanted = min(block_bytes, end - at)
        # A block that ends with a line is parsed where it lies. To look for that end first costs a local
        # file nothing, but an object another request.
        if part.file.is_local and at + wanted < end:
            tail = min(_TAIL_BYTES, wanted)
            newline = source.pread(tail, at + wanted - tail).rfind(b"\n") + 1
            wanted -= tail - newline if newline else 0
        data = read_exactly(part, source, wanted, at)
        cut = len(data) if at + len(data) == end else data.rfind(b"\n") + 1
        if cut:
            after = min(at + cut, part.stop)
            yield LineBlock(data=data, size=cut, offset=at, bytes_read=after - mark)
        else:
            cut = _line_start(source, at + len(data), size) - at
            after = min(at + cut, part.stop)
            keep = cut <= limit + FRAME_BYTES
            yield LongLine(
                data=bytearray(read_exactly(part, source, cut, at)) if keep else None,
                head=source.pread(min(cut, RAW_LIMIT), at),
                size=cut,
                offset=at,
                bytes_read=after - mark,
            )
        at, mark = at + cut, after


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
