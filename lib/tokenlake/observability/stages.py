"""Where the time of a run went: by source, and of the units that took longest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from tokenlake import numbers
from tokenlake.etl.events import UnitFinished
from tokenlake.etl.unit.clock import STAGES
from tokenlake.observability.tally import source_name
from tokenlake.reports.table import Table, label, number

_SHOWN: Final = 10  # units


def time_tables(built: Sequence[UnitFinished]) -> list[Table]:
    """Return two tables of the units that a run built: seconds of each stage by source, and the slowest units.

    Seconds are those of the worker processes, so that two workers spend two seconds in one.
    """
    if not any(event.stages for event in built):
        return []
    by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in built:
        by_source[event.source].update({"units": 1, "seconds": event.seconds, **event.stages})
    sources = [{"name": source_name(name), **spent} for name, spent in by_source.items()]
    slowest = sorted(built, key=lambda event: -event.seconds)[:_SHOWN]
    units = [
        {
            "unit": f"{event.unit:05d}",
            "name": source_name(event.source),
            "seconds": event.seconds,
            **event.stages,
        }
        for event in slowest
    ]
    shown = [stage for stage in STAGES if any(stage in event.stages for event in built)]
    stages = [_seconds("seconds", "all"), *map(_seconds, shown)]
    tables = [Table.of([label("name", "source"), number("units"), *stages], sources, "Time by stage")]
    if len(built) > 1:
        columns = [label("unit"), label("name", "source"), *stages]
        tables.append(Table.of(columns, units, "Slowest units"))
    return tables


def _seconds(key: str, heading: str | None = None) -> Any:
    return number(key, heading, numbers.duration)
