"""Steps that choose, rename, add, map, extract and combine the fields of rows. Rows given in are never changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.transform import (
    Array,
    Fields,
    FieldTransform,
    StepOutcome,
    called,
    column_or_none,
    with_column,
)

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()
_CONTAINERS: Final = (list, tuple, dict, set, bytes)
_PATH: Final = re.compile(r"[^.\[\]]+(?:\[-?\d+\])*(?:\.[^.\[\]]+(?:\[-?\d+\])*)*")
_STEP: Final = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")

Path = tuple[str | int, ...]


def name_list(what: str, fields: object) -> tuple[str, ...]:
    """Return names of fields; ConfigError unless they are a list of at least one, all different."""
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise ConfigError(f"{what}: got {fields!r}, must be a list of names, such as ['text']")
    names = tuple(one_name(what, name) for name in cast("Sequence[object]", fields))
    if len(set(names)) < len(names):
        raise ConfigError(f"{what}: got {list(names)!r}, where a name comes twice")
    return names


def one_name(what: str, field: object) -> str:
    """Return the name of a field; ConfigError unless it is text."""
    if not isinstance(field, str) or not field:
        raise ConfigError(f"{what}: got {field!r}, names of fields must be text")
    return field


def function_of(what: str, value: Any, of: str) -> Callable[[Any], Any]:
    """Return a function given; ConfigError if it is none."""
    if not callable(value):
        raise ConfigError(f"{what}: got {value!r}, must be a function of {of}")
    return value


@final
class SelectFields(FieldTransform):
    """Leaves the fields named alone, in this order; a row that lacks one is bad (``missing_field``)."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("SelectFields", fields)
        super().__init__(requires=self._fields)

    def of_row(self, row: Row) -> Row:
        """Return a row of these fields alone."""
        return {field: row[field] for field in self._fields}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns."""
        return columns.select(list(self._fields))

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields named, each of which must be there."""
        return self._fields


@final
class DropFields(FieldTransform):
    """Takes the fields named away, where they are."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("DropFields", fields)
        super().__init__(makes=self._fields)

    def of_row(self, row: Row) -> Row:
        """Return the row without these fields."""
        return {field: value for field, value in row.items() if field not in self._makes}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Take the columns away."""
        return columns.select([name for name in columns.schema.names if name not in self._makes])


@final
class RenameFields(FieldTransform):
    """Gives fields new names, ``{old: new}``; the others stay, and so does the order. Two may swap names.

    A row that lacks an old name is bad (``missing_field``), and so is one where a new name is another field's
    already (``field_collision``).
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        """Take the names; ConfigError unless they are text, and all new ones different."""
        if not isinstance(mapping, Mapping) or not mapping:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"RenameFields: got {mapping!r}, must be a mapping {{old: new}} of names")
        self._names = {
            one_name("RenameFields", old): one_name("RenameFields", mapping[old]) for old in mapping
        }
        for new in self._names.values():
            olds = [old for old, name in self._names.items() if name == new]
            if len(olds) > 1:
                told = f"{olds[0]!r} and {olds[1]!r} would both become {new!r}"
                raise ConfigError(f"RenameFields: {told}; give them different names")
        super().__init__((*self._names, *self._names.values()), requires=tuple(self._names))

    def fault(self, names: Row | list[str]) -> Fault | None:
        """Return why a row with the fields `names` cannot be used, None where it can."""
        for old, new in self._names.items():
            if old in names and new in names and new not in self._names:
                told = f"{old!r} cannot become {new!r}, because the row has a field {new!r} already"
                detail = f"RenameFields: {told}; rename or drop that one first"
                return super().fault(names) or Fault("field_collision", detail)
        return super().fault(names)

    def of_row(self, row: Row) -> Row:
        """Return the row with its fields renamed."""
        return {self._names.get(field, field): value for field, value in row.items()}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Rename the columns."""
        renamed: Any = columns.rename_columns([self._names.get(name, name) for name in columns.schema.names])
        return renamed

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the old names of what is wanted; of the new names any field that may be in their way."""
        old = {new: name for name, new in self._names.items()}
        return super().needs(None if wanted is None else tuple(old.get(name, name) for name in wanted))


class _OneField(FieldTransform):
    """A step that makes one field, `target`, of others."""

    def __init__(self, target: str, reads: Fields, requires: Sequence[str] = ()) -> None:
        self._target = target
        super().__init__(reads, [target], requires)

    def value(self, row: Row) -> Any:
        """Return the field's value in a row."""
        raise NotImplementedError

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Return the field's values, None where they are made row by row."""
        return None

    def of_row(self, row: Row) -> Row:
        return {**row, self._target: self.value(row)}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        values = self.column(columns)
        return None if values is None else with_column(columns, self._target, values)


@final
class AddField(_OneField):
    """Gives every row a field, in the place of one of that name: the same value for all, or a function of the row."""

    def __init__(self, field: str, value: Any | Callable[[Row], Any]) -> None:
        """Take the name of the field, and its value or what computes it."""
        if isinstance(value, type):
            raise ConfigError(
                f"AddField: got the class {value.__name__}, must be a value or a function of a row"
            )
        super().__init__(one_name("AddField", field), None if callable(value) else ())
        self._value = value
        self._constant = None if callable(value) else column_or_none([value])

    def value(self, row: Row) -> Any:
        """Return the value, or what the function makes of the row."""
        return self._value(row) if callable(self._value) else self._value

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Return a column of one value."""
        return None if self._constant is None else _ARROW.repeat(self._constant[0], columns.num_rows)


@final
class MapField(_OneField):
    """Puts ``fn(value)`` in the place of a field's value, or into another field; null is a value, too.

    A row without the field is bad (``missing_field``).
    """

    def __init__(self, field: str, fn: Callable[[Any], Any], output_field: str | None = None) -> None:
        """Take the field, the function of its value, and where its result goes (None: the same field)."""
        self._function = function_of("MapField", fn, "a value")
        self._field = one_name("MapField", field)
        target = one_name("MapField", field if output_field is None else output_field)
        super().__init__(target, (self._field,), (self._field,))

    def value(self, row: Row) -> Any:
        """Return what the function makes of the field's value."""
        return self._function(row[self._field])

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Map one column; the others stay as they are."""
        if self.fault(columns.schema.names):
            return super().on_columns(columns)
        values, bad = called(self._function, columns.column(self._field).to_pylist())
        keep = np.ones(columns.num_rows, np.bool_)
        keep[[index for index, _ in bad]] = False
        left, values = Rows(columns).select(keep), list(compress(values, keep.tolist()))
        made = column_or_none(values)
        if made is not None:
            rows = Rows(with_column(left.columns, self._target, made))
        else:  # values that no column can hold as they are
            pairs = zip(left.objects, values, strict=True)
            rows = Rows(objects=[{**row, self._target: value} for row, value in pairs])
        return StepOutcome(rows, np.flatnonzero(keep), bad=bad)


@final
class ExtractField(_OneField):
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
        self._name, self._default = source_path, default
        self._path: Path = tuple(int(place) if place else name for place, name in _STEP.findall(source_path))
        super().__init__(one_name("ExtractField", target_field), (source_path, str(self._path[0])))

    def value(self, row: Row) -> Any:
        """Return what is at the path in a row."""
        found = row[self._name] if self._name in row else _follow(row, self._path)
        return self._default if found is None else found

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Take the column out of those around it."""
        names, first = columns.schema.names, str(self._path[0])
        if self._name in names:
            values = columns.column(self._name)
        elif first in names:
            values = _inside(columns.column(first), self._path[1:])
        else:
            values = _ARROW.nulls(columns.num_rows)
        return None if values is None else _filled(values, self._default)


def _follow(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, int):
            values = cast("list[Any]", value if isinstance(value, list) else [])
            value = values[step] if -len(values) <= step < len(values) else None
        else:
            value = cast("Row", value).get(step) if isinstance(value, dict) else None
    return value


def _inside(values: Any, path: Path) -> Array | None:
    """Return what is at `path` in every value of a column, null where nothing is; None for types that take longer."""
    for step in path:
        kind = values.type
        plain = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if plain and isinstance(step, int):
            values = _element(values, step)
        elif pa.types.is_struct(kind) and isinstance(step, str) and kind.get_field_index(step) >= 0:
            values = _COMPUTE.struct_field(values, [kind.get_field_index(step)])
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


@final
class CombineFields(_OneField):
    """Joins the texts of several fields, a separator between them, or gives their values to a function.

    Null is left out of the text, and a number becomes its digits; where all are null, so is the result. A list, an
    object or bytes have no text of their own: such a row is bad (``not_text``). So is one that lacks a field
    (``missing_field``); where it may lack one, `ExtractField` with a default gives it first.
    """

    def __init__(
        self,
        source_fields: Sequence[str] | None = None,
        target_field: str | None = None,
        combiner: Callable[[list[Any]], Any] | None = None,
        separator: str = " ",
        drop_sources: bool = False,
        *,
        fields: Sequence[str] | None = None,
        output_field: str | None = None,
    ) -> None:
        """Take the fields and where the result goes, under either pair of names.

        Args:
            combiner: makes the result of the list of values, null as None; None joins texts.
            separator: between texts.
            drop_sources: take the fields away that were combined.

        Raises:
            ConfigError: both names of an argument are given, or none.
        """
        what = "CombineFields"
        target = _either(("target_field", target_field), ("output_field", output_field))
        self._sources = name_list(what, _either(("source_fields", source_fields), ("fields", fields)))
        super().__init__(one_name(what, target), self._sources, self._sources)
        if not isinstance(separator, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{what}: separator: got {separator!r}, must be text")
        self._combiner = combiner and function_of(f"{what}: combiner", combiner, "a list of values")
        self._separator = separator
        self._dropped = frozenset(self._sources) - {target} if drop_sources else frozenset[str]()

    def of_row(self, row: Row) -> Row:
        """Return the row with the combined field."""
        made = super().of_row(row)
        return {name: value for name, value in made.items() if name not in self._dropped}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the columns with the combined one."""
        made = super().of_columns(columns)
        return made and made.select([name for name in made.schema.names if name not in self._dropped])

    def value(self, row: Row) -> Any:
        """Return the combined value of a row."""
        values = [row[field] for field in self._sources]
        if self._combiner:
            return self._combiner(values)
        for field, value in zip(self._sources, values, strict=True):
            if isinstance(value, _CONTAINERS):
                told = f"CombineFields: the field {field!r} holds {type(value).__name__}, which is no text"
                raise BadRecordError(f"{told}; a combiner makes one of it", reason="not_text")
        texts = [str(value) for value in values if value is not None]
        return self._separator.join(texts) if texts else None

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Join columns of texts and whole numbers."""
        sources = [columns.column(name) for name in self._sources]
        if self._combiner or not all(_has_text(column.type) for column in sources):
            return None
        joined, *texts = [column.cast(_TEXT) for column in sources]
        for text in texts:
            # Not all at once with null_handling="skip": Arrow 26 leaves out rows where all are null.
            both = _COMPUTE.binary_join_element_wise(joined, text, _ARROW.scalar(self._separator, _TEXT))
            joined = _COMPUTE.coalesce(both, joined, text)
        return joined


def _either(first: tuple[str, Any], second: tuple[str, Any]) -> Any:
    """Return the value of an argument that has two names."""
    given = [(name, value) for name, value in (first, second) if value is not None]
    if len(given) != 1:
        told = "got both" if given else "got neither"
        raise ConfigError(
            f"CombineFields: {told} {first[0]!r} and {second[0]!r}; one of them names the same thing"
        )
    return given[0][1]


def _has_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
