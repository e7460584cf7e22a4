"""A file that is one JSON array of objects, or one object around it, streamed in blocks
of whole elements.

An element lies between two commas of the array. It is read as a line of JSON Lines is,
and its position is its index, from 0. An error inside an element makes a bad record. If
the array itself is broken, it is unknown which bytes belong to which element, and the
file is damaged.

The reader holds a buffer of bytes that are not yielded yet, and the borders that are
known in it (:mod:`tokenlake.etl.sources.json_borders`). In a loop:

1. The whole elements in the buffer are yielded as one block, and dropped from it.
2. If an element alone is larger than the limit, its bytes are dropped, and only
   counted.
3. More bytes are read and scanned for borders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64s
from tokenlake.errors import UnsuitableFileError
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.json import parse_records
from tokenlake.etl.sources.json_borders import WINDOW_BYTES, BorderScanner
from tokenlake.etl.sources.json_long_line import parse_long
from tokenlake.etl.sources.json_wrapper import start_of_records
from tokenlake.etl.sources.line_records import RawRecords
from tokenlake.etl.sources.lines import BOM, LongLine, parsed_blocks
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.where import Predicate

_SPACE: Final = b" \t\r\n"
_CHUNK_BYTES: Final = 1 << 20
_SPACE_AROUND: Final = 1 << 16  # that an element may have without being too long
_SHOWN_BYTES: Final = 20


def read_json_array(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the elements of a file.

    Raises:
        DamagedFileError: The file is no array, nor one object around an array of
            objects; it is cut, its brackets do not match, or something follows it.
    """
    reader = ElementReader(data, want.max_record_bytes, want.block_bytes)
    blocks = parsed_blocks(
        reader.blocks(),
        lambda line: parse_long(line, want),
        lambda block: parse_records(block, want),
    )
    return map(_as_elements, blocks)


def _as_elements(parsed: Parsed) -> Parsed:
    """Return records that were parsed like lines as elements of an array, which
    stand on no line.
    """
    return replace(
        parsed,
        bad=tuple(_as_bad_element(line) for line in parsed.bad),
        doubtful=tuple(_as_bad_element(line) for line in parsed.doubtful),
        lines=0,
        as_bad=lambda position, fault: _as_bad_element(parsed.as_bad(position, fault)),
    )


def _as_bad_element(line: BadLine) -> BadLine:
    """Return a bad line as a bad element."""
    fault = line.fault
    if fault.reason == "line_too_long":
        fault = Fault(
            "record_too_long", fault.detail.replace("the line", "the record", 1)
        )
    return line._replace(line_index=None, fault=fault)


@final
class ElementReader:
    """Reads one array from its beginning, as blocks of elements in bounded memory."""

    def __init__(self, data: InputBytes, limit: int, block_bytes: int) -> None:
        """Begin before the first byte.

        Args:
            data: The open file.
            limit: Size in bytes of an element above which it is not held.
            block_bytes: Size of a block in bytes.
        """
        self._input = data
        self._file = data.file
        self._stream = ByteStream(data)
        self._limit = limit
        self._block_bytes = block_bytes
        self._scanner = BorderScanner()
        # Bytes that are not yielded yet, from the beginning of an element on.
        self._buffer = bytearray()
        self._offset = 0  # of the buffer in the file, dropped bytes not counted
        self._commas: list[int] = []  # offsets in the buffer
        # Offset in the buffer of the bracket that closes the array.
        self._close: int | None = None
        self._index = 0  # of the element at the front of the buffer
        self._dropped = 0  # bytes dropped of that element, which is too long
        self._dropped_head = b""  # its first bytes
        self._bom_count = 0  # byte order marks that are not counted yet

    def blocks(self) -> Iterator[RawRecords | LongLine]:
        """Yield the elements in order; the `offset` of a long one is its index.

        Raises:
            DamagedFileError: The file is no array, is cut, has brackets that do not
                match, or continues behind it.
        """
        is_wrapped = self._begin()
        while self._close is None:
            if self._commas:
                yield from self._whole_elements()
            room = self._block_bytes - len(self._buffer)
            if room <= 0:
                self._drop_if_too_long()
                room = _CHUNK_BYTES
            data = self._stream.read(room)
            if not data:
                raise self._cut()
            self._scan(data)

        closed_by = self._buffer[self._close]
        yield from self._whole_elements()
        if closed_by != ord("]"):
            offset = self._offset - 1
            raise damaged(
                self._file,
                f"byte {offset} is `}}`, which closes nothing",
                offset=offset,
            )
        if not is_wrapped:  # the object around an array was seen to be whole
            self._check_end()

    def _begin(self) -> bool:
        """Read up to the array and scan its first bytes; return whether an object is
        around it.

        Raises:
            UnsuitableFileError: The file does not begin with an array, nor with an
                object around one.
        """
        data = self._stream.read(self._block_bytes)
        begin = 0
        if data.startswith(BOM):
            self._bom_count = 1
            begin = len(BOM)
        begin += len(data[begin:]) - len(data[begin:].lstrip(_SPACE))
        text = data[begin:]
        is_wrapped = False
        if text.startswith(b"{"):
            start = start_of_records(self._file, ByteStream(self._input).read)
            if start is not None:
                is_wrapped = True
                text = self._skip_to(start, data)
                begin = start
        if not text.startswith(b"["):
            raise _no_array(self._file, text, begin)
        self._offset = begin + 1
        self._scan(text[1:])
        return is_wrapped

    def _skip_to(self, offset: int, data: bytes) -> bytes:
        """Return the bytes that were read from an offset of the file on.

        Args:
            offset: Offset in the file.
            data: First bytes of the file.
        """
        while len(data) <= offset:
            offset -= len(data)
            data = self._stream.read(self._block_bytes)
            if not data:
                break
        return data[offset:]

    def _scan(self, data: bytes) -> None:
        """Append bytes to the buffer, and the borders in them to those that are
        known.
        """
        base = len(self._buffer)
        self._buffer += data
        for start in range(0, len(data), WINDOW_BYTES):
            borders = self._scanner.feed(data[start : start + WINDOW_BYTES])
            self._commas += (borders.commas + (base + start)).tolist()
            if borders.close is not None:
                self._close = base + start + borders.close
                return

    def _drop_if_too_long(self) -> None:
        """Drop the buffer if it belongs to one element over the limit, whose end is
        not read yet.
        """
        if self._dropped or len(self._buffer) > self._limit + _SPACE_AROUND:
            if not self._dropped_head:
                self._dropped_head = bytes(memoryview(self._buffer)[:RAW_LIMIT]).lstrip(
                    _SPACE
                )
            self._dropped += len(self._buffer)
            self._buffer = bytearray()

    def _whole_elements(self) -> Iterator[RawRecords | LongLine]:
        """Yield the whole elements in the buffer, and drop them from it."""
        ends = self._commas
        if self._close is not None:
            ends.append(self._close)
        self._commas = []
        border = np.array(ends, np.int64)
        start = 0
        # The first element may be a long one.
        if self._dropped or border[0] > self._block_bytes:
            start = int(border[0]) + 1
            yield self._long_element(int(border[0]))
            border = border[1:]
        if len(border):
            stop = int(border[-1])
            data = bytes(memoryview(self._buffer)[start:stop])
            yield self._elements(data, border - start)
        else:
            stop = start - 1
        del self._buffer[: stop + 1]
        self._offset += stop + 1

    def _elements(self, data: bytes, ends: Int64s) -> RawRecords:
        """Return elements as records.

        Args:
            data: Elements with the commas between them.
            ends: End of each element in `data`, int64[n].
        """
        # The place of each element without the space around it.
        begins = np.append(0, ends[:-1] + 1)
        right_stripped: list[bytes] = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            right_stripped.append(data[begin:end].rstrip(_SPACE))
        stops = begins + np.array(
            [len(element) for element in right_stripped], np.int64
        )
        starts = stops - np.array(
            [len(element.lstrip(_SPACE)) for element in right_stripped], np.int64
        )
        is_only = self._index == 0 and len(ends) == 1 and self._close is not None
        if is_only and starts[0] == stops[0]:  # an empty array
            starts = starts[:0]
            stops = stops[:0]

        first_index = self._index
        self._index += len(starts)
        bom_count = self._bom_count
        self._bom_count = 0
        return RawRecords(
            data=data,
            starts=starts,
            stops=stops,
            positions=np.arange(first_index, self._index),
            bytes_read=self._stream.consumed(),
            normalized={"bom": bom_count},
        )

    def _long_element(self, end: int) -> LongLine:
        """Return the element that ends at byte `end` of the buffer like a long line;
        it may have been dropped.
        """
        data: bytearray | None = None
        if self._dropped:
            head = self._dropped_head
            size = self._dropped + end
        else:
            data = bytearray(memoryview(self._buffer)[:end]).strip(_SPACE)
            head = bytes(memoryview(data)[:RAW_LIMIT])
            data += b"\n"  # the element is whole, like a line that has its end
            size = len(data)
        self._offset += self._dropped
        self._dropped = 0
        self._dropped_head = b""
        index = self._index
        self._index += 1
        bytes_read = self._stream.consumed()
        return LongLine(
            data=data, head=head, size=size, offset=index, bytes_read=bytes_read
        )

    def _cut(self) -> Exception:
        """Return the error for a file that ends inside the array."""
        end = self._offset + self._dropped + len(self._buffer)
        return damaged(
            self._file,
            f"it ends at byte {end}, within or after element {self._index}, before the `]` of the array",
            offset=end,
        )

    def _check_end(self) -> None:
        """Read to the end of the file; DamagedFileError if anything but white space
        follows the array.
        """
        data = bytes(self._buffer)
        offset = self._offset
        while data:
            rest = data.lstrip(_SPACE)
            if rest:
                place = offset + len(data) - len(rest)
                message = f"it continues at byte {place}, after the end of the array"
                raise damaged(self._file, message, offset=place)
            offset += len(data)
            data = self._stream.read(_CHUNK_BYTES)


def _no_array(file: InputFile, begin: bytes, offset: int) -> UnsuitableFileError:
    """Return the error for a file that holds no array.

    Args:
        file: The file.
        begin: First bytes of the file that are not white space.
        offset: Offset of these bytes.
    """
    if not begin:
        problem = "it is empty, expected a JSON array"
    elif begin.startswith(b"{"):
        problem = (
            "it begins with a JSON object of several lines that contains no list of objects; expected an array of "
            "objects (`[`), one object that contains it, or one object per line"
        )
    else:
        problem = (
            f"it begins with {begin[:_SHOWN_BYTES]!r}, expected a JSON array (`[`)"
        )
    return unsuitable(
        file,
        problem,
        "write an array of objects, or one object per line",
        offset=offset,
    )
