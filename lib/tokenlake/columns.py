"""JSON objects as Arrow columns, by rules that depend on the values alone.

| the values of a column (nulls and missing keys aside) | its type |
|---|---|
| none | null |
| booleans | bool |
| integers of 64 bits with sign | int64 |
| floating-point numbers, or these and integers that are exact as a double | double |
| strings, dates among them | large_string |
| arrays or objects whose own values follow these rules | large_list, struct |
| anything else | large_string, every value as JSON text |

Anything else is: values of several kinds, larger integers, objects without keys or with very many
different ones, and what nests more than 16 levels deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, cast

import orjson
import pyarrow as pa

Record = dict[str, Any]

MAX_CELLS: Final = 4 << 20
"""Records times columns of one batch; objects that share no keys would else make an enormous one."""

MAX_DEPTH: Final = 16
"""Of nested types."""

_EXACT: Final = 1 << 53  # integers up to here are exact as a double
_BITS: Final = 1 << 63
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
    elif int in kinds and not _fits(values, exact=float in kinds):
        kind = None
    if kind is None:
        return _ARROW.array([_as_json(value) for value in values], pa.large_string())
    return _ARROW.array(values, kind)


def _fits(values: Iterable[Any], *, exact: bool) -> bool:
    low, high = (-_EXACT, _EXACT) if exact else (-_BITS, _BITS - 1)
    return all(low <= value <= high for value in values if type(value) is int)


def _as_json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


@dataclass(slots=True)
class _Shape:
    """What was seen at one place of nested values."""

    kinds: set[type[Any]] = field(default_factory=set[type[Any]])
    inexact: bool = False  # an integer that a double cannot hold
    large: bool = False  # one that int64 cannot hold
    items: _Shape | None = None
    fields: dict[str, _Shape] = field(default_factory=dict[str, "_Shape"])

    def note(self, value: Any, depth: int) -> int:
        """Add a value that lies `depth` levels deep; return how many new places it has, a lot if too deep."""
        kind: type[Any] = type(value)
        if value is None:
            return 0
        self.kinds.add(kind)
        if kind is int:
            self.inexact |= abs(value) > _EXACT
            self.large |= not -_BITS <= value < _BITS
        elif kind is list or kind is dict:
            return MAX_CELLS if depth == MAX_DEPTH else self._note_inside(value, depth + 1)
        return 0

    def _note_inside(self, value: list[Any] | Record, depth: int) -> int:
        if isinstance(value, list):
            self.items = items = self.items or _Shape()
            return sum(items.note(item, depth) for item in value)
        new = 0
        for key, item in value.items():
            shape = self.fields.get(key)
            if shape is None:
                shape = self.fields[key] = _Shape()
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
        unfit = self.large or (self.inexact and float in self.kinds)
        return None if unfit else _SCALARS.get(frozenset(self.kinds))


def _nested_type(values: Sequence[Any]) -> pa.DataType | None:
    shape, places = _Shape(), 0
    for value in values:
        places += shape.note(value, 0)
        if places * len(values) > MAX_CELLS:
            return None
    return shape.type()


def is_too_wide(records: Sequence[Record], names: tuple[str, ...] | None) -> bool:
    """Say whether one batch of these records (None: of all their fields) would be mostly nulls, and enormous."""
    width = len(names_in(records) if names is None else names)
    return len(records) * width > MAX_CELLS


def count_members(record: Record) -> int:
    """Return how many members a record has, those of all objects inside it included."""
    total, rest = 0, cast("list[Any]", [record])
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            members = cast("Record", value)
            total += len(members)
            value = members.values()
        rest += [item for item in value if type(item) is dict or type(item) is list]
    return total
