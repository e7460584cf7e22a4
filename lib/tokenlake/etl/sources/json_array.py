"""A file of JSON that is one array of objects, or one object around it.

It is streamed in blocks of whole elements.

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
# White space around an element is in the buffer, but does not count as its size.
_SPACE_AROUND: Final = 1 << 16
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
    """Return records that were parsed like lines as elements of an array."""
    return replace(
        parsed,
        bad=tuple(_as_bad_element(line) for line in parsed.bad),
        doubtful=tuple(_as_bad_element(line) for line in parsed.doubtful),
        lines=0,
        line_indices=None,
        as_bad=lambda position, fault: _as_bad_element(parsed.as_bad(position, fault)),
    )


def _as_bad_element(line: BadLine) -> BadLine:
    """Return a bad line as a bad element, which has no line number."""
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
            # Everything before the latest comma is whole.
            if self._commas:
                yield from self._whole_elements()
            bytes_to_read = self._block_bytes - len(self._buffer)
            # The buffer is full of one element. It grows beyond a block, up to the
            # limit.
            if bytes_to_read <= 0:
                self._drop_if_too_long()
                bytes_to_read = _CHUNK_BYTES
            chunk = self._stream.read(bytes_to_read)
            if not chunk:
                raise self._cut()
            self._scan(chunk)

        closed_by = self._buffer[self._close]
        yield from self._whole_elements()
        # The scanner counts brackets and braces alike, so that the kind of the last one
        # is checked here.
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
        """Read up to the array and scan its first bytes.

        Returns:
            Whether an object is around the array.

        Raises:
            UnsuitableFileError: The file does not begin with an array, nor with an
                object around one.
        """
        first_block = self._stream.read(self._block_bytes)
        array_offset = 0
        if first_block.startswith(BOM):
            self._bom_count = 1
            array_offset = len(BOM)
        visible_bytes = first_block[array_offset:].lstrip(_SPACE)
        array_offset = len(first_block) - len(visible_bytes)
        is_wrapped = False
        # Another stream reads ahead to find the array: the object may be long, and this
        # stream cannot go back.
        if visible_bytes.startswith(b"{"):
            list_offset = start_of_records(self._file, ByteStream(self._input).read)
            if list_offset is not None:
                is_wrapped = True
                visible_bytes = self._skip_to(list_offset, first_block)
                array_offset = list_offset
        if not visible_bytes.startswith(b"["):
            raise _no_array(self._file, visible_bytes, array_offset)
        self._offset = array_offset + 1
        self._scan(visible_bytes[1:])
        return is_wrapped

    def _skip_to(self, offset: int, chunk: bytes) -> bytes:
        """Return the bytes that were read from an offset of the file on.

        Args:
            offset: Offset in the file.
            chunk: First bytes of the file.
        """
        while len(chunk) <= offset:
            offset -= len(chunk)
            chunk = self._stream.read(self._block_bytes)
            if not chunk:
                break
        return chunk[offset:]

    def _scan(self, chunk: bytes) -> None:
        """Append bytes to the buffer, and the borders in them to the others."""
        buffer_size = len(self._buffer)
        self._buffer += chunk
        # A window is small enough for the processor's cache.
        for window_start in range(0, len(chunk), WINDOW_BYTES):
            window = chunk[window_start : window_start + WINDOW_BYTES]
            borders = self._scanner.feed(window)
            self._commas += (borders.commas + (buffer_size + window_start)).tolist()
            if borders.close is not None:
                self._close = buffer_size + window_start + borders.close
                return

    def _drop_if_too_long(self) -> None:
        """Drop the buffer if it belongs to one element over the limit.

        The end of that element is not read yet.
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
        border_offsets = self._commas
        if self._close is not None:
            border_offsets.append(self._close)
        self._commas = []
        element_ends = np.array(border_offsets, np.int64)
        first_byte = 0
        # The first element may be a long one.
        if self._dropped or element_ends[0] > self._block_bytes:
            first_byte = int(element_ends[0]) + 1
            yield self._long_element(int(element_ends[0]))
            element_ends = element_ends[1:]
        if len(element_ends):
            end_byte = int(element_ends[-1])
            elements = bytes(memoryview(self._buffer)[first_byte:end_byte])
            yield self._elements(elements, element_ends - first_byte)
        else:
            end_byte = first_byte - 1
        del self._buffer[: end_byte + 1]
        self._offset += end_byte + 1

    def _elements(self, element_bytes: bytes, ends: Int64s) -> RawRecords:
        """Return elements as records.

        Args:
            element_bytes: Elements with the commas between them.
            ends: End of each element in `element_bytes`, int64[n].
        """
        # The place of each element without the space around it.
        begins = np.append(0, ends[:-1] + 1)
        right_stripped: list[bytes] = []
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        for element_start, element_end in spans:
            right_stripped.append(
                element_bytes[element_start:element_end].rstrip(_SPACE)
            )
        stripped_sizes = [len(element) for element in right_stripped]
        content_sizes = [len(element.lstrip(_SPACE)) for element in right_stripped]
        stops = begins + np.array(stripped_sizes, np.int64)
        starts = stops - np.array(content_sizes, np.int64)
        is_only = self._index == 0 and len(ends) == 1 and self._close is not None
        if is_only and starts[0] == stops[0]:  # an empty array
            starts = starts[:0]
            stops = stops[:0]

        first_index = self._index
        self._index += len(starts)
        bom_count = self._bom_count
        self._bom_count = 0
        return RawRecords(
            data=element_bytes,
            starts=starts,
            stops=stops,
            positions=np.arange(first_index, self._index),
            bytes_read=self._stream.consumed(),
            normalized={"bom": bom_count},
        )

    def _long_element(self, element_end: int) -> LongLine:
        """Return the element that ends at a byte of the buffer, like a long line.

        Its beginning may have been dropped.
        """
        data: bytearray | None = None
        # Of an element that was dropped only the first bytes and the size are known.
        if self._dropped:
            first_bytes = self._dropped_head
            element_bytes = self._dropped + element_end
        else:
            data = bytearray(memoryview(self._buffer)[:element_end]).strip(_SPACE)
            first_bytes = bytes(memoryview(data)[:RAW_LIMIT])
            data += b"\n"  # the element is whole, like a line that has its end
            element_bytes = len(data)
        self._offset += self._dropped
        self._dropped = 0
        self._dropped_head = b""
        element_index = self._index
        self._index += 1
        bytes_read = self._stream.consumed()
        return LongLine(
            data=data,
            head=first_bytes,
            size=element_bytes,
            offset=element_index,
            bytes_read=bytes_read,
        )

    def _cut(self) -> Exception:
        """Return the error for a file that ends inside the array."""
        end_offset = self._offset + self._dropped + len(self._buffer)
        return damaged(
            self._file,
            f"it ends at byte {end_offset}, within or after element {self._index}, before the `]` of the array",
            offset=end_offset,
        )

    def _check_end(self) -> None:
        """Read to the end of the file.

        Raises:
            DamagedFileError: Anything but white space follows the array.
        """
        chunk = bytes(self._buffer)
        offset = self._offset
        while chunk:
            visible_bytes = chunk.lstrip(_SPACE)
            if visible_bytes:
                byte_offset = offset + len(chunk) - len(visible_bytes)
                message = (
                    f"it continues at byte {byte_offset}, after the end of the array"
                )
                raise damaged(self._file, message, offset=byte_offset)
            offset += len(chunk)
            chunk = self._stream.read(_CHUNK_BYTES)


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
