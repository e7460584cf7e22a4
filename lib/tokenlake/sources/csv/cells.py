"""Records and cells of a block of CSV as arrays, and what is wrong with a record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.sources.arrays import Int64s, binary_over, is_utf8, text_over
from tokenlake.sources.csv.blocks import CsvBlock, unclosed
from tokenlake.sources.csv.marks import NEWLINE, QUOTE, RETURN
from tokenlake.sources.inputs import InputFile

_PIECE: Final = 1 << 20
_BARE_RETURN: Final = Fault("bare_return", "a carriage return without a newline stands outside of quotes")
_STRAY_QUOTE: Final = Fault(
    "stray_quote", 'a quote stands inside a cell; expected a quoted cell and "" in it'
)
_NUL_BYTE: Final = Fault("nul_byte", "a cell holds a NUL byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a block, blank lines left out.

    Attributes:
        block: which they stand in.
        starts, stops: int64[n], the record's content, without its carriage return and newline.
        first: int64[n], index in ``block.ends`` of the end of its first cell.
        cells: int64[n], how many cells it has.
        crlf, blank: how many lines ended in CRLF, and how many were empty.
    """

    block: CsvBlock
    starts: Int64s
    stops: Int64s
    first: Int64s
    cells: Int64s
    crlf: int
    blank: int

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def select(self, which: Any) -> Records:
        """Return the records of a slice, mask or array of indices."""
        return replace(
            self,
            starts=self.starts[which],
            stops=self.stops[which],
            first=self.first[which],
            cells=self.cells[which],
        )

    def raw(self, index: int) -> memoryview:
        """Return the bytes of a record."""
        return memoryview(self.block.data)[self.starts[index] : self.stops[index]]


def index_records(block: CsvBlock) -> Records:
    """Return the records of a block."""
    view = block.view
    stops = block.ends[block.lasts]
    starts, first = np.zeros_like(stops), np.zeros_like(stops)
    starts[1:], first[1:] = stops[:-1] + 1, block.lasts[:-1] + 1
    cells = block.lasts - first + 1
    crlf = 0
    if block.has(b"\r"):
        returns = (stops > starts) & (view[np.maximum(stops, 1) - 1] == RETURN) & (stops < len(view))
        stops, crlf = stops - returns, int(np.count_nonzero(returns))
    found = Records(block=block, starts=starts, stops=stops, first=first, cells=cells, crlf=crlf, blank=0)
    full = stops > starts
    blank = len(full) - int(np.count_nonzero(full))
    return replace(found.select(full), blank=blank) if blank else found


def column(records: Records, index: int) -> pa.LargeStringArray:
    """Return cell `index` of every record, unquoted; not validated. Every record must have that cell."""
    starts, stops = spans(records, index)
    view = records.block.view
    quoted = (stops > starts) & (view[np.minimum(starts, len(view) - 1)] == QUOTE)
    starts, stops = starts + quoted, stops - quoted
    return _texts(records.block.data, starts, stops, records.block.doubled)


def spans(records: Records, index: int) -> tuple[Int64s, Int64s]:
    """Return where cell `index` of every record begins and ends, quotes included."""
    ends, at = records.block.ends, records.first + index
    starts = records.starts if index == 0 else ends[at - 1] + 1
    return starts, np.where(records.cells == index + 1, records.stops, ends[at])


def _texts(data: bytearray, starts: Int64s, stops: Int64s, doubled: Int64s | None) -> pa.LargeStringArray:
    if doubled is None:
        return _one_by_one(data, starts.tolist(), stops.tolist())
    sizes = stops - starts
    cuts = np.zeros(0, np.int64)
    if len(doubled) and len(starts):
        owner = np.searchsorted(starts, doubled, side="right") - 1
        inside = (owner >= 0) & (doubled < stops[owner])
        cuts, sizes = doubled[inside], sizes - np.bincount(owner[inside], minlength=len(sizes))
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return text_over(offsets, _pieces(data, starts, stops, cuts))


def _one_by_one(data: bytearray, starts: list[int], stops: list[int]) -> pa.LargeStringArray:
    joined, offsets = bytearray(), np.zeros(len(starts) + 1, np.int64)
    for index, (at, stop) in enumerate(zip(starts, stops, strict=True)):
        while at < stop:  # in pieces, for a cell can be as large as all else together
            end = min(at + _PIECE, stop)
            piece = data[at:end]
            if (len(piece) - len(piece.rstrip(b'"'))) % 2:  # never between two quotes that stand for one
                end += 1
                piece += b'"'
            joined += piece.replace(b'""', b'"')
            at = end
        offsets[index + 1] = len(joined)
    return text_over(offsets, pa.py_buffer(joined))


def _pieces(data: bytearray, starts: Int64s, stops: Int64s, cuts: Int64s) -> pa.Buffer:
    """Return the bytes between every start and stop, laid end to end, without those at `cuts`."""
    # Seen as byte strings, what is wanted and what is not take turns; Arrow copies every other one.
    if len(cuts):
        starts = np.sort(np.concatenate([starts, cuts + 1]), kind="stable")  # merges two runs
        stops = np.sort(np.concatenate([stops, cuts]), kind="stable")
    if not len(starts):
        return pa.py_buffer(b"")
    edges = np.empty(2 * len(starts), np.int64)
    edges[0::2], edges[1::2] = starts, stops
    pieces: Any = binary_over(edges, pa.py_buffer(data))
    return pieces.take(pa.array(np.arange(0, len(edges), 2))).buffers()[2] or pa.py_buffer(b"")


def faults(file: InputFile, records: Records, columns: int, max_record_bytes: int) -> dict[int, Fault]:
    """Return what is wrong with records, by their index.

    Raises:
        DamagedFileError: a cell in quotes is longer than `max_record_bytes`.
    """
    found: dict[int, Fault] = {}
    for index in np.flatnonzero(records.cells != columns).tolist():
        found[index] = Fault(
            "ragged_row", f"the row has {records.cells[index]} cells, the header has {columns}"
        )
    _note(found, records, _bare_returns(records), _BARE_RETURN)
    _note(found, records, records.block.stray, _STRAY_QUOTE)
    if records.block.has(b"\0"):
        view = records.block.view
        _note(found, records, np.flatnonzero(view == 0), _NUL_BYTE)
    for index in _not_utf8(records, 0, len(records)):
        found[index] = Fault("invalid_utf8", "the row is not valid UTF-8")
    for index in np.flatnonzero(records.stops - records.starts > max_record_bytes).tolist():
        if not len(records.block.stray):  # else the scan has seen to it
            _check_cells(file, records, index, max_record_bytes)
        found[index] = record_too_long(int(records.stops[index] - records.starts[index]), max_record_bytes)
    return found


def record_too_long(size: int, max_record_bytes: int) -> Fault:
    """Return the fault of a record that is larger than the limit."""
    return Fault("record_too_long", f"the row has {size} bytes, max_record_bytes is {max_record_bytes}")


def _note(found: dict[int, Fault], records: Records, places: Int64s, fault: Fault) -> None:
    """Give `fault` to the records that have one of `places`, which are in order."""
    owner = np.searchsorted(records.starts, places, side="right") - 1
    inside = (owner >= 0) & (places < records.stops[owner])
    found.update(dict.fromkeys(np.unique(owner[inside]).tolist(), fault))


def _bare_returns(records: Records) -> Int64s:
    """Return where carriage returns stand outside of quotes without a newline after them."""
    block = records.block
    if not block.has(b"\r"):
        return np.zeros(0, np.int64)
    view = block.view
    at = np.flatnonzero(view[: records.stops[-1]] == RETURN)
    at = at[view[np.minimum(at + 1, len(view) - 1)] != NEWLINE]
    cell = np.searchsorted(block.ends, at)
    starts = np.where(cell > 0, block.ends[np.maximum(cell, 1) - 1] + 1, 0)
    # In a quoted cell all are in quotes but one that is its last byte.
    return at[(view[starts] != QUOTE) | (at + 1 == block.ends[cell])]


def _not_utf8(records: Records, start: int, stop: int) -> list[int]:
    """Return the records in ``[start, stop)`` that are not UTF-8, by halving."""
    if start == stop:
        return []
    edges = np.array([records.starts[start], records.stops[stop - 1]], np.int64)
    if is_utf8(text_over(edges, pa.py_buffer(records.block.data))):
        return []
    if stop - start == 1:
        return [start]
    middle = (start + stop) // 2
    return _not_utf8(records, start, middle) + _not_utf8(records, middle, stop)


def _check_cells(file: InputFile, records: Records, index: int, limit: int) -> None:
    one = records.select(np.array([index]))
    view = records.block.view
    for cell in range(int(records.cells[index])):
        (start,), (stop,) = (edge.tolist() for edge in spans(one, cell))
        if stop - start - 2 > limit and view[start] == QUOTE:
            line = records.block.line_of(start)
            raise unclosed(file, line, f"is not closed within max_record_bytes = {limit}")
