"""Tables of the time that the steps of a build took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.etl.events.of_units import UnitFinished
from tokenlake.etl.observability.tally import source_name
from tokenlake.etl.reports.tables import Table, label, number
from tokenlake.etl.step_clock.reported_steps import STEPS

_MOST_UNITS: Final = 10  # in the table of the slowest ones


def time_tables(built: Sequence[UnitFinished]) -> list[Table]:
    """Return tables of the steps' seconds by source, and of the slowest units.

    There are none if no unit reported the times of its steps.

    Seconds are those of the worker processes, so that two workers spend two seconds in
    one.

    Args:
        built: Event of each unit that the run built.
    """
    # The steps that occur, in the order of the work.
    step_names: set[str] = set()
    for event in built:
        step_names.update(event.step_seconds)
    step_seconds = [step_name for step_name in STEPS if step_name in step_names]
    if not step_seconds:
        return []
    time_columns = [number("seconds", "all", numbers.duration)]
    time_columns.extend(
        number(step_name, None, numbers.duration) for step_name in step_seconds
    )

    # Seconds of workers are added up by source; a step without time is an empty cell.
    sums_of_sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in built:
        sums_of_sources[event.source].update(
            {"units": 1, "seconds": event.seconds, **event.step_seconds}
        )
    source_rows: list[dict[str, Any]] = []
    for source, sums in sums_of_sources.items():
        source_rows.append({"name": source_name(source), **sums})
    source_columns = [label("name", "source"), number("units"), *time_columns]
    tables = [Table.of(source_columns, source_rows, "Time by step")]

    # A single unit is the whole of its source's row.
    if len(built) > 1:
        slowest = sorted(built, key=lambda event: -event.seconds)[:_MOST_UNITS]
        unit_rows = [_unit_row(event) for event in slowest]
        unit_columns = [label("unit"), label("name", "source"), *time_columns]
        tables.append(Table.of(unit_columns, unit_rows, "Slowest units"))
    return tables


def _unit_row(event: UnitFinished) -> dict[str, Any]:
    """Return the row of a unit, whose number is written as in the names of files."""
    return {
        "unit": f"{event.unit:05d}",
        "name": source_name(event.source),
        "seconds": event.seconds,
        **event.step_seconds,
    }
