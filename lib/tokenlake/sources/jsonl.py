"""JSON Lines: one object per line, the text in one field of it.

A block is parsed by Arrow's reader, which materialises the text column alone. It is more lenient
than JSON in a few ways; each is looked for with a scan of tens of GB/s, and a block in which
anything is odd goes line by line to :mod:`tokenlake.sources.strict`, whose verdict counts. Where the
fast reader sees nothing odd, both give the same texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tokenlake.errors import NotAvailableError
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
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.blocks import Block, LongLine, read_blocks
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.lineindex import BOM, LineIndex, index_lines
from tokenlake.sources.longline import parse_long
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.split import FileRange
from tokenlake.sources.strict import MAX_DEPTH, Fault, at_the_end, parse_line, too_long
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
    if want.columns != () or want.text is None:
        raise NotAvailableError(f"{part.file.url}: columns of JSON Lines are not available in this release")
    yield from read_texts(read_blocks(part, data, want.max_record_bytes), want.text, want.max_record_bytes)


def read_texts(blocks: Iterator[Block | LongLine], field: str, max_record_bytes: int) -> Iterator[Parsed]:
    """Parse blocks of JSON lines; `field` is the name of the member that holds the text."""
    for block in blocks:
        if isinstance(block, Block):
            yield parse_block(block, field, max_record_bytes)
        else:
            box = [parse_long(block, field, max_record_bytes)]
            del block  # the raw line need not stay in memory while its text is worked on
            yield box.pop()


def parse_block(block: Block, field: str, max_record_bytes: int) -> Parsed:
    """Parse the lines of one block."""
    lines = index_lines(block)
    text = fast_texts(block, lines, field, max_record_bytes)
    if text is None:
        return parse_strictly(block, lines, field, max_record_bytes)
    return Parsed(
        text=text,
        positions=lines.positions(block),
        bad=(),
        normalized={"bom": lines.bom, "crlf": lines.crlf, "blank_line": lines.blank},
        bytes_read=block.bytes_read,
        lines=lines.count,
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


def parse_strictly(block: Block, lines: LineIndex, field: str, max_record_bytes: int) -> Parsed:
    """Parse the lines of a block one by one."""
    texts: list[str] = []
    good: list[int] = []
    bad: list[BadLine] = []
    blank = lines.blank
    positions = lines.positions(block)
    spans = zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)
    for index, (start, stop) in enumerate(spans):
        line = block.data[start:stop]
        if not line.strip(b" \t\r"):
            blank += 1
            continue
        last = lines.open_end and index == len(lines.starts) - 1
        found = judge(line, field, max_record_bytes, cut=last)
        if isinstance(found, Fault):
            number = int(lines.numbers[index])
            bad.append(BadLine(int(positions[index]), number, found, line[:RAW_LIMIT]))
        else:
            texts.append(found)
            good.append(index)
    return Parsed(
        text=text_of_strings(texts),
        positions=positions[good],
        bad=tuple(bad),
        normalized={"bom": lines.bom, "crlf": lines.crlf, "blank_line": blank},
        bytes_read=block.bytes_read,
        lines=lines.count,
    )


def judge(line: bytes, field: str, max_record_bytes: int, *, cut: bool) -> str | Fault:
    """Return the text on a line or its fault; `cut`: the file ends here without a newline."""
    if len(line) > max_record_bytes:
        return too_long(len(line), max_record_bytes)
    found = parse_line(line, field)
    return at_the_end(found) if cut and isinstance(found, Fault) else found
