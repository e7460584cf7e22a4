"""Line files as blocks of whole lines in bounded memory, where the lines of a block lie, and their numbers.

A range ``[start, stop)`` owns the lines that start inside it. Both ends are moved to the next start
of a line by the same function, so that neighbours meet exactly and any partition reads every line once.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar, final

import numpy as np

from tokenlake.arrays import Int64s
from tokenlake.sources.batch import BLOCK_BYTES, RAW_LIMIT, Parsed
from tokenlake.sources.inputs import FileRange, InputBytes, changed
from tokenlake.sources.stream import ByteStream

_SCAN_BYTES: Final = 1 << 20
_NEAR_BYTES: Final = 8 << 10
_TAIL_BYTES: Final = 64 << 10  # most lines end within
_FRAME: Final = 5  # byte order mark, carriage return and newline are not part of a record
BOM: Final = b"\xef\xbb\xbf"
_CR: Final = 13
_NEWLINE: Final = 10
_COUNTED_BYTES: Final = 1 << 30
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
    for offset in range(0, stop, _SCAN_BYTES):
        total += source.pread(min(_SCAN_BYTES, stop - offset), offset).count(b"\n")
    return total


def _line_start(source: InputBytes, offset: int, size: int) -> int:
    """Return where the first line that starts at or after `offset` starts; `size` if there is none."""
    if offset <= 0:
        return 0
    if offset >= size:
        return size
    # What is asked of an object is another request each time; of a local file, little is enough for most lines.
    at, step = offset - 1, _NEAR_BYTES if source.file.is_local else _SCAN_BYTES
    while at < size:
        data = source.pread(min(step, size - at), at)
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at, step = at + len(data), _SCAN_BYTES
    return size


def _plain(
    part: FileRange, source: InputBytes, limit: int, block_bytes: int
) -> Iterator[LineBlock | LongLine]:
    size = part.file.size
    at, mark = _line_start(source, part.start, size), part.start
    end = _line_start(source, part.stop, size)
    while at < end:
        whole = _whole_lines(part, source, min(block_bytes, end - at), at, end)
        data = read_exactly(part, source, whole, at)
        cut = len(data) if at + len(data) == end else data.rfind(b"\n") + 1
        if cut:
            after = min(at + cut, part.stop)
            yield LineBlock(data=data, size=cut, offset=at, bytes_read=after - mark)
        else:
            cut = _line_start(source, at + len(data), size) - at
            after = min(at + cut, part.stop)
            keep = cut <= limit + _FRAME
            yield LongLine(
                data=bytearray(read_exactly(part, source, cut, at)) if keep else None,
                head=source.pread(min(cut, RAW_LIMIT), at),
                size=cut,
                offset=at,
                bytes_read=after - mark,
            )
        at, mark = at + cut, after


def _whole_lines(part: FileRange, source: InputBytes, size: int, at: int, end: int) -> int:
    # A block that ends with a line is parsed where it lies. To look for that end first costs a local
    # file nothing, but an object another request.
    if not part.file.is_local or at + size == end:
        return size
    tail = min(_TAIL_BYTES, size)
    newline = source.pread(tail, at + size - tail).rfind(b"\n") + 1
    return size - tail + newline if newline else size


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
        chunk = stream.read(_SCAN_BYTES)
        newline = chunk.find(b"\n") + 1
        ended = newline > 0 or not chunk
        if newline:
            chunk, rest = chunk[:newline], chunk[newline:]
        size += len(chunk)
        head += chunk[: RAW_LIMIT - len(head)]
        if data is not None:
            data += chunk
            data = data if size <= limit + _FRAME else None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LineIndex:
    """The lines of a block that hold something.

    Attributes:
        starts, stops: int64[n], the content of each line within the block's data, without its
            newline, carriage return and byte order mark.
        numbers: int64[n], index of each line among all lines of the block, blank ones included.
        edges: int64[lines + 1], where all lines begin, and the end of the last one.
        bom, crlf, blank: how many of each there were.
        open_end: the last line has no newline, so the file ends here.
    """

    starts: Int64s
    stops: Int64s
    numbers: Int64s
    edges: Int64s
    bom: int
    crlf: int
    blank: int
    open_end: bool

    @property
    def count(self) -> int:
        """How many lines there are, blank ones included."""
        return len(self.edges) - 1

    def positions(self, block: LineBlock) -> Int64s:
        """Return the byte offset in the file at which each line starts."""
        return block.offset + self.edges[self.numbers]


def index_lines(block: LineBlock, blank: bytes = b"") -> LineIndex:
    """Return the line index of a block; lines of nothing, a lone carriage return, or bytes of `blank` are blank."""
    data = np.frombuffer(block.data, np.uint8, block.size)
    edges = _edges(block)
    starts, stops = edges[:-1].copy(), edges[1:] - 1
    open_end = block.size > 0 and data[-1] != _NEWLINE
    if open_end:
        stops[-1] += 1
    bom = block.offset == 0 and block.data.startswith(BOM)
    if bom:
        starts[0] += len(BOM)
    returns = 0
    if block.data.find(b"\r", 0, block.size) >= 0:
        crlf = (stops > starts) & (data[np.maximum(stops, 1) - 1] == _CR)
        if open_end:
            crlf[-1] = False
        stops -= crlf
        returns = int(np.count_nonzero(crlf))
    full = np.flatnonzero(stops > starts)
    if blank:
        first = data[starts[full]] <= ord(" ")
        only = [at for at in full[first].tolist() if not block.data[starts[at] : stops[at]].strip(blank)]
        full = np.setdiff1d(full, only, assume_unique=True) if only else full
    nothing = open_end and stops[-1] == starts[-1]  # the end of the file after a byte order mark, not a line
    return LineIndex(
        starts=starts[full],
        stops=stops[full],
        numbers=full,
        edges=edges,
        bom=int(bom),
        crlf=returns,
        blank=len(starts) - len(full) - int(nothing),
        open_end=bool(open_end),
    )


def _edges(block: LineBlock) -> Int64s:
    # Iterating over BytesIO finds newlines with memchr and frees each line at once: 5 GB/s on lines of
    # 200 bytes, 20 GB/s on long ones, several times what comparing and searching with numpy reaches.
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges[: np.searchsorted(edges, block.size) + 1]


@final
class LineNumbers:
    """The line numbers of one range's blocks.

    The lines before a range are counted only when the first number is asked for, and, unless
    `always`, only within the first GiB: a unit at the end of a file of a terabyte would else read it all.
    """

    def __init__(self, part: FileRange, data: InputBytes, *, always: bool) -> None:
        self._part, self._data, self._always = part, data, always
        self._passed = 0
        self._before: int | None = None if part.file.compression is None else 0

    def pass_over(self, lines: int) -> None:
        """Note that a block of so many lines is done with."""
        self._passed += lines

    def number(self, line: int, position: int) -> int | None:
        """Return the 1-based number of line `line` of the block at hand, which starts at byte `position`."""
        if self._before is None:
            if not self._always and self._part.start > _COUNTED_BYTES:
                return None
            self._before = count_lines(self._data, position) - self._passed - line
        return self._before + self._passed + line + 1
