"""JSON Lines: one object per line, the text in one field of it.

The texts of a block are read at once by :mod:`tokenlake.sources.json`; a block in which anything is odd
goes line by line to :mod:`tokenlake.sources.json`, whose verdict counts. Whole records go there always.

Dotted paths into JSON records.

One JSON record, read strictly: the judge of what the vectorised reader is not sure about.

RFC 8259 as orjson reads it: valid UTF-8, no NaN, no lone surrogates, at most 1024 levels, one object
and nothing else; numbers of any size. The content field must be there once and hold a string.

JSON records lying in a buffer: where each is, and what is told of them when they are parsed.

The texts of many JSON records at once, or nothing where anything is odd.

Polars parses the records with simd-json and keeps the text column alone. It is as strict as
:mod:`tokenlake.sources.json` (UTF-8, numbers, depth, one object on a line) but for four things:

- what is no string becomes one: ``1``, ``true``, ``[...]``, ``{...}``;
- of a repeated key the first value is taken;
- half a surrogate pair before anything but ``\\u`` becomes U+0000;
- a missing field is null.

Each is looked for, in the texts or with a scan of several GB/s over the bytes beside them, and the few
records that may hold one go to the strict reader. Where that finds no fault, both give the same texts.

The texts of JSON records, one by one, where :mod:`tokenlake.sources.json` is not sure.

JSON records as rows: every field that is wanted, read strictly.

A number that neither a 64-bit integer nor a finite double can hold would be altered, and a repeated
key would hide a value: in a wanted field both make a bad record. Fields that nobody wants are only
checked for being JSON.

A JSON line of more than a block: parsed with about twice its own size in memory.

Decoding 200 MB at once would take up to five times as much (a Python string with one emoji has four
bytes per character). So long strings are lifted out first; what is left is small and goes through
the strict parser; the lifted ones are decoded piece by piece.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.arrays import Int64s, binary_over, bytes_of, no_text, sizes_of, text_of_strings, text_over
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes
from tokenlake.sources.lines import BOM, Block, LineIndex, LongLine, index_lines, read_blocks
from tokenlake.sources.rows import Fault, Record, Rows, count_members, is_too_wide, too_long
from tokenlake.sources.where import Predicate

MISSING: Final = object()
"""What :func:`follow` returns where a path leads nowhere."""


def keys_of(record: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the keys that `path` stands for in `record`.

    A field that bears the whole path as its name comes first: ``a.b`` is the field "a.b" where there
    is one, else the field "b" of the object in "a".
    """
    return (path,) if path in record else tuple(path.split("."))


def follow(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return what lies at `keys`, MISSING where a key is missing or its holder is no object."""
    value: Any = record
    for key in keys:
        if not isinstance(value, Mapping):
            return MISSING
        value = cast("Mapping[str, Any]", value).get(key, MISSING)
    return value


MAX_DEPTH: Final = 1024  # orjson's limit: what is nested deeper is a bad record
_SHOWN: Final = 120  # characters of a foreign message or value in ours
_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})
_KINDS: Final[dict[type[Any], str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN: Final = re.compile(_STRING + rb'|[\[\]{}]|[^"\[\]{}]++', re.DOTALL)
STRING_OR_NUMBER: Final = re.compile(
    _STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?", re.DOTALL
)


class Member(NamedTuple):
    """One ``"key": value`` of a record.

    Attributes:
        path: the keys from the record down to this one, None for every array on the way. It changes as
            the next member is looked for.
        repeats: whether the same object has given the key before.
        value: offset at which the value begins.
    """

    path: list[str | None]
    repeats: bool
    value: int


def parse_line(line: bytes, field: str) -> str | Fault:
    """Return the text in `field` of the JSON object `line` (no newline), or what is wrong with it."""
    record = load_object(line)
    return record if isinstance(record, Fault) else text_of(record, line, field)


def load_object(line: bytes) -> dict[str, Any] | Fault:
    """Parse `line` as one JSON object."""
    try:
        record = _loads(line)
    except orjson.JSONDecodeError as error:
        return syntax_fault(line, error)
    if isinstance(record, dict):
        return cast("dict[str, Any]", record)
    return Fault("not_an_object", f"the record is a JSON {_kind(record)}, expected an object")


def text_of(record: dict[str, Any], line: bytes, field: str) -> str | Fault:
    """Return the string in `field` (a dotted path) of `record`, which was parsed from `line`."""
    keys = keys_of(record, field)
    if keys[0] in record and _may_repeat(line, keys) and _is_repeated(line, keys):
        return Fault("duplicate_key", f"the field {field!r} is given more than once")
    text = follow(record, keys)
    if isinstance(text, str):
        return text
    if text is MISSING:
        names = ", ".join(map(repr, sorted(record)[:12]))[:_SHOWN]
        return Fault("missing_field", f"there is no field {field!r}; the record has {names or 'no fields'}")
    if text is None:
        return Fault("null_text", f"the field {field!r} is null, expected a string")
    return Fault("not_a_string", f"the field {field!r} holds a JSON {_kind(text)}, expected a string")


def members(line: bytes) -> Iterator[Member]:
    """Yield every member of every object in the valid JSON `line`, repeated ones too."""
    path: list[str | None] = []
    seen: list[set[str]] = []
    name = b""
    for token in _TOKEN.finditer(line):
        first = token[0][:1]
        if first in b"{[":
            path.append(None)
            seen.append(set())
        elif first in b"}]":
            path.pop()
            seen.pop()
        elif first == b'"':
            name = token[0]
        elif (colon := token[0].find(b":")) >= 0 and not token[0][:colon].strip():
            key: str = orjson.loads(name)
            path[-1] = key
            yield Member(path, key in seen[-1], token.end() - len(token[0][colon + 1 :].lstrip()))
            seen[-1].add(key)


def syntax_fault(line: bytes, error: orjson.JSONDecodeError) -> Fault:
    """Name the reason for which orjson refused `line`."""
    message = str(error)[:_SHOWN]
    try:
        str(line, "utf-8")
    except UnicodeDecodeError as unicode_error:
        return Fault("invalid_utf8", f"byte {unicode_error.start} of the record is not UTF-8")
    if "depth limit" in message or "recursion limit" in message:
        return Fault("too_deep", f"values are nested more than {MAX_DEPTH} levels deep")
    if "surrogate" in message:
        return Fault(
            "lone_surrogate", f"half a surrogate pair stands alone, which is no character: {message}"
        )
    return Fault("invalid_json", f"not a JSON object: {message}")


def at_the_end(fault: Fault) -> Fault:
    """Return the fault of the last line of a file without a newline: if it is broken, it was cut."""
    if fault.reason not in _CUT:
        return fault
    return Fault("truncated_line", f"the file ends in the middle of a record ({fault.detail})")


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        return orjson.loads(STRING_OR_NUMBER.sub(_tame, line))


def _tame(token: re.Match[bytes]) -> bytes:
    # A number beyond a double's range is valid JSON and nothing to us. `0e0` cannot be extended to
    # another number by what follows, so nothing malformed becomes valid.
    return token[0] if token[0].startswith(b'"') else b"0e0"


def _may_repeat(line: bytes, keys: tuple[str, ...]) -> bool:
    # Letters, digits and underscores have one other spelling in a key, \\u00XX.
    escape = b"\\u00" if all(key.isascii() and key.isidentifier() for key in keys) else b"\\"
    return escape in line or any(line.count(orjson.dumps(key)) != 1 for key in keys)


def _is_repeated(line: bytes, keys: tuple[str, ...]) -> bool:
    """Say whether the member that `keys` lead to, or one on the way, is given more than once."""
    wanted = [list(keys[: depth + 1]) for depth in range(len(keys))]
    return any(member.repeats and member.path in wanted for member in members(line))


def _kind(value: object) -> str:
    return _KINDS[type(value)]


PIECE_BYTES: Final = 2 << 20
"""Of records that become Python objects together: these can take 25 times as much."""
_PIECE_RECORDS: Final = 1 << 15  # a bad one of two bytes takes 500
_T = TypeVar("_T")


def _none() -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Consecutive records of a block.

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
    normalized: dict[str, int] = field(default_factory=_none)

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def pieces(self) -> Iterator[Spans]:
        """Yield the records in pieces that are small enough to become Python objects."""
        at, size = 0, len(self)
        while at < size:
            end = int(np.searchsorted(self.stops, self.starts[at] + PIECE_BYTES, side="right"))
            end = min(max(end, at + 1), at + _PIECE_RECORDS)
            yield self.part(at, end)
            at = end
        if not size:
            yield self

    def halves(self) -> tuple[Spans, Spans]:
        """Return the first and the second half of at least two records."""
        return self.part(0, len(self) // 2), self.part(len(self) // 2, len(self))

    def part(self, start: int, stop: int) -> Spans:
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

    def each(self) -> pa.LargeBinaryArray:
        """Return every record as a byte string, with what stands before the next."""
        edges = np.append(self.starts, self.stops[-1:] if len(self) else 0)
        return binary_over(edges, pa.py_buffer(self.data))

    def judged(
        self, judge: Callable[[int, bytes], _T | Fault]
    ) -> tuple[list[_T], list[int], tuple[BadLine, ...]]:
        """Return what `judge` makes of (index, bytes) of the records, the indices of these, and bad ones."""
        good: list[_T] = []
        indices: list[int] = []
        bad: list[BadLine] = []
        for index, (start, stop) in enumerate(zip(self.starts.tolist(), self.stops.tolist(), strict=True)):
            found = judge(index, self.data[start:stop])
            if isinstance(found, Fault):
                bad.append(self.bad(index, found))
            else:
                good.append(found)
                indices.append(index)
        return good, indices, tuple(bad)

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return record `index` as one that has `fault`."""
        if self.open_end and index == len(self) - 1:
            fault = at_the_end(fault)
        start, stop = int(self.starts[index]), int(self.stops[index])
        number = None if self.numbers is None else int(self.numbers[index])
        return BadLine(
            int(self.positions[index]), number, fault, self.data[start : min(stop, start + RAW_LIMIT)]
        )

    def parsed(self, indices: list[int] | slice, bad: tuple[BadLine, ...], **found: Any) -> Parsed:
        """Return what was found in the records `indices`, in order, with the account of all of them."""
        return Parsed(
            positions=self.positions[indices],
            bad=bad,
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            **found,
        )


_LONG: Final = 2048  # bytes of a record from which on its text is worth leaving out of a scan
_GROUPS: Final = 512  # of records that are scanned together
_SHORT_SCALAR: Final = 32  # characters of nearly every number or boolean that was made a string
_LONGEST_NUMBER: Final = 400  # of any: 1e-308 has all its zeros written out
_COMPUTE: Final[Any] = pc
_LOWER: Final = np.frombuffer(bytes(byte in b"-0123456789tf" for byte in range(256)), np.bool_)
_NUMERIC: Final = np.frombuffer(bytes(byte in b"-0123456789" for byte in range(256)), np.bool_)
# Half of a pair, or a letter or digit of a key, written as an escape.
_HALF: Final = r"\\u[dD][89abAB]"
_LETTER: Final = r"\\u00[2-7]"


def fast_texts(spans: Spans, lines: bytes, field: str, max_record_bytes: int) -> pa.LargeStringArray | None:
    """Return the texts of all records, or None if they must be judged one by one.

    Args:
        spans: the records.
        lines: the same records, each on its line, with anything blank between them.
        field: name of the top-level field that holds the text.
    """
    if not len(spans):
        return no_text()
    sizes = spans.stops - spans.starts
    if sizes.max() > max_record_bytes:
        return None
    text = _column(lines, field)
    if text is None or text.null_count or len(text) != len(spans):
        return None
    doubtful = np.union1d(_maybe_no_string(text), _maybe_altered(spans, text, field))
    return text if all(_agrees(spans, text, index, field) for index in doubtful.tolist()) else None


def is_plain(spans: Spans, field: str) -> bool:
    """Say whether `field` names a top-level field, as far as the first record can tell."""
    if "." not in field or not len(spans):
        return True
    record = load_object(spans.data[int(spans.starts[0]) : int(spans.stops[0])])
    return isinstance(record, dict) and field in record


def _column(lines: bytes, field: str) -> pa.LargeStringArray | None:
    try:
        frame = pl.read_ndjson(lines, schema={field: pl.String})
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    text: Any = frame.to_series().to_arrow(compat_level=pl.CompatLevel.oldest())
    return text if not text.offset else pa.concat_arrays([text])


def _agrees(spans: Spans, text: pa.LargeStringArray, index: int, field: str) -> bool:
    line = spans.data[int(spans.starts[index]) : int(spans.stops[index])]
    return parse_line(line, field) == text[index].as_py()


def _maybe_no_string(text: pa.LargeStringArray) -> Int64s:
    """Return which texts look like a number, boolean, array or object, or hold a NUL."""
    data, sizes = bytes_of(text), sizes_of(text)
    ends = np.cumsum(sizes)
    full = np.flatnonzero(sizes)
    first, last = data[ends[full] - sizes[full]], data[ends[full] - 1]
    scalar = _LOWER[first] & (sizes[full] <= _SHORT_SCALAR)
    scalar |= _NUMERIC[first] & _NUMERIC[last] & (sizes[full] <= _LONGEST_NUMBER)
    nested = ((first == ord("[")) & (last == ord("]"))) | ((first == ord("{")) & (last == ord("}")))
    found = full[scalar | nested]
    if data.size and not data.min():
        found = np.append(found, np.searchsorted(ends, np.flatnonzero(data == 0), side="right"))
    return found


def _maybe_altered(spans: Spans, text: pa.LargeStringArray, field: str) -> Int64s:
    """Return which records may repeat the key or hold half a surrogate pair outside their text."""
    parts = _beside(spans, sizes_of(text))
    key = re.escape(orjson.dumps(field).decode()) + "[ \t\r\n]*:"
    # Most keys have one other spelling for every character, \u00XX.
    plain = field.isascii() and orjson.dumps(field) == f'"{field}"'.encode() and "/" not in field
    odd = f"{_HALF}|{_LETTER}" if plain else r"\\"
    groups, firsts = _groups(parts)
    heads = np.append(firsts, len(spans))
    found = [np.zeros(0, np.int64)]
    for group in np.flatnonzero(_suspicious(groups, key, odd, np.diff(heads))).tolist():
        first, after = int(heads[group]), int(heads[group + 1])
        part = parts.slice(first, after - first)
        found.append(first + np.flatnonzero(_suspicious(part, key, odd, np.ones(after - first, np.int64))))
    return np.concatenate(found)


def _suspicious(parts: pa.LargeBinaryArray, key: str, odd: str, records: Int64s) -> npt.NDArray[np.bool_]:
    """Return which parts have another number of keys than `records`, or anything odd."""
    counts = _COMPUTE.count_substring_regex(parts, key).to_numpy(zero_copy_only=False)
    return (counts != records) | _COMPUTE.match_substring_regex(parts, odd).to_numpy(zero_copy_only=False)


def _beside(spans: Spans, sizes: Int64s) -> pa.LargeBinaryArray:
    """Return the bytes of every record among which all are that do not belong to its text.

    A text of `size` bytes fills at least so many of the record's `whole`. So it begins at ``whole - size``
    or before, and ends at `size` or after: what lies between these two is text, where that is anything.
    """
    if not len(spans) or (spans.stops[-1] - spans.starts[0]) // len(spans) < _LONG:
        return spans.each()
    beside = spans.stops - spans.starts - sizes
    data = memoryview(spans.data)
    parts: list[memoryview] = []
    for start, stop, size in zip(spans.starts.tolist(), spans.stops.tolist(), beside.tolist(), strict=True):
        middle = min(start + size, stop)
        parts += [data[start:middle], data[max(stop - size, middle) : stop]]
    ends = np.cumsum([0, *map(len, parts)])
    return binary_over(ends[::2].copy(), pa.py_buffer(b"".join(parts)))


def _groups(parts: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Int64s]:
    """Return neighbours as one string, and the first of each: a short one costs more than its bytes."""
    _, offsets, data = cast("list[Any]", parts.buffers())
    firsts = np.arange(0, len(parts), max(1, len(parts) // _GROUPS))
    edges = np.frombuffer(offsets, np.int64, len(parts) + 1)
    return binary_over(np.append(edges[firsts], edges[-1]), data), firsts


def read_texts_of(spans: Spans, field: str, max_record_bytes: int) -> Iterator[Parsed]:
    """Read records strictly, one by one, for their texts alone."""

    def judge(index: int, line: bytes) -> str | Fault:
        if len(line) > max_record_bytes:
            return too_long(len(line), max_record_bytes)
        return parse_line(line, field)

    for piece in spans.pieces():
        texts, good, bad = piece.judged(judge)
        yield piece.parsed(good, bad, text=text_of_strings(texts))


# What only large numbers, and some strings, hold: 2 ** 63 has 19 digits, 1e308 an exponent of three.
_LARGE: Final = "[0-9]{19}|[eE][+]?[0-9]{3}"
_LARGE_BYTES: Final = re.compile(_LARGE.encode())
# What every member holds once; a string may, too, behind an escaped quote.
_KEY_END_BYTES: Final = re.compile(rb'"[ \t\r\n]*:')
# The same where nothing stands between them, which is how nearly everybody writes JSON.
_CLOSE_KEY_END: Final = '":'
_SPACED_KEY_END: Final = '"[ \t\r\n]+:'
_ESCAPED_KEY_END: Final = r"\\u00[23]"
_RowsCOMPUTE: Final[Any] = pc
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20

Judged = tuple[Record, str | Fault | None]
"""A record, and its text or why it has none; None where no text is wanted."""


def read_rows_of(spans: Spans, want: Want) -> Iterator[Parsed]:
    """Read records as objects and columns, in pieces; the text beside them if it is wanted."""
    for piece in spans.pieces():
        yield from _rows_of(piece, want)


def _rows_of(spans: Spans, want: Want) -> Iterator[Parsed]:
    ends, odd = _doubts(spans)

    def judge(index: int, line: bytes) -> Judged | Fault:
        record = None if odd[index] else _quickly(line, ends[index], want.max_record_bytes)
        if record is None:
            return judge_row(line, want)
        return record, None if want.text is None else text_of(record, line, want.text)

    found, indices, bad = spans.judged(judge)
    if len(found) > 1 and is_too_wide([record for record, _ in found], want.columns):
        del found
        for half in spans.halves():
            yield from _rows_of(half, want)
    else:
        yield parsed_rows(spans, found, indices, bad, want)


def parsed_rows(
    spans: Spans, found: list[Judged], indices: list[int], bad: tuple[BadLine, ...], want: Want
) -> Parsed:
    """Return what was found in the records `indices` of `spans`, as columns and as objects."""
    records = [record for record, _ in found]
    texts, doubtful = _texts(spans, indices, [text for _, text in found])
    return spans.parsed(
        indices,
        bad,
        text=None if want.text is None else texts,
        rows=Rows(objects=records, names=want.columns) if want.columns != () else None,
        doubtful=doubtful,
        as_bad=spans.bad_at,
    )


def judge_row(line: bytes, want: Want) -> Judged | Fault:
    """Return the record on `line` and its text, or what makes it unusable as a record."""
    if len(line) > want.max_record_bytes:
        return too_long(len(line), want.max_record_bytes)
    record = load_object(line)
    if isinstance(record, Fault):
        return record
    fault = _repeated(line, want) if _rows_may_repeat(line, record) else None
    fault = fault or (_too_large(line, want) if _LARGE_BYTES.search(line) else None)
    if fault:
        return fault
    return record, None if want.text is None else text_of(record, line, want.text)


def _quickly(line: bytes, key_ends: int, max_record_bytes: int) -> Record | None:
    """Return the record of a line that is not odd, if it surely holds every member of it; None: look closer.

    Written out again it has as many ends of keys then: a repeated key would be there once.
    """
    if len(line) > max_record_bytes:
        return None
    try:
        record = orjson.loads(line)
        if type(record) is dict and key_ends == orjson.dumps(record).count(b'":'):
            return cast("Record", record)
    except (ValueError, TypeError):  # orjson's own: no JSON, or nested deeper than it writes
        pass
    return None


def _rows_may_repeat(line: bytes, record: Record) -> bool:
    return sum(1 for _ in _KEY_END_BYTES.finditer(line)) != count_members(record)


def _doubts(spans: Spans) -> tuple[list[int], list[bool]]:
    """Return how often a quote and a colon stand together in each record, and whether it is odd.

    That is: has it perhaps a large number, a blank between quote and colon, or one of the two as an escape?
    """
    each = spans.each()
    ends = _RowsCOMPUTE.count_substring(each, _CLOSE_KEY_END)
    odd = _RowsCOMPUTE.match_substring_regex(each, f"{_LARGE}|{_SPACED_KEY_END}|{_ESCAPED_KEY_END}")
    return ends.to_pylist(), odd.to_pylist()


def _texts(
    spans: Spans, indices: list[int], found: list[str | Fault | None]
) -> tuple[pa.LargeStringArray, tuple[BadLine, ...]]:
    arrow: Any = pa
    faulty = [isinstance(text, Fault) for text in found]
    array = arrow.array(
        [None if bad else text for text, bad in zip(found, faulty, strict=True)], pa.large_string()
    )
    doubtful = [
        spans.bad(index, text)
        for index, text in zip(compress(indices, faulty), compress(found, faulty), strict=True)
        if isinstance(text, Fault)
    ]
    return array, tuple(doubtful)


def _wanted(want: Want, name: str | None) -> bool:
    return want.columns is None or name in want.columns


def _repeated(line: bytes, want: Want) -> Fault | None:
    for member in members(line):
        if member.repeats and _wanted(want, member.path[0]):
            name = ".".join(key for key in member.path if key is not None)
            return Fault("duplicate_key", f"the field {name!r} is given more than once")
    return None


def _too_large(line: bytes, want: Want) -> Fault | None:
    fields = [(member.value, member.path[0]) for member in members(line) if len(member.path) == 1]
    starts = [start for start, _ in fields]
    for token in STRING_OR_NUMBER.finditer(line):
        if token[0].startswith(b'"') or _is_held(token[0]):
            continue
        name = fields[bisect_right(starts, token.start()) - 1][1]
        if _wanted(want, name):
            shown = token[0][:40].decode() + ("..." if len(token[0]) > 40 else "")
            return Fault(
                "number_too_large",
                f"the field {name!r} holds {shown}, which neither 64 bits nor a double can hold",
            )
    return None


def _is_held(number: bytes) -> bool:
    """Say whether a JSON number is an integer of 64 bits, or another number in a double's range."""
    if number.strip(b"-0123456789"):
        return isfinite(float(number))
    return len(number) <= _UINT64_DIGITS and _INT64_MIN <= int(number) <= _UINT64_MAX


_LONG_STRING: Final = 64 << 10  # longer ones are lifted out
_PIECE: Final = 1 << 20
_MAX_SKELETON: Final = 16 << 20  # bytes beside long strings; parsed, they can take 25 times as much
_LONGEST_UNIT: Final = 12  # bytes of the longest thing a piece must not be cut in: a surrogate pair


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line into a batch of one record, or of none if it is blank or bad."""
    start, stop, crlf, cut = _content(line)
    spans = Spans(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        numbers=np.zeros(1, np.int64),
        lines=1,
        open_end=cut,
        normalized={"bom": int(start > 0), "crlf": crlf, "blank_line": 0},
        bytes_read=line.bytes_read,
    )
    if stop - start > want.max_record_bytes or line.data is None:
        found = too_long(stop - start, want.max_record_bytes)
    elif want.text is not None and want.columns == ():
        found = parse_text(line.data, start, stop, want.text)
    else:
        found = parse_row(line.data, start, stop, want)
    return _parsed(spans, want, found)


def _parsed(spans: Spans, want: Want, found: bytes | bytearray | Judged | Fault | None) -> Parsed:
    """Return the account of the one record of `spans`, in which `found` was found."""
    if isinstance(found, bytes | bytearray):
        return spans.parsed([0], (), text=text_over(np.array([0, len(found)]), pa.py_buffer(found)))
    if found is None:
        spans = replace(spans, normalized={**spans.normalized, "blank_line": 1})
    rows = [found] if isinstance(found, tuple) else []
    bad = (spans.bad(0, found),) if isinstance(found, Fault) else ()
    return parsed_rows(spans, rows, [0] * len(rows), bad, want)


def _content(line: LongLine) -> tuple[int, int, int, bool]:
    """Return (start, stop) of the content, whether it ends in CRLF, and whether it has no end of line."""
    start = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    if line.data is None:
        return start, line.size, 0, False
    if not line.data.endswith(b"\n"):
        return start, line.size, 0, True
    crlf = int(line.data.endswith(b"\r\n"))
    return start, line.size - 1 - crlf, crlf, False


def parse_text(data: bytearray, start: int, stop: int, field: str) -> bytes | bytearray | Fault | None:
    """Return the text as UTF-8, the record's fault, or None if there is nothing but space."""
    # Longer than the field's name, so that a lifted key is never taken for it.
    placeholder = b'"' + b"x" * (len(field) + 1) + b'"'
    skeleton, lifted = _lift(data, start, stop, placeholder)
    if len(skeleton) > _MAX_SKELETON:
        return _too_complex(skeleton)
    if not skeleton.strip(b" \t\r"):
        return None
    record = load_object(skeleton)
    if isinstance(record, Fault):
        return record
    keys = list(keys_of(record, field))
    wanted = [member.value for member in members(skeleton) if member.path == keys]
    text: bytes | bytearray | None = None
    for at, (a, b) in lifted.items():
        decoded = _decode(data, a, b, keep=at in wanted)
        if isinstance(decoded, Fault):
            return decoded
        text = decoded if at in wanted else text
    found = text_of(record, skeleton, field)
    return found if isinstance(found, Fault) else text if text is not None else found.encode()


def parse_row(data: bytearray, start: int, stop: int, want: Want) -> Judged | Fault | None:
    """Return the whole record, its fault, or None if there is nothing but space."""
    skeleton, _ = _lift(data, start, stop, b'""')
    if len(skeleton) > _MAX_SKELETON:
        return _too_complex(skeleton)
    return judge_row(bytes(data[start:stop]), want) if skeleton.strip(b" \t\r") else None


def _too_complex(skeleton: bytes) -> Fault:
    return Fault(
        "too_complex", f"the record has {len(skeleton)} bytes beside long strings, at most {_MAX_SKELETON}"
    )


def _lift(
    data: bytearray, start: int, stop: int, placeholder: bytes
) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Replace long strings; return what is left and {offset there: (start, stop) of a string's inside}."""
    skeleton = bytearray()
    lifted: dict[int, tuple[int, int]] = {}
    at = start
    while at < stop and len(skeleton) <= _MAX_SKELETON:
        quote = data.find(b'"', at, stop)
        if quote < 0:
            skeleton += data[at : min(stop, at + _MAX_SKELETON + 1)]
            break
        skeleton += data[at : min(quote, at + _MAX_SKELETON + 1)]
        at = _string_end(data, quote + 1, stop)
        if not at:  # never closed: not JSON, whatever follows
            skeleton += b'"'
            break
        if at - quote > _LONG_STRING:
            lifted[len(skeleton)] = (quote + 1, at - 1)
            skeleton += placeholder
        else:
            skeleton += data[quote:at]
    return bytes(skeleton), lifted


def _string_end(data: bytearray, start: int, stop: int) -> int:
    """Return where the string whose inside begins at `start` ends, after its quote; 0 if it does not."""
    at = start
    while (at := data.find(b'"', at, stop)) >= 0:
        back = at
        while data[back - 1] == ord("\\"):
            back -= 1
        at += 1
        if (at - back) % 2:
            return at
    return 0


def _decode(data: bytearray, start: int, stop: int, *, keep: bool) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8 piece by piece; validate only, if not `keep`."""
    text = bytearray()
    at = start
    while at < stop:
        size, decoded = _piece(data, at, stop)
        if isinstance(decoded, Fault):
            return decoded
        if keep:
            text += decoded
        at += size
    return text


def _piece(data: bytearray, at: int, stop: int) -> tuple[int, bytes | Fault]:
    """Decode one piece; return its length in the line and its text or fault.

    A piece that ends inside a character or an escape is not a valid JSON string, and one that ends
    between them is: so the end moves back until the piece is valid.
    """
    end = min(at + _PIECE, stop)
    fault: Fault | None = None
    for back in range(1 if end == stop else min(_LONGEST_UNIT, end - at)):
        piece = b'"' + data[at : end - back] + b'"'
        try:
            return end - back - at, orjson.loads(piece).encode()
        except orjson.JSONDecodeError as error:
            fault = fault or syntax_fault(piece, error)
    return 0, fault or Fault("invalid_json", "an empty piece of a string")


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
