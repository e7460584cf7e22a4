"""Ranges of files that can be read independently, and `num_rows`: the first so many records of a source, good or bad.

Ranges are a function of the file alone. The planner finds out where the limit falls, so that they stay so: it counts
the records of one range after the other, as far as the limit and no further, and cuts the range in which it falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice, pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.base.threads import in_order
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.line_records import record_starts
from tokenlake.etl.sources.listing_progress import OnProgress, Progress, ProgressMeter
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.records import read_range, read_rows
from tokenlake.etl.sources.rows import Rows


def splittable(file: InputFile) -> bool:
    """Say whether parts of `file` can be read without the parts before them."""
    # Of Arrow only the first bytes tell.
    return (file.is_lines or file.has_blocks) and file.compression is None


def split_file(
    file: InputFile, unit_size: int, storage_options: Mapping[str, Any] | None = None
) -> list[FileRange]:
    """Cut `file` into ranges of about `unit_size` bytes; every file has at least one, even an empty one.

    Raises:
        DamagedFileError: a Parquet or Arrow file whose footer cannot be read.
    """
    if file.format == "parquet":
        from tokenlake.etl.sources.parquet import footer

        with opened(file, storage_options) as data:
            meta = footer(data)
        groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
        return _split_groups(file, [(group.total_byte_size, group.num_rows) for group in groups], unit_size)
    if file.format == "arrow":
        from tokenlake.etl.sources.arrow_messages import batch_sizes

        sizes = batch_sizes(file, storage_options)
        whole = [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
        return whole if sizes is None else _split_groups(file, [(size, None) for size in sizes], unit_size)
    count = (file.size + unit_size // 2) // unit_size
    if count <= 1 or not splittable(file):
        return [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
    edges = [*range(0, count * unit_size, unit_size), file.size]
    return [FileRange(file=file, start=a, stop=b, weight=b - a) for a, b in pairwise(edges)]


def _split_groups(file: InputFile, groups: list[tuple[int, int | None]], unit_size: int) -> list[FileRange]:
    """Join row groups or record batches, each of (bytes, rows if known), up to the size of a unit."""
    ranges: list[FileRange] = []
    start, weight, records = 0, 0, 0
    for index, (size, rows) in enumerate(groups):
        weight += size
        records = None if rows is None or records is None else records + rows
        if weight >= unit_size or index == len(groups) - 1:
            part = FileRange(file=file, start=start, stop=index + 1, weight=weight, records=records)
            ranges.append(part)
            start, weight, records = index + 1, 0, 0
    return ranges or [FileRange(file=file, start=0, stop=0, weight=0, records=0)]


_TAKE: Final = 256  # files that a thread takes at a time


def split_files(
    files: Sequence[InputFile],
    unit_size: int,
    storage_options: Mapping[str, Any] | None = None,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> Iterator[list[FileRange]]:
    """Yield the ranges of each file; every footer is read once, by several threads.

    Raises:
        DamagedFileError: a footer cannot be read.
        InputChangedError: a file is not what was listed.
    """
    blocks = [file.size for file in files if file.has_blocks]
    meter = ProgressMeter("splitting", len(blocks), sum(blocks), on_progress)
    size = max(1, min(_TAKE, len(files) // (16 * threads)))

    def split(take: range) -> list[list[FileRange]]:
        some = files[take.start : take.stop]
        found = [split_file(file, unit_size, storage_options) for file in some]
        told = [file.size for file in some if file.has_blocks]
        meter.add(len(told), sum(told))
        return found

    takes = [range(at, min(at + size, len(files))) for at in range(0, len(files), size)]
    return chain.from_iterable(in_order(split, takes, threads if blocks else 1))


def by_file(groups: Iterable[Iterable[FileRange]]) -> Iterator[list[FileRange]]:
    """Yield the ranges of each file of one source's units."""
    parts = chain.from_iterable(groups)
    return (list(whole) for _, whole in groupby(parts, lambda part: part.file.file_id))


@final
class RecordLimit:
    """Takes files in the order of the listing until they hold `num_rows` records.

    Attributes:
        ranges: of each file taken; the last range may have a limit of its own.
        left: records that may still come.
    """

    def __init__(
        self, source: ResolvedSource, num_rows: int, unit_size: int, on_progress: OnProgress | None = None
    ) -> None:
        self._source, self._unit_size, self._report = source, unit_size, on_progress
        self._bytes = 0
        self.ranges: list[list[FileRange]] = []
        self.left = num_rows

    def take(self, file: InputFile) -> bool:
        """Take the next file; return whether the limit is reached.

        Raises:
            DamagedFileError: the file cannot be read.
        """
        parts = split_file(file, self._unit_size, self._source.storage_options)
        kept = [self._limited(part) for part in parts if self.left]
        self.ranges.append(kept)
        self._bytes += sum(part.weight for part in kept)
        if self._report:
            self._report(Progress("counting", len(self.ranges), 0, self._bytes, 0))
        return not self.left

    def _limited(self, part: FileRange) -> FileRange:
        count, weight = count_records(part, self._source, self.left)
        reached = count >= self.left
        self.left -= min(count, self.left)
        # A range that the limit leaves whole keeps its identity: it is the same unit with a higher limit.
        if not reached or count == part.records:
            return part
        return replace(part, rows=count, weight=weight)


def count_records(part: FileRange, source: ResolvedSource, most: int) -> tuple[int, int]:
    """Return how many records a range holds, good or bad, but at most `most`; and the weight of so many."""
    file = part.file
    if part.records is not None:
        count = min(part.records, most)
        return count, part.weight * count // max(part.records, 1)
    if file.is_lines:
        blocks = ((len(begins), read) for begins, read in _lines(part, source))
    elif file.format == "text":
        blocks = iter([(1, part.weight)])
    else:
        every = replace(source, where=None, on_bad_record="quarantine")
        blocks = ((batch.rows_read, batch.bytes_read) for batch in read_range(part, every))
    count = weight = 0
    for found, read in blocks:
        if count + found >= most:
            return most, min(weight + -(-read * (most - count) // max(found, 1)), part.weight)
        count, weight = count + found, weight + read
    return count, part.weight


def _lines(part: FileRange, source: ResolvedSource) -> Iterator[tuple[Int64, int]]:
    """Yield where records begin and the input bytes that were read, block by block."""
    with opened(part.file, source.storage_options) as data:
        for starts, block in record_starts(part, data, source.max_record_bytes):
            yield starts, block.bytes_read


def positions_of(parts: Sequence[FileRange], source: ResolvedSource) -> Iterator[Int64]:
    """Yield where the records of a file are, good or bad: positions, int64[n], as in :class:`BadRecord`.

    What the file or its lines say is not read any further. With `where` records are looked at: those that it keeps.

    Args:
        parts: all ranges of the file, in order.
    """
    rows_before = 0
    for part in parts:
        if source.where is None and part.records is not None:
            yield np.arange(
                rows_before, rows_before + count_records(part, source, part.rows or part.records)[0]
            )
            rows_before += part.records
        elif source.where is None and part.file.is_lines:
            left = part.rows
            for begins, _ in _lines(part, source):
                yield begins[:left]
                left = None if left is None else max(0, left - len(begins))
        else:
            every = replace(source, on_bad_record="quarantine")
            yield from (batch.positions for batch in read_rows(part, every, ()))


_FILES: Final = 8  # empty ones may come first
_HEAD: Final = 1 << 20  # bytes of lines or elements that are read at a time
_THREADS: Final = 4  # that open files


def first_rows(source: ResolvedSource, files: Sequence[InputFile], count: int = 16) -> Rows:
    """Return up to `count` of the first records that can be read, of the first files; maybe none.

    Raises:
        SourceError: a file cannot be read.
    """
    for file in files[:_FILES]:
        if len(rows := _first_read(source, file, count)):
            return rows
    return Rows(objects=[])


def _first_read(source: ResolvedSource, file: InputFile, count: int) -> Rows:
    lenient = replace(source, on_bad_record="quarantine", where=None)
    part = FileRange(file=file, start=0, stop=file.size, weight=file.size)
    if file.has_blocks:
        part = split_file(file, 1, source.storage_options)[0]
    for batch in islice(read_rows(replace(part, rows=count), lenient, block_bytes=_HEAD), 2):
        if len(batch.positions):
            return batch.table.select(np.arange(len(batch.positions)) < count)
    return Rows(objects=[])


def columns_of_files(source: ResolvedSource, files: Sequence[InputFile]) -> list[frozenset[str]]:
    """Return the names of the columns of each of the files that have columns (Parquet, Arrow).

    Raises:
        SourceError: a file cannot be read.
    """

    from tokenlake.etl.sources.parquet import open_parquet

    def names(file: InputFile) -> frozenset[str]:
        if file.format == "arrow":
            return frozenset(_first_read(source, file, 1).columns.schema.names)
        with opened(file, source.storage_options) as data, open_parquet(data) as parquet:
            schema: pa.Schema = parquet.schema_arrow
            return frozenset(schema.names)

    return list(in_order(names, [file for file in files if file.has_blocks], _THREADS))
