"""Fields of rows that are kept beside the tokens, in the types of the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import orjson
import pyarrow as pa

from tokenlake.base.columns import JSON, ColumnType
from tokenlake.base.json_text import dump_json
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.unit.spelled_values import read_declared
from tokenlake.runtime.column_types import arrow_type, column_type, fits, joined

_ARROW: Final[Any] = pa  # the stubs do not know nulls with a type

# Decimals of Arrow have up to 38 digits.
_DIGITS_38: Final = 10**38
_SHOWN: Final = 60
"""Characters of a value in a message."""

_NO_FIT: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
"""Errors of Arrow for a value that does not fit a type."""

_DIRECT: Final[dict[str, type[Any]]] = {
    "bool": bool,
    "int64": int,
    "double": float,
    "large_string": str,
}
"""Column type -> Python type of the values that Arrow stores in it without altering
any.
"""

_NOTHING: Final[type[Any]] = type(None)


@final
@dataclass(frozen=True, slots=True)
class _KeptField:
    """A field that is kept.

    Attributes:
        name: Name of the field.
        kind: Type of its column.
        is_declared: True if the configuration declares the type. Text may then spell
            numbers and truth values.
    """

    name: str
    kind: ColumnType
    is_declared: bool


@final
class Keeper:
    """Takes the kept fields of rows, converted to the types that the plan decided on.

    Args:
        fields: Name and type of each field, in the order of the columns.
        declared: Names of the fields whose types the configuration declares.

    Attributes:
        names: Names of the fields.
    """

    def __init__(
        self,
        fields: Sequence[tuple[str, ColumnType]],
        declared: frozenset[str] = frozenset(),
    ) -> None:
        self._fields: list[_KeptField] = []
        schema_fields: list[Any] = []
        for name, kind in fields:
            self._fields.append(_KeptField(name, kind, name in declared))
            schema_fields.append(pa.field(name, arrow_type(kind)))
        self._schema = pa.schema(schema_fields)
        self.names = tuple(field.name for field in self._fields)

    def take(self, rows: Rows) -> tuple[pa.RecordBatch, dict[int, Fault]]:
        """Return the fields of n rows, and the faults of rows with an unfit value.

        A missing field is null. A value that its column's type cannot hold exactly is a
        fault (``field_type``), and null in the column.
        """
        faults: dict[int, Fault] = {}
        arrays: list[Any] = []
        for field in self._fields:
            column, unfit_values = _column(rows, field)
            arrays.append(column)
            # The first fault of a row counts.
            for row, value in unfit_values:
                faults.setdefault(row, _fault(field, value))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), faults


def _column(rows: Rows, field: _KeptField) -> tuple[Any, list[tuple[int, Any]]]:
    """Return a field as a column, and the values that do not fit, with their rows."""
    # Objects of JSON keep types that a column of a batch would have changed.
    if rows.has_objects:
        return _column_of_values([row.get(field.name) for row in rows.objects], field)
    target = arrow_type(field.kind)
    if field.name not in rows.columns.schema.names:
        return _ARROW.nulls(len(rows), target), []
    column: Any = rows.columns.column(field.name)
    if field.kind != JSON:
        if column.type == target:
            return column, []
        # A cast is exact only to a wider type.
        is_wider = joined(column_type(column.type), field.kind) == field.kind
        if is_wider:
            try:
                return column.cast(target), []
            except _NO_FIT:
                pass  # some value does not fit: they are looked at one by one
    return _column_of_values(column.to_pylist(), field)


def _column_of_values(
    values: list[Any], field: _KeptField
) -> tuple[Any, list[tuple[int, Any]]]:
    """Return Python values as a column, and those that do not fit, with their rows."""
    target = arrow_type(field.kind)
    if field.kind == JSON:
        return _json_column(values)
    if field.is_declared:
        values = [read_declared(value, field.kind) for value in values]
    # Values of the one type that the column has, in one call; the usual case.
    if isinstance(field.kind, str) and field.kind in _DIRECT:
        value_types = set(map(type, values))
        if value_types <= {_DIRECT[field.kind], _NOTHING}:
            try:
                return _ARROW.array(values, target), []
            except _NO_FIT:
                pass  # half of a surrogate pair, or an integer of more than 64 bits
    # All others one by one. Values that do not fit are null in the column.
    unfit_values: list[tuple[int, Any]] = []
    for row, value in enumerate(values):
        if not fits(value, field.kind):
            unfit_values.append((row, value))
    for row, _ in unfit_values:
        values[row] = None
    return _ARROW.array(values, target), unfit_values


def _json_column(values: list[Any]) -> tuple[Any, list[tuple[int, Any]]]:
    """Return Python values as a column of JSON text, and those that JSON cannot hold."""
    json_texts = [as_json(value) for value in values]
    unfit_values: list[tuple[int, Any]] = []
    for row, json_text in enumerate(json_texts):
        if json_text is None and values[row] is not None:
            unfit_values.append((row, values[row]))
    return _ARROW.array(json_texts, arrow_type(JSON)), unfit_values


def rows_of(table: Rows) -> Rows:
    """Return rows as they were read.

    JSON is objects alone, because its columns have other types in every batch.
    """
    if table.has_objects:
        return Rows(objects=table.objects)
    return table


def as_json(value: Any) -> str | None:
    """Return a value as JSON text; None if it is too deep.

    Values that JSON has no form for (dates) become text.
    """
    if value is None:
        return None
    # The fast encoder first. The slow one takes what the fast one refuses.
    try:
        encoded = dump_json(value, str, orjson.OPT_NON_STR_KEYS, keeps_infinity=True)
        return encoded.decode()
    except TypeError:  # half of a surrogate pair, or many levels
        pass
    try:
        return json.dumps(value, default=str, separators=(",", ":"))
    # ValueError: an integer of more than 4,300 digits.
    except (RecursionError, ValueError):
        return None


def _fault(field: _KeptField, value: Any) -> Fault:
    """Return the fault of a value that its column cannot hold."""
    try:
        value_text = repr(value)
    except RecursionError:
        value_text = f"a {type(value).__name__} of very many levels"
    if len(value_text) > _SHOWN:
        value_text = f"{value_text[:_SHOWN]}..."
    type_name = field.kind
    if not isinstance(type_name, str):
        type_name = str(arrow_type(type_name))
    detail = (
        f"the kept field {field.name!r} holds {value_text}, which its type {type_name}"
    )
    # The user declared a type, or is told which one to declare.
    if field.is_declared:
        detail += " (field_types) cannot hold"
    else:
        detail += (
            ", that of the first records, cannot hold; declare a type that can: "
            f"field_types: {{{field.name}: {_wider_type(value)}}}"
        )
    return Fault("field_type", detail)


def _wider_type(value: Any) -> str:
    """Return the type to propose for a field whose first records had another type."""
    if isinstance(value, float):
        return "float64"
    if type(value) is int and abs(value) < _DIGITS_38:
        return "decimal(38, 0)"
    return JSON
