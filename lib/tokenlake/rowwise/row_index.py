"""Where the rows of a line file start: one entry for about every MiB, made by scanning for ends of lines.

A row is a line that is not blank, good or bad, exactly as the readers count; so a seek parses nothing of
what is before. The scan goes only as far as it is asked to and is continued later.

Row indexes that were made before, in memory and beside the remembered hashes.

What is stored is a convenience: an index that is missing, cut, corrupt or of another state of the file is
made again, and one that cannot be stored is no error.

From a row number to the part of a file where reading begins, so that the row comes soon.

Parquet knows from its footer which row group holds a row, Arrow files which record batch; plain lines
have an index (:mod:`tokenlake.rowwise.row_index`). Everything else (compressed files, CSV, JSON arrays,
streams) is read from the start, and the rows before are dropped.
"""

from __future__ import annotations

import io
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import xxhash

from tokenlake.arrays import Int64s
from tokenlake.fingerprint import canonical_json
from tokenlake.sources.arrow_messages import batch_starts, is_file
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile
from tokenlake.sources.lines import BOM, LineBlock, LongLine, index_lines, read_blocks
from tokenlake.sources.local.hash_cache import default_path
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet import row_group_starts

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


def _all_starts(block: LineBlock) -> Int64s | None:
    """Return where the lines of a block start, or None if one of them may be blank."""
    if block.offset == 0 and block.data.startswith(BOM):
        return None
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    starts = np.cumsum(lengths) - lengths
    starts = starts[: np.searchsorted(starts, block.size)]
    firsts = np.frombuffer(block.data, np.uint8)[starts]
    return None if _MAY_BE_BLANK[firsts].any() else block.offset + starts


def _judged(block: LineBlock, file: InputFile) -> Int64s:
    lines = index_lines(block)
    starts = lines.positions(block)
    return starts[_rows_of(block, lines.starts, lines.stops)] if file.format == "jsonl" else starts


def _rows_of(block: LineBlock, starts: Int64s, stops: Int64s) -> Int64s:
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


_RACY_NS: Final = 2_000_000_000  # a file this fresh may change again within one clock tick
_VERSION: Final = 1
_LEAST: Final = 16 << 20  # bytes; what is scanned faster than a file is opened need not be stored
_HEAD: Final = 3  # count, end, complete
_DIGEST: Final = 16  # bytes of an xxh3_128


@final
class RowIndexes:
    """Indexes of the rows of line files, by the state that a file is in."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, least: int = _LEAST) -> None:
        """Keep indexes of files of at least `least` scanned bytes in `directory` (default: the cache's)."""
        self._directory, self._least = directory, least
        self._known: dict[InputFile, RowIndex] = {}

    def get(self, file: InputFile) -> RowIndex:
        """Return what is known of `file`, perhaps nothing."""
        found = self._known.get(file)
        if found is None:
            found = no_index()
            with suppress(OSError, RuntimeError):
                found = _unpacked(self._path(file).read_bytes(), _key(file)) or found
            self._known[file] = found
        return found

    def put(self, file: InputFile, index: RowIndex) -> None:
        """Remember `index`; a file that changed within the last two seconds may still change unseen."""
        self._known[file] = index
        fresh = file.is_local and time.time_ns() - max(file.stat[1:]) < _RACY_NS
        if index.end < self._least or fresh:
            return
        with suppress(OSError, RuntimeError):
            _replace(self._path(file), _packed(index, _key(file)))

    def _path(self, file: InputFile) -> Path:
        folder = default_path().parent / "rows" if self._directory is None else Path(self._directory)
        return folder / f"{xxhash.xxh3_128_hexdigest(_key(file))}.rows"


def _key(file: InputFile) -> bytes:
    """Return what tells this state of the file, and what counts as a row in it, from any other."""
    state = [*file.stat] if file.is_local else file.token
    return canonical_json([_VERSION, file.url, file.size, state, file.format])


def _packed(index: RowIndex, key: bytes) -> bytes:
    head = np.array([index.count, index.end, int(index.complete)], np.int64)
    body = np.concatenate([head, index.rows, index.offsets]).astype("<i8").tobytes()
    return xxhash.xxh3_128_digest(key + body) + body


def _unpacked(data: bytes, key: bytes) -> RowIndex | None:
    digest, body = data[:_DIGEST], data[_DIGEST:]
    if xxhash.xxh3_128_digest(key + body) != digest or len(body) < 8 * _HEAD:
        return None
    numbers = np.frombuffer(body, "<i8").astype(np.int64)
    rows, offsets = np.split(numbers[_HEAD:], 2)
    count, end, complete = numbers[:_HEAD].tolist()
    return RowIndex(rows=rows, offsets=offsets, count=count, end=end, complete=bool(complete))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
