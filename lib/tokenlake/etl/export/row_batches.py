"""Python rows as Arrow batches, or as lines of JSON if they share no schema.

The first rows decide the schema. Values for which JSON has no type have the text forms
of :mod:`tokenlake.base.json_text`.
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
"""Errors for a value that does not fit a column."""

_SHOWN: Final = 60
"""Characters of a value in a message."""

_FAMILIES: Final = (
    ("integer", "floating"),
    ("string", "large_string"),
    ("binary", "large_binary", "fixed_size_binary"),
    ("temporal",),
    ("decimal",),
)
"""Families of types: a value of one type may be a value of another one of its
family.
"""

_JSON_OPTIONS: Final = (
    orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_APPEND_NEWLINE
    | orjson.OPT_PASSTHROUGH_DATETIME
)

LINES: Final = pa.schema(
    [pa.field("line", pa.large_binary(), metadata={"tokenlake": "a line of JSON"})]
)
"""Schema of batches that hold finished lines, line ends included."""


@final
class RowsToArrow:
    """Converts rows to batches.

    A column has the type of its values in the first batch, one of those in
    :mod:`tokenlake.runtime.schema`; values of several kinds are an error. Later values
    must be of that type, or become it exactly (1 and 1.0). NumPy arrays become lists of
    their own kind of number, and dates, bytes and decimals the Arrow types for them.

    Args:
        schema: Schema of the batches; None: the first batch decides.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        self._rows = 0

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return the next rows as a batch. A key that a row lacks is null.

        Raises:
            BadRecordError: A value does not fit, or a row has a field that the first
                ones lack; the message names row and field.
        """
        # 1. Rows come from the caller's code, and may be anything.
        for index, row in enumerate(rows):
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(
                    index, "", f"got {type(row).__name__}, expected a dict"
                )
        # 2. The first batch decides the columns; every later one has just these.
        field_names = names_in(rows)
        arrays: list[Any] = []
        if self.schema is None:
            fields: list[tuple[str, Any]] = []
            for field_name in field_names:
                array = self._column(rows, field_name, None)
                arrays.append(array)
                fields.append((field_name, array.type))
            self.schema = _ARROW.schema(fields)
        else:
            self._require_known(rows, field_names, self.schema)
            for field in self.schema:
                arrays.append(self._column(rows, field.name, field.type))
        # 3. Numbers of rows in messages count from the first batch on.
        self._rows += len(rows)
        if not arrays:  # a batch without columns has no length of its own
            return _ARROW.RecordBatch.from_struct_array(
                _ARROW.array([{}] * len(rows), pa.struct([]))
            )
        return _ARROW.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _require_known(
        self, rows: Sequence[Row], field_names: Sequence[str], schema: pa.Schema
    ) -> None:
        """Raise BadRecordError if a row has a field that the schema lacks."""
        # A field that is dropped in silence would be lost data.
        for field_name in field_names:
            if field_name not in schema.names:
                first_row = next(
                    index for index, row in enumerate(rows) if field_name in row
                )
                reason = "the first rows do not have this field; give a schema, or the same fields to all rows"
                raise self._error(first_row, field_name, reason)

    def _column(self, rows: Sequence[Row], field_name: str, data_type: Any) -> Any:
        """Return a field as an array of a type; None for the type of its values."""
        if not isinstance(field_name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(0, str(field_name), "names of fields must be text")
        values = [row.get(field_name) for row in rows]
        try:
            return _array(values, data_type)
        except _UNFIT as error:
            # Arrow names neither row nor value, so that the value is searched for.
            unfit_index = _index_of_unfit(values, data_type)
            unfit_value = _shortened(values[unfit_index])
            reason = f"{unfit_value} cannot be stored in one column with the values before it"
            if data_type is not None:
                reason = (
                    f"{unfit_value} is no {data_type}, which the first rows decided"
                )
            if data_type == pa.null():
                reason += "; the first rows have only nulls in it, so give a schema"
            raise self._error(unfit_index, field_name, reason, error) from error

    def _error(
        self, index: int, field_name: str, reason: str, cause: Exception | None = None
    ) -> BadRecordError:
        """Return the error of a row of the current batch."""
        row_number = self._rows + index
        location = f"row {row_number}"
        if field_name:
            location += f", field {field_name!r}"
        if cause is not None and str(cause):
            reason += f" ({cause})"
        return BadRecordError(
            f"{location}: {reason}",
            row=row_number,
            field=field_name,
            reason="type_mismatch",
        )


def _shortened(value: Any) -> str:
    """Return a value and its type for a message."""
    value_text = repr(value)
    if len(value_text) > _SHOWN:
        value_text = f"{value_text[:_SHOWN]}..."
    return f"{value_text} ({type(value).__name__})"


def _array(values: Sequence[Any], data_type: Any) -> Any:
    """Return values as an array of the type `data_type`; None for their own type.

    Raises:
        One of ``_UNFIT``: A value would become another one.
    """
    # 1. The values in Arrow's own type for them.
    array = _joined(values)
    if array is None:
        array = _arrow_array(values)
        # Arrow would also take True for 1.0, and bytes for text. Other types cannot be
        # mixed, and their values are not looked at one by one.
        type_text = str(array.type)
        may_be_mixed = any(word in type_text for word in ("float", "double", "binary"))
        if may_be_mixed:
            mixed_kinds = _mixed_kinds(array.type, values)
            if mixed_kinds:
                type_names = sorted(value_type.__name__ for value_type in mixed_kinds)
                raise TypeError(f"values of {', '.join(type_names)}")
        if data_type is None:
            stored_type = column_type(array.type)
            if stored_type != JSON:
                return array.cast(arrow_type(stored_type))
    # 2. The type of the column, which must hold every value exactly.
    if data_type is None or array.type == data_type:
        return array
    if not _becomes(array.type, data_type):
        raise TypeError(f"values of {array.type}")
    array = array.cast(data_type)
    # A cast of lists does not check whether their values may be null.
    forbids_nulls = is_list(data_type) and not data_type.value_field.nullable
    if forbids_nulls and array.flatten().null_count:
        raise TypeError("null in a list that may not contain nulls")
    return array


def _arrow_array(values: Sequence[Any]) -> Any:
    """Return values as an array of Arrow's type for them.

    Integers that are larger than Arrow's become decimals.
    """
    try:
        return _ARROW.array(values)
    except OverflowError:
        array = column_of(values)
        if pa.types.is_large_string(array.type):  # JSON text: no type holds all of them
            raise
        return array


def _mixed_kinds(data_type: Any, values: Iterable[Any]) -> set[type[Any]]:
    """Return the Python types of values that Arrow would take for one another.

    The result is empty if there are no such values.

    Args:
        data_type: Arrow's type for the values.
        values: Values.
    """
    # The numbers of a NumPy array are of one type.
    python_values = [
        value
        for value in values
        if value is not None and not isinstance(value, np.ndarray)
    ]
    # Nested values are compared at their leaves, where Arrow would mix them.
    if is_list(data_type):
        return _mixed_kinds(data_type.value_type, chain.from_iterable(python_values))
    if _ARROW.types.is_struct(data_type):
        for child in data_type:
            child_values = [value.get(child.name) for value in python_values]
            mixed_kinds = _mixed_kinds(child.type, child_values)
            if mixed_kinds:
                return mixed_kinds
        return set()
    value_types = set(map(type, python_values))
    is_mixed = {bool, float} <= value_types or {bytes, str} <= value_types
    if not is_mixed:
        return set()
    return value_types


def _becomes(source_type: Any, target_type: Any) -> bool:
    """Return True if a checked cast may turn values of one type into another."""
    types = _ARROW.types
    if source_type == target_type or types.is_null(source_type):
        return True
    # A field may be missing, which makes it null; a new one would be lost.
    if types.is_struct(source_type) and types.is_struct(target_type):
        target_types = {child.name: child.type for child in target_type}
        for child in source_type:
            if child.name not in target_types:
                return False
            if not _becomes(child.type, target_types[child.name]):
                return False
        return True
    if is_list(source_type) and is_list(target_type):
        return _becomes(source_type.value_type, target_type.value_type)
    if types.is_dictionary(target_type):
        return _becomes(source_type, target_type.value_type)
    # Decimals hold integers that are larger than Arrow's.
    if types.is_decimal(target_type) and types.is_integer(source_type):
        return True
    return any(
        _is_a(source_type, family) and _is_a(target_type, family)
        for family in _FAMILIES
    )


def _is_a(data_type: Any, names: tuple[str, ...]) -> bool:
    """Return True if a type is of a family."""
    return any(getattr(_ARROW.types, f"is_{name}")(data_type) for name in names)


def _joined(values: Sequence[Any]) -> Any:
    """Return NumPy arrays as one list array; None for any other values.

    The arrays must have one dimension and one type.
    """
    # Rows of ids are such arrays. Arrow would make a Python object of each number.
    arrays = [
        value for value in values if isinstance(value, np.ndarray) and value.ndim == 1
    ]
    if not arrays or len(arrays) < len(values):
        return None
    if len({array.dtype for array in arrays}) > 1:
        return None
    # Offsets of Arrow's lists are int32.
    lengths = np.array([len(array) for array in arrays], np.int64)
    if lengths.sum() > np.iinfo(np.int32).max:
        return None
    offsets = np.concatenate(
        [np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)]
    )
    flat_values = _ARROW.array(np.concatenate(arrays))
    list_type = pa.list_(pa.field("item", flat_values.type, nullable=False))
    return _ARROW.ListArray.from_arrays(
        _ARROW.array(offsets), flat_values, type=list_type
    )


def _index_of_unfit(values: Sequence[Any], data_type: Any) -> int:
    """Return the index of the first value that does not fit a type.

    Without a type it is the first one that does not fit those before it.
    """

    def is_unfit(index: int) -> bool:
        # Without a type the values must fit each other; with one, each stands alone.
        tried_values = [values[index]]
        if data_type is None:
            tried_values = values[: index + 1]
        try:
            _array(tried_values, data_type)
        except _UNFIT:
            return True
        return False

    if data_type is None:  # with this value, and every later one, the values do not fit
        return bisect_left(range(len(values) - 1), True, key=is_unfit)
    return next(filter(is_unfit, range(len(values))), 0)


def lines_of(rows: Iterable[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows (dicts) as a batch of :data:`LINES`.

    Args:
        rows: Rows.
        first: Number of the first row, for messages.

    Raises:
        BadRecordError: JSON has no form for a value; the message names the row and, for
            NaN and infinities, the field.
    """
    # Offsets of 64 bits: the lines of a batch may be larger than 2 GiB.
    json_lines = [_line(row, number) for number, row in enumerate(rows, first)]
    column = _ARROW.array(json_lines, pa.large_binary())
    return _ARROW.RecordBatch.from_arrays([column], schema=LINES)


def text_of(batch: pa.RecordBatch) -> bytes:
    """Return the lines of a batch, of :data:`LINES` or of columns.

    NaN and infinities in columns become null.
    """
    if batch.schema.equals(LINES, check_metadata=True):
        lines: Any = batch.column(0)
        return b"".join(lines.to_pylist())
    # Columns become values one by one, and rows are put together from them.
    columns = [_values_for_json(column) for column in list[Any](batch.columns)]
    rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
    if not columns:
        rows = [()] * len(batch)
    column_names: Sequence[str] = batch.schema.names
    return b"".join(
        dump_json(dict(zip(column_names, row, strict=True)), option=_JSON_OPTIONS)
        for row in rows
    )


def _values_for_json(column: Any) -> Iterable[Any]:
    """Return the values of a column as JSON can hold them."""
    is_integers = is_list(column.type) and _ARROW.types.is_integer(
        column.type.value_type
    )
    if is_integers and not column.null_count and not column.flatten().null_count:
        # They stay arrays, so that there is no Python object for each number.
        return (value.values.to_numpy() for value in column)
    return json_values(column)


def refuse_non_finite(rows: Iterable[Row], first: int) -> None:
    """Raise BadRecordError if a row holds NaN or an infinity.

    Args:
        rows: Rows.
        first: Number of the first row, for messages.
    """
    # Lines of columns would have null for them, and the value would be lost.
    for row_number, row in enumerate(rows, first):
        for field_name, value in row.items():
            if _has_nan(value):
                raise _non_finite(row_number, field_name)


def _non_finite(row: int, field: object) -> BadRecordError:
    field_name = str(field)
    message = (
        f"row {row}, field {field_name!r}: NaN and infinities are not valid JSON; write None instead, or use format "
        "'parquet' or 'arrow'"
    )
    return BadRecordError(message, row=row, field=field_name)


def _line(row: Any, number: int) -> bytes:
    """Return a row as a line of JSON."""
    if not isinstance(row, dict):
        raise BadRecordError(
            f"row {number}: got {type(row).__name__}, expected a dict", row=number
        )
    # The row is encoded once, and only lines that could hide a NaN are looked through.
    try:
        line = dump_json(row, text_form, _JSON_OPTIONS)
    except TypeError as error:
        reason = error.__cause__ or error
        raise BadRecordError(
            f"row {number}: JSON cannot store it: {reason}", row=number
        ) from error
    # orjson writes null for NaN and infinities.
    if b"null" in line:
        for field_name, value in row.items():
            if _has_nan(value):
                raise _non_finite(number, field_name)
    return line


def _has_nan(value: Any) -> bool:
    """Return True if a value, or anything nested in it, is NaN or an infinity."""
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    # x - x is 0 for every number but NaN and the infinities, for which it is NaN.
    if hasattr(value, "dtype"):
        return value.dtype.kind == "f" and not bool((value - value == 0).all())
    if isinstance(value, Decimal):
        return not value.is_finite()
    return isinstance(value, float) and not math.isfinite(value)
