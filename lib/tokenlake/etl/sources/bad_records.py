"""Faults of records, the bad records made of them, and the error for the first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.inputs import InputFile


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be used.

    Attributes:
        reason: Stable code, such as ``null_text``.
        detail: Sentence for people.
        column: Name of the column or field that the fault is about; "" where it is
            about no single one.
    """

    reason: str
    detail: str
    column: str = ""


def too_long(size: int, max_record_bytes: int) -> Fault:
    """Return the fault of a line of `size` bytes, which is longer than the limit."""
    return Fault(
        "line_too_long",
        f"the line has {size} bytes, max_record_bytes is {max_record_bytes}",
    )


RAW_LIMIT: Final = 64 << 10
"""Number of bytes that are kept of a bad record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be used, and why.

    Attributes:
        file: Path of the input relative to its listing's root.
        file_id: Identity of the input, see :func:`tokenlake.base.fingerprint.file_id`.
        position: Byte offset of the line's start in the decompressed file, from 0, for
            JSON Lines and lines of text; index of the first id, from 0, in a stream of
            ids; row index, from 0, in other formats; 0 for a whole text file.
        line: Line number in the file, from 1, of the first line of the record; None for
            formats without lines, and if it was not counted.
        reason: Stable code such as ``null_text`` or ``invalid_json``.
        detail: One sentence for people.
        raw: First 64 KiB of the record as it stands in the input, empty for a record
            without bytes of its own.
    """

    file: str
    file_id: int
    position: int
    line: int | None
    reason: str
    detail: str
    raw: bytes


def refuse(record: BadRecord, file: InputFile) -> BadRecordError:
    """Return the error of the policy ``fail`` for a bad record.

    Args:
        record: The record.
        file: Its file.
    """
    # A place is FILE:LINE where lines were counted, so that editors can open it.
    place = file.url
    if record.line is not None:
        place = f"{file.url}:{record.line}"
    unit = position_unit(file)
    return BadRecordError(
        f"{place}: {record.reason} at {unit} {record.position}: {record.detail}. Repair the record, or set "
        "`on_bad_record: quarantine` to keep such records separately and continue.",
        file=record.file,
        line=record.line,
        position=record.position,
        reason=record.reason,
        detail=record.detail,
    )


def position_unit(file: InputFile) -> str:
    """Return the thing that a position counts, which depends on the format."""
    if file.format in ("jsonl", "text"):
        return "byte offset"
    if file.format == "numpy":
        return "id"
    return "row"


class BadLine(NamedTuple):
    """A record of a block that cannot be used.

    Attributes:
        position: As in :class:`BadRecord`.
        line_index: Index of its line in the block, from 0; None where there are no
            lines. :class:`BadRecord` has the line number in the file, from 1.
        fault: Reason for which it cannot be used.
        raw: Its first 64 KiB.
        line: Line number in the file, from 1, of the first line of the record, where
            the reader knows it; None where it follows from `line_index`, or where there
            are no lines.
    """

    position: int
    line_index: int | None
    fault: Fault
    raw: bytes
    line: int | None = None


def without_bytes(position: int, fault: Fault) -> BadLine:
    """Return a bad record that has no line, and no bytes of its own."""
    return BadLine(position, None, fault, b"")
