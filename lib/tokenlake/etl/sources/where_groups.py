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
    """Return the fields that paths lead to.

    A path that ends at an object stands for all of it.
    """
    tree: FieldTree = {}
    # Longest first: a path that ends above another one then replaces it.
    for path in sorted(paths, key=len, reverse=True):
        *parents, field_name = path
        inner_tree = tree
        for parent_name in parents:
            _, inner_tree = inner_tree.setdefault(
                parent_name.lower(), (parent_name, {})
            )
        inner_tree[field_name.lower()] = (field_name, {})
    return tree


def group_by_types(
    objects: Sequence[Mapping[str, Any]], tree: FieldTree
) -> Iterator[Group]:
    """Yield objects in groups of equal types, each as its indices and columns.

    A missing field is null.
    """
    columns: dict[str, list[Any]] = {}
    for field_name, inner_tree in tree.values():
        values = [record.get(field_name) for record in objects]
        columns[field_name] = _pick_fields(values, inner_tree)

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
    for object_index, types in enumerate(zip(*types_of_columns, strict=True)):
        indices_of_types.setdefault(types, []).append(object_index)
    for indices in indices_of_types.values():
        columns_of_group: dict[str, list[Any]] = {}
        for field_name, values in columns.items():
            columns_of_group[field_name] = [
                values[object_index] for object_index in indices
            ]
        yield from _columns_of_group(np.array(indices), columns_of_group)


def _pick_fields(values: list[Any], tree: FieldTree) -> list[Any]:
    """Return objects with the fields of `tree` alone, null where they lack one.

    Any other value is returned as it is.
    """
    types = set(map(type, values))
    if not tree or dict not in types:
        return values
    # Comprehensions over all records from here on: this runs for every record of JSON
    # with a predicate on nested fields.
    is_all_objects = len(types) == 1
    objects = values
    if not is_all_objects:
        objects = [value if type(value) is dict else {} for value in values]

    # The fields of all objects, column by column, put together to objects again.
    names: list[str] = []
    columns: list[list[Any]] = []
    for field_name, inner in tree.values():
        members = [
            record[field_name]
            if field_name in record
            else _folded_member(record, field_name)
            for record in objects
        ]
        names.append(field_name)
        columns.append(_pick_fields(members, inner))
    objects_of_fields = [
        dict(zip(names, members, strict=True)) for members in zip(*columns, strict=True)
    ]
    if is_all_objects:
        return objects_of_fields
    return [
        picked if type(value) is dict else value
        for value, picked in zip(values, objects_of_fields, strict=True)
    ]


def _folded_member(record: dict[str, Any], name: str) -> Any:
    """Return the field with the name `name` in other letters, None if there is none.

    DuckDB finds a field of a struct so.
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
    """Say whether values surely have one type.

    The look is quick, and nearly all columns pass it.

    Args:
        values: Values of one field.
        depth: Number of levels that they are nested in.
    """
    types: set[type[Any]] = set(map(type, values))
    # Integers are of two types, by their size; objects of one type have the same keys
    # in the same order; an empty list has no type of items.
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
    """Yield the columns of a group.

    A group whose columns together would have other types than alone is halved.
    """
    try:
        arrays = {field_name: _column(values) for field_name, values in columns.items()}
        is_right = _have_types_of_first(columns, arrays)
    except _NOT_JSON:
        arrays = {}
        is_right = False
    if is_right or len(indices) == 1:
        batch = pa.RecordBatch.from_pydict(arrays) if arrays else None
        yield indices, batch
        return
    middle_index = len(indices) // 2
    for half in (slice(middle_index), slice(middle_index, None)):
        half_columns = {
            field_name: values[half] for field_name, values in columns.items()
        }
        yield from _columns_of_group(indices[half], half_columns)


def _have_types_of_first(
    columns: Mapping[str, list[Any]], arrays: Mapping[str, Any]
) -> bool:
    """Say whether columns have the types of their first values.

    A column of very many large objects becomes JSON text, although each of them alone
    is a struct.
    """
    for field_name, array in arrays.items():
        first_value = columns[field_name][:1]
        is_text = pa.types.is_large_string(array.type)
        if not is_text or type(first_value[0]) is str:
            continue
        if not pa.types.is_large_string(_column(first_value).type):
            return False
    return True


def _column(values: list[Any]) -> Any:
    """Return values of one type as a column.

    Values that columns or functions gave need not be JSON.
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
    """Return the double that is nearest to an integer, infinity beyond all doubles."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
