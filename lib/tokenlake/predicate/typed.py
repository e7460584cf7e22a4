"""Values of JSON as columns that a predicate can look at, records of the same types together.

What a record is worth never depends on those beside it: a column that held ``"en"`` and ``5`` would make JSON text of
both. So records are grouped by the types of what is looked at in them, and a group's columns have the types that
each of its records has alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.columns import MAX_DEPTH, column_of

Tree: TypeAlias = "dict[str, tuple[str, Tree]]"
"""Lower-case names of the fields of an object that are looked at, each with its spelling and fields; {} for all."""

_ARROW: Final[Any] = pa
_ONE_TYPE: Final[tuple[set[type[Any]], ...]] = ({type(None)}, {bool}, {float}, {str})
_JSON: Final = frozenset({bool, int, float, str, list, dict, type(None)})
_PLAIN: Final = frozenset({type(None), bool, float, str})
_EXACT, _BITS = 1 << 53, 1 << 63


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
    kinds = [found for values in columns.values() if (found := _kinds(values)) is not None]
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


def _kinds(values: list[Any]) -> list[Hashable] | None:
    """Return what decides the type of each value alone; None where it is the same for all."""
    if _alike(values, 0):
        return None
    found = [_kind(value) for value in values]
    return found if len(set(found)) > 1 else None


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


def _kind(value: Any) -> Hashable:
    if type(value) is int:
        return int if -_BITS <= value < _BITS else "large"
    return _inner_kind(value, 0)


def _inner_kind(value: Any, depth: int) -> Hashable:
    kind = type(value)
    if kind is int:  # beside floats it is one of them, if that holds it
        return int if -_EXACT <= value <= _EXACT else "inexact" if -_BITS <= value < _BITS else "large"
    if kind is not list and kind is not dict:
        return kind
    if depth == MAX_DEPTH:
        return "deep"
    items: list[Any] = list(value.values()) if kind is dict else value
    types = tuple(map(type, items))
    plain = _PLAIN.issuperset(types)
    inner = types if plain else tuple([_inner_kind(item, depth + 1) for item in items])
    return (dict, tuple(value), inner) if kind is dict else (list, *dict.fromkeys(inner))


def _columns(
    indices: npt.NDArray[np.int64], columns: Mapping[str, list[Any]]
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch | None]]:
    """Yield a group's columns, in parts where together they would have other types than alone."""
    try:
        arrays = {name: _array(values) for name, values in columns.items()}
        alone = all(_is_as_alone(array, columns[name][:1]) for name, array in arrays.items())
    except (TypeError, UnicodeEncodeError, OverflowError, pa.ArrowException):
        arrays, alone = {}, False
    if alone or len(indices) == 1:
        yield indices, pa.RecordBatch.from_pydict(arrays) if arrays else None
        return
    half = len(indices) // 2
    for part in (slice(half), slice(half, None)):
        yield from _columns(indices[part], {name: values[part] for name, values in columns.items()})


def _is_as_alone(array: Any, first: list[Any]) -> bool:
    """Say whether a column has the type of its first value: that of very many large objects is JSON text."""
    text = pa.types.is_large_string(array.type)
    return not text or type(first[0]) is str or pa.types.is_large_string(_array(first).type)


def _array(values: list[Any]) -> Any:
    """Return values of one kind as a column; what columns or functions of a row gave may be no JSON."""
    return column_of(values) if type(values[0]) in _JSON else _ARROW.array(values)
