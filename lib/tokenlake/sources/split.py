"""Cutting a big file into ranges that can be read independently; a function of the file alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tokenlake.sources.arrow.footer import batch_sizes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet.footer import footer
from tokenlake.sources.ranges import FileRange


def splittable(file: InputFile) -> bool:
    """Say whether parts of `file` can be read without the parts before them."""
    if file.format in ("parquet", "arrow"):  # an Arrow stream cannot, but only its first bytes tell
        return file.compression is None
    lines = file.format == "jsonl" or file.text_mode == "lines"
    return lines and file.compression is None


def split_file(
    file: InputFile, unit_size: int, storage_options: Mapping[str, Any] | None = None
) -> list[FileRange]:
    """Cut `file` into ranges of about `unit_size` bytes; every file has at least one, even an empty one.

    Raises:
        DamagedFileError: a Parquet or Arrow file whose footer cannot be read.
    """
    if file.format == "parquet":
        with opened(file, storage_options) as data:
            meta = footer(data)
        groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
        return _split_groups(file, [(group.total_byte_size, group.num_rows) for group in groups], unit_size)
    if file.format == "arrow":
        sizes = batch_sizes(file, storage_options)
        whole = [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
        return whole if sizes is None else _split_groups(file, [(size, None) for size in sizes], unit_size)
    if not splittable(file):
        return [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
    count = max(1, (file.size + unit_size // 2) // unit_size)
    edges = [*range(0, count * unit_size, unit_size), file.size] if count > 1 else [0, file.size]
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
