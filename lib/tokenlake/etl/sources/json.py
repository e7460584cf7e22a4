"""JSON Lines: one object on every line.

A block of lines becomes texts alone, or objects and columns.

The position of a record is the byte offset of its line in the decompressed file, from
0. Blank lines are no records; they belong to the records before them
(:mod:`tokenlake.etl.sources.line_records`).

Every record is read as strictly as :mod:`tokenlake.etl.sources.json_record` requires,
and most of them quickly:

- Texts alone: the key is counted in the whole block. If it occurs once per record, each
  record is parsed without any further search.
- Rows: one pass over the block finds the records that are *odd*, such as those with a
  number beyond 64 bits. A record that is not odd is parsed once, and is right if it has
  as many keys as there are ``":`` in its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import binary_over, text_of_strings
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.json_long_line import parse_long
from tokenlake.etl.sources.json_parsed import parsed_block, parsed_rows
from tokenlake.etl.sources.json_record import (
    LARGE_NUMBER,
    Judged,
    disguise_of,
    is_plain_key,
    judge_quickly,
    judge_row,
    judge_text,
)
from tokenlake.etl.sources.line_records import RawRecords, index_lines
from tokenlake.etl.sources.lines import LineBlock, parsed_blocks, read_blocks
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import is_too_wide
from tokenlake.etl.sources.where import Predicate

PIECE_BYTES: Final = 2 << 20
"""Size of records that become Python objects together: the objects can take 25 times
as much memory.
"""
TEXT_BYTES: Final = 8 << 20
"""Size of records of which only the texts become objects: a text with one emoji
takes four times as much memory.
"""
_SHORT_RECORD: Final = 1024  # bytes, in the mean

# The end of a key as nearly every writer has it.
_KEY_END: Final = '":'
# Large numbers, a blank between quote and colon, and an escaped quote or colon.
_ODD: Final = LARGE_NUMBER + '|"[ \t\r\n]+:|\\\\u00[23]'

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def read_jsonl(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the lines that `part` owns.

    Errors are those of :func:`tokenlake.etl.sources.lines.read_blocks`.
    """
    return parsed_blocks(
        read_blocks(part, data, want.max_record_bytes, want.block_bytes),
        lambda line: parse_long(line, want),
        lambda block: parse_records(json_lines(block), want),
    )


def json_lines(block: LineBlock) -> RawRecords:
    """Return the lines of a block that are not blank.

    Lines of spaces and tabs alone are blank.
    """
    return index_lines(block, blank=b" \t\r")


def parse_records(records: RawRecords, want: Want) -> Iterator[Parsed]:
    """Yield texts of records alone, or objects and columns with the text beside them."""
    # Texts need little memory beside the block. Objects need much, so that their pieces
    # are smaller.
    if want.text is not None and want.columns == ():
        for records_piece in records.pieces(TEXT_BYTES):
            yield _texts_of(records_piece, want.text, want.max_record_bytes)
    else:
        for records_piece in records.pieces(PIECE_BYTES):
            yield from _rows_of(records_piece, want)


def _texts_of(records: RawRecords, name: str, limit: int) -> Parsed:
    """Return the texts of records, and the faults of those that have none.

    Args:
        records: The records.
        name: Dotted path of the text.
        limit: Largest size of a record in bytes.
    """
    if _hold_key_once(records, name, limit):
        column = _trusted_texts(records, name)
        if column is not None:
            return records.parsed({}, text=column)
    return _checked_texts(records, name, limit)


def _hold_key_once(records: RawRecords, name: str, limit: int) -> bool:
    """Say whether the key `name` occurs as often as there are records, in one spelling.

    If every record then has the field, each has it once. For long records this is not
    worthwhile: it costs less to search the short part of each record before its text.
    """
    sizes = records.stops - records.starts
    if (
        not len(sizes)
        or sizes.mean() > _SHORT_RECORD
        or sizes.max() > limit
        or not is_plain_key(name)
    ):
        return False
    # Another spelling of a plain key is an escape such as ``\u0061``, which the count
    # would miss.
    first_byte = int(records.starts[0])
    end_byte = int(records.stops[-1])
    key_count = records.data.count(orjson.dumps(name), first_byte, end_byte)
    may_be_escaped = records.data.find(b"\\u00", first_byte, end_byte) >= 0
    return key_count == len(sizes) and not may_be_escaped


def _trusted_texts(records: RawRecords, name: str) -> pa.LargeStringArray | None:
    """Return the texts of records whose keys were counted; None if any has none."""
    data = records.data
    loads = orjson.loads
    spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
    try:
        # One comprehension over all records: this is the hot loop of texts from JSON
        # Lines.
        column = text_of_strings(
            [loads(data[start:stop])[name] for start, stop in spans]
        )
    # No JSON, field, object or text.
    except (ValueError, LookupError, TypeError, pa.ArrowException):
        return None
    if column.null_count:
        return None
    return column


def _checked_texts(records: RawRecords, name: str, limit: int) -> Parsed:
    """Return the texts of records, each judged by itself.

    A quick check comes first, and the strict reader if that does not decide.
    """
    texts: list[str] = []
    faults: dict[int, Fault] = {}
    quoted_key = orjson.dumps(name)
    disguise = disguise_of((name,))
    loads = orjson.loads
    data = records.data
    spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
    for record_index, (start, stop) in enumerate(spans):
        line = data[start:stop]
        try:
            text = loads(line)[name]
        except (ValueError, LookupError, TypeError):
            text = None
        if type(text) is str and stop - start <= limit:
            # Of a repeated key the last value counts, and the text takes at least
            # `len(text)` bytes after its key. All occurrences of the key therefore
            # begin before `search_end`: most of the text need not be searched.
            search_end = stop - start - len(text)
            is_repeated = (
                line.find(quoted_key, line.find(quoted_key) + 1, search_end) >= 0
            )
            if not is_repeated and (
                line.find(b"\\", 0, search_end) < 0
                or not disguise.search(line, 0, search_end)
            ):
                texts.append(text)
                continue
        judged = judge_text(line, name, limit)
        if isinstance(judged, Fault):
            faults[record_index] = judged
        else:
            texts.append(judged)
    return parsed_block(records, faults, text=text_of_strings(texts))


def _rows_of(records: RawRecords, want: Want) -> Iterator[Parsed]:
    """Yield records as objects and columns.

    A batch with very many different keys is halved.
    """
    # 1. Of each record: the number of places where a quote and a colon are side by
    #    side, and whether it is odd. An odd record may have a large number, a blank
    #    between quote and colon, or one of the two as an escape.
    last_stop = records.stops[-1:] if len(records) else [0]
    edges = np.append(records.starts, last_stop)
    lines = binary_over(edges, pa.py_buffer(records.data))
    key_ends = _COMPUTE.count_substring(lines, _KEY_END).to_pylist()
    is_odd = _COMPUTE.match_substring_regex(lines, _ODD).to_pylist()
    # 2. The records that are not odd are read quickly; the others, and those that this
    #    cannot decide, strictly.
    judged: list[Judged | Fault] = []
    for record_index, line in enumerate(records):
        record = (
            None
            if is_odd[record_index]
            else judge_quickly(line, key_ends[record_index], want)
        )
        judged.append(record or judge_row(line, want))
    # 3. Objects that share no keys would make an enormous number of columns.
    usable: list[Judged] = []
    for verdict in judged:
        if not isinstance(verdict, Fault):
            usable.append(verdict)
    usable_records = [record.record for record in usable]
    if len(usable) > 1 and is_too_wide(usable_records, want.columns):
        # Freed before the halves are read again.
        del judged, usable, usable_records
        middle = len(records) // 2
        yield from _rows_of(records.part(0, middle), want)
        yield from _rows_of(records.part(middle, len(records)), want)
    else:
        yield parsed_rows(records, judged, want)
