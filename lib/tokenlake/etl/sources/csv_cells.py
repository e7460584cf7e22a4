"""Cells of CSV records as Arrow columns, and checks that come before.

pyarrow reads the cells, but silently accepts CSV that the standard forbids. It is
therefore given only records whose quotes and carriage returns were checked before
(:mod:`tokenlake.etl.sources.csv_stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from tokenlake.base.arrays import concat, is_utf8, no_text, text_over
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.csv_records import CsvRecord

_NUL_BYTE: Final = Fault("nul_byte", "a cell holds a NUL byte")
_ARROW: Final[Any] = pa
_CSV: Final[Any] = arrow_csv  # the stubs know few of the options


def read_cells(
    data: pa.Buffer, delimiter: str, column_count: int, wanted: Sequence[int]
) -> list[pa.LargeStringArray] | None:
    """Return the cells of some columns, every cell as the text it is.

    Args:
        data: Whole records, whose quotes are right.
        delimiter: Character between cells.
        column_count: Number of columns of the file.
        wanted: Indices of the columns to return, from 0.

    Returns:
        One large_string array per wanted column; None if a record has another number of
        cells than the file has columns.
    """
    # Names of columns may be anything; pyarrow is given their indices as names.
    all_names = [str(index) for index in range(column_count)]
    wanted_names = [str(index) for index in wanted]
    # One block holds all the bytes, so that pyarrow needs no second thread and never
    # cuts a record.
    read_options = _CSV.ReadOptions(
        column_names=all_names, use_threads=False, block_size=data.size + 1
    )
    parse_options = _CSV.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert_options = _CSV.ConvertOptions(
        check_utf8=False,
        include_columns=wanted_names,
        column_types=dict.fromkeys(wanted_names, pa.large_string()),
    )
    try:
        table = _CSV.read_csv(
            _ARROW.BufferReader(data), read_options, parse_options, convert_options
        )
    # The only error of pyarrow that is left after the checks: a record with another
    # number of cells.
    except pa.ArrowInvalid:
        return None
    return [concat(column.chunks or [no_text()]) for column in table.columns]


def fault_of_record(
    data: bytearray, record: CsvRecord, column_count: int, limit: int
) -> Fault | None:
    """Return the reason for which a record cannot be used, None for a good one.

    Args:
        data: Block that the record lies in.
        record: Place of the record, its number of cells and what is wrong with its
            quotes.
        column_count: Number of columns of the file.
        limit: Largest size of a record in bytes.
    """
    # Checks come in a fixed order, so that a record with several faults always has the
    # same reason.
    record_bytes = record.stop - record.start
    if record_bytes > limit:
        return Fault(
            "record_too_long",
            f"the row has {record_bytes} bytes, max_record_bytes is {limit}",
        )
    raw_record = memoryview(data)[record.start : record.stop]
    if not is_utf8_bytes(raw_record, record_bytes):
        return Fault("invalid_utf8", "the row is not valid UTF-8")
    if data.find(b"\0", record.start, record.stop) >= 0:
        return _NUL_BYTE
    if record.fault is not None:
        return record.fault
    if record.cells != column_count:
        return Fault(
            "ragged_row",
            f"the row has {record.cells} cells, the header has {column_count}",
        )
    return None


def is_utf8_bytes(data: bytearray | memoryview, size: int) -> bool:
    """Say whether the first `size` bytes are valid UTF-8."""
    return is_utf8(text_over(np.array([0, size]), _ARROW.py_buffer(data)))
