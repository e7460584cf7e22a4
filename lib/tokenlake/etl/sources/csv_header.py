"""The header of a CSV file: column names, and the mistakes recognized in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tokenlake.errors import UnsuitableFileError
from tokenlake.etl.sources.csv_cells import fault_of_record, read_cells
from tokenlake.etl.sources.csv_records import CsvBlock
from tokenlake.etl.sources.input_errors import no_column, unsuitable
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.parsed import Want

MAX_COLUMNS: Final = 1 << 17
"""Largest number of columns of a file; each costs some kilobytes of memory for every
block that is read.
"""

_COMMON_DELIMITERS: Final = (";", "\t", ",", "|")


def read_header(
    file: InputFile, block: CsvBlock, want: Want, delimiter: str
) -> tuple[str, ...]:
    """Return the names of the columns; () for a block of blank lines.

    Args:
        file: The file, for messages.
        block: First block of the file, which ends with the header.
        want: Wanted columns, all of which must be in the header.
        delimiter: Character between cells.

    Raises:
        UnsuitableFileError: The header has too many columns, cannot be read, names a
            column twice or lacks a wanted one, or another delimiter seems to be meant.
    """
    if not block.split.records:
        return ()
    # 1. The record of the header, which must be a good one.
    record = block.split.records[0]
    line_number = block.lines_before + block.data.count(b"\n", 0, record.start) + 1
    if record.cells > MAX_COLUMNS:
        raise unsuitable(
            file,
            f"its header (line {line_number}) has {record.cells} columns, more than {MAX_COLUMNS}",
            "keep fewer columns, or write the rows as JSON",
            line=line_number,
        )
    fault = fault_of_record(block.data, record, record.cells, want.max_record_bytes)
    if fault is not None:
        message = f"its header (line {line_number}) cannot be used: {fault.detail}"
        raise unsuitable(file, message, "correct the header", line=line_number)

    # 2. Its cells are the names of the columns.
    header = pa.py_buffer(bytes(block.data[: block.split.size]))
    cells = read_cells(header, delimiter, record.cells, range(record.cells))
    names = tuple(str(cell[0]) for cell in cells or ())
    repeated: list[str] = []
    for name, count in Counter(names).items():
        if count > 1:
            repeated.append(name)
    if repeated:
        message = (
            f"its header names columns twice: {', '.join(map(repr, sorted(repeated)))}"
        )
        raise unsuitable(
            file, message, "give its columns different names", line=line_number
        )
    _check_delimiter(file, names, want, delimiter, line_number)
    _check_wanted_columns(file, names, want, delimiter, line_number)
    return names


def _check_delimiter(
    file: InputFile, names: Sequence[str], want: Want, delimiter: str, line: int
) -> None:
    """Raise UnsuitableFileError if one column seems to be several.

    The header then has one name with another common delimiter in it. A delimiter that
    the configuration declares is taken for right.
    """
    if len(names) != 1 or want.delimiter is not None:
        return
    # The likely delimiter is the one that occurs most often.
    header = names[0]
    likely: str | None = None
    for candidate in _COMMON_DELIMITERS:
        if candidate == delimiter or candidate not in header:
            continue
        if likely is None or header.count(candidate) > header.count(likely):
            likely = candidate
    if likely is not None:
        raise unsuitable(
            file,
            f"its header is one column, {header!r}; {likely!r} seems to separate its cells, not {delimiter!r}",
            f"set delimiter: {json.dumps(likely)} (delimiter: {json.dumps(delimiter)}, if it is one column)",
            line=line,
        )


def _check_wanted_columns(
    file: InputFile, names: Sequence[str], want: Want, delimiter: str, line: int
) -> None:
    """Raise UnsuitableFileError if a wanted column is missing."""
    wanted_names = list(want.names(names))
    if want.text is not None:
        wanted_names.append(want.text)
    existing_names = frozenset(names)
    for name in wanted_names:
        if name not in existing_names:
            raise _missing_column(file, name, names, want, delimiter, line)


def _missing_column(
    file: InputFile,
    name: str,
    names: Sequence[str],
    want: Want,
    delimiter: str,
    line: int,
) -> UnsuitableFileError:
    """Return the error for a missing column.

    The column may be one that another delimiter would separate from its neighbours.
    """
    likely = _delimiter_beside(name, names, delimiter)
    if likely is not None:
        message = f"it has no column {name!r}; {likely!r} seems to separate its cells, not {delimiter!r}"
        return unsuitable(
            file, message, f"set delimiter: {json.dumps(likely)}", line=line
        )
    option = " (content_field)" if name == want.text else ""
    return no_column(file, name, [repr(column) for column in names], option)


def _delimiter_beside(name: str, names: Sequence[str], delimiter: str) -> str | None:
    """Return a delimiter that would make `name` a column of the header; None for none."""
    for cell in names:
        for candidate in _COMMON_DELIMITERS:
            if candidate == delimiter or candidate not in cell:
                continue
            if name in cell.split(candidate):
                return candidate
    return None
