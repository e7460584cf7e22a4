"""Blocks of judged JSON records as one :class:`Parsed`.

It holds their texts, columns and faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from tokenlake.etl.sources.bad_records import BadLine, Fault
from tokenlake.etl.sources.json_record import Judged
from tokenlake.etl.sources.line_records import RawRecords
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Record, Rows

_ARROW: Final[Any] = pa

_REASONS_OF_A_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})


def parsed_block(
    records: RawRecords, faults: dict[int, Fault], **fields: Any
) -> Parsed:
    """Return the records without a fault.

    If the file ends with a bad record and without an end of line, the record was cut,
    and its fault says so.

    Args:
        records: Records of the block.
        faults: Index of each bad record, from 0, to its fault.
        fields: Texts and rows of the good records.
    """
    # A cut record looks like damaged JSON, and only the missing end of line shows that
    # it was cut.
    last_index = len(records) - 1
    fault = faults.get(last_index)
    if records.open_end and fault is not None and fault.reason in _REASONS_OF_A_CUT:
        detail = f"the file ends in the middle of a record ({fault.detail})"
        faults[last_index] = Fault("truncated_line", detail)
    return records.parsed(faults, **fields)


def parsed_rows(
    records: RawRecords, judged: Sequence[Judged | Fault], want: Want
) -> Parsed:
    """Return judged records as columns and as objects.

    Args:
        records: Records of the block.
        judged: Each record as an object, or its fault.
        want: Wanted text and columns.
    """
    faults: dict[int, Fault] = {}
    objects: list[Record] = []
    texts: list[str | None] = []
    doubtful: list[BadLine] = []
    # A record with a fault is out. One that only lacks a usable text is doubtful: a
    # predicate may still leave it out on purpose.
    for record_index, verdict in enumerate(judged):
        if isinstance(verdict, Fault):
            faults[record_index] = verdict
            continue
        objects.append(verdict.record)
        if isinstance(verdict.text, Fault):
            texts.append(None)
            doubtful.append(records.bad(record_index, verdict.text))
        else:
            texts.append(verdict.text)
    text = None
    if want.text is not None:
        text = _ARROW.array(texts, pa.large_string())
    rows = None
    if want.columns != ():
        rows = Rows(objects=objects, names=want.columns)
    return parsed_block(records, faults, text=text, rows=rows, doubtful=tuple(doubtful))
