"""The rows of one file from any row on: where reading begins so that the row comes soon, and the rows with numbers.

Parquet says in its footer which row group holds a row, an Arrow file which record batch. Plain files of lines get an
index: one entry for about every MiB, made by a scan for the ends of lines that parses nothing, goes only as far as it
is asked to, and is kept in the cache directory. A row is a line that is not blank, good or bad, exactly as the readers
count. Everything else (compressed files, CSV, JSON arrays, streams) is read from the start.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int64s
from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.base.fingerprint import canonical_json
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.sources.arrow_messages import batch_starts, is_file
from tokenlake.etl.sources.bad_records import refuse
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.line_records import record_starts
from tokenlake.etl.sources.lines import count_lines
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.parquet import row_group_starts
from tokenlake.etl.sources.parsed import RowBatch
from tokenlake.etl.sources.records import read_rows
from tokenlake.rowwise.shards import Numbered, bad_row, beyond

_STEP: Final = 1 << 20  # bytes between entries: fit in the cache, scanned again in half a millisecond
_MAX_BLANK: Final = 16 << 20  # the readers take a longer line for a record, whatever it holds
_FIRST: Final = 64 << 10  # bytes of the first range of lines after a seek: the first row must come soon
_LARGEST: Final = 256 << 20
_GROWTH: Final = 4

_SLICE_BYTES: Final = 256 << 10  # of columns that become Python objects at a time: the first row comes soon
_SLICE_ROWS: Final = 1024
END: Final = (1 << 63) - 1
"""A number above that of any row."""

_RACY_NS: Final = 2_000_000_000  # a file this fresh may change again within one clock tick
_VERSION: Final = 2
_LEAST: Final = 16 << 20  # bytes; what is scanned faster than a file is opened need not be stored


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


NO_INDEX: Final = RowIndex(
    rows=np.zeros(0, np.int64), offsets=np.zeros(0, np.int64), count=0, end=0, complete=False
)


@final
class RowIndexes:
    """Indexes of the rows of line files, by the state that a file is in."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, least: int = _LEAST) -> None:
        """Keep indexes of files of at least `least` scanned bytes in `directory` (default: the cache's)."""
        self._kept = DiskCache(default_folder() / "rows" if directory is None else Path(directory))
        self._least = least
        self._known: dict[InputFile, RowIndex] = {}

    def get(self, file: InputFile) -> RowIndex:
        """Return what is known of `file`, perhaps nothing."""
        found = self._known.get(file)
        if found is None:
            kept = self._kept.get(_key(file))
            found = self._known[file] = NO_INDEX if kept is None else RowIndex(**kept[0])
        return found

    def put(self, file: InputFile, index: RowIndex) -> None:
        """Remember `index`; a file that changed within the last two seconds may still change unseen."""
        self._known[file] = index
        fresh = file.is_local and time.time_ns() - max(file.stat[1:]) < _RACY_NS
        if index.end < self._least or fresh:
            return
        self._kept.put(_key(file), {field.name: getattr(index, field.name) for field in fields(index)})

    def up_to(self, data: InputBytes, row: int) -> RowIndex:
        """Return the index of an open file, continued until it knows where `row` starts or that there is none."""
        known = self.get(data.file)
        found = scanned(known, data, row)
        if found is not known:
            self.put(data.file, found)
        return found


@final
class FileRows:
    """The rows of one file, each with its number; the file's path is the name of the shard.

    Args:
        source: its policy, predicate and limits count; its `content_field` names the only field of text.
        columns: fields to read, None for all.
        indexes: of line files, to use and to add to.
    """

    def __init__(
        self, file: InputFile, source: ResolvedSource, columns: tuple[str, ...] | None, indexes: RowIndexes
    ) -> None:
        self.file, self._source, self._columns, self._indexes = file, source, columns, indexes
        self._counted: int | None = None  # what reading found

    @property
    def known(self) -> int | None:
        """How many rows there are, good or bad, where metadata tell, or reading has told before."""
        if self._told is not None or self._counted is not None:
            return self._counted if self._told is None else self._told
        index = self._indexes.get(self.file) if is_lines(self.file) else NO_INDEX
        return index.count if index.complete else None

    @cached_property
    def _told(self) -> int | None:
        if self.file.format == "text" and self.file.text_mode == "document":
            return 1
        starts = _block_starts(self.file, self._source.storage_options)
        return None if starts is None else starts[-1]

    def rows(self, row: int, stop: int | None) -> Numbered:
        """Yield (number, row) from number `row` on, up to number `stop`.

        Raises:
            BadRecordError: a record from `row` on is bad and the policy is ``fail``; rows before it have come.
            ConfigError: `row` is beyond the end.
            DamagedFileError, InputChangedError: as :func:`tokenlake.etl.sources.records.read_rows`.
        """
        if stop is not None and row >= stop:
            if row > stop:
                raise beyond(self.file.path, row, stop)
            return
        parts, number = seek(self.file, row, self._indexes, self._source.storage_options)
        end = END if stop is None else stop
        for batch in self._batches(parts, self._source):
            first, number = number, number + batch.rows_read + sum(batch.skipped.values())
            yield from self._judged(batch, first, row, end)
            if number >= end:
                return
        self._counted = number
        if row > number:
            raise beyond(self.file.path, row, number)

    def count(self, enough: int = END) -> int:
        """Return how many rows there are, good or bad, at most `enough`; reads them where nothing else tells."""
        rows, options = self.known, self._source.storage_options
        if rows is None:
            if is_lines(self.file):
                with opened(self.file, options) as data:
                    rows = self._indexes.up_to(data, enough - 1).count
            else:
                parts, rows = seek(self.file, 0, self._indexes, options)
                for batch in self._batches(parts, replace(self._source, where=None)):
                    rows += batch.rows_read
                    if rows >= enough:
                        break
            self._counted = rows if rows < enough else None
        return min(rows, enough)

    def _batches(self, parts: Iterable[FileRange], source: ResolvedSource) -> Iterator[RowBatch]:
        # Bad records are judged here: those before the first row wanted are no matter of who resumes after them.
        source = replace(source, on_bad_record="quarantine")
        for part in parts:
            yield from read_rows(part, source, self._columns, plain=source.content_field)

    def _judged(self, batch: RowBatch, first: int, row: int, stop: int) -> Numbered:
        """Yield the rows of a batch, whose first number is `first`, from `row` up to `stop` or to a bad record."""
        kept, bad = batch.positions, np.array([record.position for record in batch.bad], np.int64)
        if batch.file.format in ("jsonl", "text"):  # whose positions are bytes
            places = np.sort(np.concatenate([kept, bad, batch.left_out]))
            kept, bad = (first + np.searchsorted(places, each) for each in (kept, bad))
        fails = self._source.on_bad_record == "fail"
        judged = np.flatnonzero((bad >= row) & (bad < stop)).tolist() if fails else []
        stop = int(bad[judged[0]]) if judged else stop
        at, end = np.searchsorted(kept, [row, stop]).tolist()
        yield from _dicts(batch, kept, range(at, end))
        if judged:
            record = batch.bad[judged[0]]
            if record.line is None and is_lines(self.file) and self.file.is_local:
                # Far into the file, where lines were not counted yet.
                with opened(self.file, self._source.storage_options) as data:
                    record = replace(record, line=count_lines(data, record.position) + 1)
            error = refuse(record, self.file)
            raise bad_row(self.file.path, stop, str(error), **error.details)


def _dicts(batch: RowBatch, numbers: Int64s, places: range) -> Numbered:
    """Yield (number, row) for the rows at `places` of a batch, some at a time."""
    if batch.objects is not None:
        for place in places:
            yield int(numbers[place]), batch.objects[place]
        return
    rows = batch.rows
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * max(len(rows), 1) // max(rows.nbytes, 1)))
    for first in range(places.start, places.stop, step):
        some = slice(first, min(first + step, places.stop))
        part = rows.slice(first, some.stop - first)
        yield from zip(numbers[some].tolist(), part.to_pylist(), strict=True)


def seek(
    file: InputFile, row: int, indexes: RowIndexes, options: Mapping[str, Any] | None = None
) -> tuple[Iterable[FileRange], int]:
    """Return where to read `file` for `row`, a row number of it or one beyond.

    Args:
        indexes: of line files, to use and to add to.
        options: of the file system that a URL is on.

    Returns:
        Ranges to read one after the other, up to the end of the file; and the number of the first record of the first
        range, or of rows where there is nothing to read. `row` less that number are to be dropped.

    Raises:
        DamagedFileError: the footer cannot be read.
        InputChangedError: the file is not, or does not stay, what was listed.
    """
    if is_lines(file):
        start = 0
        if row:
            with opened(file, options) as data:
                index = indexes.up_to(data, row)
                if row >= index.count:
                    return [], index.count
                start = start_of(index, data, row)
        return _growing(file, start), row
    starts = _block_starts(file, options)
    if starts is None:
        return [FileRange(file=file, start=0, stop=file.size, weight=file.size)], 0
    block, count = bisect_right(starts, row) - 1, len(starts) - 1
    if block >= count:
        return [], starts[-1]
    return [FileRange(file=file, start=block, stop=count, weight=0)], starts[block]


def is_lines(file: InputFile) -> bool:
    """Say whether the rows of `file` are the lines of a plain file."""
    return file.is_lines and file.compression is None


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


def _growing(file: InputFile, start: int) -> Iterator[FileRange]:
    """Yield ranges from byte `start` on, small ones first; any partition gives the same rows."""
    size = _FIRST
    while start < file.size:
        stop = min(start + size, file.size)
        yield FileRange(file=file, start=start, stop=stop, weight=stop - start)
        start, size = stop, min(size * _GROWTH, _LARGEST)


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


def _row_starts(data: InputBytes, start: int) -> Iterator[tuple[Int64s, int]]:
    """Yield (where the rows of a block start, where the next block starts); a line starts at `start`."""
    file = data.file
    part = FileRange(file=file, start=start, stop=file.size, weight=file.size - start)
    for starts, block in record_starts(part, data, _MAX_BLANK, _STEP):
        yield starts, block.offset + block.size


def _key(file: InputFile) -> str:
    """Return what tells this state of the file, and what counts as a row in it, from any other."""
    state = [*file.stat] if file.is_local else file.token
    return canonical_json([_VERSION, file.url, file.size, state, file.format]).decode()
