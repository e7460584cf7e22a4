"""Rows of one file from any row on, with their numbers.

Row r begins at a place that depends on the format:

- **Parquet, Arrow files.** The footer says which row group or record batch holds row r.
  Reading begins with that block.
- **Plain files of lines.** A row is a line that is not blank, good or bad, exactly as
  the readers count. A scan for the ends of lines, which parses nothing, makes an index
  of one entry for about every MiB: the number of a row and the byte at which it begins.
  To find row r, take the last entry at or before r, and scan from its byte for the r-th
  row.
- **Everything else** (compressed files, CSV, JSON arrays, streams) is read from the
  beginning.

Example, with an entry for every 8 bytes of the lines ``aaa``, ``b``, (blank), ``cc``,
``d``, which begin at bytes 0, 4, 6, 7 and 10::

    # The blocks of lines begin at bytes 0 and 7; their first rows are rows 0 and 2.
    rows     0  2
    offsets  0  7
    # Row 3 (`d`): the last entry at or before it is (2, 7), and the scan from byte 7
    # finds rows 2 and 3 at bytes 7 and 10.

A scan stops as soon as it has passed the row that is wanted, and a later one continues
there. Indexes are stored in the cache directory.
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

# Bytes between entries: they fit in the CPU's cache, and are scanned in half a
# millisecond.
_STEP: Final = 1 << 20
# Bytes of a line; the readers count a longer blank line as a record.
_MAX_BLANK: Final = 16 << 20

# Ranges of lines after a seek grow: the first row should come soon, and later ranges
# should be large.
_FIRST_BYTES: Final = 64 << 10
_LARGEST_BYTES: Final = 256 << 20
_GROWTH: Final = 4

# Columns become Python objects in slices, so that the first row comes soon.
_SLICE_BYTES: Final = 256 << 10
_SLICE_ROWS: Final = 1024

END: Final = (1 << 63) - 1
"""Number above that of any row."""

# A file this new may change again within one tick of the clock.
_RACY_NS: Final = 2_000_000_000
_VERSION: Final = 2  # of stored indexes
# Scanned bytes below which an index is not stored: the scan is as fast as opening a
# file.
_MIN_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Index of the rows of a line file, as far as it was scanned.

    Attributes:
        rows: int64[n], the numbers of some rows, ascending.
        offsets: int64[n], the bytes at which these rows begin.
        count: Number of rows that begin before byte `end`.
        end: Byte at which the first line begins that was not scanned, or the size of
            the file.
        complete: Whether all lines were scanned, so that `count` is the number of rows.
    """

    rows: Int64s
    offsets: Int64s
    count: int
    end: int
    complete: bool


NO_INDEX: Final = RowIndex(
    rows=np.zeros(0, np.int64),
    offsets=np.zeros(0, np.int64),
    count=0,
    end=0,
    complete=False,
)


@final
class RowIndexes:
    """Indexes of the rows of line files, by the state of each file."""

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, least: int = _MIN_BYTES
    ) -> None:
        """Open the stored indexes.

        Args:
            directory: Folder of the stored indexes. None for the cache directory.
            least: Number of scanned bytes from which on an index is stored.
        """
        folder = default_folder() / "rows"
        if directory is not None:
            folder = Path(directory)
        self._stored = DiskCache(folder)
        self._least = least
        self._loaded: dict[InputFile, RowIndex] = {}

    def get(self, file: InputFile) -> RowIndex:
        """Return the index of a file as far as it was scanned.

        It is empty if the file was never scanned.
        """
        index = self._loaded.get(file)
        if index is None:
            entry = self._stored.get(_key(file))
            index = NO_INDEX
            if entry is not None:
                index = RowIndex(**entry[0])
            self._loaded[file] = index
        return index

    def put(self, file: InputFile, index: RowIndex) -> None:
        """Set the index of a file.

        It is not stored if the file changed within the last two seconds: a further
        change could leave its state, and so the key of the index, the same.
        """
        self._loaded[file] = index
        is_fresh = file.is_local and time.time_ns() - max(file.stat[1:]) < _RACY_NS
        if index.end < self._least or is_fresh:
            return
        values: dict[str, Any] = {}
        for field in fields(index):
            values[field.name] = getattr(index, field.name)
        self._stored.put(_key(file), values)

    def up_to(self, data: InputBytes, row: int) -> RowIndex:
        """Return the index of an open file, continued up to a row.

        It ends when it has passed `row`, or at the end of the file.
        """
        # A scan that went no further changes nothing, and need not be stored.
        index = self.get(data.file)
        continued = scanned(index, data, row)
        if continued is not index:
            self.put(data.file, continued)
        return continued


@final
class FileRows:
    """Rows of one file, each with its number.

    The path of the file is the name of the shard.

    Args:
        file: File to read.
        source: Settings of reading: the policy for bad records, the predicate and
            limits. Its `content_field` names the only field of text.
        columns: Fields to read, None for all.
        indexes: Indexes of line files, which are used and continued.
    """

    def __init__(
        self,
        file: InputFile,
        source: ResolvedSource,
        columns: tuple[str, ...] | None,
        indexes: RowIndexes,
    ) -> None:
        self.file = file
        self._source = source
        self._columns = columns
        self._indexes = indexes
        self._counted: int | None = None
        """Number of rows, once a pass has reached the end."""

    @property
    def known(self) -> int | None:
        """Number of rows, good or bad, if it is known without reading; else None.

        Metadata or an earlier pass over the file may give it.
        """
        if self._rows_in_metadata is not None:
            return self._rows_in_metadata
        if self._counted is not None:
            return self._counted
        if not is_lines(self.file):
            return None
        index = self._indexes.get(self.file)
        if not index.complete:
            return None
        return index.count

    @cached_property
    def _rows_in_metadata(self) -> int | None:
        """Number of rows in the metadata of the file; None if it has none."""
        if self.file.format == "text" and self.file.text_mode == "document":
            return 1
        starts = _block_starts(self.file, self._source.storage_options)
        if starts is None:
            return None
        return starts[-1]

    def rows(self, row: int, stop: int | None) -> Numbered:
        """Yield rows, each with its number.

        Args:
            row: Number of the first row.
            stop: Number of the row before which reading ends. None for the end of the
                file.

        Raises:
            BadRecordError: A record from `row` on is bad and the policy is ``fail``.
                Rows before it are yielded first.
            ConfigError: `row` is beyond the end.
            DamagedFileError, InputChangedError: The file cannot be used, see
                :func:`tokenlake.etl.sources.records.read_rows`.
        """
        # Nothing is opened for rows after the stop, which a limit may have set.
        if stop is not None and row >= stop:
            if row > stop:
                raise beyond(self.file.path, row, stop)
            return

        # Batches may begin before the row: blocks are read as a whole.
        file_ranges, first_number = seek(
            self.file, row, self._indexes, self._source.storage_options
        )
        end_row = END if stop is None else stop
        for batch in self._batches(file_ranges, self._source):
            next_first = first_number + batch.rows_read + sum(batch.skipped.values())
            yield from self._rows_of_batch(batch, first_number, row, end_row)
            first_number = next_first
            if first_number >= end_row:
                return
        self._counted = first_number
        if row > first_number:
            raise beyond(self.file.path, row, first_number)

    def count(self, enough: int = END) -> int:
        """Return the number of rows, good or bad, at most `enough`.

        Rows are read only if the number is not known.
        """
        known_count = self.known
        if known_count is not None:
            return min(known_count, enough)

        options = self._source.storage_options
        if is_lines(self.file):
            with opened(self.file, options) as data:
                # Lines are counted without parsing. The index that this makes serves
                # later seeks.
                row_count = self._indexes.up_to(data, enough - 1).count
        else:
            file_ranges, row_count = seek(self.file, 0, self._indexes, options)
            # The predicate is left out: it drops rows, which have numbers all the same.
            for batch in self._batches(file_ranges, replace(self._source, where=None)):
                row_count += batch.rows_read
                if row_count >= enough:
                    break
        if row_count < enough:
            self._counted = row_count
        return min(row_count, enough)

    def _batches(
        self, parts: Iterable[FileRange], source: ResolvedSource
    ) -> Iterator[RowBatch]:
        """Yield the batches of some parts of the file, bad records among them."""
        # A bad record before the first row is no error for a reader that resumes after
        # it: `_rows_of_batch` decides.
        source = replace(source, on_bad_record="quarantine")
        for file_range in parts:
            yield from read_rows(
                file_range, source, self._columns, plain=source.content_field
            )

    def _rows_of_batch(
        self, batch: RowBatch, first: int, row: int, stop: int
    ) -> Numbered:
        """Yield rows of a batch, each with its number.

        Args:
            batch: Batch of records.
            first: Number of the first record of the batch.
            row: Number of the first row to yield.
            stop: Number of the row before which to end.

        Raises:
            BadRecordError: A record in this range is bad and the policy is ``fail``.
                Rows before it are yielded first.
        """
        # 1. Numbers of the good rows and of the bad records. Positions of lines are
        #    bytes: number them by their order.
        good_rows = batch.positions
        bad_rows = np.array([record.position for record in batch.bad], np.int64)
        if batch.file.format in ("jsonl", "text"):
            positions = np.sort(np.concatenate([good_rows, bad_rows, batch.left_out]))
            good_rows = first + np.searchsorted(positions, good_rows)
            bad_rows = first + np.searchsorted(positions, bad_rows)

        # 2. With the policy ``fail``, the first bad record in the range ends it.
        failed_index: int | None = None
        if self._source.on_bad_record == "fail":
            in_range = np.flatnonzero((bad_rows >= row) & (bad_rows < stop))
            if len(in_range):
                failed_index = int(in_range[0])
                stop = int(bad_rows[failed_index])

        # 3. Good rows up to there, then the error.
        first_place, end_place = np.searchsorted(good_rows, [row, stop]).tolist()
        yield from _dicts(batch, good_rows, range(first_place, end_place))
        if failed_index is None:
            return
        record = batch.bad[failed_index]
        if record.line is None and is_lines(self.file) and self.file.is_local:
            # Reading began in the middle of the file: count the lines before the
            # record.
            with opened(self.file, self._source.storage_options) as data:
                record = replace(record, line=count_lines(data, record.position) + 1)
        error = refuse(record, self.file)
        raise bad_row(self.file.path, stop, str(error), **error.details)


def _dicts(batch: RowBatch, numbers: Int64s, places: range) -> Numbered:
    """Yield rows of a batch, each with its number.

    Args:
        batch: Batch of records.
        numbers: int64[n], the numbers of its rows.
        places: Places of the rows to yield.
    """
    if batch.objects is not None:
        for row_index in places:
            yield int(numbers[row_index]), batch.objects[row_index]
        return

    # Arrow rows become Python objects slice by slice, so that the first row comes soon.
    arrow_rows = batch.rows
    rows_of_slice = _SLICE_BYTES * max(len(arrow_rows), 1) // max(arrow_rows.nbytes, 1)
    slice_row_count = max(1, min(_SLICE_ROWS, rows_of_slice))
    for slice_start in range(places.start, places.stop, slice_row_count):
        slice_end = min(slice_start + slice_row_count, places.stop)
        slice_rows = arrow_rows.slice(slice_start, slice_end - slice_start).to_pylist()
        yield from zip(numbers[slice_start:slice_end].tolist(), slice_rows, strict=True)


def seek(
    file: InputFile,
    row: int,
    indexes: RowIndexes,
    options: Mapping[str, Any] | None = None,
) -> tuple[Iterable[FileRange], int]:
    """Return the parts of a file to read for its rows from a number on.

    Args:
        file: File to read.
        row: Number of a row, or of one beyond the last.
        indexes: Indexes of line files, which are used and continued.
        options: Options of the file system of a URL.

        parts: Ranges to read one after the other, up to the end of the file.
        first: Number of the first record of the first range, or the number of rows if
            there is no range. The first ``row - first`` records are to be dropped.

    Raises:
        DamagedFileError: The footer cannot be read.
        InputChangedError: The file has changed since it was listed.
    """
    # Lines: the index says near which byte the row begins, and a scan finds it exactly.
    if is_lines(file):
        start_byte = 0
        if row:
            with opened(file, options) as data:
                index = indexes.up_to(data, row)
                if row >= index.count:
                    return [], index.count
                start_byte = start_of(index, data, row)
        return _growing(file, start_byte), row
    # Blocks: the footer says which block has the row. All other files are read from
    # their beginning.
    starts = _block_starts(file, options)
    if starts is None:
        return [FileRange(file=file, start=0, stop=file.size, weight=file.size)], 0
    block = bisect_right(starts, row) - 1
    block_count = len(starts) - 1
    if block >= block_count:
        return [], starts[-1]
    blocks = FileRange(file=file, start=block, stop=block_count, weight=0)
    return [blocks], starts[block]


def is_lines(file: InputFile) -> bool:
    """Return whether the rows of a file are the lines of a plain file."""
    return file.is_lines and file.compression is None


def scanned(index: RowIndex, data: InputBytes, row: int) -> RowIndex:
    """Return an index, continued until it has passed a row or the end of the file.

    Args:
        index: Index to continue; it is not changed.
        data: Open file.
        row: Number of the row.
    """
    # The index is continued from its end, so that no byte is scanned twice.
    if index.complete or row < index.count:
        return index
    row_numbers = [index.rows]
    offsets = [index.offsets]
    row_count = index.count
    scanned_end = index.end
    # One entry for each block with rows.
    for starts, next_block in _row_starts(data, scanned_end):
        if len(starts):
            row_numbers.append(np.array([row_count]))
            offsets.append(starts[:1])
        row_count += len(starts)
        scanned_end = next_block
        if row < row_count:
            break
    return RowIndex(
        rows=np.concatenate(row_numbers),
        offsets=np.concatenate(offsets),
        count=row_count,
        end=scanned_end,
        complete=scanned_end >= data.file.size,
    )


def start_of(index: RowIndex, data: InputBytes, row: int) -> int:
    """Return the byte at which a row begins.

    Args:
        index: Index that has passed the row.
        data: Open file.
        row: Number of the row.
    """
    # The last entry at or before the row, and a scan from there.
    entry_index = int(np.searchsorted(index.rows, row, side="right")) - 1
    first_number = int(index.rows[entry_index])
    for starts, _ in _row_starts(data, int(index.offsets[entry_index])):
        if row < first_number + len(starts):
            return int(starts[row - first_number])
        first_number += len(starts)
    return data.file.size


def _growing(file: InputFile, start: int) -> Iterator[FileRange]:
    """Yield ranges from byte `start` on, small ones first.

    The rows do not depend on the sizes of ranges.
    """
    range_bytes = _FIRST_BYTES
    while start < file.size:
        range_end = min(start + range_bytes, file.size)
        yield FileRange(
            file=file, start=start, stop=range_end, weight=range_end - start
        )
        start = range_end
        range_bytes = min(range_bytes * _GROWTH, _LARGEST_BYTES)


def _block_starts(
    file: InputFile, options: Mapping[str, Any] | None
) -> list[int] | None:
    """Return the number of the first row of each row group or record batch.

    The number of all rows follows. The result is None for a file without blocks.
    """
    if file.format not in ("parquet", "arrow"):
        return None
    with opened(file, options) as data:
        if file.format == "parquet":
            return row_group_starts(data)
        # A stream of Arrow messages has no footer.
        if not is_file(data):
            return None
        return batch_starts(data)


def _row_starts(data: InputBytes, start: int) -> Iterator[tuple[Int64s, int]]:
    """Yield the bytes at which the rows of a block begin, block by block.

    Each comes with the byte at which the next block begins.

    Args:
        data: Open file.
        start: Byte at which a line begins.
    """
    file = data.file
    file_range = FileRange(
        file=file, start=start, stop=file.size, weight=file.size - start
    )
    for starts, block in record_starts(file_range, data, _MAX_BLANK, _STEP):
        yield starts, block.offset + block.size


def _key(file: InputFile) -> str:
    """Return a key of the file's state, and of the rules by which rows are counted."""
    # A local file is known by its size, times and inode, a remote one by its token.
    file_state = [*file.stat] if file.is_local else file.token
    return canonical_json(
        [_VERSION, file.url, file.size, file_state, file.format]
    ).decode()
