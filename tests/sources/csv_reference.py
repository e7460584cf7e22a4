"""CSV read one byte at a time, as plainly as it can be written: what the reader is
compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Unclosed(Exception):
    """A quote is not closed, or closed on a later line where no cell can end."""


@dataclass
class Row:
    """One record as it stands in the input."""

    raw: bytes
    cells: list[bytes] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


def rows_of(data: bytes, delimiter: int, limit: int) -> tuple[list[Row], int, int]:
    """Return the records that are not blank, and the number of blank lines and of
    lines that end in CRLF.
    """
    rows: list[Row] = []
    at = blank = crlf = 0
    while at < len(data):
        row, at, returned = _row(data, at, delimiter, limit)
        crlf += returned
        if row.raw:
            rows.append(row)
        else:
            blank += 1
    return rows, blank, crlf


def _row(data: bytes, start: int, delimiter: int, limit: int) -> tuple[Row, int, int]:
    row, at = Row(b""), start
    while True:
        at = _cell(data, at, delimiter, limit, row)
        if at == len(data) or data[at] == 10:
            break
        at += 1
    returned = at < len(data) and at > start and data[at - 1] == 13
    row.raw = data[start : at - returned]
    if returned and row.cells[-1].endswith(b"\r"):
        row.cells[-1] = row.cells[-1][:-1]
    _judge(row, limit)
    return row, min(at + 1, len(data)), returned


def _judge(row: Row, limit: int) -> None:
    if b"\0" in row.raw:
        row.reasons.add("nul_byte")
    try:
        row.raw.decode()
    except UnicodeDecodeError:
        row.reasons.add("invalid_utf8")
    if len(row.raw) > limit:
        row.reasons.add("record_too_long")


def _cell(data: bytes, at: int, delimiter: int, limit: int, row: Row) -> int:
    """Read a cell; return where its delimiter or newline stands."""
    cell, ends = bytearray(), (delimiter, 10)
    if data[at : at + 1] == b'"':
        opened, at = at, at + 1
        while True:
            if at == len(data):
                raise Unclosed
            if data[at : at + 2] == b'""':
                cell, at = cell + b'"', at + 2
            elif data[at] == 34:
                break
            else:
                cell.append(data[at])
                at += 1
        if at - opened - 1 > limit:
            raise Unclosed
        rest = data[at + 1 : at + 3]
        if rest and rest[0] not in ends and rest not in (b"\r\n", b"\r"):
            if b"\n" in data[opened:at]:
                raise Unclosed
            row.reasons.add("stray_quote")
        at += 1
    while at < len(data) and data[at] not in ends:
        if data[at] == 34:
            row.reasons.add("stray_quote")
        if data[at] == 13 and data[at + 1 : at + 2] != b"\n":
            row.reasons.add("bare_return")
        cell.append(data[at])
        at += 1
    row.cells.append(bytes(cell))
    return at
