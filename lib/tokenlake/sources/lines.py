"""Line files as blocks of whole lines in bounded memory, records as they lie in a block, and plain text.

A range ``[start, stop)`` owns the lines that start inside it. Both ends are moved to the next start
of a line by the same function, so that neighbours meet exactly and any partition reads every line once.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int64s, is_utf8, no_text, offsets_of, select, text_over
from tokenlake.sources.input_bytes import InputBytes
from tokenlake.sources.input_errors import changed, unsuitable
from tokenlake.sources.inputs import FileRange
from tokenlake.sources.opening import ByteStream, check_text
from tokenlake.sources.rows import BLOCK_BYTES, RAW_LIMIT, BadLine, Fault, Parsed, Rows, Want, too_long
from tokenlake.sources.where import Predicate

_SCAN_BYTES: Final = 1 << 20
_NEAR_BYTES: Final = 8 << 10
_TAIL_BYTES: Final = 64 << 10  # most lines end within
_FRAME: Final = 5  # byte order mark, carriage return and newline are not part of a record
BOM: Final = b"\xef\xbb\xbf"
_CR: Final = 13
_NEWLINE: Final = 10
_PIECE_RECORDS: Final = 1 << 15  # a bad one of two bytes takes 500
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
            keep = cut <= limit + _FRAME
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
class RawRecords:
    """Consecutive records in a buffer: lines that hold something, or elements of an array.

    Attributes:
        data: the block's bytes.
        starts, stops: int64[n], where each record lies in `data`, a line without its newline, carriage return and
            byte order mark.
        positions: int64[n], as in :class:`tokenlake.sources.rows.BadRecord`.
        numbers: int64[n], the lines on which they stand, counted from the first line of these records; None
            where there are no lines.
        lines: how many lines there are, blank ones included.
        open_end: the file ends with the last of these records, without an end of line.
        bytes_read, normalized: as in :class:`tokenlake.sources.rows.Parsed`.
    """

    data: bytes
    starts: Int64s
    stops: Int64s
    positions: Int64s
    bytes_read: int
    numbers: Int64s | None = None
    lines: int = 0
    open_end: bool = False
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of every record."""
        data = self.data
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield data[start:stop]

    def pieces(self, size: int) -> Iterator[RawRecords]:
        """Yield the records in pieces of about `size` bytes, fewer where they are very short."""
        at = 0
        while at < len(self):
            end = int(np.searchsorted(self.stops, self.starts[at] + size, side="right"))
            end = min(max(end, at + 1), at + _PIECE_RECORDS)
            yield self if end - at == len(self) else self.part(at, end)
            at = end
        if not len(self):
            yield self

    def part(self, start: int, stop: int) -> RawRecords:
        """Return the records from `start` to `stop`; parts that make up the whole account for all of it."""
        size, last = len(self), stop == len(self)
        numbers, first, after = self.numbers, 0, 0
        if numbers is not None:
            first = 0 if start == 0 else int(numbers[start])
            after = self.lines if last else int(numbers[stop])
            numbers = numbers[start:stop] - first
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            positions=self.positions[start:stop],
            numbers=numbers,
            lines=after - first,
            open_end=self.open_end and last,
            bytes_read=self.bytes_read * stop // size - self.bytes_read * start // size,
            normalized=self.normalized if start == 0 else {},
        )

    def blank(self) -> RawRecords:
        """Return none of the records, one line, which holds nothing."""
        none = self.starts[:0]
        normalized = {**self.normalized, "blank_line": 1}
        return replace(self, starts=none, stops=none, positions=none, numbers=none, normalized=normalized)

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return record `index` as one that has `fault`."""
        start, stop = int(self.starts[index]), int(self.stops[index])
        number = None if self.numbers is None else int(self.numbers[index])
        raw = self.data[start : min(stop, start + RAW_LIMIT)]
        return BadLine(int(self.positions[index]), number, fault, raw)

    def parsed(self, faults: Mapping[int, Fault], **found: Any) -> Parsed:
        """Return what was found in all records but those with a fault, in order, with the account of all of them."""
        return Parsed(
            positions=np.delete(self.positions, list(faults)) if faults else self.positions,
            bad=tuple(self.bad(index, fault) for index, fault in faults.items()),
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            as_bad=self.bad_at,
            **found,
        )


def index_lines(block: LineBlock, blank: bytes = b"") -> RawRecords:
    """Return the lines of a block that hold more than a carriage return, or bytes of `blank`."""
    data = np.frombuffer(block.data, np.uint8, block.size)
    # Iterating over BytesIO finds newlines with memchr and frees each line at once: 5 GB/s on lines of
    # 200 bytes, 20 GB/s on long ones, several times what comparing and searching with numpy reaches.
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    edges = offsets_of(lengths)
    edges = edges[: np.searchsorted(edges, block.size) + 1]

    starts, stops = edges[:-1].copy(), edges[1:] - 1
    open_end = block.size > 0 and bool(data[-1] != _NEWLINE)
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
    return RawRecords(
        data=block.data,
        starts=starts[full],
        stops=stops[full],
        positions=block.offset + edges[full],
        numbers=full,
        lines=len(edges) - 1,
        open_end=open_end,
        normalized={
            "bom": int(bom),
            "crlf": returns,
            "blank_line": len(starts) - len(full) - int(nothing),
        },
        bytes_read=block.bytes_read,
    )


def long_record(line: LongLine) -> tuple[RawRecords, int, int]:
    """Return a long line as one record, of its first bytes alone, and where its content starts and stops."""
    tail = line.data or (line.head if len(line.head) == line.size else b"")
    start = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    crlf, newline = int(tail.endswith(b"\r\n")), int(tail.endswith(b"\n"))
    record = RawRecords(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        numbers=np.zeros(1, np.int64),
        lines=1,
        open_end=line.data is not None and not newline,
        normalized={"bom": int(start > 0), "crlf": crlf},
        bytes_read=line.bytes_read,
    )
    return record, start, line.size - newline - crlf


def record_starts(
    part: FileRange, source: InputBytes, max_record_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[Int64s, LineBlock | LongLine]]:
    """Yield where the records of each block begin, without parsing them: a line that holds anything is a record.

    Of JSON, white space is nothing; but of more of it than a block holds the reader makes a bad record.
    """
    space = b" \t\r" if part.file.format == "jsonl" else b""
    for block in read_blocks(part, source, max_record_bytes, block_bytes):
        if isinstance(block, LineBlock):
            yield index_lines(block, space).positions, block
            continue
        skip = len(BOM) if block.offset == 0 and block.head.startswith(BOM) else 0
        # `head` first: a long record is not copied to find out what its first byte tells.
        blank = space and not block.head[skip:].strip(b" \t\r\n") and block.size <= BLOCK_BYTES + 2
        blank = blank and block.data is not None and not block.data[skip:].strip(b" \t\r\n")
        yield np.full(int(not blank), block.offset, np.int64), block


def read_text(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read a file as one document, or its lines, as its `text_mode` says; its one column is ``text``.

    Raises:
        DamagedFileError: it is no text in UTF-8, or a column other than ``text`` is wanted.
    """
    wanted = want.names((want.plain,))
    if others := [name for name in wanted if name != want.plain]:
        told = f"it has no column {others[0]!r}; text files have one column, {want.plain!r}"
        raise unsuitable(part.file, told, "name that column")
    check_text(data)
    limit = want.max_record_bytes
    if part.file.text_mode == "lines":
        blocks = parsed_blocks(
            read_blocks(part, data, limit, want.block_bytes),
            lambda line: _long_line(line, limit),
            lambda block: iter([_text_lines(block, limit)]),
        )
    else:
        blocks = iter([_document(part, data, limit)])
    return (_with_column(block, want) for block in blocks) if wanted else blocks


def _with_column(parsed: Parsed, want: Want) -> Parsed:
    schema = pa.schema([(want.plain, pa.large_string())])
    rows = _ARROW.RecordBatch.from_arrays([parsed.text], schema=schema)
    return replace(parsed, rows=Rows(rows), text=None if want.text is None else parsed.text)


def _document(part: FileRange, source: InputBytes, max_record_bytes: int) -> Parsed:
    """Read a whole file as one text; line ends stay as they are, a byte order mark goes."""
    if part.file.compression is None:
        data = bytearray(min(part.file.size, max_record_bytes + 1))
        with memoryview(data) as view:
            got = source.read_into(view, 0)
        data = data[:got] if got < len(data) else data
    else:
        stream, data = ByteStream(source), bytearray()
        while chunk := stream.read(_SCAN_BYTES):
            if len(data) <= max_record_bytes:  # what is beyond is read all the same: the stream must end well
                data += chunk

    skip = len(BOM) if data.startswith(BOM) else 0
    text = text_over(np.array([0, len(data) - skip]), pa.py_buffer(data).slice(skip))
    fault = _fault(text, "file", nul=b"\0" in data)
    if len(data) > max_record_bytes:
        told = f"the file has more than max_record_bytes = {max_record_bytes} bytes"
        fault = Fault("document_too_long", told)
    return Parsed(
        text=text[:0] if fault else text,
        positions=np.zeros(0 if fault else 1, np.int64),
        bad=(BadLine(0, None, fault, bytes(data[:RAW_LIMIT])),) if fault else (),
        normalized={"bom": int(skip > 0)},
        bytes_read=part.weight,
    )


def _text_lines(block: LineBlock, max_record_bytes: int) -> Parsed:
    """Return every line that is not empty as a text, without its end of line."""
    lines, data = index_lines(block), memoryview(block.data)
    sizes = lines.stops - lines.starts
    spans = zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)
    joined = b"".join([data[start:stop] for start, stop in spans])
    text = text_over(offsets_of(sizes), pa.py_buffer(joined))
    nul = block.data.find(b"\0", 0, block.size) >= 0
    faults: dict[int, Fault] = {}
    if nul or (sizes > max_record_bytes).any() or not is_utf8(text):
        for index, line in enumerate(lines):
            fault = _fault(text[index : index + 1], "line", nul=b"\0" in line)
            if len(line) > max_record_bytes:
                fault = too_long(len(line), max_record_bytes)
            if fault:
                faults[index] = fault
        text = select(text, ~np.isin(np.arange(len(lines)), list(faults)))
    return lines.parsed(faults, text=text)


def _long_line(line: LongLine, max_record_bytes: int) -> Parsed:
    record, start, stop = long_record(line)
    if stop == start:
        return record.blank().parsed({}, text=no_text())
    fault, text = too_long(stop - start, max_record_bytes), no_text()
    if line.data is not None and stop - start <= max_record_bytes:
        text = text_over(np.array([0, stop - start]), pa.py_buffer(line.data).slice(start))
        fault = _fault(text, "line", nul=b"\0" in line.data)
    return record.parsed({0: fault} if fault else {}, text=text[:0] if fault else text)


def _fault(text: pa.LargeStringArray, whole: str, *, nul: bool) -> Fault | None:
    if not is_utf8(text):
        return Fault("invalid_utf8", f"the {whole} is not valid UTF-8")
    return Fault("nul_byte", f"the {whole} holds a NUL byte, which is in no text") if nul else None
