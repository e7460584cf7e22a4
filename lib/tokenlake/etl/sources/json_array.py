"""A file that is one JSON array of objects, or one object around it, streamed in blocks of whole elements.

An element is what stands between two commas of the array. It is read as a line of JSON Lines is, and known by its
index. What is wrong inside an element makes a bad record; where the array itself is broken, nothing says what belongs
to which element, and the file is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64s
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.json import parse_records
from tokenlake.etl.sources.json_borders import WINDOW_BYTES, BorderScanner
from tokenlake.etl.sources.json_long_line import parse_long
from tokenlake.etl.sources.json_wrapper import start_of_records
from tokenlake.etl.sources.line_records import RawRecords
from tokenlake.etl.sources.lines import BOM, LongLine, parsed_blocks
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.where import Predicate

_SPACE: Final = b" \t\r\n"
_CHUNK: Final = 1 << 20
_SLACK: Final = 1 << 16  # of space around an element


def read_json_array(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the elements of a file.

    Raises:
        DamagedFileError: it is no array, nor one object around an array of objects; it is cut, its brackets do not
            match, or something follows it.
    """
    reader = ElementReader(data, want.max_record_bytes, want.block_bytes)
    found = parsed_blocks(
        reader.blocks(), lambda line: parse_long(line, want), lambda block: parse_records(block, want)
    )
    return map(_as_elements, found)


def _as_elements(parsed: Parsed) -> Parsed:
    """Return what was read like lines as elements of an array, which stand on no line."""

    def element(line: BadLine) -> BadLine:
        fault = line.fault
        if fault.reason == "line_too_long":
            fault = Fault("record_too_long", fault.detail.replace("the line", "the record", 1))
        return line._replace(line_index=None, fault=fault)

    return replace(
        parsed,
        bad=tuple(map(element, parsed.bad)),
        doubtful=tuple(map(element, parsed.doubtful)),
        lines=0,
        as_bad=lambda position, fault: element(parsed.as_bad(position, fault)),
    )


@final
class ElementReader:
    """Reads one array from its beginning, as blocks of records in bounded memory, whatever stands in them."""

    def __init__(self, data: InputBytes, limit: int, block_bytes: int) -> None:
        """Read a file; elements of more than `limit` bytes are not held."""
        self._input = data
        self._file, self._stream, self._limit, self._block = data.file, ByteStream(data), limit, block_bytes
        self._scanner = BorderScanner()
        self._data = bytearray()  # what is not yet handed over, or dropped
        self._offset = 0  # of it in the file
        self._commas: list[int] = []  # in it
        self._close: int | None = None
        self._index = 0  # of its first element
        self._head, self._dropped = b"", 0  # of an element that is too long
        self._bom = 0

    def blocks(self) -> Iterator[RawRecords | LongLine]:
        """Yield the elements in order; the `offset` of a long one is its index.

        Raises:
            DamagedFileError: the file is no array, is cut, has brackets that do not match, or goes on after it.
        """
        data = self._stream.read(self._block)
        self._bom = int(data.startswith(BOM))
        text = data[len(BOM) * self._bom :].lstrip(_SPACE)
        begin = len(data) - len(text)
        wrapped = None
        if text.startswith(b"{"):
            wrapped = start_of_records(self._file, ByteStream(self._input).read)
        if wrapped is not None:
            text = self._skip_to(wrapped, data)
            begin = wrapped
        if not text.startswith(b"["):
            raise unsuitable(self._file, *_no_array(text), offset=begin)
        self._offset = begin + 1
        self._scan(text[1:])
        while self._close is None:
            if self._commas:
                yield from self._complete()
            size = self._block - len(self._data)
            # What is held of an element that is too long is let go.
            if size <= 0 and (self._dropped or len(self._data) > self._limit + _SLACK):
                self._head = self._head or bytes(memoryview(self._data)[:RAW_LIMIT]).lstrip(_SPACE)
                self._dropped += len(self._data)
                self._data = bytearray()
            if not (data := self._stream.read(size if size > 0 else _CHUNK)):
                where = self._offset + self._dropped + len(self._data)
                raise damaged(
                    self._file,
                    f"it ends at byte {where}, within or after element {self._index}, before the `]` of the array",
                    offset=where,
                )
            self._scan(data)
        closed_by = self._data[self._close]
        yield from self._complete()

        if closed_by != ord("]"):
            at = self._offset - 1
            raise damaged(self._file, f"byte {at} is `}}`, which closes nothing", offset=at)
        if wrapped is not None:  # the object around the array was seen to be whole
            return
        rest, at = bytes(self._data), self._offset
        while rest:  # read on to the end of the file, past nothing but space
            if found := rest.lstrip(_SPACE):
                where = at + len(rest) - len(found)
                told = f"it goes on at byte {where}, after the end of the array"
                raise damaged(self._file, told, offset=where)
            at, rest = at + len(rest), self._stream.read(_CHUNK)

    def _skip_to(self, offset: int, data: bytes) -> bytes:
        """Return what was read from an offset on; `data` is the beginning of the file."""
        while len(data) <= offset:
            offset -= len(data)
            data = self._stream.read(self._block)
            if not data:
                break
        return data[offset:]

    def _scan(self, data: bytes) -> None:
        """Add `data` to what is held, and the borders in it to those known."""
        base = len(self._data)
        self._data += data
        for at in range(0, len(data), WINDOW_BYTES):
            found = self._scanner.feed(data[at : at + WINDOW_BYTES])
            self._commas += (found.commas + (base + at)).tolist()
            if found.close is not None:
                self._close = base + at + found.close
                return

    def _complete(self) -> Iterator[RawRecords | LongLine]:
        """Hand over what is complete."""
        ends = np.array(self._commas if self._close is None else [*self._commas, self._close], np.int64)
        self._commas, start = [], 0
        if self._dropped or ends[0] > self._block:
            start = int(ends[0]) + 1
            yield self._long(start - 1)
        stop = int(ends[-1])
        if start <= stop:
            yield self._records(bytes(memoryview(self._data)[start:stop]), ends[ends >= start] - start)
        del self._data[: stop + 1]
        self._offset += stop + 1

    def _records(self, data: bytes, ends: Int64s) -> RawRecords:
        # Where each element starts and stops without the space around it.
        begins = np.append(0, ends[:-1] + 1)
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        right = [data[start:stop].rstrip(_SPACE) for start, stop in spans]
        stops = begins + np.array(list(map(len, right)), np.int64)
        starts = stops - np.array([len(text.lstrip(_SPACE)) for text in right], np.int64)
        if self._index == 0 and len(ends) == 1 and starts[0] == stops[0] and self._close is not None:
            starts, stops = starts[:0], stops[:0]  # an empty array
        first, self._index = self._index, self._index + len(starts)
        bom, self._bom = self._bom, 0
        return RawRecords(
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
            data = bytearray(memoryview(self._data)[:end]).strip(_SPACE)
            head = bytes(memoryview(data)[:RAW_LIMIT])
            data += b"\n"  # it is whole, like a line that has its end
            size = len(data)
        self._head, self._offset, self._dropped = b"", self._offset + self._dropped, 0
        self._index += 1
        used = self._stream.consumed()
        return LongLine(data=data, head=head, size=size, offset=self._index - 1, bytes_read=used)


def _no_array(begin: bytes) -> tuple[str, str]:
    """Return what a file holds that begins with `begin` (space left out), and what to do about it."""
    how = "write an array of objects, or an object on each line"
    if not begin:
        return "it is empty, expected a JSON array", how
    if not begin.startswith(b"{"):
        return f"it begins with {begin[:20]!r}, expected a JSON array (`[`)", how
    told = (
        "it begins with a JSON object of several lines that is around no list of objects, expected an array of "
        "objects (`[`), one object around it, or one on each line"
    )
    return told, how
