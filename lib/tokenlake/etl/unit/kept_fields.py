"""Fields of rows that are kept beside the tokens, converted to the types of the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, final

import orjson
import pyarrow as pa

from tokenlake.base.columns import JSON, ColumnType
from tokenlake.base.json_text import dump_json
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.unit.spelled_values import read_declared
from tokenlake.runtime.column_types import arrow_type, column_type, fits, joined

_ARROW: Final[Any] = pa  # the stubs do not know concat_batches

_DIGITS_38: Final = 10**38
_SHOWN: Final = 60  # characters of a value in a message
_NO_FIT: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)

# Python values that Arrow takes for values of these types without altering any.
_DIRECT: Final[dict[str, type[Any]]] = {"bool": bool, "int64": int, "double": float, "large_string": str}
_NOTHING: Final[type[Any]] = type(None)


@final
class Keeper:
    """Takes the kept fields of rows, converted to the types that the plan decided on.

    Args:
        fields: (name, type) in the order of the columns.
        declared: the fields whose types the configuration declares; their text may spell numbers and truth values.

    Attributes:
        names: of the fields.
    """

    def __init__(
        self, fields: Sequence[tuple[str, ColumnType]], declared: frozenset[str] = frozenset()
    ) -> None:
        self._fields = tuple(fields)
        self._declared = declared
        self._schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self._fields])
        self.names = tuple(name for name, _ in self._fields)

    def take(self, rows: Rows) -> tuple[pa.RecordBatch, dict[int, Fault]]:
        """Return the fields of n rows, and what is wrong in some of them; a missing field is null.

        A value that its column's type cannot hold exactly is a fault (``field_type``), and null in the columns.
        """
        faults: dict[int, Fault] = {}
        arrays: list[Any] = []
        for name, kind in self._fields:
            is_declared = name in self._declared
            array, bad = _column(rows, name, kind, is_declared=is_declared)
            arrays.append(array)
            for index, value in bad:
                faults.setdefault(index, _fault(name, kind, value, is_declared=is_declared))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), faults


def _column(
    rows: Rows, name: str, kind: ColumnType, *, is_declared: bool
) -> tuple[Any, list[tuple[int, Any]]]:
    """Return a field as a column of type `kind`, and the values, with their rows, that do not fit.

    Args:
        is_declared: whether the configuration declares the type.
    """
    if rows.has_objects:
        return _of_values([row.get(name) for row in rows.objects], kind, is_declared=is_declared)
    if name not in rows.columns.schema.names:
        return _ARROW.nulls(len(rows), arrow_type(kind)), []
    array: Any = rows.columns.column(name)
    if array.type == arrow_type(kind) and kind != JSON:
        return array, []
    found = column_type(array.type)
    if kind != JSON and joined(found, kind) == kind:
        try:
            return array.cast(arrow_type(kind)), []
        except _NO_FIT:
            pass  # some value does not fit: they are looked at one by one
    return _of_values(array.to_pylist(), kind, is_declared=is_declared)


def _of_values(
    values: list[Any], kind: ColumnType, *, is_declared: bool
) -> tuple[Any, list[tuple[int, Any]]]:
    target = arrow_type(kind)
    if kind == JSON:
        texts = [as_json(value) for value in values]
        unfit = [index for index, text in enumerate(texts) if text is None and values[index] is not None]
        return _ARROW.array(texts, target), [(index, values[index]) for index in unfit]
    if is_declared:
        values = [read_declared(value, kind) for value in values]
    direct = _DIRECT.get(kind) if isinstance(kind, str) else None
    if direct is not None and set(map(type, values)) <= {direct, _NOTHING}:
        try:
            return _ARROW.array(values, target), []
        except _NO_FIT:
            pass  # half of a surrogate pair, or an integer of more than 64 bits
    bad = [(index, value) for index, value in enumerate(values) if not fits(value, kind)]
    for index, _ in bad:
        values[index] = None
    return _ARROW.array(values, target), bad


def rows_of(table: Rows) -> Rows:
    """Return rows as they were read; JSON as objects alone, because its columns have other types in every batch."""
    return Rows(objects=table.objects) if table.has_objects else table


def as_json(value: Any) -> str | None:
    """Return a value as JSON text, None if it is too deep; what JSON does not know (a date, bytes) as its text."""
    if value is None:
        return None
    try:
        return dump_json(value, str, orjson.OPT_NON_STR_KEYS, keeps_infinity=True).decode()
    except TypeError:  # half of a surrogate pair, or many levels
        pass
    try:
        return json.dumps(value, default=str, separators=(",", ":"))
    except (RecursionError, ValueError):  # ValueError: an integer of more than 4,300 digits
        return None


def _fault(name: str, kind: ColumnType, value: Any, *, is_declared: bool) -> Fault:
    try:
        shown = repr(value)
    except RecursionError:
        shown = f"a {type(value).__name__} of very many levels"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    wanted = kind if isinstance(kind, str) else str(arrow_type(kind))
    if is_declared:
        told = f"the kept field {name!r} holds {shown}, which its type {wanted} (field_types) cannot hold"
    else:
        told = (
            f"the kept field {name!r} holds {shown}, which its type {wanted}, that of the first records, cannot hold; "
            f"declare a type that can: field_types: {{{name}: {_wider_type(value)}}}"
        )
    return Fault("field_type", told)


def _wider_type(value: Any) -> str:
    """Return the type to propose for a field of which the first records did not say what it holds."""
    if isinstance(value, float):
        return "float64"
    if type(value) is int and abs(value) < _DIGITS_38:
        return "decimal(38, 0)"
    return JSON
