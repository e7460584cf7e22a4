"""The number of records of many files, from the few that were looked into.

1. A file whose records are counted, by a footer or because all of it was read, counts
   as it is.
2. A file that was looked into has its bytes times the mean of its records per byte, at
   places spread over it.
3. Any other file counts like those of its format that were looked into and have its
   size, within a factor of eight; otherwise like the one whose size is nearest.

The margin is half of a range that holds the true number about 19 times of 20. With
``d[1] .. d[n]`` records per byte at places in their order, the error of their mean is
that of :mod:`tokenlake.etl.plan.sampling`, and the margin of ``B`` bytes is::

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

# Factor between the sizes of files that are expected to have similar records.
_LIKE_SIZE: Final = 8
# Standard errors on either side of a range that holds the truth about 19 times of 20.
_STANDARD_ERRORS: Final = 2.0
# Share of the records up to which files without a margin may be left out of it.
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
    sample_by_path: dict[str, FileSample] = {}
    readable: list[FileSample] = []
    for sample in samples:
        sample_by_path[sample.file.path] = sample
        if sample.damage is None and _densities(sample):
            readable.append(sample)
    if not readable:
        return None

    # Steps 1 and 2 for files with a sample. Files without one are added up by the
    # sample that is nearest in size (step 3).
    counted_rows = 0
    estimates: list[tuple[float, float | None]] = []  # records and their margin
    unsampled_bytes: dict[str, int] = {}  # path of the nearest sample -> bytes
    for file in files:
        sample = sample_by_path.get(file.path)
        if sample is None:
            nearest_path = _nearest(file, readable).file.path
            bytes_so_far = unsampled_bytes.get(nearest_path, 0)
            unsampled_bytes[nearest_path] = bytes_so_far + file.size
        elif sample.total is not None:
            counted_rows += sample.total
        elif sample in readable:
            estimates.append(_of_bytes(file.size, _densities(sample)))
    for path, byte_count in unsampled_bytes.items():
        densities = _densities_like(sample_by_path[path], readable)
        estimates.append(_of_bytes(byte_count, densities))

    # The sum of all records. Its margin is unknown if too many of them have none.
    estimated_rows = 0.0
    rows_without_margin = 0.0
    margins: list[float] = []
    for records, margin in estimates:
        estimated_rows += records
        if margin is None:
            rows_without_margin += records
        else:
            margins.append(margin)
    rows = counted_rows + round(estimated_rows)
    if rows_without_margin > _MOST_UNKNOWN * rows:
        return RowEstimate(rows, None)
    # Independent errors add as the sides of a right angle.
    return RowEstimate(rows, math.ceil(math.hypot(*margins)))


def _densities(sample: FileSample) -> Sequence[float]:
    """Return the records per byte at the places of a file, or at its beginning.

    The list is empty if nothing was read.
    """
    if sample.densities:
        return sample.densities
    if sample.total is not None:
        if not sample.file.size:
            return []
        return [sample.total / sample.file.size]
    if not sample.seen or not sample.stored:
        return []
    return [sample.seen / sample.stored]


def _nearest(file: InputFile, samples: Sequence[FileSample]) -> FileSample:
    """Return the sample that is nearest to a file in size.

    Samples of the file's format come before others.
    """
    same_form = [sample for sample in samples if _form(sample.file) == _form(file)]

    # Sizes are compared as a ratio: 1 KB is as far from 8 KB as 1 MB from 8 MB.
    def distance(sample: FileSample) -> float:
        return abs(math.log(max(sample.file.size, 1) / max(file.size, 1)))

    return min(same_form or samples, key=distance)


def _form(file: InputFile) -> tuple[str, str | None]:
    """Return the properties that decide how many bytes a record takes."""
    return file.format, file.compression


def _densities_like(sample: FileSample, samples: Sequence[FileSample]) -> list[float]:
    """Return the mean records per byte of each sample that is like a sample.

    Files are alike if they have one format and similar sizes. A sample is like itself.
    """
    means: list[float] = []
    for other in samples:
        if _form(other.file) != _form(sample.file):
            continue
        smaller, larger = sorted((max(other.file.size, 1), max(sample.file.size, 1)))
        if larger <= _LIKE_SIZE * smaller:
            means.append(statistics.fmean(_densities(other)))
    return means


def _of_bytes(
    byte_count: int, densities: Sequence[float]
) -> tuple[float, float | None]:
    """Return the records of some bytes, and their margin; None with one value alone.

    The formula is that of the module's top.
    """
    rows = byte_count * statistics.fmean(densities)
    if len(densities) < 2:
        return rows, None
    # Differences of neighbours, not from the mean: records that become longer along the
    # file do not count as an error.
    squares = sum((after - before) ** 2 for before, after in pairwise(densities))
    error = math.sqrt(squares / (2 * (len(densities) - 1) * len(densities)))
    return rows, _STANDARD_ERRORS * byte_count * error
