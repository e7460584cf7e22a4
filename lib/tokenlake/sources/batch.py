"""What a reader is asked for, what it finds, and what reading yields.

A format's reader gets a :class:`Want` and returns :class:`Parsed` blocks of records and faults. With the predicate and
the bad-record policy applied these become batches: records with the place each came from, and bad records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import BadRecordError
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.rows import Fault, Rows

RAW_LIMIT: Final = 64 << 10  # bytes of a bad record that are kept
BLOCK_BYTES: Final = 16 << 20
PLAIN: Final = "text"
ALL: Final = None
"""`Want.columns` for every field there is."""


def _nowhere() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be used, and why.

    Attributes:
        file: path of the input relative to its listing's root.
        file_id: identity of the input, see :func:`tokenlake.fingerprint.file_id`.
        position: byte offset of the line's start in the decompressed stream for JSON Lines and lines of
            text; row number in everything else; 0 for a whole text file.
        line: 1-based line number, None where there are no lines.
        reason: short stable code such as ``null_text`` or ``invalid_json``.
        detail: one sentence for people.
        raw: the first 64 KiB of the record as it stands in the input, empty where it has no bytes.
    """

    file: str
    file_id: int
    position: int
    line: int | None
    reason: str
    detail: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """Some consecutive records of one file.

    Attributes:
        positions: int64, one per record, as in :class:`BadRecord`.
        bad: records set aside (policy ``quarantine``), in file order.
        filtered: records left out on purpose, by reason (``where``).
        left_out: int64, their positions.
        skipped: records never looked at, by reason (``pruned``: row groups in which `where` holds nowhere).
        normalized: how often something harmless was repaired: ``bom``, ``crlf``, ``blank_line``.
        bytes_read: input bytes consumed since the batch before; sums up to the range's weight.
    """

    file: InputFile
    positions: npt.NDArray[np.int64]
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    left_out: npt.NDArray[np.int64] = field(default_factory=_nowhere)
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def rows_read(self) -> int:
        """Records that were looked at: those here, those set aside and those left out."""
        return len(self.positions) + len(self.bad) + sum(self.filtered.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch(ReadBatch):
    """Records as rows.

    Attributes:
        table: the rows, in the form in which they were read; objects may have more than the wanted fields.
        all_fields: whether all fields were wanted.
    """

    table: Rows
    all_fields: bool = True

    @property
    def rows(self) -> pa.RecordBatch:
        """The wanted columns. JSON has no schema, so that every batch may have other types."""
        return self.table.columns

    @property
    def objects(self) -> list[dict[str, Any]] | None:
        """The records as they stand in a JSON input, where all fields are wanted; else None."""
        return self.table.objects if self.all_fields and self.table.has_objects else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch(RowBatch):
    """Records as texts, large_string, no nulls, valid UTF-8, offset 0; and as rows of what is wanted beside them."""

    text: pa.LargeStringArray


def refuse(record: BadRecord, file: InputFile) -> BadRecordError:
    """Return the error of the policy ``fail`` for `record`, which is of `file`."""
    place = f"{file.url}:{record.line}" if record.line is not None else file.url
    unit = "byte offset" if file.format in ("jsonl", "text") else "row"
    return BadRecordError(
        f"{place}: {record.reason} at {unit} {record.position}: {record.detail}. "
        "Repair the record, or set `on_bad_record: quarantine` to set such records aside and go on.",
        file=record.file,
        line=record.line,
        position=record.position,
        reason=record.reason,
        detail=record.detail,
    )


class BadLine(NamedTuple):
    """A record that cannot be used: where, why, and its first bytes.

    `line` is 0-based and counts from the beginning of the block, None where there are no lines.
    """

    position: int
    line: int | None
    fault: Fault
    raw: bytes


def _without_bytes(position: int, fault: Fault) -> BadLine:
    return BadLine(position, None, fault, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block, as asked for by a :class:`tokenlake.sources.batch.Want`.

    Attributes:
        text: large_string of the records, None where no text was wanted; null for those in `doubtful`.
        rows: the wanted columns of the same records, None where none were wanted. Those of JSON are objects, with
            all fields, until somebody asks for columns.
        positions: int64, one per record, as in :class:`tokenlake.sources.batch.BadRecord`.
        bad: what could not be read as a record, or (where no columns are wanted) has no text; in order.
        doubtful: records that were read but have no usable text, in order; only where columns are wanted,
            because a predicate may still leave them out on purpose.
        normalized: how often something harmless was repaired.
        skipped: records never looked at, by reason (``pruned``).
        bytes_read: input bytes consumed since the block before.
        lines: how many lines the block had, blank ones included.
        as_bad: makes a bad one of the record at a position, and why it is.
    """

    text: pa.LargeStringArray | None
    positions: npt.NDArray[np.int64]
    bad: tuple[BadLine, ...]
    bytes_read: int
    rows: Rows | None = None
    doubtful: tuple[BadLine, ...] = ()
    normalized: dict[str, int] = field(default_factory=dict[str, int])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    lines: int = 0
    as_bad: Callable[[int, Fault], BadLine] = _without_bytes

    def __len__(self) -> int:
        """How many records were read, bad ones left out."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a reader of a format is asked for.

    Attributes:
        text: dotted path of the field that holds the text, None where only rows are wanted. A field that
            bears the whole path as its name comes first: ``a.b`` is the field "a.b", else field "b" of "a".
        columns: top-level fields wanted beside the text, None for all; () for none.
        max_record_bytes: a longer record is a bad one.
        delimiter: between the cells of CSV, None for what the extension says.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
        block_bytes: how much of a file without row groups or batches is read, and parsed, at a time.
    """

    text: str | None
    columns: tuple[str, ...] | None = ()
    max_record_bytes: int = 256 << 20
    delimiter: str | None = None
    if_there: bool = False
    plain: str = PLAIN
    block_bytes: int = BLOCK_BYTES

    def names(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read of an input that has those of `there`."""
        if self.columns is None:
            return tuple(there)
        return tuple(name for name in self.columns if name in there) if self.if_there else self.columns
