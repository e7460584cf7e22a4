"""Comparison of the bad records of each source with ``max_bad_fraction``.

It ends a build as early as possible: a source of 1,000 records with a fraction of 0.01
may have 10 bad ones, so the eleventh ends it, however many are still unread.
"""

from __future__ import annotations

from collections import Counter
from typing import final

from tokenlake import errors
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.planner.most_records import most_records
from tokenlake.runtime.store.ledger import UnitRecord


@final
class BadRecordBudget:
    """Bad records of each source so far, against all that it has or can still have.

    A build fails as soon as no number of good records can make up for the bad ones::

        bad > max_bad_fraction x (records read + most records that are still unread)
    """

    def __init__(self, plan: Plan, quarantine: str) -> None:
        """Begin without records.

        Args:
            plan: Plan of the build.
            quarantine: Folder of the files of bad records, for messages.
        """
        self._quarantine = quarantine
        # A source whose bad records fail the build needs no count.
        self._allowed_fractions: dict[str, float] = {}
        for source in plan.build.sources:
            if source.on_bad_record == "quarantine":
                self._allowed_fractions[source.name] = source.max_bad_fraction
        # Largest number of records of each unit, and of all units of a source that are
        # not counted yet.
        self._most_records: dict[int, int] = {}
        self._most_unread = Counter[str]()
        self._records_read = Counter[str]()
        self._bad_records = Counter[str]()
        for unit in plan.units:
            if isinstance(unit, TextUnit) and unit.source in self._allowed_fractions:
                unit_records = most_records(unit.ranges)
                self._most_records[unit.index] = unit_records
                self._most_unread[unit.source] += unit_records

    def add(self, record: UnitRecord, times: int = 1) -> None:
        """Count the records of a unit.

        Args:
            record: Record of the unit.
            times: Number of times to count it; -1 takes it back.
        """
        source = record.source
        if source in self._allowed_fractions:
            # The number of records of the unit is known now, and replaces the bound.
            bad_records = sum(record.account.quarantined.values())
            self._most_unread[source] -= times * self._most_records.get(record.unit, 0)
            self._records_read[source] += times * record.account.rows_read
            self._bad_records[source] += times * bad_records

    def check(self) -> None:
        """Check that each source can still stay below its fraction of bad records.

        Raises:
            TooManyBadRecordsError: The records still unread cannot dilute the bad ones.
        """
        for source, allowed_fraction in self._allowed_fractions.items():
            unread_records = self._most_unread[source]
            bad_records = self._bad_records[source]
            most_rows = self._records_read[source] + unread_records
            if bad_records <= allowed_fraction * most_rows:
                continue
            extent = "of all records read"
            if unread_records:
                extent = "even if every record still unread is good"
            raise errors.TooManyBadRecordsError(
                f"source {source!r}: {bad_records} bad records of {most_rows} are {bad_records / most_rows:.3%}, more "
                f"than max_bad_fraction={allowed_fraction:g} allows, {extent}. {self._quarantine}/*.parquet has each "
                "record with its place and reason; fix the input, or raise max_bad_fraction if the loss is acceptable",
                source=source,
                bad=bad_records,
                rows=most_rows,
            )
