"""Ranges of files that can be read independently.

Ranges are a function of the file and the unit size alone. Two neighbouring ranges
``[start, stop)`` of a line file meet at a byte that need not begin a line: a range owns
the lines that start inside it, with the blank lines among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, Final

from tokenlake.base.threads import in_order
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter
from tokenlake.etl.sources.opening import opened

_BATCH_FILES: Final = 256  # that a thread takes at a time
# Enough batches that threads end at about the same time.
_BATCHES_PER_THREAD: Final = 16


def splittable(file: InputFile) -> bool:
    """Say whether parts of `file` can be read without the parts before them."""
    # Whether an Arrow file is a stream only its first bytes tell.
    layout = file.facts.layout
    is_divisible = file.is_lines or layout in ("blocks", "records", "ids")
    return is_divisible and file.compression is None


def split_file(
    file: InputFile, unit_size: int, storage_options: Mapping[str, Any] | None = None
) -> list[FileRange]:
    """Cut `file` into ranges of about `unit_size` bytes, at least one.

    Args:
        file: The file.
        unit_size: Size of a range in bytes.
        storage_options: Options of the file system that a URL is on.

    Raises:
        DamagedFileError: The footer of a Parquet or Arrow file cannot be read.
    """
    # A companion is listed for its content, and has no records.
    if file.companion:
        return [FileRange(file=file, start=0, stop=0, weight=0, records=0)]
    if file.has_records:
        from tokenlake.etl.sources.numbered_records import split_records

        if file.compression is not None:
            return [_whole_file(file)]
        return split_records(file, unit_size, storage_options)
    if file.format == "parquet":
        return _split_groups(file, _row_groups(file, storage_options), unit_size)
    if file.format == "arrow":
        from tokenlake.etl.sources.arrow_messages import batch_sizes

        batch_bytes = batch_sizes(file, storage_options)
        if batch_bytes is None:  # a stream
            return [_whole_file(file)]
        return _split_groups(file, [(size, None) for size in batch_bytes], unit_size)

    # Ranges of equal size, the last one up to half a unit longer or shorter.
    range_count = (file.size + unit_size // 2) // unit_size
    if range_count <= 1 or not splittable(file):
        return [_whole_file(file)]
    edges = [*range(0, range_count * unit_size, unit_size), file.size]
    ranges: list[FileRange] = []
    for start, stop in pairwise(edges):
        ranges.append(FileRange(file=file, start=start, stop=stop, weight=stop - start))
    return ranges


def _whole_file(file: InputFile) -> FileRange:
    return FileRange(file=file, start=0, stop=file.size, weight=file.size)


def _row_groups(
    file: InputFile, storage_options: Mapping[str, Any] | None
) -> list[tuple[int, int | None]]:
    """Return the size in bytes and the row count of each row group of a Parquet file."""
    from tokenlake.etl.sources.parquet import footer

    with opened(file, storage_options) as data:
        file_metadata = footer(data)
    row_groups: list[tuple[int, int | None]] = []
    for group_index in range(file_metadata.num_row_groups):
        row_group = file_metadata.row_group(group_index)
        row_groups.append((row_group.total_byte_size, row_group.num_rows))
    return row_groups


def _split_groups(
    file: InputFile, groups: Sequence[tuple[int, int | None]], unit_size: int
) -> list[FileRange]:
    """Join row groups or record batches up to the size of a unit.

    Args:
        file: The file.
        groups: Size in bytes of each group, and its number of rows if that is known.
        unit_size: Size in bytes from which on a range is complete.
    """
    ranges: list[FileRange] = []
    first_group = 0  # index of the first group of the range
    weight = 0
    records: int | None = 0
    # A range ends behind the group that makes it large enough, so that no group is cut.
    for group_index, (group_bytes, row_count) in enumerate(groups):
        weight += group_bytes
        if row_count is None or records is None:
            records = None
        else:
            records += row_count
        if weight >= unit_size or group_index == len(groups) - 1:
            part = FileRange(
                file=file,
                start=first_group,
                stop=group_index + 1,
                weight=weight,
                records=records,
            )
            ranges.append(part)
            first_group = group_index + 1
            weight = 0
            records = 0
    return ranges or [FileRange(file=file, start=0, stop=0, weight=0, records=0)]


def split_files(
    files: Sequence[InputFile],
    unit_size: int,
    storage_options: Mapping[str, Any] | None = None,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> Iterator[list[FileRange]]:
    """Yield the ranges of each file; every footer is read once, by several threads.

    Args:
        files: The files.
        unit_size: Size of a range in bytes.
        storage_options: Options of the file system that URLs are on.
        threads: Number of threads that read footers.
        on_progress: Function that receives the progress, from the threads.

    Raises:
        DamagedFileError: A footer cannot be read.
        InputChangedError: A file is not as it was listed.
    """
    # Only formats with footers cost a read. Other files are divided by their sizes
    # alone, for which one thread is enough.
    sizes_with_footer = [
        file.size for file in files if file.has_blocks or file.has_records
    ]
    meter = ProgressMeter(
        "splitting", len(sizes_with_footer), sum(sizes_with_footer), on_progress
    )
    if not sizes_with_footer:
        threads = 1

    def split_batch(batch: range) -> list[list[FileRange]]:
        ranges: list[list[FileRange]] = []
        footers = 0
        footer_bytes = 0
        for file in files[batch.start : batch.stop]:
            ranges.append(split_file(file, unit_size, storage_options))
            if file.has_blocks or file.has_records:
                footers += 1
                footer_bytes += file.size
        meter.add(footers, footer_bytes)
        return ranges

    files_per_batch = len(files) // (_BATCHES_PER_THREAD * threads)
    batch_size = max(1, min(_BATCH_FILES, files_per_batch))
    starts = range(0, len(files), batch_size)
    batches = [range(start, min(start + batch_size, len(files))) for start in starts]
    return chain.from_iterable(in_order(split_batch, batches, threads))


def by_file(groups: Iterable[Iterable[FileRange]]) -> Iterator[list[FileRange]]:
    """Yield the ranges of each file of one source's units."""
    ranges = chain.from_iterable(groups)
    for _, ranges_of_file in groupby(ranges, lambda part: part.file.file_id):
        yield list(ranges_of_file)
