"""CSV and TSV as RFC 4180 describes them.

A file is a header and records of cells of text, with quotes where they are needed.

Every cell stays the text it is: nothing is taken for a number, a date or a null, and an
empty cell is the empty string. Rows have as many cells as the header. Blank lines are
skipped, also in a file of one column (writers quote an empty cell there). A row in
which a quote or carriage return stands where none may is a bad record, even if other
readers would repair it: they differ. Where tabs separate cells, a quote inside of a
cell that does not begin with one is a character like any other.

The position of a record is its row index: records are numbered from 0 behind the
header, bad ones included.

A file is read as blocks of whole records (:mod:`tokenlake.etl.sources.csv_stream`), in
bounded memory, wherever newlines stand in quotes. The cells of nearly every block are
read at once. Only a block with a bad record is checked record by record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import no_text
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.csv_cells import fault_of_record, read_cells
from tokenlake.etl.sources.csv_header import read_header
from tokenlake.etl.sources.csv_records import CsvBlock
from tokenlake.etl.sources.csv_stream import CsvStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

# The arrays that are made of it stay in the processor's cache.
_BLOCK_BYTES: Final = 1 << 22
# A small limit of records must not lead to tiny blocks.
_MIN_BLOCK_BYTES: Final = 64 << 10
_ARROW: Final[Any] = pa


def read_csv(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the records of a file.

    Raises:
        DamagedFileError: The file has no header, or one that names a column twice or
            lacks a wanted one; a quote is not closed, the file is UTF-16, or its
            compressed stream is broken.
        ConfigError: The delimiter is not one character of ASCII.
    """
    file = part.file
    delimiter = want.delimiter
    # Without a setting the extension decides between a tab and a comma.
    if not delimiter:
        delimiter = "\t" if file.format == "tsv" else ","
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise ConfigError(
            f"delimiter: got {delimiter!r}, must be one ASCII character other than a quote or an end of line",
            file=file.path,
        )

    # In a block that is no larger than the limit no record is over it.
    limit = want.max_record_bytes
    block_bytes = min(_BLOCK_BYTES, want.block_bytes, max(limit, _MIN_BLOCK_BYTES))
    stream = CsvStream(file, ByteStream(data), ord(delimiter), limit, block_bytes)
    blocks = stream.blocks()
    for block in blocks:
        header = read_header(file, block, want, delimiter)
        if header:
            break
    else:
        raise unsuitable(
            file, "it is empty, expected at least a header", "write it again"
        )

    # The header's block has no records, but blank lines and bytes that count.
    table = _Table(header, want, stream)
    empty_split = block.split._replace(size=0, records=[])
    yield table.parse(block._replace(data=bytearray(), split=empty_split))
    del block
    yield from map(table.parse, blocks)  # which keeps no block alive, unlike a loop


@final
class _Table:
    """The wanted columns of a file, read block by block."""

    def __init__(self, header: tuple[str, ...], want: Want, stream: CsvStream) -> None:
        """Choose the columns to read.

        Args:
            header: Names of all columns.
            want: Wanted columns and text.
            stream: Stream that yields the blocks.
        """
        self._stream = stream
        self._column_count = len(header)
        self._text = want.text
        # Columns that are wanted as rows; None where only the text is wanted.
        self._names: tuple[str, ...] | None = None
        columns_to_read: list[str] = []
        if want.columns != ():
            self._names = want.names(header)
            columns_to_read.extend(self._names)
        if want.text is not None:
            columns_to_read.append(want.text)
        # To count records, one column is enough.
        self._columns_to_read = columns_to_read or [header[0]]
        index_of_name = {name: index for index, name in enumerate(header)}
        self._indices_to_read = [index_of_name[name] for name in self._columns_to_read]
        self._next_row = 0

    def parse(self, block: CsvBlock) -> Parsed:
        """Return the records of the next block."""
        first_row = self._next_row
        split = block.split
        faults: dict[int, Fault] = {}

        # Nearly always all cells of the block are read at once. Otherwise bad records
        # are taken out first.
        columns = None
        if split.records is None:
            columns = self._read_columns(pa.py_buffer(block.data).slice(0, split.size))
        if columns is None:
            faults, good_records = self._judge_records(block)
            columns = self._read_columns(good_records)
            assert columns is not None, (
                "each of these records has as many cells as the header"
            )

        # Positions count bad records, too, so that a repaired file keeps the positions
        # of the others.
        record_count = len(columns[self._columns_to_read[0]]) + len(faults)
        self._next_row += record_count
        rows = None
        if self._names is not None:
            schema = pa.schema([(name, pa.large_string()) for name in self._names])
            arrays = [columns[name] for name in self._names]
            rows = Rows(_ARROW.RecordBatch.from_arrays(arrays, schema=schema))
        return Parsed(
            text=None if self._text is None else columns[self._text],
            rows=rows,
            positions=np.delete(
                np.arange(first_row, first_row + record_count), list(faults)
            ),
            bad=self._bad_lines(block, faults, first_row),
            normalized={
                "bom": int(block.has_bom),
                "crlf": split.crlf,
                "blank_line": split.blank,
            },
            bytes_read=block.bytes_read,
            first_line_of=lambda position: self._first_line(
                block, position - first_row
            ),
            # A predicate or step can find a record unusable later, which is then
            # reported as a bad record of this block.
            as_bad=lambda position, fault: self._bad_lines(
                block, {position - first_row: fault}, first_row
            )[0],
        )

    def _judge_records(self, block: CsvBlock) -> tuple[dict[int, Fault], pa.Buffer]:
        """Return the faults of bad records by index, and the bytes of good ones."""
        faults: dict[int, Fault] = {}
        good_records: list[bytearray] = []
        records = self._stream.records_of(block)
        for record_index, record in enumerate(records):
            fault = fault_of_record(
                block.data, record, self._column_count, self._stream.limit
            )
            if fault is None:
                good_records.append(block.data[record.start : record.stop])
            else:
                faults[record_index] = fault
        # Without a fault nothing is copied: pyarrow reads the cells from the buffer of
        # the block.
        if not faults:
            return faults, pa.py_buffer(block.data).slice(0, block.split.size)
        return faults, pa.py_buffer(b"\n".join([*good_records, b""]))

    def _read_columns(
        self, record_bytes: pa.Buffer
    ) -> dict[str, pa.LargeStringArray] | None:
        """Return the wanted cells of records whose quotes are right.

        Returns:
            Column to its cells; None if a record has too many or too few cells.
        """
        if not record_bytes.size:
            return {name: no_text() for name in self._columns_to_read}
        delimiter = chr(self._stream.delimiter)
        columns = read_cells(
            record_bytes, delimiter, self._column_count, self._indices_to_read
        )
        if columns is None:
            return None
        return dict(zip(self._columns_to_read, columns, strict=True))

    def _first_line(self, block: CsvBlock, record_index: int) -> int:
        """Return the line number in the file, from 1, at which a record begins.

        Args:
            block: Block of the record.
            record_index: Index of the record in the block, from 0.
        """
        record = self._stream.records_of(block)[record_index]
        return block.lines_before + block.data.count(b"\n", 0, record.start) + 1

    def _bad_lines(
        self, block: CsvBlock, faults: Mapping[int, Fault], first_row: int
    ) -> tuple[BadLine, ...]:
        """Return the records of a block that have a fault.

        Args:
            block: The block.
            faults: Faults by the index of a record in the block, from 0, ascending.
            first_row: Row index of the block's first record.
        """
        if not faults:
            return ()
        bad: list[BadLine] = []
        records = self._stream.records_of(block)
        # A record has the line in the file at which it begins. Newlines are counted from
        # one bad record to the next.
        line_number = block.lines_before + 1
        counted_bytes = 0  # bytes in which newlines were counted
        for record_index, fault in faults.items():
            record = records[record_index]
            line_number += block.data.count(b"\n", counted_bytes, record.start)
            counted_bytes = record.start
            raw_bytes = bytes(
                block.data[record.start : min(record.stop, record.start + RAW_LIMIT)]
            )
            position = first_row + record_index
            bad.append(BadLine(position, None, fault, raw_bytes, line=line_number))
        return tuple(bad)
