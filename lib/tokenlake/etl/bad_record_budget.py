"""`max_bad_fraction`: judged at commit, and earlier when no further record could save the build."""

from __future__ import annotations

from typing import Final, final

from tokenlake.errors import TooManyBadRecordsError
from tokenlake.etl.plan.text import Plan
from tokenlake.etl.plan.units import WorkUnit
from tokenlake.sources.formats import Compression, Format
from tokenlake.sources.inputs import FileRange
from tokenlake.store.ledger import UnitRecord

#: No record that holds anything is shorter, in bytes, its separator included.
_LEAST_RECORD_BYTES: Final[dict[Format, int]] = {
    "jsonl": 2,  # a digit, which is a bad record, and its newline
    "json": 2,  # a digit and a comma
    "text": 2,
    "csv": 1,  # one empty cell: its newline
    "tsv": 1,
}

#: No stream is longer than so many times its compressed size: deflate's longest match in its shortest code,
#: and a block of 128 KiB in four bytes.
_MOST_EXPANSION: Final[dict[Compression | None, int]] = {None: 1, "gzip": 1032, "zstd": 32768}

#: Where a file does not say how many records it has and bytes tell nothing: an Arrow batch of nulls has none.
_UNBOUNDED: Final = 1 << 40


@final
class BadRecordBudget:
    """Bad and good records per source so far, against the most that can still come."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._judged = {source.name for source in plan.build.sources if source.on_bad_record == "quarantine"}
        self._most = {unit.index: _most_records(unit) for unit in plan.units if unit.source in self._judged}
        self._open = set(self._most)
        self._all = dict.fromkeys(self._judged, 0)
        for unit in plan.units:
            if unit.source in self._judged:
                self._all[unit.source] += self._most[unit.index]
        self._left = dict(self._all)
        self._rows: dict[str, int] = dict.fromkeys(self._judged, 0)
        self._bad: dict[str, int] = dict.fromkeys(self._judged, 0)

    def most_in_one_unit(self, unit: WorkUnit) -> int:
        """Bad records in this unit past which the source fails whatever the other units hold."""
        if unit.source not in self._judged:
            return 0
        return int(self._plan.source(unit.source).max_bad_fraction * self._all[unit.source])

    def add(self, record: UnitRecord) -> None:
        self._count(record, +1)
        if record.unit in self._open:
            self._open.remove(record.unit)
            self._left[record.source] -= self._most[record.unit]

    def remove(self, record: UnitRecord) -> None:
        self._count(record, -1)
        if record.unit in self._most and record.unit not in self._open:
            self._open.add(record.unit)
            self._left[record.source] += self._most[record.unit]

    def require_hope(self) -> None:
        """Raise TooManyBadRecordsError when the rest of the input cannot dilute the bad records enough."""
        for source in self._judged:
            self._require(
                source, self._rows[source] + self._left[source], "even if every record still unread is good"
            )

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
                f"{allowed:g} allows, {when}. See the quarantine/ files for each record and its reason; fix the "
                "input, or raise max_bad_fraction if the loss is acceptable",
                source=source,
                bad=bad,
                rows=rows,
            )


def _most_records(unit: WorkUnit) -> int:
    return sum(_most_in_range(part) for part in unit.ranges)


def _most_in_range(part: FileRange) -> int:
    """No range holds more records than this; `records` and `rows` count them, bytes only bound them."""
    most = part.records
    if most is None:
        least = _LEAST_RECORD_BYTES.get(part.file.format)
        factor = _MOST_EXPANSION[part.file.compression]
        most = _UNBOUNDED if least is None else (part.stop - part.start) * factor // least + 1
    return most if part.rows is None else min(most, part.rows)
