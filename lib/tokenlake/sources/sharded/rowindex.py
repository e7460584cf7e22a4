"""Where the rows of a line file start: one entry for about every MiB, made by scanning for ends of lines.

A row is a line that is not blank, good or bad, exactly as the readers count; so a seek parses nothing of
what is before. The scan goes only as far as it is asked to and is continued later.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tokenlake.sources.arrays import Int64s
from tokenlake.sources.blocks import Block, LongLine, read_blocks
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.lineindex import BOM, index_lines
from tokenlake.sources.ranges import FileRange

_STEP: Final = 1 << 20  # bytes between entries: stays in the cache when made, scanned again in 0.3 ms
_JSON_SPACE: Final = b" \t\r\n"  # a JSON line of nothing else is blank
_MAY_BE_BLANK: Final = np.isin(np.arange(256), list(_JSON_SPACE))  # by the first byte of a line
_MAX_BLANK: Final = 16 << 20  # the readers take a longer line for a record, whatever it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """What is known so far of the rows of a line file.

    Attributes:
        rows, offsets: int64[n], the numbers of some rows and the bytes at which they start; both ascend.
        count: rows that start before byte `end`.
        end: where a line starts that was not looked at, or the end of the file.
        complete: all lines were looked at, so that `count` is the number of rows.
    """

    rows: Int64s
    offsets: Int64s
    count: int
    end: int
    complete: bool


def no_index() -> RowIndex:
    """Return the index of a file that was not looked at."""
    nothing = np.zeros(0, np.int64)
    return RowIndex(rows=nothing, offsets=nothing, count=0, end=0, complete=False)


def is_lines(file: InputFile) -> bool:
    """Say whether the rows of `file` are the lines of a plain file."""
    lines = file.format == "jsonl" or (file.format == "text" and file.text_mode == "lines")
    return lines and file.compression is None


def scanned(index: RowIndex, data: InputBytes, row: int) -> RowIndex:
    """Return `index`, continued until it knows where `row` starts or that there is no such row."""
    if index.complete or row < index.count:
        return index
    rows, offsets, count, end = [index.rows], [index.offsets], index.count, index.end
    for starts, after in _row_starts(data, end):
        if len(starts):
            rows.append(np.array([count]))
            offsets.append(starts[:1])
        count, end = count + len(starts), after
        if row < count:
            break
    return RowIndex(
        rows=np.concatenate(rows),
        offsets=np.concatenate(offsets),
        count=count,
        end=end,
        complete=end >= data.file.size,
    )


def start_of(index: RowIndex, data: InputBytes, row: int) -> int:
    """Return the byte at which `row` starts, one that `index` has passed."""
    entry = int(np.searchsorted(index.rows, row, side="right")) - 1
    first = int(index.rows[entry])
    for starts, _ in _row_starts(data, int(index.offsets[entry])):
        if row < first + len(starts):
            return int(starts[row - first])
        first += len(starts)
    return data.file.size


def _row_starts(data: InputBytes, start: int) -> Iterator[tuple[Int64s, int]]:
    """Yield (where the rows of a block start, where the next block starts); a line starts at `start`."""
    file = data.file
    part = FileRange(file=file, start=start, stop=file.size, weight=file.size - start)
    for block in read_blocks(part, data, _MAX_BLANK, _STEP):
        if isinstance(block, LongLine):
            blank = file.format == "jsonl" and _is_blank(block)
            yield np.array([] if blank else [block.offset], np.int64), block.offset + block.size
        else:
            starts = _all_starts(block)
            yield _judged(block, file) if starts is None else starts, block.offset + block.size


def _all_starts(block: Block) -> Int64s | None:
    """Return where the lines of a block start, or None if one of them may be blank."""
    if block.offset == 0 and block.data.startswith(BOM):
        return None
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    starts = np.cumsum(lengths) - lengths
    starts = starts[: np.searchsorted(starts, block.size)]
    firsts = np.frombuffer(block.data, np.uint8)[starts]
    return None if _MAY_BE_BLANK[firsts].any() else block.offset + starts


def _judged(block: Block, file: InputFile) -> Int64s:
    lines = index_lines(block)
    starts = lines.positions(block)
    return starts[_rows_of(block, lines.starts, lines.stops)] if file.format == "jsonl" else starts


def _rows_of(block: Block, starts: Int64s, stops: Int64s) -> Int64s:
    """Return which lines hold more than white space."""
    firsts = np.frombuffer(block.data, np.uint8, block.size)[starts]
    rows = np.ones(len(starts), np.bool_)
    for line in np.flatnonzero(np.isin(firsts, list(_JSON_SPACE))).tolist():
        rows[line] = bool(block.data[int(starts[line]) : int(stops[line])].strip(_JSON_SPACE))
    return np.flatnonzero(rows)


def _is_blank(line: LongLine) -> bool:
    skip = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    # `head` first: a long record is not copied to find out what its first byte tells.
    return not line.head[skip:].strip(_JSON_SPACE) and (
        line.data is not None and not line.data[skip:].strip(_JSON_SPACE)
    )
