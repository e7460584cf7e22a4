"""The contract of a format's reader: it is given a :class:`Want` and returns :class:`Parsed` blocks.

A block holds records and faults. After the predicate and the bad-record policy it becomes a batch
(:class:`RowBatch`, :class:`TextBatch`): records with the place of each, and bad records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.etl.sources.bad_records import BadLine, BadRecord, Fault, without_bytes
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows

BLOCK_BYTES: Final = 16 << 20
PLAIN: Final = "text"
ALL: Final = None
"""`Want.columns` for every field there is."""


def _no_positions() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Some consecutive records of one file, as rows.

    Attributes:
        positions: int64, one per record, as in :class:`BadRecord`.
        table: the rows, in the form in which they were read; objects may have more than the wanted fields.
        all_fields: whether all fields were wanted.
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
    table: Rows
    all_fields: bool = True
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    left_out: npt.NDArray[np.int64] = field(default_factory=_no_positions)
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def rows_read(self) -> int:
        """Records that were looked at: those here, those set aside and those left out."""
        return len(self.positions) + len(self.bad) + sum(self.filtered.values())

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block, as asked for by a :class:`Want`.

    Attributes:
        text: large_string of the records, None where no text was wanted; null for those in `doubtful`.
        rows: the wanted columns of the same records, None where none were wanted. Those of JSON are objects, with
            all fields, until somebody asks for columns.
        positions: int64, one per record, as in :class:`BadRecord`.
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
    as_bad: Callable[[int, Fault], BadLine] = without_bytes

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
        if not self.if_there:
            return self.columns
        known = frozenset(there)
        return tuple(name for name in self.columns if name in known)
