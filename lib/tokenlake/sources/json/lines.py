"""JSON Lines: one object per line, the text in one field of it.

The texts of a block are read at once by :mod:`tokenlake.sources.json.fast`; a block in which anything is odd
goes line by line to :mod:`tokenlake.sources.json.strict`, whose verdict counts. Whole records go there always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tokenlake.predicate.where import Predicate
from tokenlake.sources.blocks import Block, LongLine, read_blocks
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.json.fast import fast_texts, is_plain
from tokenlake.sources.json.longline import parse_long
from tokenlake.sources.json.rows import read_rows_of
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.texts import read_texts_of
from tokenlake.sources.lineindex import BOM, LineIndex, index_lines
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.want import Want


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
    elif (text := _fast_texts(block, spans, want.text, want.max_record_bytes)) is not None:
        yield spans.parsed(slice(None), (), text=text)
    else:
        yield from read_texts_of(spans, want.text, want.max_record_bytes)


def _fast_texts(block: Block, spans: Spans, field: str, max_record_bytes: int) -> pa.LargeStringArray | None:
    skip = len(BOM) if spans.normalized["bom"] else 0
    whole = not skip and block.size == len(block.data)
    if not is_plain(spans, field):
        return None
    return fast_texts(spans, block.data if whole else block.data[skip : block.size], field, max_record_bytes)


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
