"""Upper bounds of the number of records in ranges of files, and the bad records that a
unit may have.

A build with ``max_bad_fraction`` fails once its bad records are more than that share of
all records. A unit can stop early: once its bad records alone are more than the share
of all records that the source can have at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tokenlake.config.resolved import ResolvedBuild
from tokenlake.etl.plan.plan import TextUnit
from tokenlake.etl.sources.formats import Compression
from tokenlake.etl.sources.inputs import FileRange

_MOST_EXPANSION: Final[dict[Compression | None, int]] = {
    None: 1,
    "gzip": 1032,
    "zstd": 32768,
    "lz4": 256,
    "bzip2": 1 << 20,
    "xz": 1 << 15,
}
"""Largest factor by which a stream is longer than its compressed form.

These are deflate's longest match in its shortest code, a zstd block of 128 KiB in four
bytes, 255 bytes for a byte of lz4, and 45.9 MB of one value in a bzip2 block of 46
bytes. Of xz a factor of 6,800 was measured, with zeros.
"""

_UNBOUNDED: Final = 1 << 40
"""Bound of a file whose number of records is unknown and whose size says nothing: an
Arrow batch of nulls is empty.
"""


def bad_budgets(build: ResolvedBuild, units: Iterable[TextUnit]) -> dict[str, int]:
    """Return the number of bad records in one unit after which it fails, by source.

    Args:
        build: Build with its sources.
        units: All units of the build.
    """
    most = Counter[str]()
    fractions: dict[str, float] = {}
    for source in build.sources:
        if source.on_bad_record == "quarantine":
            fractions[source.name] = source.max_bad_fraction
    for unit in units:
        if unit.source in fractions:
            most[unit.source] += most_records(unit.ranges)
    return {name: int(fraction * most[name]) for name, fraction in fractions.items()}


def most_records(ranges: Iterable[FileRange]) -> int:
    """Return an upper bound of the number of records of a unit."""
    return sum(most_in_range(part) for part in ranges)


def most_in_range(part: FileRange) -> int:
    """Return an upper bound of the number of records of a range.

    `records` and `rows` of a range count its records. Its bytes only bound them.
    """
    most = part.records
    if most is None:
        least_record_bytes = part.file.facts.least_record_bytes
        if least_record_bytes is None:
            most = _UNBOUNDED
        else:
            bytes_read = (part.stop - part.start) * _MOST_EXPANSION[
                part.file.compression
            ]
            most = bytes_read // least_record_bytes + 1
    if part.rows is not None:
        most = min(most, part.rows)
    return most
