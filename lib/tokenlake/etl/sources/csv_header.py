"""The header of a CSV file: the names of its columns, and the mistakes that are
recognized in it.
"""

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
    line = block.lines_before + block.data.count(b"\n", 0, record.start) + 1
    if record.cells > MAX_COLUMNS:
        raise unsuitable(
            file,
            f"its header (line {line}) has {record.cells} columns, more than {MAX_COLUMNS}",
            "keep fewer columns, or write the rows as JSON",
            line=line,
        )
    fault = fault_of_record(block.data, record, record.cells, want.max_record_bytes)
    if fault is not None:
        message = f"its header (line {line}) cannot be used: {fault.detail}"
        raise unsuitable(file, message, "correct the header", line=line)

    # 2. Its cells are the names of the columns.
    header = pa.py_buffer(bytes(block.data[: block.split.size]))
    cells = read_cells(header, delimiter, record.cells, range(record.cells))
    names = tuple(str(cell[0]) for cell in cells or ())
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        message = f"its header names columns twice: {', '.join(map(repr, repeated))}"
        raise unsuitable(file, message, "give its columns different names", line=line)
    _check_delimiter(file, names, want, delimiter, line)
    _check_wanted_columns(file, names, want, delimiter, line)
    return names


def _check_delimiter(
    file: InputFile, names: Sequence[str], want: Want, delimiter: str, line: int
) -> None:
    """Raise UnsuitableFileError if a header of one column seems to be several, between
    another delimiter.

    A delimiter that the configuration declares is taken for right.
    """
    if len(names) != 1 or want.delimiter is not None:
        return
    # The likely delimiter is the one that occurs most often.
    header = names[0]
    likely: str | None = None
    for candidate in _COMMON_DELIMITERS:
        is_in_header = candidate != delimiter and candidate in header
        if is_in_header and (
            likely is None or header.count(candidate) > header.count(likely)
        ):
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
    wanted = list(want.names(names))
    if want.text is not None:
        wanted.append(want.text)
    known = frozenset(names)
    for name in wanted:
        if name not in known:
            raise _missing_column(file, name, names, want, delimiter, line)


def _missing_column(
    file: InputFile,
    name: str,
    names: Sequence[str],
    want: Want,
    delimiter: str,
    line: int,
) -> UnsuitableFileError:
    """Return the error for a column that is missing, or that another delimiter would
    separate from its neighbours.
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
    """Return a delimiter that would split one of the names of a header so that
    `name` is a column; None for none.
    """
    for cell in names:
        for candidate in _COMMON_DELIMITERS:
            if (
                candidate != delimiter
                and candidate in cell
                and name in cell.split(candidate)
            ):
                return candidate
    return None
