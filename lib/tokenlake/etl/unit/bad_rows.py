"""Bad records made of rows that were read and cannot be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson

from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadRecord, Fault, refuse
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.parsed import RowBatch
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.unit.kept_fields import as_json


def judged(
    source: ResolvedSource, batch: RowBatch, rows: Rows, faults: list[tuple[int, Fault]]
) -> tuple[BadRecord, ...]:
    """Make bad records of rows of a batch.

    With the policy ``fail`` the first one ends the build.

    Args:
        source: Source of the rows.
        batch: Batch that the rows are of.
        rows: All rows of the batch.
        faults: Index and fault of each bad row, ascending.
    """
    if not faults:
        return ()
    # The objects of bad rows alone: a batch of columns has none.
    is_faulty = np.zeros(len(rows), np.bool_)
    is_faulty[[index for index, _ in faults]] = True
    faulty_objects = rows.select(is_faulty).objects
    records: list[BadRecord] = []
    for (index, fault), row in zip(faults, faulty_objects, strict=True):
        position = int(batch.positions[index])
        record = bad_record(batch.file, position, fault, _raw(row))
        records.append(replace(record, line=batch.line_of(index)))
    if source.on_bad_record == "fail":
        raise refuse(records[0], batch.file)
    return tuple(records)


def bad_record(file: InputFile, position: int, fault: Fault, raw: bytes) -> BadRecord:
    """Return a record that was read and cannot be used.

    Args:
        file: File that it is in.
        position: Position in the file.
        fault: Reason, in words.
        raw: Bytes of the record, which are cut to a limit.
    """
    return BadRecord(
        file=file.path,
        file_id=file.file_id,
        position=position,
        line=None,
        reason=fault.reason,
        detail=fault.detail,
        raw=raw[:RAW_LIMIT],
    )


def _raw(row: object) -> bytes:
    try:
        return orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS)
    # An integer of more than 64 bits, half of a surrogate pair, or many levels.
    except TypeError:
        return (as_json(row) or "").encode()
