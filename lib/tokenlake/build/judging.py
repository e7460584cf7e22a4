"""Bad records made of rows that could be read, but of which no document can be made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson

from tokenlake.build.kept import as_json
from tokenlake.config.resolved import ResolvedSource
from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.sources.batch import RAW_LIMIT, BadRecord, RowBatch, refuse
from tokenlake.sources.blocks import count_lines
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.opening import opened


def judged(
    source: ResolvedSource, batch: RowBatch, rows: Rows, faults: list[tuple[int, Fault]]
) -> tuple[BadRecord, ...]:
    """Make bad records of rows of a batch; with the policy ``fail`` the first ends the build."""
    if not faults:
        return ()
    faulty = np.zeros(len(rows), np.bool_)
    faulty[[index for index, _ in faults]] = True
    objects = rows.select(faulty).objects
    records = tuple(
        _record(batch, index, fault, row) for (index, fault), row in zip(faults, objects, strict=True)
    )
    if source.on_bad_record == "fail":
        first = replace(records[0], line=_line(source, batch.file, records[0].position))
        raise refuse(first, batch.file)
    return records


def _line(source: ResolvedSource, file: InputFile, position: int) -> int | None:
    """Return the line of a record of a local file of lines; counting is for those who must name one."""
    if file.format != "jsonl" or file.compression or not file.is_local:
        return None
    with opened(file, source.storage_options) as data:
        return count_lines(data, position) + 1


def _record(batch: RowBatch, index: int, fault: Fault, row: object) -> BadRecord:
    return BadRecord(
        file=batch.file.path,
        file_id=batch.file.file_id,
        position=int(batch.positions[index]),
        line=None,
        reason=fault.reason,
        detail=fault.detail,
        raw=_raw(row)[:RAW_LIMIT],
    )


def _raw(row: object) -> bytes:
    try:
        return orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair, or many levels
        return (as_json(row) or "").encode()
