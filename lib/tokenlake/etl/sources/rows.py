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

"Anything else" is: values of several kinds, integers of more digits, integers beside floating-point numbers where one
of them is no double, objects without keys or with very many different ones, and values nested more than 16 levels deep.
The JSON text has all digits of an integer.
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
"""Records times columns of one batch; objects that share no keys would else make an enormous one."""

MAX_DEPTH: Final = 16
"""Of nested types."""

LARGE_INTEGERS: Final = pa.decimal128(38, 0)
"""Type of a column of integers beyond 64 bits; DuckDB, Polars and Arrow read it from Parquet as exact numbers."""

_EXACT: Final = 1 << 53  # integers up to here are exact as a double
_BITS: Final = 1 << 63
_DIGITS_38: Final = 10**38
_ARROW: Final[Any] = pa
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


def names_in(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the keys of all records, in the order in which they first come."""
    return tuple(dict.fromkeys(chain.from_iterable(records)))


def columns_of(records: Sequence[Record], names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the fields `names` of `records`; what a record lacks is null."""
    arrays = [column_of([record.get(name) for record in records]) for name in names]
    schema = _ARROW.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
    if not arrays:  # a batch without columns has no length of its own
        return _ARROW.RecordBatch.from_struct_array(_ARROW.array([{}] * len(records), pa.struct([])))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)


def column_of(values: Sequence[Any]) -> Any:
    """Return JSON values as an Arrow array, by the rules of this module."""
    kinds = frozenset[type[Any]](map(type, values)) - {_NULL}
    kind = _SCALARS.get(kinds)
    if kind is None:
        kind = _nested_type(values) if kinds in _NESTED else None
    elif int in kinds:
        integers = [value for value in values if type(value) is int]
        kind = _number_type(min(integers), max(integers), has_floats=float in kinds)
    if kind is None:
        texts = [
            None if value is None else dump_json(value, keeps_infinity=True).decode() for value in values
        ]
        return _ARROW.array(texts, pa.large_string())
    return _ARROW.array(values, kind)


def _number_type(low: int, high: int, *, has_floats: bool) -> pa.DataType | None:
    """Return the type of integers from `low` to `high`, perhaps with floats beside them; None for no type."""
    if has_floats:
        return pa.float64() if low >= -_EXACT and high <= _EXACT else None
    if low >= -_BITS and high < _BITS:
        return pa.int64()
    if low >= 0 and high < 2 * _BITS:
        return pa.uint64()
    return LARGE_INTEGERS if low > -_DIGITS_38 and high < _DIGITS_38 else None


@dataclass(slots=True)
class _SeenTypes:
    """What was seen at one place of nested values."""

    kinds: set[type[Any]] = field(default_factory=set[type[Any]])
    low: int = 0  # the least integer, or 0
    high: int = 0  # the greatest integer, or 0
    items: _SeenTypes | None = None
    fields: dict[str, _SeenTypes] = field(default_factory=dict[str, "_SeenTypes"])

    def note(self, value: Any, depth: int) -> int:
        """Add a value that lies `depth` levels deep; return how many new places it has, a lot if too deep."""
        kind: type[Any] = type(value)
        if value is None:
            return 0
        self.kinds.add(kind)
        if kind is int:
            self.low = min(self.low, value)
            self.high = max(self.high, value)
        elif kind is list or kind is dict:
            return MAX_CELLS if depth == MAX_DEPTH else self._note_inside(value, depth + 1)
        return 0

    def _note_inside(self, value: list[Any] | Record, depth: int) -> int:
        if isinstance(value, list):
            self.items = items = self.items or _SeenTypes()
            return sum(items.note(item, depth) for item in value)
        new = 0
        for key, item in value.items():
            shape = self.fields.get(key)
            if shape is None:
                shape = self.fields[key] = _SeenTypes()
                new += 1
            new += shape.note(item, depth)
        return new

    def type(self) -> pa.DataType | None:
        """Return the Arrow type of what was seen, None where no type holds it all."""
        if self.kinds == {list} and self.items:
            inner = self.items.type()
            return None if inner is None else _ARROW.large_list(inner)
        if self.kinds == {dict} and self.fields:
            types = {name: shape.type() for name, shape in self.fields.items()}
            return None if None in types.values() else _ARROW.struct(list(types.items()))
        kind = _SCALARS.get(frozenset(self.kinds))
        if kind is not None and int in self.kinds:
            return _number_type(self.low, self.high, has_floats=float in self.kinds)
        return kind


def _nested_type(values: Sequence[Any]) -> pa.DataType | None:
    shape, places = _SeenTypes(), 0
    for value in values:
        places += shape.note(value, 0)
        if places * len(values) > MAX_CELLS:
            return None
    return shape.type()


def is_too_wide(records: Sequence[Record], names: tuple[str, ...] | None) -> bool:
    """Say whether one batch of these records (None: of all their fields) would be mostly nulls, and enormous."""
    width = len(names_in(records) if names is None else names)
    return len(records) * width > MAX_CELLS


@final
class Rows:
    """n rows, never changed in place.

    Columnar inputs come as columns and JSON as objects; a step takes the form it works in, and what nobody asks
    for is never made. The two forms of JSON rows differ in one thing: a missing key is missing in an object, and
    null in the columns.
    """

    def __init__(
        self,
        columns: pa.RecordBatch | None = None,
        objects: list[Row] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Give either form, or both of the same rows.

        Args:
            names: the fields that columns are made of where only objects are given, None for all; objects may have
                further ones.
        """
        if columns is None and objects is None:
            raise TypeError("rows need columns or objects")
        self._columns, self._objects, self._names = columns, objects, names

    def __len__(self) -> int:
        return len(self._objects) if self._objects is not None else len(self.columns)

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as columns; made of objects by the rules of this module."""
        if self._columns is None:
            assert self._objects is not None
            names = names_in(self._objects) if self._names is None else self._names
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
        columns = None if self._columns is None else self._columns.filter(mask_of(mask))
        objects = None if self._objects is None else list(compress(self._objects, mask.tolist()))
        return type(self)(columns, objects, self._names)

    def values(self, path: str) -> Sequence[Any]:
        """Return the field `path` of every row as Python values, None where it is missing.

        A field that bears the whole dotted path as its name comes first: ``a.b`` is the field "a.b", else field "b"
        of "a".
        """
        if self._objects is None and self._columns is not None:
            name = path if path in self._columns.schema.names else path.split(".", 1)[0]
            if name not in self._columns.schema.names:
                return [None] * len(self)
            values: list[Any] = self._columns.column(name).to_pylist()
            return values if name == path else [value_at(value, path[len(name) + 1 :]) for value in values]
        if "." not in path:
            return [row.get(path) for row in self.objects]
        return [value_at(row, path) for row in self.objects]


def value_at(value: Any, path: str) -> Any:
    """Return what is at a dotted path of JSON, None where nothing is; a key that is all that is left comes first."""
    while isinstance(value, dict):
        if path in value:
            return value[path]
        name, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(name)
    return None
