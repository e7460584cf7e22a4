"""JSON Lines: one object per line, the text in one field of it.

A block is parsed by Arrow's reader, which materialises the text column alone. It is more lenient
than JSON in a few ways; each is looked for with a scan of tens of GB/s, and a block in which
anything is odd goes line by line to :mod:`tokenlake.sources.strict`, whose verdict counts. Where the
fast reader sees nothing odd, both give the same texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tokenlake.sources.arrays import (
    Int64s,
    binary_over,
    bytes_of,
    concat,
    is_utf8,
    no_text,
    sizes_of,
    text_of_strings,
    text_over,
)
from tokenlake.sources.blocks import Block, LongLine, read_blocks
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.json_rows import read_rows_of
from tokenlake.sources.jsonspans import Spans
from tokenlake.sources.lineindex import BOM, LineIndex, index_lines
from tokenlake.sources.longline import parse_long
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.split import FileRange
from tokenlake.sources.strict import MAX_DEPTH, Fault, parse_line, too_long
from tokenlake.sources.want import Want
from tokenlake.sources.where import Predicate

# What Arrow's reader takes for a number and JSON does not know, with what must follow a value.
_NUMBER_WORDS: Final = (r"NaN[ \t\r\n]*[,\]}]", r"Inf(?:inity)?[ \t\r\n]*[,\]}]")
_GROUPS: Final = 2048
_READ_JSON: Final[Any] = pj.read_json  # its stub does not know of buffers
_MANY: Final = 2000  # occurrences of NaN in a block that are looked at one by one


def read_jsonl(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the lines that `part` owns."""
    return read_records(read_blocks(part, data, want.max_record_bytes), want)


def read_records(blocks: Iterator[Block | LongLine], want: Want) -> Iterator[Parsed]:
    """Parse blocks of JSON lines."""
    for block in blocks:
        if isinstance(block, Block):
            yield from parse_block(block, want)
        else:
            box = [parse_long(block, want)]
            del block  # the raw line need not stay in memory while its text is worked on
            yield box.pop()


def parse_block(block: Block, want: Want) -> Iterator[Parsed]:
    """Parse the lines of one block, in pieces where they must become Python objects."""
    lines = without_space(block, index_lines(block))
    spans = spans_of(block, lines)
    if want.text is None or want.columns != ():
        yield from read_rows_of(spans, want)
    elif (text := fast_texts(block, lines, want.text, want.max_record_bytes)) is not None:
        yield spans.parsed(slice(None), (), text=text)
    else:
        yield from read_texts_of(spans, want.text, want.max_record_bytes)


def without_space(block: Block, lines: LineIndex) -> LineIndex:
    """Count lines of nothing but spaces and tabs as blank."""
    first = np.frombuffer(block.data, np.uint8)[lines.starts]
    empty = [
        index
        for index in np.flatnonzero(first <= ord(" ")).tolist()
        if not block.data[lines.starts[index] : lines.stops[index]].strip(b" \t\r")
    ]
    if not empty:
        return lines
    return replace(
        lines,
        starts=np.delete(lines.starts, empty),
        stops=np.delete(lines.stops, empty),
        numbers=np.delete(lines.numbers, empty),
        blank=lines.blank + len(empty),
    )


def spans_of(block: Block, lines: LineIndex) -> Spans:
    """Return the lines that hold something as records."""
    return Spans(
        data=block.data,
        starts=lines.starts,
        stops=lines.stops,
        positions=lines.positions(block),
        numbers=lines.numbers,
        lines=lines.count,
        open_end=lines.open_end,
        normalized={"bom": lines.bom, "crlf": lines.crlf, "blank_line": lines.blank},
        bytes_read=block.bytes_read,
    )


def fast_texts(
    block: Block, lines: LineIndex, field: str, max_record_bytes: int
) -> pa.LargeStringArray | None:
    """Return the texts of all lines, or None if anything is odd and must be judged line by line."""
    if not len(lines.starts):
        return no_text()
    skip = len(BOM) if lines.bom else 0
    data = pa.py_buffer(block.data).slice(skip, block.size - skip)
    if not _one_object_each(block, lines, max_record_bytes):
        return None
    if not is_utf8(text_over(np.array([0, data.size]), data)):
        return None
    text = _read_column(data, field)
    if text is None or text.null_count or len(text) != len(lines.starts):
        return None
    return text if _all_strict(block, lines, text) else None


def _read_column(data: pa.Buffer, field: str) -> pa.LargeStringArray | None:
    try:
        table = _READ_JSON(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(field, pa.large_string())]), unexpected_field_behavior="ignore"
            ),
        )
        return concat(table.column(0).chunks)
    except pa.ArrowInvalid:
        return None


def _one_object_each(block: Block, lines: LineIndex, max_record_bytes: int) -> bool:
    # Arrow's reader does not care where lines end. It does take a newline after `}` and before `{` to be
    # between two records: inside an array or object a comma, colon or bracket would have to stand there.
    # With as many records as such lines, each line then holds exactly one.
    data = np.frombuffer(block.data, np.uint8, block.size)
    first, last = data[lines.starts], data[lines.stops - 1]
    fits = (lines.stops - lines.starts).max() <= max_record_bytes
    return bool(fits and (first == ord("{")).all() and (last == ord("}")).all())


def _all_strict(block: Block, lines: LineIndex, text: pa.LargeStringArray) -> bool:
    doubtful = _with_nan(block, lines)
    if doubtful is None:
        return False
    data = memoryview(block.data)
    for index in np.union1d(doubtful, _maybe_deep(block, lines, text)):
        try:
            orjson.loads(data[lines.starts[index] : lines.stops[index]])
        except orjson.JSONDecodeError:
            return False
    return True


def _with_nan(block: Block, lines: LineIndex) -> Int64s | None:
    """Return the lines where ``NaN`` or ``Inf`` may be a value, which Arrow's reader takes for numbers.

    None if there are too many to look at each.
    """
    found: list[int] = []
    for word in _NUMBER_WORDS:
        for count, at in enumerate(_occurrences(block, lines, word)):
            if count == _MANY:
                return None
            if block.data[max(at - 64, 0) : at].rstrip(b" \t\r\n")[-1:] in b":,[-":
                found.append(at)
    return np.searchsorted(lines.starts, np.array(found, np.int64), side="right") - 1


def _occurrences(block: Block, lines: LineIndex, word: str) -> Iterator[int]:
    # RE2 tells at 30 GB/s which groups of lines hold what begins with a literal, re at a tenth of that where.
    edges, pattern = lines.edges, re.compile(word.encode())
    groups = np.append(edges[: -1 : max(1, lines.count // _GROUPS)], edges[-1])
    held = pc.match_substring_regex(binary_over(groups, pa.py_buffer(block.data)), word)
    for group in np.flatnonzero(held.to_numpy(zero_copy_only=False)).tolist():
        for match in pattern.finditer(block.data, int(groups[group]), int(groups[group + 1])):
            yield match.start()


def _maybe_deep(block: Block, lines: LineIndex, text: pa.LargeStringArray) -> Int64s:
    """Return the lines that may nest deeper than allowed: Arrow's reader has no limit."""
    sizes = sizes_of(text)
    beside = lines.stops - lines.starts - sizes  # bytes that are not text, at most
    long = np.flatnonzero(beside > 2 * MAX_DEPTH)
    ends = np.cumsum(sizes)
    raw, decoded = np.frombuffer(block.data, np.uint8), bytes_of(text)
    deep: list[int] = []
    for line in long.tolist():
        start, stop, end = int(lines.starts[line]), int(lines.stops[line]), int(ends[line])
        openers = _openers(raw[start:stop])
        if openers > MAX_DEPTH:  # so many in all; how many if those in the text are left out?
            openers -= _openers(decoded[end - sizes[line] : end]) - block.data.count(b"\\u00", start, stop)
        if openers > MAX_DEPTH:
            deep.append(line)
    return np.array(deep, np.int64)


def _openers(data: npt.NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(data & 0xDF == ord("[")))  # "{" is "[" + 0x20


def read_texts_of(spans: Spans, field: str, max_record_bytes: int) -> Iterator[Parsed]:
    """Read records strictly, one by one, for their texts alone."""

    def judge(index: int, line: bytes) -> str | Fault:
        if len(line) > max_record_bytes:
            return too_long(len(line), max_record_bytes)
        return parse_line(line, field)

    for piece in spans.pieces():
        texts, good, bad = piece.judged(judge)
        yield piece.parsed(good, bad, text=text_of_strings(texts))
