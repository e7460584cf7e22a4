"""`max_bad_fraction`: judged at commit, and earlier when no further record could save the build."""

from __future__ import annotations

from typing import Final, final

import pyarrow.parquet as pq

from tokenlake.build.plan import Plan
from tokenlake.build.units import WorkUnit
from tokenlake.errors import TooManyBadRecordsError
from tokenlake.manifest import UnitRecord
from tokenlake.sources.split import FileRange

#: No record that holds anything is shorter in a line format (``{"a":1}`` and its newline).
_LEAST_RECORD_BYTES: Final = 8

#: No block of gzip or zstd holds more than this many times its size in records worth the name.
_MOST_EXPANSION: Final = 1100


@final
class BadRecordBudget:
    """Bad and good records per source so far, against the most that can still come."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._judged = {source.name for source in plan.build.sources if source.on_bad_record == "quarantine"}
        self._most = {unit.index: _most_records(unit) for unit in plan.units if unit.source in self._judged}
        self._open = set(self._most)
        self._rows: dict[str, int] = dict.fromkeys(self._judged, 0)
        self._bad: dict[str, int] = dict.fromkeys(self._judged, 0)

    def most_in_one_unit(self, unit: WorkUnit) -> int:
        """Bad records in this unit past which the source fails whatever the other units hold."""
        if unit.source not in self._judged:
            return 0
        most = sum(
            count for index, count in self._most.items() if self._plan.units[index].source == unit.source
        )
        return int(self._plan.source(unit.source).max_bad_fraction * most)

    def add(self, record: UnitRecord) -> None:
        self._count(record, +1)
        self._open.discard(record.unit)

    def remove(self, record: UnitRecord) -> None:
        self._count(record, -1)
        if record.unit in self._most:
            self._open.add(record.unit)

    def require_hope(self) -> None:
        """Raise TooManyBadRecordsError when the rest of the input cannot dilute the bad records enough."""
        for source in self._judged:
            left = sum(self._most[index] for index in self._open if self._plan.units[index].source == source)
            self._require(source, self._rows[source] + left, "even if every record still unread is good")

    def judge(self) -> None:
        """Raise TooManyBadRecordsError when a source holds more bad records than allowed, all units being done."""
        for source in self._judged:
            self._require(source, self._rows[source], "of all records read")

    def _count(self, record: UnitRecord, sign: int) -> None:
        if record.source in self._judged:
            self._rows[record.source] += sign * record.account.rows_read
            self._bad[record.source] += sign * sum(record.account.quarantined.values())

    def _require(self, source: str, rows: int, when: str) -> None:
        allowed = self._plan.source(source).max_bad_fraction
        bad = self._bad[source]
        if bad > allowed * rows:
            raise TooManyBadRecordsError(
                f"source {source!r}: {bad} bad records of {rows} are {bad / rows:.3%}, more than max_bad_fraction="
                f"{allowed:g} allows, {when}. See the quarantine/ files for each record and its reason; mend the "
                "input, or raise max_bad_fraction if the loss is acceptable",
                source=source,
                bad=bad,
                rows=rows,
            )


def _most_records(unit: WorkUnit) -> int:
    return sum(_most_in_range(part) for part in unit.ranges)


def _most_in_range(part: FileRange) -> int:
    if part.file.format == "parquet":
        footer = pq.read_metadata(part.file.url)
        return sum(footer.row_group(index).num_rows for index in range(part.start, part.stop))
    factor = _MOST_EXPANSION if part.file.compression else 1
    least = 2 if part.file.format == "text" else _LEAST_RECORD_BYTES
    return (part.stop - part.start) * factor // least + 1
