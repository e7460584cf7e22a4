"""Places of CSV records in a block, and how blocks count lines.

Lines are counted by newlines, those in quotes included. `lines_before` of a block is
the number of newlines in the file before it, so that the line of its first byte is
``lines_before + 1``: messages count lines from 1, fields from 0.

Blank lines belong to the block that they are counted in (`CsvSplit.blank`): those
before the header to the header's block, those behind the header to the next block, and
those right behind the records of a block to that block, unless its buffer ends before
them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tokenlake.etl.sources.bad_records import Fault

QUOTE: Final = ord('"')
NEWLINE: Final = ord("\n")
RETURN: Final = ord("\r")


class CsvRecord(NamedTuple):
    """Place of a record that is not blank.

    Attributes:
        start: Offset of its first byte in the block.
        stop: Offset of its end, the end of line left out.
        cells: Number of cells.
        fault: Misplaced quote or carriage return in it, None for none.
    """

    start: int
    stop: int
    cells: int
    fault: Fault | None


class CsvSplit(NamedTuple):
    """Counts of the whole records that a block begins with.

    Attributes:
        size: Number of bytes, blank lines and ends of lines included.
        newlines: Number of newlines.
        crlf: Number of records and blank lines that end in a carriage return and
            newline.
        blank: Number of blank lines.
        records: Places of the records; None if all quotes and carriage returns were
            found to be right at once, and the block was not split.
    """

    size: int
    newlines: int
    crlf: int
    blank: int
    records: list[CsvRecord] | None = None


class CsvBlock(NamedTuple):
    """Whole records, in a buffer that is filled again after them.

    A record over the limit is a block by itself, and only its first 64 KiB are there.

    Attributes:
        data: Buffer that begins with the records; bytes behind `split.size` are to be
            ignored.
        lines_before: Number of newlines in the file before the block.
        bytes_read: Number of input bytes read since the last block.
        has_bom: Whether a byte order mark was left out before it.
        split: Counts of its records.
    """

    data: bytearray
    lines_before: int
    bytes_read: int
    has_bom: bool
    split: CsvSplit
