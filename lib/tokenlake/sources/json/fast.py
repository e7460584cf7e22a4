"""The texts of many JSON records at once, or nothing where anything is odd.

Polars parses the records with simd-json and keeps the text column alone. It is as strict as
:mod:`tokenlake.sources.json.strict` (UTF-8, numbers, depth, one object on a line) but for four things:

- what is no string becomes one: ``1``, ``true``, ``[...]``, ``{...}``;
- of a repeated key the first value is taken;
- half a surrogate pair before anything but ``\\u`` becomes U+0000;
- a missing field is null.

Each is looked for, in the texts or with a scan of several GB/s over the bytes beside them, and the few
records that may hold one go to the strict reader. Where that finds no fault, both give the same texts.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.sources.arrays import Int64s, binary_over, bytes_of, no_text, sizes_of
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.strict import load_object, parse_line

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
