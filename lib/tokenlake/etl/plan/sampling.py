"""Sample of a plan's inputs: a few places, and the documents that are there.

Inputs of one kind are read whole where they are small. Of larger ones, places are
chosen with probability proportional to size: the files are laid end to end and divided
into equal parts, and a block is read from the middle of each part. A file of 10 GB gets
a thousand times as many places as one of 10 MB, and a file whose documents grow longer
towards its end is seen at all of its lengths.

With ``K`` places, ``W`` bytes in all, and a quantity ``y[i]`` (documents, tokens) found
in the ``b[i]`` bytes of place ``i``::

    rate[i] = y[i] / b[i]
    total   = W * mean(rate)
    error   = sqrt(sum((rate[i + 1] - rate[i])**2) / (2 * (K - 1) * K))
    margin  = 2 * W * error

The margin is half of a range that holds the true total about 19 times of 20. The error
is that of evenly spaced places (Wolter 2007, Introduction to Variance Estimation,
section 8.2): of inputs in a random order it is the usual ``std(rate) / sqrt(K)``, and
it is smaller where neighbours are alike, such as short documents first and long ones
last.

Example: 4 places of 100 bytes, of 4,000 bytes in all, hold 2, 2, 3 and 3 documents. The
rates are 0.02, 0.02, 0.03 and 0.03, the total is 4,000 * 0.025 = 100 documents, and the
margin 2 * 4,000 * sqrt(0.0001 / 24) = 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.etl.plan.plan import TextUnit
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.splits import splittable
from tokenlake.etl.unit.documents import Prepared, Recipe

Floats: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = tuple[str, str | None]
"""Format and compression of a file: a byte of one holds more than a byte of another."""

WHOLE_BYTES: Final = 64 << 20
"""Bytes of input of one kind up to which all of it is read."""
WHOLE_COMPRESSED_BYTES: Final = 8 << 20
"""The same of compressed input, in bytes on disk."""

_LEAST_PLACES: Final = 8
_MOST_PLACES: Final = 64
"""Numbers of places: a margin needs several, and more than these improve it little."""
_READ_BYTES: Final = 64 << 20
"""Bytes of input that may be read in total."""
_WINDOW_BYTES: Final = 1 << 20
"""Bytes that are read at a place of a file that can be read from any byte on."""
_MOST_BATCHES: Final = 4
"""Batches that are read at a place until one has documents."""
RANGE_WIDTH: Final = 2.0
"""Standard errors on each side of a range."""


@final
@dataclass(frozen=True, slots=True)
class Stratum:
    """Ranges of one kind of input.

    Attributes:
        ranges: Ranges in the order of the plan.
        weight: Sum of their weights, in bytes.
        records: Number of their records, if the files state it; otherwise None.
    """

    ranges: tuple[FileRange, ...]
    weight: int
    records: int | None


@final
@dataclass(frozen=True, slots=True)
class PlaceSample:
    """Documents that were read at one place.

    Attributes:
        batches: Batches of documents, those without any included.
        bytes_read: Bytes of input that the batches took.
        window_bytes: Bytes of input in which the documents were looked for: more than
            `bytes_read` where lines are cut by the beginning and the end of the window.
        rows_read: Number of records that the batches hold, good or bad.
        begins_in_line: True if the window begins inside a line, whose end is in the
            window.
    """

    batches: tuple[Prepared, ...]
    bytes_read: int
    window_bytes: int
    rows_read: int
    begins_in_line: bool = False

    @property
    def ends_per_row(self) -> float:
        """Number of ends of lines in the window per record that was read.

        A window has a line's end for each line that was read, and one more for the line
        that it begins in. Lines are counted by their ends: counting those that fit into
        a window would miss the long ones.
        """
        if not self.begins_in_line or not self.rows_read:
            return 1.0
        return (self.rows_read + 1) / self.rows_read

    @property
    def documents(self) -> int:
        """Number of documents in all batches."""
        return sum(len(batch.documents) for batch in self.batches)


def strata_of(units: Iterable[TextUnit]) -> dict[Kind, Stratum]:
    """Return the ranges of units by kind."""
    ranges_by_kind: dict[Kind, list[FileRange]] = {}
    for file_range in chain.from_iterable(unit.ranges for unit in units):
        kind = (file_range.file.format, file_range.file.compression)
        ranges_by_kind.setdefault(kind, []).append(file_range)
    strata: dict[Kind, Stratum] = {}
    for kind, ranges in ranges_by_kind.items():
        weight = 0
        record_count = 0
        has_all_counts = True
        for file_range in ranges:
            weight += file_range.weight
            # A range that is cut after some rows holds fewer records than its row
            # groups.
            if file_range.records is None or file_range.rows is not None:
                has_all_counts = False
            else:
                record_count += file_range.records
        records = None
        if has_all_counts:
            records = record_count
        strata[kind] = Stratum(tuple(ranges), weight, records)
    return strata


def read_sample(stratum: Stratum, recipe: Recipe) -> tuple[list[PlaceSample], bool]:
    """Read the places of a stratum.

    Returns:
        The places, and whether they are the whole stratum.

    Raises:
        SourceError: An input cannot be read.
    """
    # All ranges of a stratum are compressed alike.
    whole_bytes = WHOLE_BYTES
    if stratum.ranges and stratum.ranges[0].file.compression is not None:
        whole_bytes = WHOLE_COMPRESSED_BYTES

    # 1. A small stratum is read as a whole: each batch is a place.
    places: list[PlaceSample] = []
    if stratum.weight <= whole_bytes:
        for file_range in stratum.ranges:
            for batch in recipe.read(file_range, _WINDOW_BYTES):
                size = batch.bytes_read
                places.append(PlaceSample((batch,), size, size, batch.rows_read))
        return places, True

    # 2. Of a larger one, the beginnings of ranges at evenly spaced places.
    for file_range in _places(stratum):
        places.append(_read_beginning(file_range, recipe))
    return places, False


def totals_of_places(rates: Floats, weight: float) -> tuple[Floats, Floats]:
    """Return the total of each quantity, and half of the range around it.

    Args:
        rates: float64[places, quantities], each quantity per byte of input at each
            place.
        weight: Bytes of input in all.

    Returns:
        Two float64[quantities]. The margin of a single place is NaN: nothing is known
        of it.
    """
    totals: Floats = rates.mean(axis=0) * weight
    return totals, RANGE_WIDTH * weight * standard_errors(rates)


def standard_errors(values: Floats) -> Floats:
    """Return the standard error of the mean of each quantity.

    The places are evenly spaced and in their order; see the formula at the top.

    Args:
        values: float64[places, quantities].

    Returns:
        float64[quantities], NaN for a single place.
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], np.nan)
    squared_steps = np.diff(values, axis=0) ** 2
    return np.sqrt(squared_steps.sum(axis=0) / (2 * (count - 1) * count))


def _places(stratum: Stratum) -> Iterator[FileRange]:
    """Yield the ranges that begin in the middle of equal parts of a stratum.

    Each range is yielded once, even if several places fall on its beginning.
    """
    # 1. The number of places, as many as the bytes that may be read allow. A file that
    #    is read from its beginning only takes its whole range.
    bytes_at_a_place = 1
    for file_range in _evenly(stratum.ranges, _MOST_PLACES):
        place_bytes = file_range.weight
        if _is_readable_anywhere(file_range):
            place_bytes = _WINDOW_BYTES
        bytes_at_a_place = max(bytes_at_a_place, place_bytes)
    affordable_places = _READ_BYTES // bytes_at_a_place
    place_count = min(_MOST_PLACES, max(_LEAST_PLACES, affordable_places))

    # 2. The places, on the line of all ranges laid end to end.
    distance = stratum.weight / place_count
    next_place = distance / 2
    range_end = 0.0
    previous: FileRange | None = None
    for file_range in stratum.ranges:
        range_begin = range_end
        range_end = range_begin + file_range.weight
        while next_place < range_end:
            fraction = (next_place - range_begin) / file_range.weight
            place_range = _part_from(file_range, fraction)
            if place_range != previous:
                yield place_range
            previous = place_range
            next_place += distance


def _evenly(ranges: Sequence[FileRange], most: int) -> Sequence[FileRange]:
    """Return a limited number of ranges, evenly spaced."""
    return ranges[:: math.ceil(len(ranges) / most)]


def _part_from(file_range: FileRange, fraction: float) -> FileRange:
    """Return the part of a range that begins at a fraction of it.

    It is the whole range if only its beginning can be found.
    """
    # A range of limited rows ends after these rows, counted from its beginning.
    if file_range.rows is not None or not splittable(file_range.file):
        return file_range
    part_start = file_range.start + int(fraction * (file_range.stop - file_range.start))
    if file_range.file.is_lines:
        # The window lies around the place, and is whole at both ends of a range.
        part_start = min(
            part_start - _WINDOW_BYTES // 2, file_range.stop - _WINDOW_BYTES
        )
        part_start = max(part_start, file_range.start)
    # The weight shrinks with the bytes. The number of records is not known any more.
    share = (file_range.stop - part_start) / max(file_range.stop - file_range.start, 1)
    return replace(
        file_range,
        start=part_start,
        weight=math.ceil(file_range.weight * share),
        records=None,
    )


def _read_beginning(file_range: FileRange, recipe: Recipe) -> PlaceSample:
    """Read batches from the beginning of a range until one has documents.

    It must also state the bytes of input that it took. Some formats read ahead, or
    begin with rows that are left out.
    """
    # 1. The batches.
    batches: list[Prepared] = []
    bytes_read = 0
    is_window = _is_readable_anywhere(file_range)
    # What can be read from its beginning only is read in blocks of a unit's size.
    if is_window:
        reader = recipe.read(file_range, _WINDOW_BYTES)
    else:
        reader = recipe.read(file_range)
    document_count = 0
    rows_read = 0
    for batch in reader:
        batches.append(batch)
        bytes_read += batch.bytes_read
        rows_read += batch.rows_read
        document_count += len(batch.documents)
        has_documents = bytes_read > 0 and document_count > 0
        if has_documents or len(batches) == _MOST_BATCHES:
            break
    bytes_read = max(bytes_read, 1)

    # 2. The bytes that they stand for. A window of lines begins and ends inside of
    #    some.
    if not is_window:
        return PlaceSample(tuple(batches), bytes_read, bytes_read, rows_read)
    window_bytes = max(bytes_read, min(_WINDOW_BYTES, file_range.weight))
    cut_bytes = _bytes_before_first_record(file_range, batches)
    return PlaceSample(
        tuple(batches),
        max(bytes_read - cut_bytes, 1),
        window_bytes,
        rows_read,
        begins_in_line=cut_bytes > 0,
    )


def _is_readable_anywhere(file_range: FileRange) -> bool:
    """Whether records can be read from any byte of a range on."""
    return (
        file_range.rows is None
        and file_range.file.is_lines
        and splittable(file_range.file)
    )


def _bytes_before_first_record(
    file_range: FileRange, batches: Sequence[Prepared]
) -> int:
    """Return the bytes before the first line that begins in a range of lines.

    They belong to a line of the range before.
    """
    for batch in batches:
        if len(batch.documents):
            first_position = int(batch.documents.position[0])
            return max(0, first_position - file_range.start)
    return 0
