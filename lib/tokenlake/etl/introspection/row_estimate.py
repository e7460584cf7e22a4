"""The number of records of many files, from the few that were looked into.

1. A file whose records are counted, by a footer or because all of it was read, counts
   as it is.
2. A file that was looked into has its bytes times the mean of its records per byte, at
   places spread over it.
3. Any other file counts like those of its format that were looked into and have its
   size, within a factor of eight; otherwise like the one whose size is nearest.

The margin is half of a range that holds the true number about 19 times of 20. With ``d[1] .. d[n]`` records per byte at
places in their order, the error of their mean is that of :mod:`tokenlake.etl.plan.sampling`, and the margin of ``B``
bytes is::

    error  = sqrt(sum((d[i + 1] - d[i])**2) / (2 * (n - 1) * n))
    margin = 2 * B * error

The margins of files add as independent errors.

A file that can be read from its beginning only has one value, and no margin. That of
the whole is given nevertheless if such files have less than a twentieth of the records.

Example: a file of 1,000,000 bytes has 0.01, 0.01 and 0.02 records per byte at three
places. It holds about 13,333 records, and the margin is 2 * 1,000,000 * sqrt(0.0001 /
12) = 5,774.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from tokenlake.etl.introspection.sample import FileSample
from tokenlake.etl.sources.inputs import InputFile

_LIKE_SIZE: Final = 8
_STANDARD_ERRORS: Final = 2.0
_MOST_UNKNOWN: Final = 0.05


@final
@dataclass(frozen=True, slots=True)
class RowEstimate:
    """Number of records of some files.

    Attributes:
        rows: Number of records.
        margin: Half of the range around `rows`; 0 if they are counted, None if nothing
            is known about it.
    """

    rows: int
    margin: int | None


def estimate_rows(
    files: Sequence[InputFile], samples: Sequence[FileSample]
) -> RowEstimate | None:
    """Return the number of records of files; None if no sample has any.

    Args:
        files: All files.
        samples: Samples of some of them. Files that cannot be read have no records.
    """
    sample_by_path = {sample.file.path: sample for sample in samples}
    readable = [
        sample for sample in samples if sample.damage is None and _densities(sample)
    ]
    if not readable:
        return None

    counted = 0
    estimates: list[tuple[float, float | None]] = []  # records and margin of some files
    bytes_like: dict[
        str, int
        # Path of a sample -> bytes of the files that are like it and were not looked
        # into.
    ] = {}
    for file in files:
        sample = sample_by_path.get(file.path)
        if sample is None:
            nearest = _nearest(file, readable)
            bytes_like[nearest.file.path] = (
                bytes_like.get(nearest.file.path, 0) + file.size
            )
        elif sample.total is not None:
            counted += sample.total
        elif sample in readable:
            estimates.append(_of_bytes(file.size, _densities(sample)))
    for path, size in bytes_like.items():
        estimates.append(
            _of_bytes(size, _densities_like(sample_by_path[path], readable))
        )

    rows = counted + round(sum(records for records, _ in estimates))
    unknown = sum(records for records, margin in estimates if margin is None)
    if unknown > _MOST_UNKNOWN * rows:
        return RowEstimate(rows, None)
    margins = [margin for _, margin in estimates if margin is not None]
    return RowEstimate(rows, math.ceil(math.hypot(*margins)))


def _densities(sample: FileSample) -> Sequence[float]:
    """Return the records per byte at the places of a file; at one place, if the
    sample has no more.
    """
    if sample.densities:
        return sample.densities
    if sample.total is not None:
        return [sample.total / sample.file.size] if sample.file.size else []
    return [sample.seen / sample.stored] if sample.seen and sample.stored else []


def _nearest(file: InputFile, samples: Sequence[FileSample]) -> FileSample:
    """Return the sample of a file's format, or of any format, whose file is nearest
    in size.
    """
    like = [sample for sample in samples if _form(sample.file) == _form(file)]

    def difference(sample: FileSample) -> float:
        return abs(math.log(max(sample.file.size, 1) / max(file.size, 1)))

    return min(like or samples, key=difference)


def _form(file: InputFile) -> tuple[str, str | None]:
    return file.format, file.compression


def _densities_like(sample: FileSample, samples: Sequence[FileSample]) -> list[float]:
    """Return the mean records per byte of each sample whose file is like that of a
    sample.
    """
    means: list[float] = []
    for other in samples:
        sizes = sorted((max(other.file.size, 1), max(sample.file.size, 1)))
        if (
            _form(other.file) == _form(sample.file)
            and sizes[1] <= _LIKE_SIZE * sizes[0]
        ):
            means.append(statistics.fmean(_densities(other)))
    return means


def _of_bytes(size: int, densities: Sequence[float]) -> tuple[float, float | None]:
    """Return the records of some bytes and their margin, which is None with one
    value alone.
    """
    rows = size * statistics.fmean(densities)
    if len(densities) < 2:
        return rows, None
    squares = sum((after - before) ** 2 for before, after in pairwise(densities))
    error = math.sqrt(squares / (2 * (len(densities) - 1) * len(densities)))
    return rows, _STANDARD_ERRORS * size * error
