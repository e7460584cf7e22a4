"""The contract of a format's reader: from a :class:`Want` to :class:`Parsed` blocks.

A block holds records and faults. After the predicate and the bad-record policy it
becomes a batch (:class:`RowBatch`, :class:`TextBatch`): records with the position of
each, and bad records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.config.resolved import ResolvedTokens
from tokenlake.etl.sources.bad_records import BadLine, BadRecord, Fault, without_bytes
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows

BLOCK_BYTES: Final = 16 << 20
"""Default size in bytes of a block that is read and parsed at a time."""
PLAIN: Final = "text"
"""Name of the one column of plain text."""
ALL: Final = None
"""`Want.columns` for all fields."""


def _no_positions() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


def without_line(index: int) -> int | None:
    """Return no line number, for formats without lines."""
    del index
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Consecutive records of one file, as rows.

    Attributes:
        file: The file.
        positions: Position of each of the n records, int64[n], as in
            :class:`BadRecord`.
        bytes_read: Number of input bytes read since the batch before; all batches sum
            up to the range's weight.
        table: Rows in the form in which they were read; objects may have more than the
            wanted fields.
        all_fields: Whether all fields were wanted.
        bad: Records set aside (policy ``quarantine``), in file order.
        filtered: Number of records left out on purpose, by reason (``where``).
        left_out: Positions of these records, int64[m].
        skipped: Number of records never read, by reason (``pruned``: row groups in
            which `where` holds nowhere).
        normalized: Number of harmless repairs, by name: ``bom``, ``crlf``,
            ``blank_line``.
        line_of: Function that returns the line number in the file, from 1, of the
            record with an index in the batch; None where it is unknown. It may read the
            file, and so is called for bad records only, before the next batch.
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
    line_of: Callable[[int], int | None] = without_line

    @property
    def rows_read(self) -> int:
        """Number of records that were read: good, set aside and left out."""
        return len(self.positions) + len(self.bad) + sum(self.filtered.values())

    @property
    def rows(self) -> pa.RecordBatch:
        """Wanted columns.

        JSON has no schema, so that every batch may have other types.
        """
        return self.table.columns

    @property
    def objects(self) -> list[dict[str, Any]] | None:
        """Records as they stand in a JSON input; None unless all fields are wanted."""
        if not self.all_fields or not self.table.has_objects:
            return None
        return self.table.objects


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch(RowBatch):
    """Consecutive records of one file, as texts, and as rows of columns beside them.

    Attributes:
        text: Text of each record, large_string[n], without nulls, valid UTF-8, offset
            0.
    """

    text: pa.LargeStringArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block, as asked for by a :class:`Want`.

    Attributes:
        text: Text of each of the n records, large_string[n], null for those in
            `doubtful`; None if no text is wanted.
        positions: Position of each record, int64[n], as in :class:`BadRecord`.
        bad: Records that could not be read, or (if no columns are wanted) have no text;
            in order.
        bytes_read: Number of input bytes read since the block before.
        rows: Wanted columns of the same records, None if none are wanted. Rows of JSON
            are objects with all fields until their columns are used.
        doubtful: Records that were read but have no usable text, in order; only if
            columns are wanted, because a predicate may still leave them out on purpose.
        normalized: Number of harmless repairs, by name.
        skipped: Number of records never read, by reason (``pruned``).
        lines: Number of lines of the block. Blank lines count, and belong to the block
            of the records before them.
        line_indices: Index of each record's line in the block, from 0, int64[n]; None
            for formats without lines.
        first_line_of: Function that returns the line number in the file, from 1, at
            which the record with a position begins; None where the line follows from
            `line_indices`, or where there are no lines.
        as_bad: Function that returns the record at a position as a bad one with a
            fault.
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
    line_indices: npt.NDArray[np.int64] | None = None
    first_line_of: Callable[[int], int | None] | None = None
    as_bad: Callable[[int, Fault], BadLine] = without_bytes

    def __len__(self) -> int:
        """Return the number of records that were read, bad ones left out."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Wishes to a reader of a format.

    Attributes:
        text: Dotted path of the field that holds the text, None if only rows are
            wanted. A field whose name is the whole path comes first: ``a.b`` is the
            field "a.b", otherwise field "b" of "a".
        columns: Top-level fields wanted beside the text, None for all; () for none.
        max_record_bytes: Largest size of a record in bytes; a longer one is a bad
            record.
        delimiter: Character between the cells of CSV, None for the one of the
            extension.
        if_there: Whether columns that an input lacks are left out, instead of being an
            error.
        plain: Name of the one column of plain text.
        block_bytes: Number of bytes that are read and parsed at a time, of a file
            without row groups or batches.
        tokens: Form of records of token ids; None for records of text.
        companions: Open files that belong to the file that is read, by the name that
            its format has for them.
    """

    text: str | None
    columns: tuple[str, ...] | None = ()
    max_record_bytes: int = 256 << 20
    delimiter: str | None = None
    if_there: bool = False
    plain: str = PLAIN
    block_bytes: int = BLOCK_BYTES
    tokens: ResolvedTokens | None = None
    companions: Mapping[str, InputBytes] = field(default_factory=dict[str, InputBytes])

    def names(self, all_names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns to read of an input.

        Args:
            all_names: Names of the columns that it has.
        """
        if self.columns is None:
            return tuple(all_names)
        if not self.if_there:
            return self.columns
        # Columns keep the order in which they were asked for.
        existing_names = frozenset(all_names)
        return tuple(name for name in self.columns if name in existing_names)
