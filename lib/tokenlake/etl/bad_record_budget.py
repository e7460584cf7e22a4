"""The bad records of each source of a build, compared with ``max_bad_fraction`` as
early as possible.
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
    """Bad records of each source so far, against all records that it has or can still
    have.

    A build fails as soon as no number of good records can make up for the bad ones::

        bad > max_bad_fraction x (records read + most records that are still unread)
    """

    def __init__(self, plan: Plan) -> None:
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
                most = most_records(unit.ranges)
                self._most_records[unit.index] = most
                self._most_unread[unit.source] += most

    def add(self, record: UnitRecord, times: int = 1) -> None:
        """Count the records of a unit.

        Args:
            record: Record of the unit.
            times: Number of times to count it; -1 takes it back.
        """
        source = record.source
        if source in self._allowed_fractions:
            self._most_unread[source] -= times * self._most_records.get(record.unit, 0)
            self._records_read[source] += times * record.account.rows_read
            self._bad_records[source] += times * sum(
                record.account.quarantined.values()
            )

    def check(self) -> None:
        """Raise TooManyBadRecordsError where the rest of a source cannot dilute its
        bad records enough.
        """
        for source, allowed in self._allowed_fractions.items():
            unread = self._most_unread[source]
            bad = self._bad_records[source]
            rows = self._records_read[source] + unread
            if bad <= allowed * rows:
                continue
            when = "of all records read"
            if unread:
                when = "even if every record still unread is good"
            raise errors.TooManyBadRecordsError(
                f"source {source!r}: {bad} bad records of {rows} are {bad / rows:.3%}, more than max_bad_fraction="
                f"{allowed:g} allows, {when}. See the quarantine/ files for each record and its reason; fix the "
                "input, or raise max_bad_fraction if the loss is acceptable",
                source=source,
                bad=bad,
                rows=rows,
            )
