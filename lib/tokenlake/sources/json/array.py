"""A file that is one JSON array of objects, streamed: what is held is a block of whole elements.

An element is what stands between two commas of the array. It is read like a line of JSON Lines, by the
same readers, and known by its index. What is wrong inside an element makes a bad record; where the
array itself is broken, nothing says what belongs to which element, and the file is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.predicate.where import Predicate
from tokenlake.sources.blocks import LongLine
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.json.elements import ElementReader
from tokenlake.sources.json.fast import fast_texts, is_plain
from tokenlake.sources.json.longline import parse_long
from tokenlake.sources.json.rows import read_rows_of
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.texts import read_texts_of
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want


def read_json_array(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the elements of a file.

    Raises:
        DamagedFileError: it is no array, it is cut, its brackets do not match, or something follows it.
    """
    yield from read_elements(ElementReader(part.file, ByteStream(data), want.max_record_bytes), want)


def read_elements(reader: ElementReader, want: Want) -> Iterator[Parsed]:
    """Parse the elements of one array."""
    for block in reader.blocks():
        if isinstance(block, LongLine):
            box = [_as_elements(parse_long(block, want))]
            del block
            yield box.pop()
        else:
            lines = None if reader.raw_newlines else _as_lines(block)
            yield from map(_as_elements, _parse(block, lines, want))


def _parse(spans: Spans, lines: bytes | None, want: Want) -> Iterator[Parsed]:
    if want.text is None or want.columns != ():
        return read_rows_of(spans, want)
    if lines is not None and (text := _texts(spans, lines, want.text, want)) is not None:
        return iter([spans.parsed(slice(None), (), text=text)])
    return read_texts_of(spans, want.text, want.max_record_bytes)


def _texts(spans: Spans, lines: bytes, field: str, want: Want) -> pa.LargeStringArray | None:
    return fast_texts(spans, lines, field, want.max_record_bytes) if is_plain(spans, field) else None


def _as_lines(spans: Spans) -> bytes | None:
    """Return the elements, none of which has a newline in a string, as lines; None where one is empty."""
    if np.any(spans.starts == spans.stops):
        return None
    data = memoryview(spans.data.replace(b"\n", b" "))
    return b"\n".join(
        [data[start:stop] for start, stop in zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)]
    )


def _as_elements(parsed: Parsed) -> Parsed:
    """Return what was read like lines as elements of an array, which stand on no line."""
    return replace(
        parsed,
        bad=tuple(map(_element, parsed.bad)),
        doubtful=tuple(map(_element, parsed.doubtful)),
        lines=0,
        as_bad=lambda position, fault: _element(parsed.as_bad(position, fault)),
    )


def _element(line: BadLine) -> BadLine:
    fault = line.fault
    if fault.reason == "line_too_long":
        fault = Fault("record_too_long", fault.detail.replace("the line", "the record", 1))
    return line._replace(line=None, fault=fault)
