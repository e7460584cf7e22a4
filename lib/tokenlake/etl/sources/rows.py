"""Rows of an input: Arrow columns or Python objects, each made of the other on demand.

JSON objects become Arrow columns by rules that depend on the values alone:

| the values of a column (nulls and missing keys aside) | its type |
|---|---|
| none | null |
| booleans | bool |
| integers of 64 bits with sign | int64 |
| integers of 64 bits without sign | uint64 |
| integers of at most 38 digits | decimal128(38, 0) |
| floating-point numbers, or these and integers that are exact as a double | double |
| strings, dates among them | large_string |
| arrays or objects whose own values follow these rules | large_list, struct |
| anything else | large_string, every value as JSON text |

"Anything else" is: values of several kinds, integers of more digits, integers beside
floating-point numbers where one of them is no double, objects without keys or with very
many different ones, and values nested more than 16 levels deep. The JSON text has all
digits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import mask_of
from tokenlake.base.json_text import dump_json

Record = dict[str, Any]

MAX_CELLS: Final = 4 << 20
"""Largest number of records times columns of one batch; objects without common keys
would make an enormous one.
"""

MAX_DEPTH: Final = 16
"""Largest number of levels of a nested type."""

LARGE_INTEGERS: Final = pa.decimal128(38, 0)
"""Type of a column of integers beyond 64 bits; DuckDB, Polars and Arrow read it from
Parquet as exact numbers.
"""

_MAX_EXACT: Final = 1 << 53  # integers up to here are exact as a double
_INT64_LIMIT: Final = 1 << 63
_DIGITS_38: Final = 10**38
_ARROW: Final[Any] = pa
# Python types of all values of a column to its Arrow type. Integers are looked at once
# more, by their size.
_SCALARS: Final[dict[frozenset[type[Any]], pa.DataType]] = {
    frozenset[type[Any]](): pa.null(),
    frozenset[type[Any]]({bool}): pa.bool_(),
    frozenset[type[Any]]({int}): pa.int64(),
    frozenset[type[Any]]({float}): pa.float64(),
    frozenset[type[Any]]({int, float}): pa.float64(),
    frozenset[type[Any]]({str}): pa.large_string(),
}
_NESTED: Final = (frozenset[type[Any]]({list}), frozenset[type[Any]]({dict}))
_NULL: Final[type[Any]] = type(None)

Row = dict[str, Any]
"""Fields of a record by their names."""


def names_in(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the keys of all records, in the order of their first occurrence."""
    return tuple(dict.fromkeys(chain.from_iterable(records)))


def columns_of(records: Sequence[Record], names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the fields `names` of `records` as columns; a missing field is null."""
    if not names:  # a batch without columns has no length of its own
        empty_rows = _ARROW.array([{}] * len(records), pa.struct([]))
        return _ARROW.RecordBatch.from_struct_array(empty_rows)
    arrays: list[Any] = []
    fields: list[Any] = []
    for field_name in names:
        array = column_of([record.get(field_name) for record in records])
        arrays.append(array)
        fields.append((field_name, array.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def column_of(values: Sequence[Any]) -> Any:
    """Return JSON values as an Arrow array, by the rules of this module."""
    # Types first, which takes one pass without a look at any value. Only integers and
    # nested values need a second pass.
    types = frozenset[type[Any]](map(type, values)) - {_NULL}
    column_type = _SCALARS.get(types)
    if types in _NESTED:
        column_type = _nested_type(values)
    elif column_type is not None and int in types:
        integers = [value for value in values if type(value) is int]
        smallest = min(integers)
        largest = max(integers)
        column_type = _number_type(smallest, largest, has_floats=float in types)
    if column_type is None:
        texts = [_json_text(value) for value in values]
        return _ARROW.array(texts, pa.large_string())
    return _ARROW.array(values, column_type)


def _json_text(value: Any) -> str | None:
    """Return a value as JSON text, None for null."""
    if value is None:
        return None
    return dump_json(value, keeps_infinity=True).decode()


def _number_type(
    smallest: int, largest: int, *, has_floats: bool
) -> pa.DataType | None:
    """Return the type of a column of numbers, None if no type holds them all.

    Args:
        smallest: Smallest integer.
        largest: Largest integer.
        has_floats: Whether floating-point numbers are among them.
    """
    if has_floats:
        is_exact = smallest >= -_MAX_EXACT and largest <= _MAX_EXACT
        return pa.float64() if is_exact else None
    if smallest >= -_INT64_LIMIT and largest < _INT64_LIMIT:
        return pa.int64()
    if smallest >= 0 and largest < 2 * _INT64_LIMIT:
        return pa.uint64()
    has_38_digits = smallest > -_DIGITS_38 and largest < _DIGITS_38
    return LARGE_INTEGERS if has_38_digits else None


@dataclass(slots=True)
class _SeenTypes:
    """Types of the values at one place of nested values.

    Attributes:
        kinds: Python types of the values.
        low: Smallest integer, or 0.
        high: Largest integer, or 0.
        items: Types of the items of lists; None before the first list.
        fields: Types of the members of objects, by their keys.
    """

    kinds: set[type[Any]] = field(default_factory=set[type[Any]])
    low: int = 0
    high: int = 0
    items: _SeenTypes | None = None
    fields: dict[str, _SeenTypes] = field(default_factory=dict[str, "_SeenTypes"])

    def note(self, value: Any, depth: int) -> int:
        """Add a value that lies `depth` levels deep.

        Returns:
            Number of its new places; a huge one if it is too deep.
        """
        value_type: type[Any] = type(value)
        if value is None:
            return 0
        self.kinds.add(value_type)
        if value_type is int:
            self.low = min(self.low, value)
            self.high = max(self.high, value)
        elif value_type is list or value_type is dict:
            if depth == MAX_DEPTH:
                return MAX_CELLS
            return self._note_inside(value, depth + 1)
        return 0

    def _note_inside(self, value: list[Any] | Record, depth: int) -> int:
        """Add the items of a list or the members of an object.

        Returns:
            Number of new places.
        """
        if isinstance(value, list):
            if self.items is None:
                self.items = _SeenTypes()
            items = self.items
            return sum(items.note(item, depth) for item in value)
        new_places = 0
        for key, item in value.items():
            member = self.fields.get(key)
            if member is None:
                member = _SeenTypes()
                self.fields[key] = member
                new_places += 1
            new_places += member.note(item, depth)
        return new_places

    def type(self) -> pa.DataType | None:
        """Return the Arrow type of the values, None if no type holds them all."""
        if self.kinds == {list} and self.items:
            item_type = self.items.type()
            return None if item_type is None else _ARROW.large_list(item_type)
        if self.kinds == {dict} and self.fields:
            member_types: dict[str, pa.DataType] = {}
            for name, member in self.fields.items():
                member_type = member.type()
                if member_type is None:
                    return None
                member_types[name] = member_type
            return _ARROW.struct(list(member_types.items()))
        scalar_type = _SCALARS.get(frozenset(self.kinds))
        if scalar_type is not None and int in self.kinds:
            return _number_type(self.low, self.high, has_floats=float in self.kinds)
        return scalar_type


def _nested_type(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of a column of lists or objects; None for JSON text."""
    seen_types = _SeenTypes()
    # Every object of a nested column has all keys of all objects: few objects with many
    # different keys would make an enormous struct.
    place_count = 0
    for value in values:
        place_count += seen_types.note(value, 0)
        if place_count * len(values) > MAX_CELLS:
            return None
    return seen_types.type()


def is_too_wide(records: Sequence[Record], names: tuple[str, ...] | None) -> bool:
    """Say whether one batch of records would be enormous, and mostly nulls.

    Args:
        records: The records.
        names: Fields that become columns, None for all.
    """
    if names is None:
        names = names_in(records)
    return len(records) * len(names) > MAX_CELLS


@final
class Rows:
    """n rows, never changed in place.

    Columnar inputs are read as columns and JSON as objects. A step takes the form that
    it works in, and the other form is made on demand. The two forms of JSON rows differ
    in one thing: a missing key is missing in an object, and null in the columns.
    """

    def __init__(
        self,
        columns: pa.RecordBatch | None = None,
        objects: list[Row] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Take either form, or both of the same rows.

        Args:
            columns: Rows as columns.
            objects: Rows as objects.
            names: Fields of objects that become columns, None for all; objects may have
                further fields.
        """
        if columns is None and objects is None:
            raise TypeError("rows need columns or objects")
        self._columns = columns
        self._objects = objects
        self._names = names

    def __len__(self) -> int:
        return len(self._objects) if self._objects is not None else len(self.columns)

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as columns; made of objects by the rules of this module."""
        if self._columns is None:
            assert self._objects is not None
            names = self._names
            if names is None:
                names = names_in(self._objects)
            self._columns = columns_of(self._objects, names)
        return self._columns

    @property
    def objects(self) -> list[Row]:
        """The rows as dicts (do not modify)."""
        if self._objects is None:
            assert self._columns is not None
            self._objects = self._columns.to_pylist()
        return self._objects

    @property
    def has_objects(self) -> bool:
        """Whether objects are there already."""
        return self._objects is not None

    def select(self, mask: npt.NDArray[np.bool_]) -> Self:
        """Return the rows where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        columns = self._columns
        if columns is not None:
            columns = columns.filter(mask_of(mask))
        objects = self._objects
        if objects is not None:
            objects = list(compress(objects, mask.tolist()))
        return type(self)(columns, objects, self._names)

    def values(self, path: str) -> Sequence[Any]:
        """Return the field `path` of every row as Python values, None if missing.

        A field whose name is the whole dotted path comes first: ``a.b`` is the field
        "a.b", otherwise field "b" of "a".
        """
        # Rows that are columns are not made into objects for one field.
        if self._objects is None and self._columns is not None:
            names: list[str] = self._columns.schema.names
            if path in names:
                return self._columns.column(path).to_pylist()
            column_name, _, path_inside = path.partition(".")
            if column_name not in names or not path_inside:
                return [None] * len(self)
            return [
                value_at(value, path_inside)
                for value in self._columns.column(column_name).to_pylist()
            ]
        if "." not in path:
            return [row.get(path) for row in self.objects]
        return [value_at(row, path) for row in self.objects]


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of JSON, None if there is none.

    A key that is the whole rest of the path comes first.
    """
    while isinstance(value, dict):
        if path in value:
            return value[path]
        field_name, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(field_name)
    return None
