"""Bad records of a sample by reason, with the place of the first one of each.

A plan and an inspection describe the bad records of their samples with these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from tokenlake.base import numbers
from tokenlake.etl.sources.bad_records import BadRecord, position_unit
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.line_counter import LineCounter
from tokenlake.etl.sources.position_kinds import place_of


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BadReason:
    """Bad records with one reason.

    Attributes:
        reason: Stable code, such as ``invalid_json``.
        records: Number of bad records with this reason.
        first: Place of the first one: ``a.jsonl:12`` or ``b.parquet:7``; "" if
            it is unknown.
    """

    reason: str
    records: int
    first: str


class Batch(Protocol):
    """Records of some files, as the code of a build prepares them."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """Files that the records are of."""
        ...

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Bad records, in file order."""
        ...


def bad_reasons(
    batches: Iterable[Batch], storage_options: Mapping[str, Any] | None
) -> tuple[BadReason, ...]:
    """Return the bad records of batches by reason, in the order of the reasons' names.

    Args:
        batches: Batches in file order.
        storage_options: Options of the storage of their files.
    """
    counter = LineCounter(storage_options or {})
    parts: list[BadReason] = []
    placed_reasons: set[str] = set()
    for batch in batches:
        file_by_id = {file.file_id: file for file in batch.files}
        for record in batch.bad:
            place = ""
            # Counting lines reads the file, so that only the first record is placed.
            if record.reason not in placed_reasons:
                placed_reasons.add(record.reason)
                place = _place(record, file_by_id[record.file_id], counter)
            part = BadReason(reason=record.reason, records=1, first=place)
            parts.append(part)
    return added_up(parts)


def added_up(parts: Iterable[BadReason]) -> tuple[BadReason, ...]:
    """Return one entry per reason, with the first place and the sum of the records."""
    sums: dict[str, BadReason] = {}
    for part in parts:
        earlier = sums.get(part.reason)
        if earlier is None:
            sums[part.reason] = part
        else:
            records = earlier.records + part.records
            sums[part.reason] = replace(earlier, records=records)
    return tuple(sums[reason] for reason in sorted(sums))


def bad_in_words(reasons: Sequence[BadReason], sampled_records: int) -> str:
    """Return the bad records of a sample for people.

    Example: ``3 of 2,000 sampled records are bad: invalid_json 3 (first: a.jsonl:12)``.

    Args:
        reasons: Bad records by reason, at least one.
        sampled_records: Number of records of the sample, bad ones included.
    """
    bad_records = 0
    descriptions: list[str] = []
    for reason in reasons:
        bad_records += reason.records
        description = f"{reason.reason} {numbers.count(reason.records)}"
        if reason.first:
            description += f" (first: {reason.first})"
        descriptions.append(description)
    sampled = numbers.plural(sampled_records, "sampled record")
    are = "is" if bad_records == 1 else "are"
    return f"{bad_records:,} of {sampled} {are} bad: {', '.join(descriptions)}"


def sufficient_fraction(
    bad_records: int, sampled_records: int, *, is_complete: bool
) -> float:
    """Return a value of max_bad_fraction that allows the bad records of a source.

    It is 1, 2 or 5 times a power of ten, and larger than the share of the sample, or
    than twice this share if the source may have more bad records.

    Example: 10 of 2,000 records are bad, 0.005. The value is 0.01 if these are all
    records, and otherwise 0.02.

    Args:
        bad_records: Number of bad records in the sample.
        sampled_records: Number of records of the sample, bad ones included.
        is_complete: True if the sample has all bad records of the source.
    """
    needed_fraction = bad_records / max(sampled_records, 1)
    if not is_complete:
        needed_fraction *= 2
    for denominator in (1000, 500, 200, 100, 50, 20, 10, 5, 2):
        if needed_fraction * denominator < 1:
            return 1 / denominator
    return 1.0


def _place(record: BadRecord, file: InputFile, counter: LineCounter) -> str:
    """Return the place of a bad record, with its line if it can be counted."""
    line_number = record.line
    if line_number is None:
        line_number = counter.line_of(file, record.position)
    return place_of(record.file, record.position, line_number, position_unit(file))
