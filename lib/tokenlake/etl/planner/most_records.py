"""Upper bounds of records in ranges of files, and of bad records in a unit.

A build with ``max_bad_fraction`` fails once its bad records are more than that share of
all records. A unit can stop early: once its bad records alone are more than the share
of all records that the source can have at most.

Example: a source of 1 MB of JSON Lines, whose shortest record is "{}" and a line feed,
has 333,334 records at most. With a fraction of 0.01 a unit stops after 3,333 bad ones.
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
    most_by_source = Counter[str]()
    fractions: dict[str, float] = {}
    for source in build.sources:
        if source.on_bad_record == "quarantine":
            fractions[source.name] = source.max_bad_fraction
    for unit in units:
        if unit.source in fractions:
            most_by_source[unit.source] += most_records(unit.ranges)
    return {
        name: int(fraction * most_by_source[name])
        for name, fraction in fractions.items()
    }


def most_records(ranges: Iterable[FileRange]) -> int:
    """Return an upper bound of the number of records of a unit."""
    return sum(most_in_range(file_range) for file_range in ranges)


def most_in_range(part: FileRange) -> int:
    """Return an upper bound of the number of records of a range.

    `records` and `rows` of a range count its records. Its bytes only bound them.
    """
    # 1. The footer of the file, or the size of the range.
    bound = part.records
    if bound is None:
        least_record_bytes = part.file.facts.least_record_bytes
        if least_record_bytes is None:
            bound = _UNBOUNDED
        else:
            # Every record takes at least this many bytes of the uncompressed range.
            expansion = _MOST_EXPANSION[part.file.compression]
            bytes_read = (part.stop - part.start) * expansion
            bound = bytes_read // least_record_bytes + 1
    # 2. A limit of rows.
    if part.rows is not None:
        bound = min(bound, part.rows)
    return bound
