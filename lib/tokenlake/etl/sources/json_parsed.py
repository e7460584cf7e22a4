"""Blocks of judged JSON records: their texts, columns and faults as one :class:`Parsed`."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tokenlake.etl.sources.bad_records import BadLine, Fault
from tokenlake.etl.sources.json_record import Judged
from tokenlake.etl.sources.line_records import RawRecords
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Record, Rows

_ARROW: Final[Any] = pa

_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})


def parsed_block(records: RawRecords, faults: dict[int, Fault], **found: Any) -> Parsed:
    """Return what was found in the records without a fault; the last one of a file that just ends was cut."""
    last = len(records) - 1
    if records.open_end and last in faults and faults[last].reason in _CUT:
        told = f"the file ends in the middle of a record ({faults[last].detail})"
        faults[last] = Fault("truncated_line", told)
    return records.parsed(faults, **found)


def parsed_rows(records: RawRecords, judged: list[Judged | Fault], want: Want) -> Parsed:
    """Return the block of judged records, as columns and as objects."""
    faults: dict[int, Fault] = {}
    objects: list[Record] = []
    texts: list[str | None] = []
    doubtful: list[BadLine] = []
    for index, record in enumerate(judged):
        if isinstance(record, Fault):
            faults[index] = record
            continue
        objects.append(record.record)
        if isinstance(record.text, Fault):
            texts.append(None)
            doubtful.append(records.bad(index, record.text))
        else:
            texts.append(record.text)
    return parsed_block(
        records,
        faults,
        text=None if want.text is None else _ARROW.array(texts, pa.large_string()),
        rows=None if want.columns == () else Rows(objects=objects, names=want.columns),
        doubtful=tuple(doubtful),
    )
