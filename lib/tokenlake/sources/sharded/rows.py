"""The rows of one file from a given one on, each with its number."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tokenlake.errors import BadRecordError
from tokenlake.sources.arrays import Int64s
from tokenlake.sources.batch import BadRecord, RowBatch, refuse
from tokenlake.sources.blocks import count_lines
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.opening import opened
from tokenlake.sources.records import read_rows
from tokenlake.sources.sharded.info import beyond
from tokenlake.sources.sharded.rowindex import is_lines
from tokenlake.sources.sharded.seek import Seek, whole

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Numbered = Iterator[tuple[int, dict[str, Any]]]

_SLICE_BYTES: Final = 256 << 10  # of columns that become Python objects at a time: the first row comes soon
_SLICE_ROWS: Final = 1024
END: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the rows of a file are wanted.

    Attributes:
        source: its policy, predicate and limits count; its `content_field` names the only field of text.
        columns: fields to read, None for all.
        shard: name for messages.
        stop: number of the first row not to be read, above that of the first one wanted.
    """

    source: ResolvedSource
    columns: tuple[str, ...] | None
    shard: str
    stop: int = END


def numbered_rows(
    file: InputFile, reading: Reading, start: Seek, row: int
) -> Generator[tuple[int, dict[str, Any]], None, int]:
    """Yield (number, row) from number `row` on; return how many rows there are, at most `reading.stop`.

    Raises:
        BadRecordError: a record from `row` on is bad and the policy is ``fail``; rows before it have come.
        ConfigError: `row` is beyond the end.
        DamagedFileError, InputChangedError: as :func:`tokenlake.sources.records.read_rows`.
    """
    number = start.number
    for batch in _batches(file, reading, start):
        kept, bad, number = _numbers(file, batch, number)
        yield from _judged(reading, batch, kept, bad, row)
        if number >= reading.stop:
            return reading.stop
    if row > number:
        raise beyond(reading.shard, row, number)
    return number


def counted(file: InputFile, source: ResolvedSource, enough: int) -> int:
    """Return how many rows a file has, good or bad, by reading it; some number from `enough` on, if so many."""
    reading = Reading(source=replace(source, where=None), columns=None, shard=file.path)
    count = 0
    for batch in _batches(file, reading, whole(file)):
        count += batch.rows_read
        if count >= enough:
            break
    return count


def _batches(file: InputFile, reading: Reading, start: Seek) -> Iterator[RowBatch]:
    # Bad records are judged here: those before the first row wanted are no matter of who resumes after them.
    source = replace(reading.source, on_bad_record="quarantine")
    for part in start.parts:
        yield from read_rows(part, source, reading.columns, plain=source.content_field)


def _positions_are_numbers(file: InputFile) -> bool:
    return file.format not in ("jsonl", "text")


def _numbers(file: InputFile, batch: RowBatch, number: int) -> tuple[Int64s, Int64s, int]:
    """Return the numbers of the batch's rows and of its bad records, and the number after the batch."""
    bad = np.array([record.position for record in batch.bad], np.int64)
    after = number + batch.rows_read + sum(batch.skipped.values())
    if _positions_are_numbers(file):
        return batch.positions, bad, after
    places = np.sort(np.concatenate([batch.positions, bad, batch.left_out]))
    return number + np.searchsorted(places, batch.positions), number + np.searchsorted(places, bad), after


def _judged(reading: Reading, batch: RowBatch, kept: Int64s, bad: Int64s, row: int) -> Numbered:
    stop = reading.stop
    judged = np.flatnonzero((bad >= row) & (bad < stop)) if reading.source.on_bad_record == "fail" else []
    first_bad = int(judged[0]) if len(judged) else None
    if first_bad is not None:
        stop = int(bad[first_bad])
    at, end = np.searchsorted(kept, [row, stop]).tolist()
    yield from _dicts(batch, kept, range(at, end))
    if first_bad is not None:
        raise _refused(reading, batch.bad[first_bad], batch.file, stop)


def _refused(reading: Reading, record: BadRecord, file: InputFile, number: int) -> BadRecordError:
    error = refuse(replace(record, line=_line(reading, record, file)), file)
    told = f"shard {reading.shard!r}, row {number}: {error}"
    return BadRecordError(told, **error.details, shard=reading.shard, row=number)


def _line(reading: Reading, record: BadRecord, file: InputFile) -> int | None:
    """Return the line of a bad record; far into a local file it was not counted yet."""
    if record.line is not None or not is_lines(file) or not file.is_local:
        return record.line
    with opened(file, reading.source.storage_options) as data:
        return count_lines(data, record.position) + 1


def _dicts(batch: RowBatch, numbers: Int64s, places: range) -> Numbered:
    """Yield (number, row) for the rows at `places` of a batch, some at a time."""
    if batch.objects is not None:
        for place in places:
            yield int(numbers[place]), batch.objects[place]
        return
    rows = batch.rows
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * max(len(rows), 1) // max(rows.nbytes, 1)))
    for first in range(places.start, places.stop, step):
        some = slice(first, min(first + step, places.stop))
        part = rows.slice(first, some.stop - first)
        yield from zip(numbers[some].tolist(), part.to_pylist(), strict=True)
