"""A few places of a plan's inputs, and what stands there.

Inputs of one kind are read whole where they are small. Of larger ones, places are
chosen with probability proportional to size: the files are laid end to end and divided
into equal parts, and a block is read from the middle of each part. A file of 10 GB gets
a thousand times as many places as one of 10 MB, and a file whose documents grow longer
towards its end is seen at all of its lengths.

With ``K`` places, ``W`` bytes in all, and a quantity ``y[i]`` (documents, tokens) found in the ``b[i]`` bytes of place
``i``::

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
_READ_BYTES: Final = 64 << 20  # of input that may be read in all
# That are read at a place, of a file that may be read from any byte on.
_WINDOW_BYTES: Final = 1 << 20
_MOST_BATCHES: Final = 4  # that are read at a place until one has documents
RANGE_WIDTH: Final = 2.0
"""Standard errors on each side of a range."""


@final
@dataclass(frozen=True, slots=True)
class Stratum:
    """The ranges of one kind of input.

    Attributes:
        ranges: Ranges in the order of the plan.
        weight: Sum of their weights, in bytes.
        records: Number of their records, where the files state it; otherwise None.
    """

    ranges: tuple[FileRange, ...]
    weight: int
    records: int | None


@final
@dataclass(frozen=True, slots=True)
class PlaceSample:
    """What was read at one place.

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
    for part in chain.from_iterable(unit.ranges for unit in units):
        kind = (part.file.format, part.file.compression)
        ranges_by_kind.setdefault(kind, []).append(part)
    strata: dict[Kind, Stratum] = {}
    for kind, ranges in ranges_by_kind.items():
        records: int | None = 0
        for part in ranges:
            # A range that is cut after some rows holds fewer records than its row
            # groups.
            is_known = part.records is not None and part.rows is None
            records = (
                records + (part.records or 0)
                if is_known and records is not None
                else None
            )
        strata[kind] = Stratum(
            tuple(ranges), sum(part.weight for part in ranges), records
        )
    return strata


def read_sample(stratum: Stratum, recipe: Recipe) -> tuple[list[PlaceSample], bool]:
    """Read the places of a stratum, and return them and whether they are all of it.

    Raises:
        SourceError: An input cannot be read.
    """
    is_compressed = any(
        part.file.compression is not None for part in stratum.ranges[:1]
    )
    if stratum.weight <= (WHOLE_COMPRESSED_BYTES if is_compressed else WHOLE_BYTES):
        # Each batch is a place.
        batches = (
            batch
            for part in stratum.ranges
            for batch in recipe.read(part, _WINDOW_BYTES)
        )
        places = [
            PlaceSample((batch,), batch.bytes_read, batch.bytes_read, batch.rows_read)
            for batch in batches
        ]
        return places, True
    return [_read_beginning(part, recipe) for part in _places(stratum)], False


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
    """Return the standard error of the mean of each column of float64[places,
    quantities]; NaN for a single place.

    The places are evenly spaced and in their order; see the formula at the top.
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], np.nan)
    squares = np.diff(values, axis=0) ** 2
    return np.sqrt(squares.sum(axis=0) / (2 * (count - 1) * count))


def _places(stratum: Stratum) -> Iterator[FileRange]:
    """Yield parts of ranges that begin in the middle of equal parts of a stratum,
    each part once.
    """
    bytes_at_a_place = max(
        _WINDOW_BYTES if _is_readable_anywhere(part) else part.weight
        for part in _evenly(stratum.ranges, _MOST_PLACES)
    )
    affordable = _READ_BYTES // max(bytes_at_a_place, 1)
    count = min(_MOST_PLACES, max(_LEAST_PLACES, affordable))
    step = stratum.weight / count
    end = 0.0  # of the ranges before, in bytes
    next_place = step / 2
    previous: FileRange | None = None
    for part in stratum.ranges:
        begin, end = end, end + part.weight
        while next_place < end:
            place = _part_from(part, (next_place - begin) / part.weight)
            if place != previous:
                yield place
            previous = place
            next_place += step


def _evenly(ranges: Sequence[FileRange], most: int) -> Sequence[FileRange]:
    """Return at most so many ranges, evenly over all of them."""
    return ranges[:: math.ceil(len(ranges) / most)]


def _part_from(part: FileRange, fraction: float) -> FileRange:
    """Return the part of a range that begins at a fraction of it; the range where
    only its beginning can be found.
    """
    # A range of limited rows ends after these rows, counted from its beginning.
    if part.rows is not None or not splittable(part.file):
        return part
    begin = part.start + int(fraction * (part.stop - part.start))
    if part.file.is_lines:
        # The window lies around the place, and is whole at both ends of a range.
        begin = min(begin - _WINDOW_BYTES // 2, part.stop - _WINDOW_BYTES)
        begin = max(begin, part.start)
    share = (part.stop - begin) / max(part.stop - part.start, 1)
    return replace(
        part, start=begin, weight=math.ceil(part.weight * share), records=None
    )


def _read_beginning(part: FileRange, recipe: Recipe) -> PlaceSample:
    """Read batches from the beginning of a range until one has documents and says how
    much input it took.

    Some formats read ahead, or begin with rows that are left out.
    """
    batches: list[Prepared] = []
    bytes_read = 0
    is_window = _is_readable_anywhere(part)
    # What can be read from its beginning only is read in blocks of a unit's size.
    reader = recipe.read(part, _WINDOW_BYTES) if is_window else recipe.read(part)
    for batch in reader:
        batches.append(batch)
        bytes_read += batch.bytes_read
        has_documents = bytes_read > 0 and any(len(one.documents) for one in batches)
        if has_documents or len(batches) == _MOST_BATCHES:
            break
    rows_read = sum(batch.rows_read for batch in batches)
    bytes_read = max(bytes_read, 1)
    if not is_window:
        return PlaceSample(tuple(batches), bytes_read, bytes_read, rows_read)
    window_bytes = max(bytes_read, min(_WINDOW_BYTES, part.weight))
    cut_bytes = _bytes_before_first_record(part, batches)
    return PlaceSample(
        tuple(batches),
        max(bytes_read - cut_bytes, 1),
        window_bytes,
        rows_read,
        begins_in_line=cut_bytes > 0,
    )


def _is_readable_anywhere(part: FileRange) -> bool:
    """Return whether records can be read from any byte of a range on."""
    return part.rows is None and part.file.is_lines and splittable(part.file)


def _bytes_before_first_record(part: FileRange, batches: Sequence[Prepared]) -> int:
    """Return the bytes at the beginning of a range of lines that belong to a line of
    the range before.
    """
    for batch in batches:
        if len(batch.documents):
            first = int(batch.documents.position[0])
            return max(0, first - part.start)
    return 0
