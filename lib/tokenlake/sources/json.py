"""JSON Lines: one object on every line; records in a buffer, as texts alone or as objects and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.arrays import Int64s, binary_over, text_of_strings, text_over
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes
from tokenlake.sources.json_records import (
    LARGE,
    Judged,
    disguise_of,
    is_plain,
    judge_quickly,
    judge_row,
    judge_text,
    keys_of,
    load_object,
    members_of,
    syntax_fault,
    text_of,
)
from tokenlake.sources.lines import BOM, LineBlock, LongLine, index_lines, parsed_blocks, read_blocks
from tokenlake.sources.rows import Fault, Rows, is_too_wide, too_long
from tokenlake.sources.where import Predicate

PIECE_BYTES: Final = 2 << 20
"""Of records that become Python objects together: these can take 25 times as much."""
TEXT_BYTES: Final = 8 << 20
"""Of records of which only the texts do: one emoji makes four times as much of a text."""
_SHORT_RECORD: Final = 1024
_PIECE_RECORDS: Final = 1 << 15  # a bad one of two bytes takes 500
_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})
# A quote and a colon, between which nearly nobody writes anything, and what they may look like otherwise.
_CLOSE_KEY_END: Final = '":'
_ODD_KEY_END: Final = '"[ \t\r\n]+:|\\\\u00[23]'
_LONG_STRING: Final = 64 << 10  # longer ones are lifted out of a long line
_PIECE: Final = 1 << 20
_MAX_SKELETON: Final = 16 << 20  # bytes beside long strings; parsed, they can take 25 times as much
_LONGEST_UNIT: Final = 12  # bytes of the longest thing a piece must not be cut in: a surrogate pair
_LAST_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+("|\Z)', re.DOTALL)  # also one that is never closed
_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def read_jsonl(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the lines that `part` owns."""
    return parse_lines(read_blocks(part, data, want.max_record_bytes, want.block_bytes), want)


def parse_lines(blocks: Iterator[LineBlock | LongLine], want: Want) -> Iterator[Parsed]:
    """Parse blocks of JSON lines."""
    return parsed_blocks(
        blocks, lambda line: parse_long(line, want), lambda block: parse_records(records_of(block), want)
    )


def records_of(block: LineBlock) -> JsonRecords:
    """Return the lines of a block that hold something; those of nothing but spaces and tabs are blank."""
    lines = index_lines(block, blank=b" \t\r")
    return JsonRecords(
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


def parse_records(records: JsonRecords, want: Want) -> Iterator[Parsed]:
    """Parse records: for their texts alone, or in pieces as objects and columns, the text beside them if wanted."""
    if want.text is not None and want.columns == ():
        for piece in records.pieces(TEXT_BYTES):
            yield _texts_of(piece, want.text, want.max_record_bytes)
    else:
        for piece in records.pieces(PIECE_BYTES):
            yield from _rows_of(piece, want)


# ---- records in a buffer -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecords:
    """Consecutive records in a buffer.

    Attributes:
        data: the block's bytes.
        starts, stops: int64[n], where each record lies in `data`.
        positions: int64[n], as in :class:`tokenlake.sources.batch.BadRecord`.
        numbers: int64[n], the lines on which they stand, counted from the first line of these records; None
            where there are no lines.
        lines: how many lines there are, blank ones included.
        open_end: the file ends with the last of these records, without an end of line.
        bytes_read, normalized: as in :class:`tokenlake.sources.batch.Parsed`.
    """

    data: bytes
    starts: Int64s
    stops: Int64s
    positions: Int64s
    bytes_read: int
    numbers: Int64s | None = None
    lines: int = 0
    open_end: bool = False
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of every record."""
        data = self.data
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield data[start:stop]

    def pieces(self, size: int) -> Iterator[JsonRecords]:
        """Yield the records in pieces of about `size` bytes, fewer where they are very short."""
        at = 0
        while at < len(self):
            end = int(np.searchsorted(self.stops, self.starts[at] + size, side="right"))
            end = min(max(end, at + 1), at + _PIECE_RECORDS)
            yield self if end - at == len(self) else self.part(at, end)
            at = end
        if not len(self):
            yield self

    def part(self, start: int, stop: int) -> JsonRecords:
        """Return the records from `start` to `stop`; parts that make up the whole account for all of it."""
        size, last = len(self), stop == len(self)
        numbers, first, after = self.numbers, 0, 0
        if numbers is not None:
            first = 0 if start == 0 else int(numbers[start])
            after = self.lines if last else int(numbers[stop])
            numbers = numbers[start:stop] - first
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            positions=self.positions[start:stop],
            numbers=numbers,
            lines=after - first,
            open_end=self.open_end and last,
            bytes_read=self.bytes_read * stop // size - self.bytes_read * start // size,
            normalized=self.normalized if start == 0 else {},
        )

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return record `index` as one that has `fault`; the last one of a file that just ends was cut."""
        if self.open_end and index == len(self) - 1 and fault.reason in _CUT:
            fault = Fault("truncated_line", f"the file ends in the middle of a record ({fault.detail})")
        start, stop = int(self.starts[index]), int(self.stops[index])
        number = None if self.numbers is None else int(self.numbers[index])
        raw = self.data[start : min(stop, start + RAW_LIMIT)]
        return BadLine(int(self.positions[index]), number, fault, raw)

    def parsed(self, faults: Mapping[int, Fault], **found: Any) -> Parsed:
        """Return what was found in all records but those with a fault, in order, with the account of all of them."""
        return Parsed(
            positions=np.delete(self.positions, list(faults)) if faults else self.positions,
            bad=tuple(self.bad(index, fault) for index, fault in faults.items()),
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            **found,
        )


# ---- texts alone -------------------------------------------------------------------------------------


def _texts_of(records: JsonRecords, name: str, limit: int) -> Parsed:
    if _holds_each_once(records, name, limit):
        data, loads = records.data, orjson.loads
        spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
        try:
            column = text_of_strings([loads(data[start:stop])[name] for start, stop in spans])
        except (ValueError, LookupError, TypeError, pa.ArrowException):  # no JSON, field, object or text
            column = None
        if column is not None and not column.null_count:
            return records.parsed({}, text=column)
    return _judged_texts(records, name, limit)


def _holds_each_once(records: JsonRecords, name: str, limit: int) -> bool:
    """Say whether records that all have the field surely have it once: it is there as often as there are records.

    Of long records the little before each text is searched instead, which costs less.
    """
    sizes = records.stops - records.starts
    if not len(sizes) or sizes.mean() > _SHORT_RECORD or sizes.max() > limit or not is_plain(name):
        return False
    first, last = int(records.starts[0]), int(records.stops[-1])
    count = records.data.count(orjson.dumps(name), first, last)
    return count == len(sizes) and records.data.find(b"\\u00", first, last) < 0


def _judged_texts(records: JsonRecords, name: str, limit: int) -> Parsed:
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
    return records.parsed(faults, text=text_of_strings(texts))


# ---- whole records -----------------------------------------------------------------------------------


def _rows_of(records: JsonRecords, want: Want) -> Iterator[Parsed]:
    ends, odd = _doubts(records)
    found = [
        (None if odd[at] else judge_quickly(line, ends[at], want)) or judge_row(line, want)
        for at, line in enumerate(records)
    ]
    faults = {at: fault for at, fault in enumerate(found) if isinstance(fault, Fault)}
    judged = [each for each in found if not isinstance(each, Fault)]
    if len(judged) > 1 and is_too_wide([each.record for each in judged], want.columns):
        del found, judged
        middle = len(records) // 2
        yield from _rows_of(records.part(0, middle), want)
        yield from _rows_of(records.part(middle, len(records)), want)
    else:
        yield _parsed_rows(records, judged, faults, want)


def _parsed_rows(records: JsonRecords, judged: list[Judged], faults: dict[int, Fault], want: Want) -> Parsed:
    """Return what was found in the records without a fault, as columns and as objects."""
    texts = [each.text for each in judged]
    good = (at for at in range(len(records)) if at not in faults)
    doubtful = [
        records.bad(at, text) for at, text in zip(good, texts, strict=True) if isinstance(text, Fault)
    ]
    strings = [None if isinstance(text, Fault) else text for text in texts]
    return records.parsed(
        faults,
        text=None if want.text is None else _ARROW.array(strings, pa.large_string()),
        rows=Rows(objects=[each.record for each in judged], names=want.columns)
        if want.columns != ()
        else None,
        doubtful=tuple(doubtful),
        as_bad=records.bad_at,
    )


def _doubts(records: JsonRecords) -> tuple[list[int], list[bool]]:
    """Return how often a quote and a colon stand together in each record, and whether it is odd.

    That is: has it perhaps a large number, a blank between quote and colon, or one of the two as an escape?
    """
    edges = np.append(records.starts, records.stops[-1:] if len(records) else 0)
    each = binary_over(edges, pa.py_buffer(records.data))
    ends = _COMPUTE.count_substring(each, _CLOSE_KEY_END)
    odd = _COMPUTE.match_substring_regex(each, f"{LARGE}|{_ODD_KEY_END}")
    return ends.to_pylist(), odd.to_pylist()


# ---- lines of more than a block ----------------------------------------------------------------------


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line, with about twice its own size in memory, into a batch of one record or none.

    Decoded at once it would take up to five times as much (a Python string with one emoji has four bytes for every
    character). So long strings are lifted out; what is left is small and goes through the strict parser, and the
    lifted ones are decoded piece by piece.
    """
    data = line.data
    start = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    crlf = 0 if data is None else int(data.endswith(b"\r\n"))
    stop = line.size - crlf - (0 if data is None else int(data.endswith(b"\n")))
    record = JsonRecords(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        numbers=np.zeros(1, np.int64),
        lines=1,
        open_end=data is not None and not data.endswith(b"\n"),
        normalized={"bom": int(start > 0), "crlf": crlf},
        bytes_read=line.bytes_read,
    )
    if data is None or stop - start > want.max_record_bytes:
        return _parsed_rows(record, [], {0: too_long(stop - start, want.max_record_bytes)}, want)
    return _parsed_long(record, data, start, stop, want)


def _parsed_long(record: JsonRecords, data: bytearray, start: int, stop: int, want: Want) -> Parsed:
    text_alone = want.text is not None and want.columns == ()
    # A placeholder longer than the field's name, so that a lifted key is never taken for it.
    skeleton, lifted = _lift(data, start, stop, len(want.text or "") + 1)
    if skeleton is None:
        told = f"the record has more than {_MAX_SKELETON} bytes beside long strings"
        return _parsed_rows(record, [], {0: Fault("too_complex", told)}, want)
    if not skeleton.strip(b" \t\r"):
        nothing = record.starts[:0]
        normalized = {**record.normalized, "blank_line": 1}
        blank = replace(record, starts=nothing, stops=nothing, positions=nothing, normalized=normalized)
        return _parsed_rows(blank, [], {}, want)
    if text_alone and want.text is not None:
        found = _long_text(skeleton, data, lifted, want.text)
        if not isinstance(found, Fault):
            return record.parsed({}, text=text_over(np.array([0, len(found)]), pa.py_buffer(found)))
    else:
        found = judge_row(bytes(data[start:stop]), want)
    bad = isinstance(found, Fault)
    return _parsed_rows(record, [] if bad else [found], {0: found} if bad else {}, want)


def _long_text(
    skeleton: bytes, data: bytearray, lifted: dict[int, tuple[int, int]], name: str
) -> bytes | bytearray | Fault:
    """Return the text as UTF-8, or the record's fault."""
    record = load_object(skeleton)
    if isinstance(record, Fault):
        return record
    keys = list(keys_of(record, name))
    wanted = [member.value for member in members_of(skeleton) if member.path == keys]
    text: bytearray | None = None
    for at, (start, stop) in lifted.items():
        decoded = _decoded(data, start, stop)
        if isinstance(decoded, Fault):
            return decoded
        text = decoded if at in wanted else text
    found = text_of(record, skeleton, name)
    if isinstance(found, Fault):
        return found
    return found.encode() if text is None else text


def _lift(
    data: bytearray, start: int, stop: int, size: int
) -> tuple[bytes | None, dict[int, tuple[int, int]]]:
    """Put a string of `size` characters for every long one.

    Returns:
        What is left, None if that is too large; and {offset there: (start, stop) of a string's inside}.
    """
    skeleton, placeholder = bytearray(), b'"' + b"x" * size + b'"'
    lifted: dict[int, tuple[int, int]] = {}
    at = start
    for found in _LAST_STRING.finditer(data, start, stop):
        if found.start() - at + len(skeleton) > _MAX_SKELETON:
            break
        if not found[1]:  # never closed: not JSON, whatever it holds
            stop = found.start() + 1
        elif found.end() - found.start() > _LONG_STRING:
            skeleton += data[at : found.start()]
            lifted[len(skeleton)] = found.start() + 1, found.end() - 1
            skeleton += placeholder
            at = found.end()
    if stop - at + len(skeleton) > _MAX_SKELETON:
        return None, {}
    return bytes(skeleton + data[at:stop]), lifted


def _decoded(data: bytearray, start: int, stop: int) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8, piece by piece.

    A piece that ends inside a character or an escape is not a valid JSON string, and one that ends
    between them is: so the end moves back until the piece is valid.
    """
    text = bytearray()
    while start < stop:
        end, fault = min(start + _PIECE, stop), None
        for cut in range(end, max(end - _LONGEST_UNIT, start) if end < stop else end - 1, -1):
            piece = b'"%b"' % data[start:cut]
            try:
                text += orjson.loads(piece).encode()
            except orjson.JSONDecodeError as error:
                fault = fault or syntax_fault(piece, error)
            else:
                start, fault = cut, None
                break
        if fault:
            return fault
    return text
