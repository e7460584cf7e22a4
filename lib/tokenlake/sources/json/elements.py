"""The elements of a JSON array as blocks of records, in bounded memory, whatever stands in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from tokenlake.sources.arrays import Int64s
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.blocks import BLOCK_BYTES, LongLine
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.json.borders import BorderScanner
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.lineindex import BOM
from tokenlake.sources.stream import ByteStream

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
