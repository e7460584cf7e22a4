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
_QUOTED_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_BARE_RETURN: Final = Fault(
    "bare_return", "a carriage return without a newline outside of quotes"
)
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

        head = stream.read(HEAD_BYTES)
        check_records(file, head)
        self._has_bom = head.startswith(BOM)
        head = head.removeprefix(BOM)
        # One buffer for all blocks: fresh memory costs more than what is done to it.
        self._data = bytearray(head.ljust(block_bytes))
        self._size = len(head)  # bytes of the buffer that are read
        self._lines_before = 0  # newlines in the file before the buffer
        self._is_final = False  # the file ends with the buffer

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the block of the header, before which blank lines may stand, and those
        of the other records.

        Raises:
            DamagedFileError: The stream is broken, or a quote is not closed.
        """
        is_header = True
        # The block before was whole; otherwise a record is longer than the buffer.
        is_whole = True
        while self._size or not self._is_final:
            room = self._block_bytes
            if not is_whole:
                room = max(room, 2 * self._size)
            if self._size < room:
                self._read_more(room - self._size)

            split = None
            if not is_header and 0 < self._size <= min(self._block_bytes, self.limit):
                split = counts_if_strict(
                    self._data, self._size, self.delimiter, is_final=self._is_final
                )
            if split is None:
                most = 1 if is_header else _TO_THE_END
                split = self._split_cells(
                    self._data,
                    self._size,
                    self._lines_before,
                    most,
                    is_final=self._is_final,
                )

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
        """Read `count` bytes behind those in the buffer, fewer only at the end of
        the file.
        """
        room = self._size + count
        if room > len(self._data):
            self._data += bytes(room - len(self._data))
        with memoryview(self._data) as view, view[self._size : room] as target:
            bytes_read = self._stream.read_into(target)
        self._size += bytes_read
        self._is_final = bytes_read < count

    def _drop(self, count: int) -> None:
        """Take `count` bytes from the front of the buffer."""
        rest = self._data[count : self._size]
        self._data[: len(rest)] = rest
        self._size = len(rest)

    def _pass_over_record(self) -> CsvBlock:
        """Read to the end of a record over the limit; only its first bytes are kept,
        and a cell in quotes.
        """
        lines_before = self._lines_before
        head = bytes(self._data[: min(self._size, RAW_LIMIT)])
        passed = 0
        is_within = False
        while True:
            end = self._end_of_record(is_within=is_within)
            is_within = end.is_within
            stop = end.stop
            is_crlf = (
                stop is not None
                and end.consumed > stop > 0
                and self._data[stop - 1] == RETURN
            )
            self._lines_before += self._data.count(b"\n", 0, end.consumed)
            self._drop(end.consumed)
            if stop is not None:
                break
            passed += end.consumed
            size_before = self._size
            self._read_more(_STEP_BYTES)
            head += self._data[
                size_before : min(self._size, size_before + RAW_LIMIT - len(head))
            ]

        size = passed + stop - int(is_crlf)
        kept_bytes = bytearray(head[:size])
        record = CsvRecord(0, size, 0, None)
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
        start = 0
        # 1. Whole cells, up to the one behind which a newline or the end of the file
        #    stands.
        while True:
            pattern = self._rest_of_cell if is_within else self._cell
            cell = pattern.match(data, start, size)
            if cell is None or not (cell[_TERMINATOR] or self._is_final):
                break
            if not is_within:
                self._whole_cell(
                    data, size, start, lines_before, is_final=self._is_final
                )
            start = cell.end()
            is_within = False
            if cell[_TERMINATOR] in (b"\n", b""):
                return _RecordEnd(cell.start(_TERMINATOR), start, False)

        # 2. The last cell is not whole. A cell in quotes must stay in the buffer, and so must one that has no byte yet:
        #    it may be in quotes.
        if not is_within:
            whole_cell = self._whole_cell(
                data, size, start, lines_before, is_final=self._is_final
            )
            if (whole_cell is None and cell is None) or start == size:
                return _RecordEnd(None, start, False)
            if cell is not None and cell[_CONTENT] is not None:
                if cell[_AFTER_QUOTE] in (b"", b"\r"):  # perhaps it is not closed yet
                    return _RecordEnd(None, start, False)
                self._check_closed(data, cell, lines_before)
        # 3. Of a cell without quotes only the last byte stays: it may be the carriage
        #    return of the end of line.
        return _RecordEnd(None, max(start, size - 1), True)

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
        start = 0  # of the record
        position = 0  # of the cell
        cells = 0
        crlf = 0
        blank = 0
        fault: Fault | None = None
        while len(records) != most and (position < size or (is_final and cells)):
            cell = self._whole_cell(
                data, size, position, lines_before, is_final=is_final
            )
            if cell is None:
                break
            position = cell.end()
            cells += 1
            misplaced = self._misplaced(data, cell)
            if fault is None or misplaced is _STRAY_QUOTE:
                fault = misplaced
            if cell[_TERMINATOR] and cell[_TERMINATOR] != b"\n":  # a delimiter
                continue

            stop = cell.start(_TERMINATOR)
            if position > stop > start and data[stop - 1] == RETURN:
                stop -= 1
                crlf += 1
            if stop > start:
                records.append(CsvRecord(start, stop, cells, fault))
            else:
                blank += 1
            start = position
            cells = 0
            fault = None
        return CsvSplit(start, data.count(b"\n", 0, start), crlf, blank, records)

    def _whole_cell(
        self,
        data: bytearray,
        size: int,
        start: int,
        lines_before: int,
        *,
        is_final: bool,
    ) -> re.Match[bytes] | None:
        """Return the cell that begins at byte `start`, None if its end is not in the
        buffer yet.

        Raises:
            DamagedFileError: Its quote is not closed before the end of the file, or
                within the limit.
        """
        cell = self._cell.match(data, start, size)
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
        start = cell.start(_AFTER_QUOTE) if is_quoted else cell.start()
        stop = cell.start(_TERMINATOR)
        if cell[_TERMINATOR] == b"\n" and stop > start and data[stop - 1] == RETURN:
            stop -= 1

        if is_quoted:
            # A carriage return at the very end of the file may be the first half of an
            # end of line.
            is_cut_crlf = not cell[_TERMINATOR] and bytes(data[start:stop]) == b"\r"
            if stop > start and not is_cut_crlf:
                return _STRAY_QUOTE
        elif not self._has_literal_quotes and data.find(b'"', start, stop) >= 0:
            return _STRAY_QUOTE
        has_return = data.find(b"\r", start, stop) >= 0
        return _BARE_RETURN if has_return else None

    def _check_closed(
        self, data: bytearray, cell: re.Match[bytes], lines_before: int
    ) -> None:
        """Raise DamagedFileError if a cell in quotes is over the limit, or is closed
        stray on a later line.
        """
        start, stop = cell.span(_CONTENT)
        if stop - start > self.limit:
            reason = f"is not closed within max_record_bytes = {self.limit}"
            raise self._unclosed(data, start - 1, lines_before, reason)
        if (
            self._misplaced(data, cell) is _STRAY_QUOTE
            and data.find(b"\n", start, stop) >= 0
        ):
            reason = "is closed on a later line, in the middle of a cell"
            raise self._unclosed(data, start - 1, lines_before, reason)

    def _unclosed(
        self, data: bytearray, offset: int, lines_before: int, reason: str
    ) -> DamagedFileError:
        """Return the error for the quote at byte `offset` of the buffer, which
        swallows what follows.
        """
        line = lines_before + data.count(b"\n", 0, offset) + 1
        return damaged(
            self._file,
            f"the quote that opens a cell on line {line} {reason}, so the ends of records are unknown; "
            'expected a quote before the next delimiter or end of line, and "" for a quote in a cell '
            "(`source.max_record_bytes` is the longest cell)",
            line=line,
        )
