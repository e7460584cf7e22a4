"""Cutting many files at once: what must be opened for it is opened by several threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenlake.sources.inputs import InputFile
from tokenlake.sources.meter import Meter, OnProgress
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.split import split_file
from tokenlake.threads import in_order

_TAKE: Final = 64  # files that one thread takes at a time
_WITH_FOOTER: Final = frozenset({"parquet", "arrow"})


def split_files(
    files: Sequence[InputFile],
    unit_size: int,
    storage_options: Mapping[str, Any] | None = None,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> list[list[FileRange]]:
    """Return the ranges of each file; every footer is read once, by several threads.

    Raises:
        DamagedFileError: a footer cannot be read.
        InputChangedError: a file is not what was listed.
    """
    ranges: list[list[FileRange]] = [[]] * len(files)
    footers = [index for index, file in enumerate(files) if file.format in _WITH_FOOTER]
    meter = Meter("splitting", len(footers), sum(files[index].size for index in footers), on_progress)

    def take(indices: Sequence[int]) -> list[list[FileRange]]:
        found = [split_file(files[index], unit_size, storage_options) for index in indices]
        meter.add(len(indices), sum(files[index].size for index in indices))
        return found

    taken = [footers[start : start + _TAKE] for start in range(0, len(footers), _TAKE)]
    for indices, found in zip(taken, in_order(take, taken, threads), strict=True):
        for index, parts in zip(indices, found, strict=True):
            ranges[index] = parts
    for index, file in enumerate(files):
        ranges[index] = ranges[index] or split_file(file, unit_size, storage_options)
    return ranges
