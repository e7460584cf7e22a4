"""The records of a CSV file in blocks of bounded memory.

A block is read into one buffer. If all its quotes and carriage returns are right
(:mod:`tokenlake.etl.sources.csv_quotes`), it is one stretch of whole records. Otherwise
it is split cell by cell, by these rules:

- A quote opens a cell only as its first byte. In an unquoted cell it is stray, except
  between tabs.
- After a quote that closes a cell a delimiter or a newline must follow. If anything
  else does, that quote is stray, and the cell continues, unquoted.
- If such a cell began on an earlier line, nobody knows where records end: its quote
  counts as unclosed, and the file as damaged. The same holds for a cell in quotes that
  is longer than the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources.bad_records import RAW_LIMIT, Fault
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.contents import HEAD_BYTES, check_records
from tokenlake.etl.sources.csv_quotes import counts_if_strict
from tokenlake.etl.sources.csv_records import RETURN, CsvBlock, CsvRecord, CsvSplit
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.lines import BOM

_STEP_BYTES: Final = 1 << 20  # read at a time of a record over the limit
_FRAME_BYTES: Final = 2  # carriage return and newline are not part of a record
_TAB: Final = ord("\t")
# Possessive quantifiers: no match takes time quadratic in the length of a cell.
_QUOTED_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_BARE_RETURN: Final = Fault(
    "bare_return", "a carriage return without a newline outside of quotes"
)
# The order of severity: a stray quote replaces a bare carriage return as the fault of a
# record.
_STRAY_QUOTE: Final = Fault(
    "stray_quote", 'a quote inside a cell; expected a quoted cell with "" in it'
)
_TO_THE_END: Final = -1

# Groups of a match of a cell: the content of a cell in quotes (None for another cell),
# what follows the closing quote, and the delimiter or newline behind the cell ("" at
# the end of the data).
_CONTENT: Final = 1
_AFTER_QUOTE: Final = 2
_TERMINATOR: Final = 3


class _RecordEnd(NamedTuple):
    """End of the record that the buffer begins with.

    Attributes:
        stop: Offset of its end of line; None if it continues beyond the buffer.
        consumed: Number of bytes that are no longer needed: all of the record, or its
            whole cells.
        is_within: Whether the rest of the buffer lies within a cell without quotes.
    """

    stop: int | None
    consumed: int
    is_within: bool


@final
class CsvStream:
    """The records of a file in blocks, in order: the header alone, then as many as fit.

    Attributes:
        delimiter: Byte between cells.
        limit: Largest size in bytes of a record, and of a cell in quotes.
    """

    def __init__(
        self,
        file: InputFile,
        stream: ByteStream,
        delimiter: int,
        limit: int,
        block_bytes: int,
    ) -> None:
        """Read the beginning of a file.

        Args:
            file: The file, for messages.
            stream: Its decompressed bytes.
            delimiter: Byte between cells.
            limit: Largest size in bytes of a record, and of a cell in quotes.
            block_bytes: Size of the buffer; a longer record makes it grow.

        Raises:
            UnsuitableFileError: The file begins like another format.
        """
        self.delimiter = delimiter
        self.limit = limit
        self._file = file
        self._stream = stream
        self._block_bytes = block_bytes
        # Cells between tabs need no quotes. A quote inside of one is a character like
        # any other: 12" vinyl.
        self._has_literal_quotes = delimiter == _TAB

        # A cell: in quotes and perhaps something behind them, or without quotes; then a
        # delimiter, newline or the end.
        separator = re.escape(bytes([delimiter]))
        unquoted = b"[^" + separator + b"\n]*+"
        terminator = b"([" + separator + b"\n]|\\Z)"
        quoted = b'"((?:[^"]++|"")*+)"(' + unquoted + b")"
        self._cell = re.compile(
            b"(?:" + quoted + b'|(?!")' + unquoted + b")" + terminator
        )
        # The rest of a cell without quotes, whose beginning was passed over; with the
        # same groups.
        self._rest_of_cell = re.compile(b"()()" + unquoted + terminator)

        first_bytes = stream.read(HEAD_BYTES)
        check_records(file, first_bytes)
        self._has_bom = first_bytes.startswith(BOM)
        first_bytes = first_bytes.removeprefix(BOM)
        # One buffer for all blocks: fresh memory costs more than what is done to it.
        self._data = bytearray(first_bytes.ljust(block_bytes))
        self._size = len(first_bytes)  # bytes of the buffer that are read
        self._lines_before = 0  # newlines in the file before the buffer
        self._is_final = False  # the file ends with the buffer

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the block of the header, then those of the other records.

        Blank lines may stand before the header.

        Raises:
            DamagedFileError: The stream is broken, or a quote is not closed.
        """
        is_header = True
        # The block before was whole; otherwise a record is longer than the buffer.
        is_whole = True
        while self._size or not self._is_final:
            # 1. Fill the buffer. A record that did not fit gets twice the room, so that
            #    a long one is split a logarithmic number of times.
            buffer_bytes = self._block_bytes
            if not is_whole:
                buffer_bytes = max(buffer_bytes, 2 * self._size)
            if self._size < buffer_bytes:
                self._read_more(buffer_bytes - self._size)

            # 2. Split it: all at once if every quote is right, otherwise cell by cell.
            #    The header is always split, to know where it ends.
            split = None
            if not is_header and 0 < self._size <= min(self._block_bytes, self.limit):
                split = counts_if_strict(
                    self._data, self._size, self.delimiter, is_final=self._is_final
                )
            if split is None:
                max_records = 1 if is_header else _TO_THE_END
                split = self._split_cells(
                    self._data,
                    self._size,
                    self._lines_before,
                    max_records,
                    is_final=self._is_final,
                )

            # 3. Yield its whole records. Without one, more is read, or a record over
            #    the limit is passed over.
            has_header = bool(split.records) or self._is_final
            is_whole = split.size > 0 and (not is_header or has_header)
            if is_whole:
                block = CsvBlock(
                    self._data,
                    self._lines_before,
                    self._stream.consumed(),
                    self._has_bom,
                    split,
                )
                self._lines_before += split.newlines
                self._has_bom = False
                is_header = False
                yield block
                self._drop(split.size)
            elif not self._is_final and self._size > self.limit + _FRAME_BYTES:
                is_header = False
                is_whole = True
                yield self._pass_over_record()

    def records_of(self, block: CsvBlock) -> list[CsvRecord]:
        """Return the places of the records of the latest block."""
        records = block.split.records
        if records is None:
            split = self._split_cells(
                block.data, block.split.size, block.lines_before, is_final=True
            )
            records = split.records
        return records or []

    def _read_more(self, count: int) -> None:
        """Read bytes behind those in the buffer.

        Args:
            count: Number of bytes; fewer are read only at the end of the file.
        """
        bytes_needed = self._size + count
        if bytes_needed > len(self._data):
            self._data += bytes(bytes_needed - len(self._data))
        with memoryview(self._data) as view, view[self._size : bytes_needed] as target:
            bytes_read = self._stream.read_into(target)
        self._size += bytes_read
        self._is_final = bytes_read < count

    def _drop(self, count: int) -> None:
        """Take `count` bytes from the front of the buffer."""
        remaining_bytes = self._data[count : self._size]
        self._data[: len(remaining_bytes)] = remaining_bytes
        self._size = len(remaining_bytes)

    def _pass_over_record(self) -> CsvBlock:
        """Read to the end of a record over the limit; return it as a block.

        Only its first bytes are kept in the block, and a cell in quotes in the buffer.
        """
        lines_before = self._lines_before
        first_bytes = bytes(self._data[: min(self._size, RAW_LIMIT)])
        passed_bytes = 0
        is_within = False
        while True:
            # Whole cells are dropped as they end. A newline in quotes is part of a cell
            # and does not end the record.
            record_end = self._end_of_record(is_within=is_within)
            is_within = record_end.is_within
            record_stop = record_end.stop
            # The carriage return that belongs to the end of line is not counted as a
            # byte of the record.
            is_crlf = (
                record_stop is not None
                and record_end.consumed > record_stop > 0
                and self._data[record_stop - 1] == RETURN
            )
            self._lines_before += self._data.count(b"\n", 0, record_end.consumed)
            self._drop(record_end.consumed)
            if record_stop is not None:
                break
            passed_bytes += record_end.consumed
            size_before = self._size
            self._read_more(_STEP_BYTES)
            raw_stop = min(self._size, size_before + RAW_LIMIT - len(first_bytes))
            first_bytes += self._data[size_before:raw_stop]

        record_bytes = passed_bytes + record_stop - int(is_crlf)
        kept_bytes = bytearray(first_bytes[:record_bytes])
        record = CsvRecord(0, record_bytes, 0, None)
        split = CsvSplit(len(kept_bytes), 0, int(is_crlf), 0, [record])
        return CsvBlock(kept_bytes, lines_before, self._stream.consumed(), False, split)

    def _end_of_record(self, *, is_within: bool) -> _RecordEnd:
        """Return the end of the record that the buffer begins with.

        Args:
            is_within: Whether the buffer begins within a cell without quotes.
        """
        data = self._data
        size = self._size
        lines_before = self._lines_before
        cell_start = 0
        # 1. Whole cells, up to the one behind which a newline or the end of the file
        #    stands.
        while True:
            pattern = self._rest_of_cell if is_within else self._cell
            cell = pattern.match(data, cell_start, size)
            if cell is None or not (cell[_TERMINATOR] or self._is_final):
                break
            if not is_within:
                self._whole_cell(
                    data, size, cell_start, lines_before, is_final=self._is_final
                )
            cell_start = cell.end()
            is_within = False
            if cell[_TERMINATOR] in (b"\n", b""):
                return _RecordEnd(cell.start(_TERMINATOR), cell_start, False)

        # 2. The last cell is not whole. A cell in quotes must stay in the buffer, and so
        #    must one that has no byte yet: it may be in quotes.
        if not is_within:
            whole_cell = self._whole_cell(
                data, size, cell_start, lines_before, is_final=self._is_final
            )
            if (whole_cell is None and cell is None) or cell_start == size:
                return _RecordEnd(None, cell_start, False)
            if cell is not None and cell[_CONTENT] is not None:
                if cell[_AFTER_QUOTE] in (b"", b"\r"):  # perhaps it is not closed yet
                    return _RecordEnd(None, cell_start, False)
                self._check_closed(data, cell, lines_before)
        # 3. Of a cell without quotes only the last byte stays: it may be the carriage
        #    return of the end of line.
        return _RecordEnd(None, max(cell_start, size - 1), True)

    def _split_cells(
        self,
        data: bytearray,
        size: int,
        lines_before: int,
        most: int = _TO_THE_END,
        *,
        is_final: bool,
    ) -> CsvSplit:
        """Split a block into records, cell by cell.

        Args:
            data: Buffer that begins with the block.
            size: Number of bytes of the block.
            lines_before: Number of newlines in the file before the block.
            most: Number of records after which to end; by default all that are whole.
                Blank lines behind the last of that many records are left.
            is_final: Whether nothing follows the block.

        Raises:
            DamagedFileError: A quote is not closed.
        """
        records: list[CsvRecord] = []
        record_start = 0
        cell_start = 0
        cell_count = 0
        crlf_lines = 0
        blank_lines = 0
        fault: Fault | None = None
        # A file may end without a newline: cells that wait for one are then a record.
        while len(records) != most and (cell_start < size or (is_final and cell_count)):
            cell = self._whole_cell(
                data, size, cell_start, lines_before, is_final=is_final
            )
            if cell is None:
                break
            cell_start = cell.end()
            cell_count += 1
            # The first fault of a record counts, except that a stray quote outranks it.
            misplaced = self._misplaced(data, cell)
            if fault is None or misplaced is _STRAY_QUOTE:
                fault = misplaced
            if cell[_TERMINATOR] and cell[_TERMINATOR] != b"\n":  # a delimiter
                continue

            # The end of a record. Its carriage return belongs to the end of line; a
            # record without a byte is a blank line.
            record_stop = cell.start(_TERMINATOR)
            has_newline = cell_start > record_stop > record_start
            if has_newline and data[record_stop - 1] == RETURN:
                record_stop -= 1
                crlf_lines += 1
            if record_stop > record_start:
                records.append(CsvRecord(record_start, record_stop, cell_count, fault))
            else:
                blank_lines += 1
            record_start = cell_start
            cell_count = 0
            fault = None
        newlines = data.count(b"\n", 0, record_start)
        return CsvSplit(record_start, newlines, crlf_lines, blank_lines, records)

    def _whole_cell(
        self,
        data: bytearray,
        size: int,
        start: int,
        lines_before: int,
        *,
        is_final: bool,
    ) -> re.Match[bytes] | None:
        """Return the cell that begins at byte `start`.

        Returns:
            The match of the cell; None if its end is not in the buffer yet.

        Raises:
            DamagedFileError: Its quote is not closed before the end of the file, or
                within the limit.
        """
        cell = self._cell.match(data, start, size)
        # Without a match, the cell is in quotes that do not close in the buffer.
        if cell is None:
            content = _QUOTED_CONTENT.match(data, start + 1, size)
            if content and content.end() - content.start() > self.limit:
                raise self._unclosed(
                    data,
                    start,
                    lines_before,
                    f"is not closed within max_record_bytes = {self.limit}",
                )
            if is_final:
                raise self._unclosed(data, start, lines_before, "is never closed")
            return None
        if not cell[_TERMINATOR] and not is_final:
            return None
        if cell[_CONTENT] is not None:
            self._check_closed(data, cell, lines_before)
        return cell

    def _misplaced(self, data: bytearray, cell: re.Match[bytes]) -> Fault | None:
        """Return the misplaced quote or carriage return of a cell, None for none."""
        is_quoted = cell[_CONTENT] is not None
        checked_start = cell.start(_AFTER_QUOTE) if is_quoted else cell.start()
        checked_stop = cell.start(_TERMINATOR)
        has_bytes = checked_stop > checked_start
        ends_line = cell[_TERMINATOR] == b"\n"
        if has_bytes and ends_line and data[checked_stop - 1] == RETURN:
            checked_stop -= 1

        if is_quoted:
            # A carriage return at the very end of the file may be the first half of an
            # end of line.
            bytes_after_quote = bytes(data[checked_start:checked_stop])
            is_cut_crlf = not cell[_TERMINATOR] and bytes_after_quote == b"\r"
            if checked_stop > checked_start and not is_cut_crlf:
                return _STRAY_QUOTE
        elif (
            not self._has_literal_quotes
            and data.find(b'"', checked_start, checked_stop) >= 0
        ):
            return _STRAY_QUOTE
        has_return = data.find(b"\r", checked_start, checked_stop) >= 0
        return _BARE_RETURN if has_return else None

    def _check_closed(
        self, data: bytearray, cell: re.Match[bytes], lines_before: int
    ) -> None:
        """Refuse a cell in quotes that is over the limit or closed stray later.

        Raises:
            DamagedFileError: The ends of records are unknown.
        """
        content_start, content_stop = cell.span(_CONTENT)
        if content_stop - content_start > self.limit:
            reason = f"is not closed within max_record_bytes = {self.limit}"
            raise self._unclosed(data, content_start - 1, lines_before, reason)
        has_newline = data.find(b"\n", content_start, content_stop) >= 0
        if has_newline and self._misplaced(data, cell) is _STRAY_QUOTE:
            reason = "is closed on a later line, in the middle of a cell"
            raise self._unclosed(data, content_start - 1, lines_before, reason)

    def _unclosed(
        self, data: bytearray, offset: int, lines_before: int, reason: str
    ) -> DamagedFileError:
        """Return the error for a quote that swallows what follows.

        Args:
            data: Buffer with the quote.
            offset: Offset of the quote in it.
            lines_before: Number of newlines in the file before the buffer.
            reason: Clause about the quote.
        """
        line_number = lines_before + data.count(b"\n", 0, offset) + 1
        return damaged(
            self._file,
            f"the quote that opens a cell on line {line_number} {reason}, so the ends of records are unknown; "
            'expected a quote before the next delimiter or end of line, and "" for a quote in a cell '
            "(`source.max_record_bytes` is the longest cell)",
            line=line_number,
        )
