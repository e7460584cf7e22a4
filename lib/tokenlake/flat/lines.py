"""Rows as lines of JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from tokenlake.errors import BadRecordError
from tokenlake.flat.listtypes import is_list

_ARROW: Final[Any] = pa
LINES: Final = pa.schema([pa.field("line", pa.large_binary(), metadata={"tokenlake": "a line of JSON"})])
"""Schema of batches that hold finished lines, ends of line included."""

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME


def lines_of(rows: Iterable[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows (dicts), the first of them number `first`, as a batch of :data:`LINES`.

    Raises:
        BadRecordError: JSON has no such value; it would read back as another one.
    """
    lines = [_line(row, first + place) for place, row in enumerate(rows)]
    return _ARROW.RecordBatch.from_arrays([_ARROW.array(lines, pa.large_binary())], schema=LINES)


def text_of(batch: pa.RecordBatch) -> bytes:
    """Return the lines of a batch, of :data:`LINES` or of columns."""
    if batch.schema.equals(LINES, check_metadata=True):
        lines: Any = batch.column(0)
        return b"".join(lines.to_pylist())
    return b"".join(_line(row, place) for place, row in enumerate(_rows(batch)))


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows; lists of integers stay arrays, so that there is no Python object for each number."""
    names: Sequence[str] = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True) if columns else ((),) * len(batch):
        yield dict(zip(names, values, strict=True))


def _values(column: Any) -> Iterable[Any]:
    kind = column.type
    integers = is_list(kind) and _ARROW.types.is_integer(kind.value_type)
    if integers and not column.null_count and not column.flatten().null_count:
        return (value.values.to_numpy() for value in column)
    return column.to_pylist()


def _line(row: Any, number: int) -> bytes:
    if not isinstance(row, dict):
        raise BadRecordError(f"row {number}: got {type(row).__name__}, expected a dict", row=number)
    try:
        line = orjson.dumps(row, option=_OPTIONS)
    except TypeError as error:
        raise BadRecordError(f"row {number}: JSON cannot hold it: {error}", row=number) from error
    if (
        b"null" in line and (field := _nan_in(row)) is not None
    ):  # orjson writes null for what JSON has no number for
        raise BadRecordError(
            f"row {number}, field {field!r}: NaN and infinities are no JSON", row=number, field=field
        )
    return line


def _nan_in(row: dict[str, Any]) -> str | None:
    return next((str(name) for name, value in row.items() if _has_nan(value)), None)


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    if hasattr(value, "dtype"):
        return value.dtype.kind == "f" and not bool((value - value == 0).all())
    return isinstance(value, float) and not math.isfinite(value)
