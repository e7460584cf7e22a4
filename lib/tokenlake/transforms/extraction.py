"""A value from inside a field, as a field of its own."""

from __future__ import annotations

import re
from typing import Any, Final, cast, final

import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import ConfigError
from tokenlake.rows import Row
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import Array, changed, column_or_none, with_column
from tokenlake.transforms.fields import one_name, union

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa
_PATH: Final = re.compile(r"[^.\[\]]+(?:\[-?\d+\])*(?:\.[^.\[\]]+(?:\[-?\d+\])*)*")
_STEP: Final = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")

Path = tuple[str | int, ...]


@final
class ExtractField(Transform):
    """Copies what is at a path, such as ``a.b[0].c``, into a field; `default` where nothing or null is there.

    ``[0]`` is the first value of a list and ``[-1]`` its last. A field of the row that bears the whole path as its
    name comes first.
    """

    def __init__(self, source_path: str, target_field: str, default: Any = None) -> None:
        """Take path, field and default; ConfigError if the path is none."""
        if not isinstance(source_path, str) or not _PATH.fullmatch(source_path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"ExtractField: got the path {source_path!r}, must be names with dots between and places of lists in "
                "brackets, such as 'a.b[0].c'"
            )
        self._name, self._target = source_path, one_name("ExtractField", target_field)
        self._default = default
        self._path: Path = tuple(int(place) if place else name for place, name in _STEP.findall(source_path))

    def __call__(self, example: Row) -> Row:
        """Return the row with the field."""
        found = example[self._name] if self._name in example else _follow(example, self._path)
        return {**example, self._target: self._default if found is None else found}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome | None:
        """Take the column out of those around it."""
        names = columns.schema.names
        if self._name in names:
            values = columns.column(self._name)
        elif self._path[0] in names:
            values = _inside(columns.column(str(self._path[0])), self._path[1:])
        else:
            values = _ARROW.nulls(columns.num_rows)
        values = None if values is None else _filled(values, self._default)
        if values is None:
            return None
        return changed(with_column(columns, self._target, values), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field that the path begins with, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._target], [self._name, str(self._path[0])])

    def __repr__(self) -> str:
        return f"ExtractField({self._name!r}, {self._target!r}, {self._default!r})"


def _follow(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, int):
            values = cast("list[Any]", value if isinstance(value, list) else [])
            value = values[step] if -len(values) <= step < len(values) else None
        else:
            value = cast("Row", value).get(step) if isinstance(value, dict) else None
    return value


def _inside(column: Array, path: Path) -> Array | None:
    """Return what is at `path` in every value of a column, null where nothing is; None for types that take longer."""
    values: Any = column
    for step in path:
        kind = values.type
        plain = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if plain and isinstance(step, int):
            values = _element(values, step)
        elif pa.types.is_struct(kind) and isinstance(step, str):
            at = kind.get_field_index(step)
            values = _COMPUTE.struct_field(values, [at]) if at >= 0 else _ARROW.nulls(len(values))
        elif plain or pa.types.is_struct(kind) or pa.types.is_primitive(kind) or _is_text(kind):
            return _ARROW.nulls(len(values))
        else:
            return None
    return values


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)


def _element(lists: Any, place: int) -> Array:
    """Return the value at `place` of every list, null where a list is null or too short."""
    sizes = _COMPUTE.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy()[:-1]
    there = (place if place >= 0 else -place - 1) < sizes
    indices = starts + (place if place >= 0 else sizes + place)
    return lists.values.take(_ARROW.array(indices, pa.int64(), mask=~there))


def _filled(values: Any, default: Any) -> Array | None:
    """Return `values` with `default` in the place of null; None where a column cannot hold both as they are."""
    if default is None or not values.null_count:
        return values
    constant = column_or_none([default])
    if constant is None:
        return None
    if pa.types.is_null(values.type):
        return _ARROW.repeat(constant[0], len(values))
    if values.type != constant.type and not (_is_text(values.type) and _is_text(constant.type)):
        return None
    return values.fill_null(constant[0].cast(values.type))
