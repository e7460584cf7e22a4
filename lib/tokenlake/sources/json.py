"""JSON Lines: one object on every line. A block of lines becomes texts alone, or objects and columns.

Every record is read strictly, as :mod:`tokenlake.sources.json_record` says. Most lines are not odd. These are read
many at a time: as one JSON array, whose members are counted in one scan. Only odd lines are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.arrays import binary_over, text_of_strings
from tokenlake.sources.bad_records import Fault
from tokenlake.sources.input_bytes import InputBytes
from tokenlake.sources.inputs import FileRange
from tokenlake.sources.json_long_line import parse_long
from tokenlake.sources.json_parsed import parsed_block, parsed_rows
from tokenlake.sources.json_record import (
    LARGE_NUMBER,
    disguise_of,
    is_plain_key,
    judge_quickly,
    judge_row,
    judge_text,
)
from tokenlake.sources.line_records import RawRecords, index_lines
from tokenlake.sources.lines import LineBlock, parsed_blocks, read_blocks
from tokenlake.sources.parsed import Parsed, Want
from tokenlake.sources.rows import is_too_wide
from tokenlake.sources.where import Predicate

PIECE_BYTES: Final = 2 << 20
"""Of records that become Python objects together: these can take 25 times as much."""
TEXT_BYTES: Final = 8 << 20
"""Of records of which only the texts do: one emoji makes four times as much of a text."""
_SHORT_RECORD: Final = 1024

# A quote and a colon, between which nearly nobody writes anything, and what they may look like otherwise.
_CLOSE_KEY_END: Final = '":'

_ODD: Final = LARGE_NUMBER + '|"[ \t\r\n]+:|\\\\u00[23]'

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def read_jsonl(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the lines that `part` owns."""
    return parsed_blocks(
        read_blocks(part, data, want.max_record_bytes, want.block_bytes),
        lambda line: parse_long(line, want),
        lambda block: parse_records(json_lines(block), want),
    )


def json_lines(block: LineBlock) -> RawRecords:
    """Return the lines of a block that hold something; those of nothing but spaces and tabs are blank."""
    return index_lines(block, blank=b" \t\r")


def parse_records(records: RawRecords, want: Want) -> Iterator[Parsed]:
    """Parse records: for their texts alone, or in pieces as objects and columns, the text beside them if wanted."""
    if want.text is not None and want.columns == ():
        for piece in records.pieces(TEXT_BYTES):
            yield _texts_of(piece, want.text, want.max_record_bytes)
    else:
        for piece in records.pieces(PIECE_BYTES):
            yield from _rows_of(piece, want)


def _texts_of(records: RawRecords, name: str, limit: int) -> Parsed:
    if _holds_each_once(records, name, limit):
        data, loads = records.data, orjson.loads
        spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
        try:
            column = text_of_strings([loads(data[start:stop])[name] for start, stop in spans])
        except (ValueError, LookupError, TypeError, pa.ArrowException):  # no JSON, field, object or text
            column = None
        if column is not None and not column.null_count:
            return records.parsed({}, text=column)

    texts: list[str] = []
    faults: dict[int, Fault] = {}
    key, disguise, loads, data = orjson.dumps(name), disguise_of((name,)), orjson.loads, records.data
    spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
    for index, (start, stop) in enumerate(spans):
        line = data[start:stop]
        try:
            text = loads(line)[name]
        except (ValueError, LookupError, TypeError):
            text = None
        if type(text) is str and stop - start <= limit:
            # Of a key that is repeated the last value counts. Behind its key there is room for it, so that all
            # of them begin before `end`: most of the text need not be searched.
            end = stop - start - len(text)
            if line.find(key, line.find(key) + 1, end) < 0 and (
                line.find(b"\\", 0, end) < 0 or not disguise.search(line, 0, end)
            ):
                texts.append(text)
                continue
        found = judge_text(line, name, limit)
        if isinstance(found, Fault):
            faults[index] = found
        else:
            texts.append(found)
    return parsed_block(records, faults, text=text_of_strings(texts))


def _holds_each_once(records: RawRecords, name: str, limit: int) -> bool:
    """Say whether records that all have the field surely have it once: it is there as often as there are records.

    Of long records the little before each text is searched instead, which costs less.
    """
    sizes = records.stops - records.starts
    if not len(sizes) or sizes.mean() > _SHORT_RECORD or sizes.max() > limit or not is_plain_key(name):
        return False
    first, last = int(records.starts[0]), int(records.stops[-1])
    count = records.data.count(orjson.dumps(name), first, last)
    return count == len(sizes) and records.data.find(b"\\u00", first, last) < 0


def _rows_of(records: RawRecords, want: Want) -> Iterator[Parsed]:
    # How often a quote and a colon stand together in each record; and whether it is odd: whether it has perhaps a large
    # number, a blank between quote and colon, or one of the two as an escape.
    edges = np.append(records.starts, records.stops[-1:] if len(records) else 0)
    each = binary_over(edges, pa.py_buffer(records.data))
    ends = _COMPUTE.count_substring(each, _CLOSE_KEY_END).to_pylist()
    odd = _COMPUTE.match_substring_regex(each, _ODD).to_pylist()
    found = [
        (None if odd[at] else judge_quickly(line, ends[at], want)) or judge_row(line, want)
        for at, line in enumerate(records)
    ]
    judged = [each for each in found if not isinstance(each, Fault)]
    if len(judged) > 1 and is_too_wide([each.record for each in judged], want.columns):
        del found, judged
        middle = len(records) // 2
        yield from _rows_of(records.part(0, middle), want)
        yield from _rows_of(records.part(middle, len(records)), want)
    else:
        yield parsed_rows(records, found, want)
