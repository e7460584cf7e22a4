"""`max_bad_fraction`: checked at commit, and earlier, once no further record can bring a source below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from tokenlake.config.resolved import ResolvedBuild
from tokenlake.errors import TooManyBadRecordsError
from tokenlake.etl.plan.plan import Plan, TextUnit
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
        self._allowed = {
            source.name: source.max_bad_fraction
            for source in plan.build.sources
            if source.on_bad_record == "quarantine"
        }
        self._most: dict[int, int] = {}
        self._left = dict.fromkeys(self._allowed, 0)
        for unit in plan.units:
            if isinstance(unit, TextUnit) and unit.source in self._allowed:
                self._most[unit.index] = most_records(unit)
                self._left[unit.source] += self._most[unit.index]
        self._open = set(self._most)
        self._rows = dict.fromkeys(self._allowed, 0)
        self._bad = dict.fromkeys(self._allowed, 0)

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

    def check_possible(self) -> None:
        """Raise TooManyBadRecordsError when the rest of the input cannot dilute the bad records enough."""
        for source in self._allowed:
            self._require(
                source, self._rows[source] + self._left[source], "even if every record still unread is good"
            )

    def check(self) -> None:
        """Raise TooManyBadRecordsError when a source holds more bad records than allowed, all units being done."""
        for source in self._allowed:
            self._require(source, self._rows[source], "of all records read")

    def _count(self, record: UnitRecord, sign: int) -> None:
        if record.source in self._allowed:
            self._rows[record.source] += sign * record.account.rows_read
            self._bad[record.source] += sign * sum(record.account.quarantined.values())

    def _require(self, source: str, rows: int, when: str) -> None:
        allowed = self._allowed[source]
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


def bad_budgets(build: ResolvedBuild, units: Iterable[TextUnit]) -> dict[str, int]:
    """Return source to the bad records in one unit past which it fails whatever the other units hold."""
    most = {source.name: 0 for source in build.sources if source.on_bad_record == "quarantine"}
    for unit in units:
        if unit.source in most:
            most[unit.source] += most_records(unit)
    return {
        source.name: int(source.max_bad_fraction * most[source.name])
        for source in build.sources
        if source.name in most
    }


def most_records(unit: TextUnit) -> int:
    """Return a number that a unit has no more records than."""
    return sum(_most_in_range(part) for part in unit.ranges)


def _most_in_range(part: FileRange) -> int:
    """No range holds more records than this; `records` and `rows` count them, bytes only bound them."""
    most = part.records
    if most is None:
        least = _LEAST_RECORD_BYTES.get(part.file.format)
        factor = _MOST_EXPANSION[part.file.compression]
        most = _UNBOUNDED if least is None else (part.stop - part.start) * factor // least + 1
    return most if part.rows is None else min(most, part.rows)
