"""From a row number to the part of a file where reading begins, so that the row comes soon.

Parquet knows from its footer which row group holds a row, Arrow files which record batch; plain lines
have an index (:mod:`tokenlake.sources.sharded.rowindex`). Everything else (compressed files, CSV, JSON arrays,
streams) is read from the start, and the rows before are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenlake.sources.arrow.footer import batch_starts, is_file
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet.footer import row_group_starts
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.sharded.rowindex import RowIndex, is_lines, scanned, start_of
from tokenlake.sources.sharded.rowindexes import RowIndexes

_FIRST: Final = 64 << 10  # bytes of the first range of lines after a seek: the first row must come soon
_LARGEST: Final = 256 << 20
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """Where to read for a row.

    Attributes:
        parts: ranges to read one after the other, up to the end of the file.
        number: of the first record of the first range; `row - number` records are to be dropped. The
            number of rows, where there is nothing to read.
    """

    parts: Iterable[FileRange]
    number: int


def seek(file: InputFile, row: int, indexes: RowIndexes, options: Mapping[str, Any] | None = None) -> Seek:
    """Return where to read `file` for `row`, a row number of it or one beyond.

    Args:
        indexes: of line files, to use and to add to.
        options: of the file system that a URL is on.

    Raises:
        DamagedFileError: the footer cannot be read.
        InputChangedError: the file is not, or does not stay, what was listed.
    """
    if is_lines(file):
        return _in_lines(file, row, indexes, options)
    starts = _block_starts(file, options)
    return whole(file) if starts is None else _in_blocks(file, row, starts)


def whole(file: InputFile) -> Seek:
    """Return how to read a file that has no blocks from its start."""
    return Seek(parts=[FileRange(file=file, start=0, stop=file.size, weight=file.size)], number=0)


def rows_without_reading(file: InputFile, options: Mapping[str, Any] | None = None) -> int | None:
    """Return how many rows a file has, good or bad, where its metadata tell; else None."""
    if file.format == "text" and file.text_mode == "document":
        return 1
    starts = _block_starts(file, options)
    return None if starts is None else starts[-1]


def line_rows(
    file: InputFile, enough: int, indexes: RowIndexes, options: Mapping[str, Any] | None = None
) -> int:
    """Return how many rows a plain file of lines has, some number from `enough` on if so many; not parsed."""
    with opened(file, options) as data:
        return _extended(enough - 1, indexes, data).count


def _block_starts(file: InputFile, options: Mapping[str, Any] | None) -> list[int] | None:
    """Return the numbers of the first rows of row groups or record batches, and behind them that of rows.

    None for a file without such blocks.
    """
    if file.format not in ("parquet", "arrow"):
        return None
    with opened(file, options) as data:
        if file.format == "parquet":
            return row_group_starts(data)
        return batch_starts(data) if is_file(data) else None


def _in_blocks(file: InputFile, row: int, starts: list[int]) -> Seek:
    block, count = bisect_right(starts, row) - 1, len(starts) - 1
    if block >= count:
        return Seek(parts=[], number=starts[-1])
    part = FileRange(file=file, start=block, stop=count, weight=0)
    return Seek(parts=[part], number=starts[block])


def _in_lines(file: InputFile, row: int, indexes: RowIndexes, options: Mapping[str, Any] | None) -> Seek:
    if row == 0:
        return Seek(parts=_growing(file, 0), number=0)
    with opened(file, options) as data:
        index = _extended(row, indexes, data)
        if row >= index.count:
            return Seek(parts=[], number=index.count)
        return Seek(parts=_growing(file, start_of(index, data, row)), number=row)


def _extended(row: int, indexes: RowIndexes, data: InputBytes) -> RowIndex:
    known = indexes.get(data.file)
    found = scanned(known, data, row)
    if found is not known:
        indexes.put(data.file, found)
    return found


def _growing(file: InputFile, start: int) -> Iterator[FileRange]:
    """Yield ranges from byte `start` on, small ones first; any partition gives the same rows."""
    size = _FIRST
    while start < file.size:
        stop = min(start + size, file.size)
        yield FileRange(file=file, start=start, stop=stop, weight=stop - start)
        start, size = stop, min(size * _GROWTH, _LARGEST)
