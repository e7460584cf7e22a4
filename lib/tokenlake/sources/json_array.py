"""A file that is one JSON array of objects, streamed: what is held is a block of whole elements.

An element is what stands between two commas of the array. It is read like a line of JSON Lines, by the
same readers, and known by its index. What is wrong inside an element makes a bad record; where the
array itself is broken, nothing says what belongs to which element, and the file is damaged.

The elements of a JSON array as blocks of records, in bounded memory, whatever stands in them.

Where the elements of a JSON array end, found without parsing them.

Only three things matter for that: quotes that are not escaped, brackets outside strings, and commas
outside strings on the array's own level. Whether an element is valid is another's question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Int64s
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile, damaged
from tokenlake.sources.json import Spans, fast_texts, is_plain, parse_long, read_rows_of, read_texts_of
from tokenlake.sources.lines import BLOCK_BYTES, BOM, LongLine
from tokenlake.sources.rows import Fault
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.where import Predicate

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_NEWLINE: Final = ord("\n")
_LONG_RUN: Final = 32  # backslashes that are counted step by step
_STEP: Final = np.array(
    [{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(byte), 0) for byte in range(256)], np.int8
)

Bytes = npt.NDArray[np.uint8]


class Borders(NamedTuple):
    """What was found in a stretch of an array.

    Attributes:
        commas: int64[n], offsets of the commas between elements.
        close: offset of the bracket that closes the array, or of a brace in its place; None for none.
        newlines: how many newlines there are outside strings, up to `close`.
    """

    commas: Int64s
    close: int | None
    newlines: int


@final
class BorderScanner:
    """Goes through the bytes of one array, from behind its opening bracket on, stretch by stretch."""

    def __init__(self) -> None:
        self._depth = 1
        self._inside = False  # a string
        self._odd = False  # the bytes so far end in an odd number of backslashes

    def feed(self, data: Bytes) -> Borders:
        """Scan the next stretch; nothing may follow one that has the array's end."""
        outside = self._outside(data)
        found = data[outside]
        steps = _STEP[found]
        at = np.flatnonzero((steps != 0) | (found == _COMMA))
        depth = self._depth + np.cumsum(steps[at], dtype=np.int64)
        closes = np.flatnonzero(depth == 0)
        end = len(at) if not len(closes) else int(closes[0])
        commas = outside[at[:end][(depth[:end] == 1) & (found[at[:end]] == _COMMA)]]
        self._depth = int(depth[-1]) if len(depth) else self._depth
        close = int(outside[at[end]]) if len(closes) else None
        stop = len(outside) if close is None else int(at[end])
        return Borders(commas, close, int(np.count_nonzero(found[:stop] == _NEWLINE)))

    def _outside(self, data: Bytes) -> Int64s:
        """Return the offsets of the bytes that are in no string; quotes count as being in one."""
        quotes = self._quotes(data)
        edges = np.concatenate([[-1], quotes, [len(data)]])
        starts, stops = edges[:-1][self._inside :: 2] + 1, edges[1:][self._inside :: 2]
        self._inside ^= bool(len(quotes) % 2)
        sizes = stops - starts
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        return np.arange(total) + np.repeat(starts - (ends - sizes), sizes)

    def _quotes(self, data: Bytes) -> Int64s:
        """Return the offsets of the quotes that begin or end a string."""
        quotes = np.flatnonzero(data == _QUOTE)
        odd, self._odd = self._odd, self._ends_odd(data)
        doubtful = np.flatnonzero(data[quotes - 1] == _BACKSLASH)
        if len(quotes) and quotes[0] == 0:
            doubtful = np.append(np.zeros(int(odd), np.int64), doubtful[doubtful > 0])
        if not len(doubtful):
            return quotes
        escaped = _runs(data, quotes[doubtful], int(odd)) % 2 == 1
        return np.delete(quotes, doubtful[escaped])

    def _ends_odd(self, data: Bytes) -> bool:
        if not len(data) or data[-1] != _BACKSLASH:
            return bool(self._odd and not len(data))
        return bool(_runs(data, np.array([len(data)]), int(self._odd))[0] % 2)


def _runs(data: Bytes, ends: Int64s, before: int) -> Int64s:
    """Return how many backslashes stand directly before each of `ends`, with `before` before the data."""
    runs = np.zeros(len(ends), np.int64)
    alive = np.arange(len(ends))
    while len(alive) and runs[alive[0]] < _LONG_RUN:
        at = ends[alive] - 1 - runs[alive]
        alive = alive[(at >= 0) & (data[at] == _BACKSLASH)]
        runs[alive] += 1
    if len(alive):
        others = np.append(-1, np.flatnonzero(data != _BACKSLASH))
        runs[alive] = ends[alive] - 1 - others[np.searchsorted(others, ends[alive]) - 1]
    return runs + np.where(runs == ends, before, 0)


SPACE: Final = b" \t\r\n"
_WINDOW: Final = 1 << 19  # bytes scanned together: what is made of them stays in the processor's cache
_CHUNK: Final = 1 << 20
_SLACK: Final = 1 << 16  # of space around an element
_INDENT: Final = 64  # spaces before or after an element that are passed step by step
_IS_SPACE: Final = np.frombuffer(bytes(byte in SPACE for byte in range(256)), np.bool_)


@final
class ElementReader:
    """Reads one array from its beginning.

    Attributes:
        raw_newlines: whether a string has held a newline so far, which is no JSON.
    """

    def __init__(
        self, file: InputFile, stream: ByteStream, limit: int, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """Read `file`; elements of more than `limit` bytes are not held."""
        self._file, self._stream, self._limit, self._block = file, stream, limit, block_bytes
        self._scanner = BorderScanner()
        self._data = bytearray()  # what is not yet handed over, or dropped
        self._offset = 0  # of it in the file
        self._commas: list[int] = []  # in it
        self._close: int | None = None
        self._closed_by = 0
        self._index = 0  # of its first element
        self._head, self._dropped = b"", 0  # of an element that is too long
        self._bom = 0
        self.raw_newlines = False

    def blocks(self) -> Iterator[Spans | LongLine]:
        """Yield the elements in order; the `offset` of a long one is its index.

        Raises:
            DamagedFileError: the file is no array, is cut, has brackets that do not match, or goes on after it.
        """
        self._begin()
        while True:
            if self._commas or self._close is not None:
                yield from self._complete()
            if self._close is not None:
                break
            size = self._block - len(self._data)
            if size <= 0:
                self._drop()
            self._more(size if size > 0 else _CHUNK)
        self._end()

    def _begin(self) -> None:
        data = self._stream.read(self._block)
        self._bom = int(data.startswith(BOM))
        text = data[len(BOM) * self._bom :].lstrip(SPACE)
        if not text.startswith(b"["):
            raise damaged(self._file, _no_array(text), offset=len(data) - len(text))
        self._offset = len(data) - len(text) + 1
        self._scan(text[1:])

    def _more(self, size: int) -> None:
        data = self._stream.read(size)
        if not data:
            where = self._offset + self._dropped + len(self._data)
            raise damaged(
                self._file,
                f"it ends at byte {where}, within or after element {self._index}, before the `]` of the array",
                offset=where,
            )
        self._scan(data)

    def _scan(self, data: bytes) -> None:
        """Add `data` to what is held, and the borders in it to those known."""
        base = len(self._data)
        self._data += data
        view = np.frombuffer(data, np.uint8)
        for at in range(0, len(data), _WINDOW):
            window = view[at : at + _WINDOW]
            found = self._scanner.feed(window)
            self._commas += (found.commas + (base + at)).tolist()
            stop = at + (len(window) if found.close is None else found.close)
            self.raw_newlines |= data.count(b"\n", at, stop) != found.newlines
            if found.close is not None:
                self._close = base + stop
                self._closed_by = data[stop]
                return

    def _complete(self) -> Iterator[Spans | LongLine]:
        """Hand over what is complete."""
        ends = np.array(self._commas if self._close is None else [*self._commas, self._close], np.int64)
        self._commas, start = [], 0
        if self._dropped or ends[0] > self._block:
            start = int(ends[0]) + 1
            yield self._long(start - 1)
        stop = int(ends[-1])
        if start <= stop:
            yield self._spans(bytes(memoryview(self._data)[start:stop]), ends[ends >= start] - start)
        del self._data[: stop + 1]
        self._offset += stop + 1

    def _spans(self, data: bytes, ends: Int64s) -> Spans:
        starts, stops = _trimmed(data, np.append(0, ends[:-1] + 1), ends)
        if self._index == 0 and len(ends) == 1 and starts[0] == stops[0] and self._close is not None:
            starts, stops = starts[:0], stops[:0]  # an empty array
        first, self._index = self._index, self._index + len(starts)
        bom, self._bom = self._bom, 0
        return Spans(
            data=data,
            starts=starts,
            stops=stops,
            positions=np.arange(first, self._index),
            bytes_read=self._stream.consumed(),
            normalized={"bom": bom},
        )

    def _long(self, end: int) -> LongLine:
        if self._dropped:
            data, head, size = None, self._head, self._dropped + end
        else:
            data = bytearray(memoryview(self._data)[:end]).strip(SPACE)
            head = bytes(memoryview(data)[:RAW_LIMIT])
            data += b"\n"  # it is whole, like a line that has its end
            size = len(data)
        self._head, self._offset, self._dropped = b"", self._offset + self._dropped, 0
        self._index += 1
        used = self._stream.consumed()
        return LongLine(data=data, head=head, size=size, offset=self._index - 1, bytes_read=used)

    def _drop(self) -> None:
        """Let go of the beginning of an element that is too long."""
        if self._dropped or len(self._data) > self._limit + _SLACK:
            self._head = self._head or bytes(memoryview(self._data)[:RAW_LIMIT]).lstrip(SPACE)
            self._dropped += len(self._data)
            self._data = bytearray()

    def _end(self) -> None:
        """Read on to the end of the file, past nothing but space."""
        rest, at = bytes(self._data), self._offset
        if self._closed_by != ord("]"):
            raise damaged(self._file, f"byte {at - 1} is `}}`, which closes nothing", offset=at - 1)
        while rest:
            if found := rest.lstrip(SPACE):
                where = at + len(rest) - len(found)
                raise damaged(
                    self._file, f"it goes on at byte {where}, after the end of the array", offset=where
                )
            at, rest = at + len(rest), self._stream.read(_CHUNK)


def _trimmed(data: bytes, starts: Int64s, stops: Int64s) -> tuple[Int64s, Int64s]:
    """Return where each stretch starts and stops without the space around it."""
    view = np.frombuffer(data + b"x", np.uint8)
    starts, stops = starts.copy(), stops.copy()
    for _ in range(_INDENT):
        left, right = (
            (starts < stops) & _IS_SPACE[view[starts]],
            (starts < stops) & _IS_SPACE[view[stops - 1]],
        )
        if not (left.any() or right.any()):
            return starts, stops
        starts += left
        stops -= right & (starts < stops)
    for index in range(len(starts)):
        text = data[int(starts[index]) : int(stops[index])]
        starts[index] += len(text) - len(text.lstrip(SPACE))
        stops[index] = starts[index] + len(text.strip(SPACE))
    return starts, stops


def _no_array(begin: bytes) -> str:
    """Say what a file holds that begins with `begin` (space left out)."""
    if not begin:
        return "it is empty, expected a JSON array"
    if not begin.startswith(b"{"):
        return f"it begins with {begin[:20]!r}, expected a JSON array (`[`)"
    return "it begins with a JSON object of several lines, expected an array of objects (`[`), or one on each line"


def read_json_array(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the elements of a file.

    Raises:
        DamagedFileError: it is no array, it is cut, its brackets do not match, or something follows it.
    """
    yield from read_elements(ElementReader(part.file, ByteStream(data), want.max_record_bytes), want)


def read_elements(reader: ElementReader, want: Want) -> Iterator[Parsed]:
    """Parse the elements of one array."""
    for block in reader.blocks():
        if isinstance(block, LongLine):
            box = [_as_elements(parse_long(block, want))]
            del block
            yield box.pop()
        else:
            lines = None if reader.raw_newlines else _as_lines(block)
            yield from map(_as_elements, _parse(block, lines, want))


def _parse(spans: Spans, lines: bytes | None, want: Want) -> Iterator[Parsed]:
    if want.text is None or want.columns != ():
        return read_rows_of(spans, want)
    if lines is not None and (text := _texts(spans, lines, want.text, want)) is not None:
        return iter([spans.parsed(slice(None), (), text=text)])
    return read_texts_of(spans, want.text, want.max_record_bytes)


def _texts(spans: Spans, lines: bytes, field: str, want: Want) -> pa.LargeStringArray | None:
    return fast_texts(spans, lines, field, want.max_record_bytes) if is_plain(spans, field) else None


def _as_lines(spans: Spans) -> bytes | None:
    """Return the elements, none of which has a newline in a string, as lines; None where one is empty."""
    if np.any(spans.starts == spans.stops):
        return None
    data = memoryview(spans.data.replace(b"\n", b" "))
    return b"\n".join(
        [data[start:stop] for start, stop in zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)]
    )


def _as_elements(parsed: Parsed) -> Parsed:
    """Return what was read like lines as elements of an array, which stand on no line."""
    return replace(
        parsed,
        bad=tuple(map(_element, parsed.bad)),
        doubtful=tuple(map(_element, parsed.doubtful)),
        lines=0,
        as_bad=lambda position, fault: _element(parsed.as_bad(position, fault)),
    )


def _element(line: BadLine) -> BadLine:
    fault = line.fault
    if fault.reason == "line_too_long":
        fault = Fault("record_too_long", fault.detail.replace("the line", "the record", 1))
    return line._replace(line=None, fault=fault)
