"""Cutting a big file into ranges that can be read independently; a function of the file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenlake.sources.footer import row_group_sizes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.ipc_footer import batch_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A part of a file.

    Attributes:
        file: the file.
        start, stop: byte offsets for plain line formats (the range owns the lines that START in
            ``[start, stop)``); row groups for Parquet; record batches for Arrow files (not streams); 0 and
            the file's size for everything else.
        rows: read at most so many records of it, good or bad; None for all.
        weight: how much there is to read: bytes on disk, for Parquet uncompressed bytes of the row groups.
    """

    file: InputFile
    start: int
    stop: int
    weight: int
    rows: int | None = None


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
        return _split_groups(file, row_group_sizes(file, storage_options), unit_size)
    if file.format == "arrow":
        sizes = batch_sizes(file, storage_options)
        whole = [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
        return whole if sizes is None else _split_groups(file, sizes, unit_size)
    if not splittable(file):
        return [FileRange(file=file, start=0, stop=file.size, weight=file.size)]
    count = max(1, (file.size + unit_size // 2) // unit_size)
    edges = [*range(0, count * unit_size, unit_size), file.size] if count > 1 else [0, file.size]
    return [FileRange(file=file, start=a, stop=b, weight=b - a) for a, b in pairwise(edges)]


def _split_groups(file: InputFile, sizes: list[int], unit_size: int) -> list[FileRange]:
    ranges: list[FileRange] = []
    start, weight = 0, 0
    for index, size in enumerate(sizes):
        weight += size
        if weight >= unit_size or index == len(sizes) - 1:
            ranges.append(FileRange(file=file, start=start, stop=index + 1, weight=weight))
            start, weight = index + 1, 0
    return ranges or [FileRange(file=file, start=0, stop=0, weight=0)]
