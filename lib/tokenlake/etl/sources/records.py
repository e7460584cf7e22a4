"""Reading a range of an input, up to batches of good records and bad ones.

The parts are the format's reader, the limit, the predicate, and the policy for bad
records.

Each block of the reader takes these steps:

1. Records beyond the limit `rows` of the range are dropped.
2. The predicate leaves records out. Those that it cannot judge become doubtful.
3. Doubtful records that are left become bad ones.
4. The policy ends the reading at the first bad record, or sets bad records aside.

Line numbers: inside of a block, lines are indexed from 0. :class:`_Policy` adds the
lines of earlier blocks and ranges, and :class:`BadRecord` has the line number in the
file, from 1. Blank lines count, and belong to the block of the records before them;
those at the start of a range belong to its first block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64s, no_text, select
from tokenlake.config.formats import FORMATS, Format
from tokenlake.etl.sources.bad_records import BadLine, BadRecord, Fault, refuse
from tokenlake.etl.sources.file_signatures import check_plain
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.line_counter import COUNTED_BYTES
from tokenlake.etl.sources.lines import count_lines
from tokenlake.etl.sources.opening import open_companions, opened
from tokenlake.etl.sources.parsed import (
    ALL,
    BLOCK_BYTES,
    PLAIN,
    Parsed,
    RowBatch,
    TextBatch,
    Want,
    without_line,
)
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Reader = Callable[[FileRange, InputBytes, Want, Predicate | None], Iterator[Parsed]]
"""Function that reads the records of a range in file order, in bounded memory.

The predicate is a hint for formats with statistics: they may leave out stretches in
which it holds nowhere, and count their records as ``skipped["pruned"]``. Single records
are never left out by a reader.
"""

_NO_POSITIONS: Final = np.zeros(0, np.int64)
_Batch = TypeVar("_Batch", bound=RowBatch)
_MakeBatch = Callable[[Parsed, dict[str, Any]], _Batch]


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    # Imported by name: a worker pays only for the formats that it reads.
    module_name, function_name = FORMATS[format_].reader
    return getattr(import_module(f"tokenlake.etl.sources.{module_name}"), function_name)


def read_range(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = (),
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[TextBatch]:
    """Read the texts of a range in batches of about 16 MB, in bounded memory.

    Batches are in file order.

    Under the policy ``quarantine`` bad records are in the batches' `bad`. The
    `bytes_read` of all batches sum up to ``part.weight``; a batch may be empty.

    Args:
        part: Range to read.
        source: Source with the content field, predicate, policy and limits.
        columns: Top-level fields beside the text, None for all.
        block_bytes: Number of bytes read at a time, of a file without row groups or
            batches.

    Raises:
        BadRecordError: A record is bad and the policy is ``fail``.
        DamagedFileError: The file cannot be trusted as a whole, whatever the policy.
        InputChangedError: The file is not, or does not stay, as it was planned.
        ConfigError: `where` cannot be evaluated on the source's columns.
    """

    def make_batch(parsed: Parsed, counts: dict[str, Any]) -> TextBatch:
        text = parsed.text
        if text is None:
            text = no_text()
        table = _wanted_rows(parsed.rows, columns)
        return TextBatch(text=text, table=table, all_fields=columns is None, **counts)

    want = _wish(source, columns, text=source.content_field, block_bytes=block_bytes)
    yield from _read(part, source, want, make_batch)


def read_rows(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = ALL,
    *,
    if_there: bool = False,
    plain: str = PLAIN,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RowBatch]:
    """Read whole records of a range, without a look at their text.

    Otherwise it is like :func:`read_range`.

    Args:
        part: Range to read.
        source: Source with the predicate, policy and limits.
        columns: Top-level fields, None for all.
        if_there: Whether columns that an input lacks are left out, instead of being an
            error.
        plain: Name of the one column of plain text.
        block_bytes: Number of bytes read at a time, of a file without row groups or
            batches.
    """

    def make_batch(parsed: Parsed, counts: dict[str, Any]) -> RowBatch:
        table = _wanted_rows(parsed.rows, columns)
        return RowBatch(table=table, all_fields=columns is None, **counts)

    want = _wish(
        source, columns, if_there=if_there, plain=plain, block_bytes=block_bytes
    )
    yield from _read(part, source, want, make_batch)


def _wish(
    source: ResolvedSource,
    columns: tuple[str, ...] | None,
    *,
    text: str | None = None,
    if_there: bool = False,
    plain: str = PLAIN,
    block_bytes: int,
) -> Want:
    """Return the wish to a format's reader.

    It has the wanted columns, and those that the predicate looks at.
    """
    # A column is asked for once, although the predicate and the caller want it.
    if columns is not None and source.where:
        columns = tuple(dict.fromkeys((*columns, *Predicate(source.where).columns)))
    return Want(
        text=text,
        columns=columns,
        max_record_bytes=source.max_record_bytes,
        delimiter=source.delimiter,
        if_there=if_there,
        plain=plain,
        block_bytes=block_bytes,
        tokens=source.tokens,
    )


def _wanted_rows(rows: Rows | None, columns: tuple[str, ...] | None) -> Rows:
    """Leave out the columns that only the predicate looked at."""
    if rows is None:
        return Rows(pa.RecordBatch.from_pydict({}))
    if columns is None:
        return rows
    if rows.has_objects:
        return Rows(objects=rows.objects, names=columns)
    existing_names: list[str] = rows.columns.schema.names
    wanted_names: list[str] = []
    for name in columns:
        if name in existing_names:
            wanted_names.append(name)
    return Rows(rows.columns.select(wanted_names))


def _read(
    part: FileRange, source: ResolvedSource, want: Want, make_batch: _MakeBatch[_Batch]
) -> Iterator[_Batch]:
    """Read the blocks of a range, and apply limit, predicate and policy to each."""
    predicate = Predicate(source.where) if source.where else None
    rows_left = part.rows
    weight_left = part.weight
    with ExitStack() as files:
        # The open file, which must be the planned one, and its companions.
        input_bytes = files.enter_context(opened(part.file, source.storage_options))
        input_bytes.max_expansion = source.max_expansion
        check_plain(input_bytes)
        if part.file.companions:
            want = replace(
                want,
                companions=open_companions(part.file, source.storage_options, files),
            )
        blocks = reader_of(part.file.format)(part, input_bytes, want, predicate)
        policy = _Policy(part, input_bytes, source)

        # The steps of the module's docstring, for one block.
        def next_batch() -> _Batch | None:
            nonlocal rows_left, weight_left
            if rows_left == 0:
                return None
            parsed = next(blocks, None)
            if parsed is None:
                return None
            if rows_left is not None:
                parsed = _first_records(parsed, rows_left, weight_left)
                skipped_count = sum(parsed.skipped.values())
                rows_left -= len(parsed) + len(parsed.bad) + skipped_count
            weight_left -= parsed.bytes_read
            parsed, left_out = _apply_predicate(parsed, predicate)
            return make_batch(*policy.apply(parsed, left_out))

        # No reference to a block stays here: it can hold a text of 200 MB, which only
        # its consumer keeps alive.
        yield from iter(next_batch, None)
    # Bytes that belong to no block, such as records behind the limit, count as read
    # with an empty batch.
    if weight_left > 0:
        empty_block = Parsed(
            text=None, positions=_NO_POSITIONS, bad=(), bytes_read=weight_left
        )
        empty_counts = {
            "file": part.file,
            "positions": _NO_POSITIONS,
            "bytes_read": weight_left,
        }
        yield make_batch(empty_block, empty_counts)


def _first_records(parsed: Parsed, count: int, weight: int) -> Parsed:
    """Return the first records of a block, good and bad ones; skipped ones count first.

    Args:
        parsed: Block.
        count: Largest number of records to return.
        weight: Largest number of input bytes that may count as read.
    """
    # 1. Skipped records.
    skipped_count = sum(parsed.skipped.values())
    skipped_beyond = max(0, skipped_count - count)
    skipped_within: dict[str, int] = {}
    for reason, skipped_rows in parsed.skipped.items():
        skipped_within[reason] = max(0, skipped_rows - skipped_beyond)
    parsed = replace(
        parsed,
        bytes_read=min(parsed.bytes_read, weight),
        skipped=skipped_within,
    )
    count = max(0, count - skipped_count)

    # 2. The others, in the order of their positions.
    bad_positions = np.array([bad.position for bad in parsed.bad], np.int64)
    positions = np.concatenate([parsed.positions, bad_positions])
    if len(positions) <= count:
        return parsed
    end_position = int(np.sort(positions)[count])
    first_records = _select_records(parsed, parsed.positions < end_position)
    bad = tuple(line for line in parsed.bad if line.position < end_position)
    return replace(first_records, bad=bad)


def _select_records(parsed: Parsed, mask: npt.NDArray[np.bool_]) -> Parsed:
    """Return the records where `mask` (bool[n]) is true.

    Records that could not be read stay.
    """
    if mask.all():
        return parsed
    text = parsed.text
    if text is not None:
        text = select(text, mask)
    rows = parsed.rows
    if rows is not None:
        rows = rows.select(mask)
    positions = parsed.positions[mask]
    line_indices = parsed.line_indices
    if line_indices is not None:
        line_indices = line_indices[mask]
    selected_positions = set(positions.tolist())
    doubtful: list[BadLine] = []
    for line in parsed.doubtful:
        if line.position in selected_positions:
            doubtful.append(line)
    return replace(
        parsed,
        text=text,
        rows=rows,
        positions=positions,
        line_indices=line_indices,
        doubtful=tuple(doubtful),
    )


def _first_line(
    positions: Int64s, first_line_of: Callable[[int], int | None], index: int
) -> int | None:
    """Return the line number in the file, from 1, of a record of a batch.

    Args:
        positions: Position of each record, int64[n].
        first_line_of: Function that returns the line of the record with a position.
        index: Index of the record.
    """
    return first_line_of(int(positions[index]))


def _apply_predicate(
    parsed: Parsed, predicate: Predicate | None
) -> tuple[Parsed, Int64s]:
    """Return the records that meet the predicate, and the positions of the others.

    Positions are int64[m].

    Records that it cannot judge stay, and are doubtful.
    """
    if predicate is None or parsed.rows is None or not len(parsed):
        return parsed, _NO_POSITIONS
    # Records that it cannot judge are doubtful; such a fault replaces one of their
    # text.
    verdicts = predicate.judge(parsed.rows)
    stays = verdicts.mask.copy()
    stays[list(verdicts.faults)] = True
    remaining = _select_records(parsed, stays)
    if verdicts.faults:
        fault_of_position: dict[int, Fault] = {}
        for index, fault in verdicts.faults.items():
            fault_of_position[int(parsed.positions[index])] = fault
        doubtful: list[BadLine] = []
        for line in remaining.doubtful:
            if line.position not in fault_of_position:
                doubtful.append(line)
        for position, fault in fault_of_position.items():
            doubtful.append(parsed.as_bad(position, fault))
        remaining = replace(remaining, doubtful=tuple(doubtful))
    return remaining, parsed.positions[~stays]


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


@final
class _Policy:
    """The policy for bad records: the first one is an error, or all are set aside."""

    def __init__(
        self, part: FileRange, data: InputBytes, source: ResolvedSource
    ) -> None:
        """Begin a range.

        Args:
            part: The range.
            data: The open file.
            source: Source with the policy.
        """
        self._part = part
        self._data = data
        self._fails = source.on_bad_record == "fail"
        # Number of lines of this range in the blocks before the present one.
        self._lines_of_blocks = 0
        # Number of lines of the file before this range; None: not counted yet. A
        # compressed file is one range.
        self._lines_of_ranges: int | None = None if part.file.compression is None else 0

    def apply(self, parsed: Parsed, left_out: Int64s) -> tuple[Parsed, dict[str, Any]]:
        """Return the good records of a block, and the fields of a batch.

        The fields count all records of the block.

        Args:
            parsed: Block, after the predicate.
            left_out: Positions of the records that the predicate left out, int64[n].

        Raises:
            BadRecordError: A record is bad and the policy is ``fail``.
        """
        # Nothing leaves doubtful records out any more: they are bad.
        bad_lines = parsed.bad
        if parsed.doubtful:
            all_lines = bad_lines + parsed.doubtful
            bad_lines = tuple(sorted(all_lines, key=lambda line: line.position))
            doubtful_positions = [line.position for line in parsed.doubtful]
            is_good = ~np.isin(parsed.positions, doubtful_positions)
            parsed = _select_records(parsed, is_good)
        bad_records = tuple(self._bad_record(line) for line in bad_lines)
        line_of = without_line
        if parsed.line_indices is not None:
            line_of = partial(
                self._line_of,
                parsed.positions,
                parsed.line_indices + self._lines_of_blocks,
            )
        elif parsed.first_line_of is not None:
            line_of = partial(_first_line, parsed.positions, parsed.first_line_of)
        self._lines_of_blocks += parsed.lines
        if bad_records and self._fails:
            raise refuse(bad_records[0], self._part.file)
        return parsed, {
            "file": self._part.file,
            "positions": parsed.positions,
            "bytes_read": parsed.bytes_read,
            "bad": bad_records,
            "filtered": _without_zeros({"where": len(left_out)}),
            "left_out": left_out,
            "skipped": _without_zeros(parsed.skipped),
            "normalized": _without_zeros(parsed.normalized),
            "line_of": line_of,
        }

    def _line_of(
        self, positions: Int64s, lines_before: Int64s, index: int
    ) -> int | None:
        """Return the line number in the file, from 1, of a record of a batch.

        Args:
            positions: Position of each record, int64[n].
            lines_before: Number of lines of the range before each record, int64[n].
            index: Index of the record.
        """
        return self._line_number(int(lines_before[index]), int(positions[index]))

    def _line_number(self, lines_of_range: int, position: int) -> int | None:
        """Return the line number in the file, from 1; None if it is not counted.

        Args:
            lines_of_range: Number of lines of this range before the record.
            position: Byte offset of the record.
        """
        # Lines before a range are counted only when the first number is needed. If the
        # reading continues, they are counted only within the first GiB: a unit at the
        # end of a file of a terabyte would read all of it.
        may_count = self._fails or self._part.start <= COUNTED_BYTES
        if self._lines_of_ranges is None and may_count:
            lines_before = count_lines(self._data, position)
            self._lines_of_ranges = lines_before - lines_of_range
        if self._lines_of_ranges is None:
            return None
        return self._lines_of_ranges + lines_of_range + 1

    def _bad_record(self, bad: BadLine) -> BadRecord:
        """Return a bad record with its line number in the file, from 1."""
        line_number = bad.line
        if bad.line_index is not None:
            line_number = self._line_number(
                self._lines_of_blocks + bad.line_index, bad.position
            )
        return BadRecord(
            file=self._part.file.path,
            file_id=self._part.file.file_id,
            position=bad.position,
            line=line_number,
            reason=bad.fault.reason,
            detail=bad.fault.detail,
            raw=bad.raw,
        )
