"""Blocks of judged JSON records: their texts, columns and faults as one :class:`Parsed`."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tokenlake.sources.bad_records import Fault
from tokenlake.sources.json_record import Judged
from tokenlake.sources.line_records import RawRecords
from tokenlake.sources.parsed import Parsed, Want
from tokenlake.sources.rows import Rows

_ARROW: Final[Any] = pa

_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})


def parsed_block(records: RawRecords, faults: dict[int, Fault], **found: Any) -> Parsed:
    """Return what was found in the records without a fault; the last one of a file that just ends was cut."""
    last = len(records) - 1
    if records.open_end and last in faults and faults[last].reason in _CUT:
        told = f"the file ends in the middle of a record ({faults[last].detail})"
        faults[last] = Fault("truncated_line", told)
    return records.parsed(faults, **found)


def parsed_rows(records: RawRecords, found: list[Judged | Fault], want: Want) -> Parsed:
    """Return what was found in each record, as columns and as objects."""
    faults = {at: each for at, each in enumerate(found) if isinstance(each, Fault)}
    judged = [(at, each) for at, each in enumerate(found) if not isinstance(each, Fault)]
    strings = [None if isinstance(each.text, Fault) else each.text for _, each in judged]
    objects = [each.record for _, each in judged]
    return parsed_block(
        records,
        faults,
        text=None if want.text is None else _ARROW.array(strings, pa.large_string()),
        rows=None if want.columns == () else Rows(objects=objects, names=want.columns),
        doubtful=tuple(records.bad(at, each.text) for at, each in judged if isinstance(each.text, Fault)),
    )
