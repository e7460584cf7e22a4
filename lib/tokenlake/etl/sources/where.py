"""`where`: one SQL predicate over the fields of a record, as DuckDB understands it.

Names are those of the data, letter by letter: ``meta.lang`` is a field of the field "meta", and a field whose
own name has a dot is quoted (``"a.b"``). A type that does not fit is an error; TRY_CAST makes null of it.

Integers of JSON are BIGINT, beyond that UBIGINT, beyond that DECIMAL(38, 0), and of more than 38 digits DOUBLE.

The verdict on a record depends on that record alone. Columns have one type in all records of a file. A column of JSON
values would not: beside ``5`` the value ``"en"`` would be JSON text. So JSON records are grouped by the types of what
the predicate looks at, and the columns of a group have the types that each of its records has alone.

From the statistics of a stretch of records it may follow that the predicate holds nowhere in it. Only comparisons of a
column with constants are judged, and only where Python compares the values exactly as DuckDB does: DuckDB counts NaN as
the greatest number and statistics leave it out; a float may be of 32 bits, to which a constant is then rounded; strings
compare by their UTF-8 bytes, which is the order of Python's code points.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.checks import nearest
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import MAX_DEPTH, Rows, column_of
from tokenlake.etl.sources.sql import Node, engine, parse

Tree: TypeAlias = "dict[str, tuple[str, Tree]]"
"""Lower-case names of the fields of an object that are looked at, each with its spelling and fields; {} for all."""

_ONE_TYPE: Final[tuple[set[type[Any]], ...]] = ({type(None)}, {bool}, {float}, {str})
_JSON: Final = frozenset({bool, int, float, str, list, dict, type(None)})
_NO_VALUES: Final = (TypeError, UnicodeEncodeError, OverflowError, pa.ArrowException)  # no JSON, or too deep
_BITS: Final = 1 << 63
_FLIPPED: Final = {"EQUAL": "EQUAL", "LESSTHAN": "GREATERTHAN", "GREATERTHAN": "LESSTHAN"} | {
    "LESSTHANOREQUALTO": "GREATERTHANOREQUALTO",
    "GREATERTHANOREQUALTO": "LESSTHANOREQUALTO",
}
_MOST_FLOAT_INT: Final = 1 << 24  # exact in 32 bits
_ADVICE: Final = (
    "where types do not fit, TRY_CAST(field AS type) converts, and makes null of what cannot be converted"
)
_ARROW: Final[Any] = pa


def tree_of(paths: Iterable[Sequence[str]]) -> Tree:
    """Return the fields that `paths` lead to; one that ends at an object wants all of it."""
    tree: Tree = {}
    for path in sorted(paths, key=len, reverse=True):
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name.lower(), (name, {}))[1]
        inner[path[-1].lower()] = (path[-1], {})
    return tree


def groups(
    objects: Sequence[Mapping[str, Any]], tree: Tree
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch | None]]:
    """Yield (indices, columns) of the objects in groups of equal types; what one lacks is null.

    The columns are None where values are no JSON, or nested deeper than JSON can be written.
    """
    columns = {name: _picked([each.get(name) for each in objects], inner) for name, inner in tree.values()}
    # What decides the type of each value alone; of most columns it is the same for all.
    kinds = [[_kind(value) for value in values] for values in columns.values() if not _alike(values, 0)]
    kinds = [found for found in kinds if len(set(found)) > 1]
    if not kinds:
        if objects:
            yield from _columns(np.arange(len(objects)), columns)
        return
    members: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(zip(*kinds, strict=True)):
        members.setdefault(kind, []).append(index)
    for indices in members.values():
        some = {name: [values[index] for index in indices] for name, values in columns.items()}
        yield from _columns(np.array(indices), some)


def _picked(values: list[Any], tree: Tree) -> list[Any]:
    """Return objects with the fields of `tree` alone, null where they lack one; any other value as it is."""
    kinds = set(map(type, values))
    if not tree or dict not in kinds:
        return values
    objects = values if len(kinds) == 1 else [value if type(value) is dict else {} for value in values]
    names = [name for name, _ in tree.values()]
    columns = [
        _picked([each[name] if name in each else _member(each, name) for each in objects], inner)
        for name, inner in tree.values()
    ]
    picked = [dict(zip(names, items, strict=True)) for items in zip(*columns, strict=True)]
    if len(kinds) == 1:
        return picked
    return [new if type(old) is dict else old for old, new in zip(values, picked, strict=True)]


def _member(value: dict[str, Any], name: str) -> Any:
    """Return the field of that name in other letters, as DuckDB finds it in a struct."""
    folded = name.lower()
    return next((item for key, item in value.items() if str(key).lower() == folded), None)


def _kind(value: Any) -> Hashable:
    try:
        return type(value), str(_array([value]).type)
    except _NO_VALUES:
        return type(value), None


def _alike(values: Sequence[Any], depth: int) -> bool:
    """Say whether values surely have one type: a quick look, which nearly all columns pass."""
    kinds: set[type[Any]] = set(map(type, values))
    if kinds == {int}:
        return min(values) >= -_BITS and max(values) < _BITS
    if kinds == {dict} and depth < MAX_DEPTH and len(set(map(tuple, values))) == 1:
        return all(
            _alike(items, depth + 1) for items in zip(*map(dict[str, Any].values, values), strict=True)
        )
    if kinds == {list} and depth < MAX_DEPTH and all(values):
        return _alike(list(chain.from_iterable(values)), depth + 1)
    return kinds in _ONE_TYPE


def _columns(
    indices: npt.NDArray[np.int64], columns: Mapping[str, list[Any]]
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch | None]]:
    """Yield a group's columns, in parts where together they would have other types than alone."""
    try:
        arrays = {name: _array(values) for name, values in columns.items()}
        # A column has the type of its first value, but that of very many large objects is JSON text.
        texts = [columns[name][:1] for name, array in arrays.items() if pa.types.is_large_string(array.type)]
        alone = all(type(one[0]) is str or pa.types.is_large_string(_array(one).type) for one in texts)
    except _NO_VALUES:
        arrays, alone = {}, False
    if alone or len(indices) == 1:
        yield indices, pa.RecordBatch.from_pydict(arrays) if arrays else None
        return
    half = len(indices) // 2
    for part in (slice(half), slice(half, None)):
        yield from _columns(indices[part], {name: values[part] for name, values in columns.items()})


def _array(values: list[Any]) -> Any:
    """Return values of one kind as a column; what columns or functions of a row gave may be no JSON."""
    if type(values[0]) not in _JSON:
        return _ARROW.array(values)
    array = column_of(values)
    if type(values[0]) is int and pa.types.is_large_string(array.type):
        # Integers of more than 38 digits. SQL reads such a literal as a double, and so is the field.
        return _ARROW.array([_nearest_double(value) for value in values], pa.float64())
    return array


def _nearest_double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """What statistics say of a column in a stretch of records.

    Attributes:
        low, high: bounds of the values that are not null, None where unknown; they need not be tight.
        nulls: how many are null, None where unknown.
        rows: how many records there are.
    """

    low: Any
    high: Any
    nulls: int | None
    rows: int


Ranges = Mapping[str, ColumnRange]


def holds_nowhere(node: Node, ranges: Ranges) -> bool:
    """Say whether the expression is surely false or null for every record of a stretch."""
    match node["class"], node["type"]:
        case "CONJUNCTION", "CONJUNCTION_AND":
            return any(holds_nowhere(child, ranges) for child in node["children"])
        case "CONJUNCTION", "CONJUNCTION_OR":
            return all(holds_nowhere(child, ranges) for child in node["children"])
        case "COMPARISON", kind:
            kind, left, right = kind.removeprefix("COMPARE_"), node["left"], node["right"]
            return kind in _FLIPPED and (
                _compared(kind, left, right, ranges) or _compared(_FLIPPED[kind], right, left, ranges)
            )
        case "BETWEEN", _:
            return _between(node, ranges)
        case "OPERATOR", "COMPARE_IN":
            column, *values = node["children"]
            return all(_compared("EQUAL", column, value, ranges) for value in values)
        case "OPERATOR", "OPERATOR_IS_NULL":
            found = _range(node["children"][0], ranges)
            return found is not None and found.nulls == 0
        case "OPERATOR", "OPERATOR_IS_NOT_NULL":
            found = _range(node["children"][0], ranges)
            return found is not None and found.nulls == found.rows
        case _:
            return False


def _compared(kind: str, column: Node, constant: Node, ranges: Ranges) -> bool:
    found, value = _range(column, ranges), _constant(constant)
    if found is None or value is None:
        return False
    if found.nulls == found.rows:
        return True
    # A bound that is unknown, or compares otherwise in Python, says nothing; the other one still may.
    low = found.low if _comparable(found.low, value) else None
    high = found.high if _comparable(found.high, value) else None
    match kind:
        case "EQUAL":
            return (low is not None and value < low) or (high is not None and value > high)
        case "LESSTHAN":
            return low is not None and low >= value
        case "LESSTHANOREQUALTO":
            return low is not None and low > value
        case _ if high is None or type(high) is float:
            return False  # NaN is greater, and no bound tells whether there is one
        case "GREATERTHAN":
            return high <= value
        case _:
            return high < value


def _between(node: Node, ranges: Ranges) -> bool:
    found = _range(node["input"], ranges)
    lower, upper = _constant(node["lower"]), _constant(node["upper"])
    if found is None or lower is None or upper is None:
        return False
    if found.nulls == found.rows:
        return True
    above = _comparable(found.low, upper) and found.low > upper  # NaN is above `upper`, too
    below = _comparable(found.high, lower) and found.high < lower and _comparable(found.high, upper)
    return above or below


def _range(node: Node, ranges: Ranges) -> ColumnRange | None:
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    return ranges.get(node["column_names"][0])


def _constant(node: Node) -> Any:
    """Return the Python value of a constant that compares exactly, else None."""
    if node["class"] != "CONSTANT":
        return None
    kind, text = node["literal"]["kind"], node["literal"]["text"]
    match kind:
        case "STRING":
            return text
        case "BOOLEAN":
            return text.lower() == "true"
        case "INTEGER":
            value = int(text)
            return value if -_BITS <= value < _BITS else None
        case "NUMERIC":
            value = float(text)
            try:
                return value if struct.unpack("f", struct.pack("f", value))[0] == value else None
            except OverflowError:
                return None
        case _:
            return None


def _comparable(bound: Any, value: Any) -> bool:
    """Whether Python compares a bound with a constant as DuckDB compares the column with it."""
    if type(bound) is float:
        exact = type(value) is float or (type(value) is int and abs(value) <= _MOST_FLOAT_INT)
        return exact and not math.isnan(bound)
    return type(bound) is type(value)


@final
@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a predicate says of n records.

    Attributes:
        mask: bool[n], where it is true.
        faults: why it cannot be evaluated on a record (``where_failed``), by index; `mask` is false there.
    """

    mask: npt.NDArray[np.bool_]
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])


@final
class Predicate:
    """A predicate on records; a record for which it is null is left out, as in SQL's WHERE.

    Attributes:
        columns: the top-level fields that it looks at, sorted.
    """

    columns: tuple[str, ...]

    def __init__(self, sql: str) -> None:
        """Compile `sql`; what was compiled once in this process costs nothing.

        Raises:
            ConfigError: it is not one expression over fields, or not a pure function of a record.
        """
        self._expression = parse(sql)
        self._tree = tree_of(self._expression.paths)
        self.columns = self._expression.columns

    def judge(self, rows: Rows) -> Verdicts:
        """Judge every row by itself: a field that an object lacks is null, one that columns lack is an error.

        Raises:
            ConfigError: there is no such column, or the predicate cannot be evaluated on columns of these types.
        """
        if not rows.has_objects:
            wanted = self._columns_of(rows.columns)
            try:
                return self._of_columns(wanted)
            except _UnfitError as error:
                raise ConfigError(self._told(error, wanted) + ".", where=self._expression.sql) from error
        mask, faults = np.zeros(len(rows), np.bool_), dict[int, Fault]()
        for indices, columns in groups(rows.objects, self._tree):
            try:
                if columns is None:
                    raise _UnfitError("a field that it looks at is no JSON, or nested too deeply")
                found = self._of_columns(columns)
            except _UnfitError as error:
                fault = Fault("where_failed", self._told(error, columns))
                faults |= dict.fromkeys(indices.tolist(), fault)
            else:
                mask[indices] = found.mask
                faults |= {int(indices[index]): fault for index, fault in found.faults.items()}
        return Verdicts(mask, faults)

    def _of_columns(self, rows: pa.RecordBatch) -> Verdicts:
        """Judge rows of one type each; _UnfitError where none of these types can be judged."""
        try:
            return Verdicts(self._value(rows))
        except _UnfitError:
            nulls = [_ARROW.nulls(1, kind) for kind in rows.schema.types]
            self._value(pa.RecordBatch.from_arrays(nulls, rows.schema.names))
        # Some rows cannot be judged: DuckDB says which may be those, and each of them is asked alone.
        try:
            tried: Any = engine().evaluate(f"TRY(coalesce((\n{self._expression.sql}\n), false))", rows)
        except ConfigError:  # such as too little memory for all of them at once
            tried = pa.nulls(len(rows), pa.bool_())
        mask, faults = _bools(tried.fill_null(False)).copy(), dict[int, Fault]()
        for index in np.flatnonzero(_bools(tried.is_null())).tolist():
            row = rows.take(pa.array([index]))
            try:
                mask[index] = self._value(row)[0]
            except _UnfitError as error:
                faults[index] = Fault("where_failed", self._told(error, row))
        return Verdicts(mask, faults)

    def _value(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        try:
            value: Any = engine().evaluate(self._expression.sql, rows)
        except ConfigError as error:
            raise _UnfitError(str(error)) from error
        if pa.types.is_null(value.type):
            return np.zeros(len(rows), np.bool_)
        if not pa.types.is_boolean(value.type):
            raise _UnfitError(
                f"it is of type {value.type}, expected a condition that is true or false; compare it with something"
            )
        return _bools(value.fill_null(False))

    def _told(self, error: _UnfitError, rows: pa.RecordBatch | None) -> str:
        told = f"where: {self._expression.sql!r} cannot be evaluated: {error}"
        if rows is None:
            return told
        return f"{told}; it has {', '.join(f'{field.name} {field.type}' for field in rows.schema)}; {_ADVICE}"

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Say whether it surely holds for no record of a stretch with these column ranges."""
        return holds_nowhere(self._expression.tree, ranges)

    def _columns_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names, sql = list[str](rows.schema.names), self._expression.sql
        for name in self.columns:
            if names.count(name) > 1:
                raise ConfigError(f"where: there are several columns {name!r}", where=sql)
            if name not in names:
                near = nearest(name, names)
                hint = "" if near is None else f" Did you mean {near}?"
                raise ConfigError(
                    f"where: {sql!r} looks at {name!r}, which is no column.{hint} "
                    f"The columns are {', '.join(names) or 'none'}.",
                    where=sql,
                    near=[] if near is None else [near],
                )
        return pa.RecordBatch.from_pydict({name: _from_zero(rows.column(name)) for name in self.columns})


class _UnfitError(Exception):
    """DuckDB cannot compute it, or its value is no condition."""


def _bools(bits: Any) -> npt.NDArray[np.bool_]:
    return bits.to_numpy(zero_copy_only=False)


def _from_zero(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return nested values without offsets into their buffers, which DuckDB does not take in structs."""
    if not pa.types.is_nested(array.type) or not _has_offset(array):
        return array
    nested: Any = array
    return nested.take(pa.array(np.arange(len(array))))


def _has_offset(array: Any) -> bool:
    kind: Any = array.type
    if array.offset or pa.types.is_map(kind) or pa.types.is_union(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_offset(array.field(index)) for index in range(kind.num_fields))
    return pa.types.is_nested(kind) and _has_offset(array.values)
