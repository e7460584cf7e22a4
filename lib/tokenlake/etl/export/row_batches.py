"""Python rows as Arrow batches, or as lines of JSON where they share no schema.

The first rows decide the schema. Values for which JSON has no type have the text forms of
:mod:`tokenlake.base.json_text`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.base.columns import JSON
from tokenlake.base.json_text import dump_json, json_values, text_form
from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.rows import Row, column_of, names_in
from tokenlake.runtime.column_types import arrow_type, column_type, is_list

_ARROW: Final[Any] = pa
_UNFIT: Final = (pa.ArrowInvalid, TypeError, ValueError, OverflowError)
_FAMILIES: Final = (
    ("integer", "floating"),
    ("string", "large_string"),
    ("binary", "large_binary", "fixed_size_binary"),
    ("temporal",),
    ("decimal",),
)
"""Types of which a value of one may be a value of another."""
_JSON_OPTIONS: Final = (
    orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME
)

LINES: Final = pa.schema([pa.field("line", pa.large_binary(), metadata={"tokenlake": "a line of JSON"})])
"""Schema of batches that hold finished lines, ends of line included."""


@final
class RowsToArrow:
    """Makes batches of rows.

    A column has the type of its values in the first batch, of those in :mod:`tokenlake.runtime.schema`;
    values of several kinds are an error. Later values must be of that type, or become it exactly (1 and
    1.0). NumPy arrays are lists of their own kind of number, and dates, bytes and decimals what Arrow has for them.

    Args:
        schema: None to let the first batch decide.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        self._rows = 0

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return the next rows as a batch; a key that a row lacks is null.

        Raises:
            BadRecordError: a value does not fit, or a row has a field that the first ones did not; names row and field.
        """
        for place, row in enumerate(rows):
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(place, "", f"got {type(row).__name__}, expected a dict")
        names = names_in(rows)
        if self.schema is None:
            arrays = [self._column(rows, name, None) for name in names]
            fields = [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            self.schema = _ARROW.schema(fields)
        else:
            if new := [name for name in names if name not in self.schema.names]:
                place = next(index for index, row in enumerate(rows) if new[0] in row)
                why = "the first rows had no such field; give a schema, or the same fields to all"
                raise self._error(place, new[0], why)
            arrays = [self._column(rows, field.name, field.type) for field in self.schema]
        self._rows += len(rows)
        if not arrays:  # a batch without columns has no length of its own
            return _ARROW.RecordBatch.from_struct_array(_ARROW.array([{}] * len(rows), pa.struct([])))
        return _ARROW.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, rows: Sequence[Row], name: str, kind: Any) -> Any:
        """Return a field as an array of the type `kind`, None for that of its values."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(0, str(name), "names of fields must be text")
        values = [row.get(name) for row in rows]
        try:
            return _array(values, kind)
        except _UNFIT as error:
            place = _culprit(values, kind)
            text = repr(values[place])
            why = "cannot stand in a column with the values before it"
            if kind is not None:
                hint = "; the first rows held nothing but null there, so give a schema"
                why = f"is no {kind}, which the first rows decided{hint if kind == pa.null() else ''}"
            shown = f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(values[place]).__name__})"
            raise self._error(place, name, f"{shown} {why}", error) from error

    def _error(self, place: int, name: str, why: str, cause: Exception | None = None) -> BadRecordError:
        row, because = self._rows + place, f" ({cause})" if cause is not None and str(cause) else ""
        told = f"row {row}{f', field {name!r}' if name else ''}: {why}{because}"
        return BadRecordError(told, row=row, field=name, reason="type_mismatch")


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an array of the type `kind`, None for their own; what would become another value is an error."""
    array = _joined(values)
    if array is None:
        array = _arrow_array(values)
        # As Arrow sees them, with two of its liberties taken away: True is no 1.0, and bytes are no text.
        suspect = any(word in str(array.type) for word in ("float", "double", "binary"))
        if suspect and (mixed := _mixed_kinds(array.type, values)):
            raise TypeError(f"values of {', '.join(sorted(each.__name__ for each in mixed))}")
        if kind is None and (own := column_type(array.type)) != JSON:
            return array.cast(arrow_type(own))
    if kind is None or array.type == kind:
        return array
    if not _becomes(array.type, kind):
        raise TypeError(f"values of {array.type}")
    array = array.cast(kind)
    if is_list(kind) and not kind.value_field.nullable and array.flatten().null_count:
        raise TypeError("null inside a list that may hold none")
    return array


def _arrow_array(values: Sequence[Any]) -> Any:
    """Return values as an array of the type that Arrow gives them; larger integers than its own are decimals."""
    try:
        return _ARROW.array(values)
    except OverflowError:
        array = column_of(values)
        if pa.types.is_large_string(array.type):  # JSON text: no type holds all of them
            raise
        return array


def _mixed_kinds(kind: Any, values: Iterable[Any]) -> set[type[Any]]:
    """Return the kinds of values at one place of a type, where Arrow would take some for others; else none."""
    there = [value for value in values if value is not None and not isinstance(value, np.ndarray)]
    if is_list(kind):
        return _mixed_kinds(kind.value_type, chain.from_iterable(there))
    if _ARROW.types.is_struct(kind):
        found = (_mixed_kinds(child.type, [value.get(child.name) for value in there]) for child in kind)
        return next(filter(None, found), set())
    kinds = set(map(type, there))
    return kinds if {bool, float} <= kinds or {bytes, str} <= kinds else set()


def _becomes(kind: Any, wanted: Any) -> bool:
    """Whether values of one type may become another's by a cast that checks every value."""
    types = _ARROW.types
    if kind == wanted or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(wanted):
        names = {child.name: child.type for child in wanted}
        return all(child.name in names and _becomes(child.type, names[child.name]) for child in kind)
    if is_list(kind) and is_list(wanted):
        return _becomes(kind.value_type, wanted.value_type)
    if types.is_dictionary(wanted):
        return _becomes(kind, wanted.value_type)
    if types.is_decimal(wanted) and types.is_integer(kind):
        return True
    return any(_is_a(kind, family) and _is_a(wanted, family) for family in _FAMILIES)


def _is_a(kind: Any, names: tuple[str, ...]) -> bool:
    return any(getattr(_ARROW.types, f"is_{name}")(kind) for name in names)


def _joined(values: Sequence[Any]) -> Any:
    """Return arrays of one dimension and kind as one list array, None where they are anything else."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.ndim == 1]
    if len(arrays) < len(values) or not arrays or len({array.dtype for array in arrays}) > 1:
        return None
    lengths = np.array([len(array) for array in arrays], np.int64)
    if lengths.sum() > np.iinfo(np.int32).max:
        return None
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    inner = _ARROW.array(np.concatenate(arrays))
    kind = pa.list_(pa.field("item", inner.type, nullable=False))
    return _ARROW.ListArray.from_arrays(_ARROW.array(offsets), inner, type=kind)


def _culprit(values: Sequence[Any], kind: Any) -> int:
    """Return the place of the first value that is not of a type, or (None) that fits none before it."""

    def is_unfit(place: int) -> bool:
        try:
            _array(values[: place + 1] if kind is None else [values[place]], kind)
        except _UNFIT:
            return True
        return False

    if kind is None:  # from the culprit on nothing fits
        return bisect_left(range(len(values) - 1), True, key=is_unfit)
    return next(filter(is_unfit, range(len(values))), 0)


def lines_of(rows: Iterable[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows (dicts), the first of them number `first`, as a batch of :data:`LINES`.

    Raises:
        BadRecordError: JSON has no form for a value; names the row and, for NaN and infinities, the field.
    """
    lines = [_line(row, first + place) for place, row in enumerate(rows)]
    return _ARROW.RecordBatch.from_arrays([_ARROW.array(lines, pa.large_binary())], schema=LINES)


def text_of(batch: pa.RecordBatch) -> bytes:
    """Return the lines of a batch, of :data:`LINES` or of columns; NaN and infinities in columns become null."""
    if batch.schema.equals(LINES, check_metadata=True):
        lines: Any = batch.column(0)
        return b"".join(lines.to_pylist())
    columns: list[Iterable[Any]] = []
    for column in list[Any](batch.columns):
        kind = column.type
        integers = is_list(kind) and _ARROW.types.is_integer(kind.value_type)
        if integers and not column.null_count and not column.flatten().null_count:
            # They stay arrays, so that there is no Python object for each number.
            columns.append(value.values.to_numpy() for value in column)
        else:
            columns.append(json_values(column))
    rows = zip(*columns, strict=True) if columns else ((),) * len(batch)
    names: Sequence[str] = batch.schema.names
    return b"".join(dump_json(dict(zip(names, row, strict=True)), option=_JSON_OPTIONS) for row in rows)


def refuse_non_finite(rows: Iterable[Row], first: int) -> None:
    """Raise BadRecordError where a row, the first of them number `first`, holds NaN or an infinity."""
    for number, row in enumerate(rows, first):
        for name, value in row.items():
            if _has_nan(value):
                raise _non_finite(number, name)


def _non_finite(row: int, field: object) -> BadRecordError:
    told = (
        f"row {row}, field {str(field)!r}: NaN and infinities are no JSON; write None in their place, or format "
        "'parquet' or 'arrow'"
    )
    return BadRecordError(told, row=row, field=str(field))


def _line(row: Any, number: int) -> bytes:
    if not isinstance(row, dict):
        raise BadRecordError(f"row {number}: got {type(row).__name__}, expected a dict", row=number)
    try:
        line = dump_json(row, text_form, _JSON_OPTIONS)
    except TypeError as error:
        why = error.__cause__ or error
        raise BadRecordError(f"row {number}: JSON cannot hold it: {why}", row=number) from error
    # orjson writes null for what JSON has no number for.
    if b"null" in line and (odd := [name for name, value in row.items() if _has_nan(value)]):
        raise _non_finite(number, odd[0])
    return line


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    if hasattr(value, "dtype"):
        return value.dtype.kind == "f" and not bool((value - value == 0).all())
    if isinstance(value, Decimal):
        return not value.is_finite()
    return isinstance(value, float) and not math.isfinite(value)
