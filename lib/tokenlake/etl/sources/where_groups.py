"""JSON objects in groups of equal types, as columns that DuckDB can judge.

A predicate's verdict on a record depends on that record alone. A column of JSON values
would not allow this: beside ``5`` the value ``"en"`` would become JSON text, and ``lang
= 'en'`` would be false. Objects are therefore grouped by the types of the fields that
the predicate looks at, and the columns of a group have the types that each object has
alone.

Example, with a predicate on ``lang``::

    {"lang": "en"}, {"lang": 5}, {"lang": "de"}   ->   objects 0 and 2, lang: string;  object 1, lang: int64

The steps:

1. The fields that the predicate looks at are picked (:func:`_pick_fields`), null where
   an object lacks one.
2. Of each field whose values may differ in type, the type of every value alone is found
   (:func:`_type_alone`).
3. Objects with the same types are one group. A group whose columns still have other
   types than its objects alone is halved (:func:`_columns_of_group`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64s
from tokenlake.etl.sources.rows import MAX_DEPTH, column_of

FieldTree: TypeAlias = "dict[str, tuple[str, FieldTree]]"
"""Lower-case name of each field to its spelling and the fields inside it; an empty
tree stands for the whole value.
"""

Group: TypeAlias = "tuple[Int64s, pa.RecordBatch | None]"
"""Indices of the objects, and their columns; None if a value is no JSON or is nested
too deeply.
"""

_UNIFORM_TYPES: Final[tuple[set[type[Any]], ...]] = (
    {type(None)},
    {bool},
    {float},
    {str},
)
_JSON_TYPES: Final = frozenset({bool, int, float, str, list, dict, type(None)})
# Or nested too deeply.
_NOT_JSON: Final = (TypeError, UnicodeEncodeError, OverflowError, pa.ArrowException)
_INT64_LIMIT: Final = 1 << 63
_ARROW: Final[Any] = pa


def field_tree(paths: Iterable[Sequence[str]]) -> FieldTree:
    """Return the fields that paths lead to; a path that ends at an object stands for
    all of it.
    """
    tree: FieldTree = {}
    # Longest first: a path that ends above another one then replaces it.
    for path in sorted(paths, key=len, reverse=True):
        *parents, last = path
        inner = tree
        for name in parents:
            _, inner = inner.setdefault(name.lower(), (name, {}))
        inner[last.lower()] = (last, {})
    return tree


def group_by_types(
    objects: Sequence[Mapping[str, Any]], tree: FieldTree
) -> Iterator[Group]:
    """Yield objects in groups of equal types, each group as its indices and columns;
    a missing field is null.
    """
    columns: dict[str, list[Any]] = {}
    for name, inner in tree.values():
        values = [record.get(name) for record in objects]
        columns[name] = _pick_fields(values, inner)

    # Types decide only in columns where they differ. Nearly all columns pass the quick
    # look.
    types_of_columns: list[list[Hashable]] = []
    for values in columns.values():
        if not _surely_have_one_type(values, 0):
            types = [_type_alone(value) for value in values]
            if len(set(types)) > 1:
                types_of_columns.append(types)
    if not types_of_columns:
        if objects:
            yield from _columns_of_group(np.arange(len(objects)), columns)
        return

    # Objects with the same types in all of these columns are one group.
    indices_of_types: dict[Hashable, list[int]] = {}
    for index, types in enumerate(zip(*types_of_columns, strict=True)):
        indices_of_types.setdefault(types, []).append(index)
    for indices in indices_of_types.values():
        members = {
            name: [values[index] for index in indices]
            for name, values in columns.items()
        }
        yield from _columns_of_group(np.array(indices), members)


def _pick_fields(values: list[Any], tree: FieldTree) -> list[Any]:
    """Return objects with the fields of `tree` alone, null where they lack one; any
    other value as it is.
    """
    types = set(map(type, values))
    if not tree or dict not in types:
        return values
    is_all_objects = len(types) == 1
    objects = values
    if not is_all_objects:
        objects = [value if type(value) is dict else {} for value in values]

    # The fields of all objects, column by column, put together to objects again.
    names: list[str] = []
    columns: list[list[Any]] = []
    for name, inner in tree.values():
        members = [
            record[name] if name in record else _folded_member(record, name)
            for record in objects
        ]
        names.append(name)
        columns.append(_pick_fields(members, inner))
    picked = [
        dict(zip(names, members, strict=True)) for members in zip(*columns, strict=True)
    ]
    if is_all_objects:
        return picked
    return [
        new if type(old) is dict else old
        for old, new in zip(values, picked, strict=True)
    ]


def _folded_member(record: dict[str, Any], name: str) -> Any:
    """Return the field whose name is `name` in other letters, as DuckDB finds it in
    a struct; None if there is none.
    """
    folded = name.lower()
    for key, value in record.items():
        if str(key).lower() == folded:
            return value
    return None


def _type_alone(value: Any) -> Hashable:
    """Return the type that a value has as a column of its own."""
    try:
        return type(value), str(_column([value]).type)
    except _NOT_JSON:
        return type(value), None


def _surely_have_one_type(values: Sequence[Any], depth: int) -> bool:
    """Say whether values surely have one type: a quick look, which nearly all columns
    pass.

    Args:
        values: Values of one field.
        depth: Number of levels that they are nested in.
    """
    types: set[type[Any]] = set(map(type, values))
    if types == {int}:
        return min(values) >= -_INT64_LIMIT and max(values) < _INT64_LIMIT
    if types == {dict} and depth < MAX_DEPTH and len(set(map(tuple, values))) == 1:
        members = zip(*map(dict[str, Any].values, values), strict=True)
        return all(_surely_have_one_type(column, depth + 1) for column in members)
    if types == {list} and depth < MAX_DEPTH and all(values):
        return _surely_have_one_type(list(chain.from_iterable(values)), depth + 1)
    return types in _UNIFORM_TYPES


def _columns_of_group(
    indices: Int64s, columns: Mapping[str, list[Any]]
) -> Iterator[Group]:
    """Yield the columns of a group, in halves where together they would have other
    types than alone.
    """
    try:
        arrays = {name: _column(values) for name, values in columns.items()}
        is_right = _have_types_of_first(columns, arrays)
    except _NOT_JSON:
        arrays = {}
        is_right = False
    if is_right or len(indices) == 1:
        batch = pa.RecordBatch.from_pydict(arrays) if arrays else None
        yield indices, batch
        return
    middle = len(indices) // 2
    for half in (slice(middle), slice(middle, None)):
        half_columns = {name: values[half] for name, values in columns.items()}
        yield from _columns_of_group(indices[half], half_columns)


def _have_types_of_first(
    columns: Mapping[str, list[Any]], arrays: Mapping[str, Any]
) -> bool:
    """Say whether columns have the types of their first values.

    A column of very many large objects becomes JSON text, although each of them alone
    is a struct.
    """
    for name, array in arrays.items():
        first = columns[name][:1]
        is_text = pa.types.is_large_string(array.type)
        if (
            is_text
            and type(first[0]) is not str
            and not pa.types.is_large_string(_column(first).type)
        ):
            return False
    return True


def _column(values: list[Any]) -> Any:
    """Return values of one type as a column; those that columns or functions gave
    need not be JSON.
    """
    if type(values[0]) not in _JSON_TYPES:
        return _ARROW.array(values)
    array = column_of(values)
    if type(values[0]) is int and pa.types.is_large_string(array.type):
        # Integers of more than 38 digits. SQL reads such a literal as a double, and the
        # field is read alike.
        return _ARROW.array([_nearest_double(value) for value in values], pa.float64())
    return array


def _nearest_double(value: int) -> float:
    """Return the double that is nearest to an integer, infinity beyond the range of
    doubles.
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
