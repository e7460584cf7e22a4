"""Steps that choose, rename, add, map, extract and combine the fields of rows.

Input rows are never changed.
"""

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
# Values without one obvious text: joining them would print Python.
_CONTAINERS: Final = (list, tuple, dict, set, bytes)
# A name, indices in brackets behind it, and further names after dots.
_PATH: Final = re.compile(r"[^.\[\]]+(?:\[-?\d+\])*(?:\.[^.\[\]]+(?:\[-?\d+\])*)*")
_PATH_KEY: Final = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")

Path = tuple[str | int, ...]
"""Names of fields and indices of lists, from the outside to the inside."""


# ---- arguments -----------------------------------------------------------------------


def name_list(step: str, fields: object) -> tuple[str, ...]:
    """Return names of fields.

    Raises:
        ConfigError: They are no list of at least one, all different.
    """
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise ConfigError(
            f"{step}: got {fields!r}, must be a list of names, such as ['text']"
        )
    names = tuple(one_name(step, name) for name in cast("Sequence[object]", fields))
    if len(set(names)) < len(names):
        raise ConfigError(f"{step}: got {list(names)!r}, which contains a name twice")
    return names


def one_name(step: str, field: object) -> str:
    """Return the name of a field; ConfigError unless it is text."""
    if not isinstance(field, str) or not field:
        raise ConfigError(f"{step}: got {field!r}, names of fields must be text")
    return field


def function_of(step: str, value: Any, argument: str) -> Callable[[Any], Any]:
    """Return a function; ConfigError unless it is one.

    Args:
        step: Name of the step, for the error.
        value: Function.
        argument: Kind of its argument, for the error.
    """
    if not callable(value):
        raise ConfigError(f"{step}: got {value!r}, must be a function of {argument}")
    return value


# ---- steps on several fields ---------------------------------------------------------


@final
class SelectFields(FieldTransform):
    """Keeps some fields alone, in the order of their names.

    A row that lacks one is bad (``missing_field``).

    Args:
        fields: Names of the fields.

    Raises:
        ConfigError: They are no list of different names.

    Example:
        >>> import tokenlake
        >>> tokenlake.SelectFields(["text"])({"id": 7, "text": "a"})
        {'text': 'a'}
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = name_list("SelectFields", fields)
        super().__init__(requires=self._fields)

    def of_row(self, row: Row) -> Row:
        """Return a row of these fields alone."""
        return {field: row[field] for field in self._fields}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns."""
        return columns.select(list(self._fields))

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields, each of which a row must have."""
        return self._fields


@final
class DropFields(FieldTransform):
    """Removes some fields from rows that have them.

    Args:
        fields: Names of the fields.

    Raises:
        ConfigError: They are no list of different names.

    Example:
        >>> import tokenlake
        >>> tokenlake.DropFields(["id"])({"id": 7, "text": "a"})
        {'text': 'a'}
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = name_list("DropFields", fields)
        super().__init__(makes=self._fields)

    def of_row(self, row: Row) -> Row:
        """Return the row without these fields."""
        new_row = dict(row)
        for field in self._fields:
            new_row.pop(field, None)
        return new_row

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns without these."""
        names = [name for name in columns.schema.names if name not in self._makes]
        return columns.select(names)


@final
class RenameFields(FieldTransform):
    """Gives fields new names; the others stay, and so does the order.

    Two fields may swap names.

    A row that lacks an old name is bad (``missing_field``), and so is one in which
    another field has a new name already (``field_collision``).

    Args:
        mapping: {old name: new name}.

    Raises:
        ConfigError: Names are no text, or two new names are equal.

    Example:
        >>> import tokenlake
        >>> tokenlake.RenameFields({"body": "text"})({"id": 7, "body": "a"})
        {'id': 7, 'text': 'a'}
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        if not isinstance(mapping, Mapping) or not mapping:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"RenameFields: got {mapping!r}, must be a mapping {{old: new}} of names"
            )
        self._names: dict[str, str] = {}
        for old_name, new_name in mapping.items():
            checked_name = one_name("RenameFields", old_name)
            self._names[checked_name] = one_name("RenameFields", new_name)
        # Two fields of one name would be one field, and a value would be lost.
        old_names: dict[str, str] = {}
        for old_name, new_name in self._names.items():
            first_name = old_names.setdefault(new_name, old_name)
            if first_name != old_name:
                raise ConfigError(
                    f"RenameFields: {first_name!r} and {old_name!r} would both become {new_name!r}; give them "
                    "different names"
                )
        # New names are read, too: a row that has one already is bad.
        all_names = (*self._names, *self._names.values())
        super().__init__(all_names, requires=tuple(self._names))

    def fault(self, names: Row | list[str]) -> Fault | None:
        """Return the fault of a row with these fields; None where it can be used."""
        missing_field = super().fault(names)
        if missing_field is not None:
            return missing_field
        # A new name that is also an old one becomes free: the names are swapped.
        for old_name, new_name in self._names.items():
            if new_name in names and new_name not in self._names:
                return Fault(
                    "field_collision",
                    f"RenameFields: {old_name!r} cannot become {new_name!r}, because the row has a field {new_name!r} "
                    "already; rename or drop that one first",
                )
        return None

    def of_row(self, row: Row) -> Row:
        """Return the row with its fields renamed."""
        return {self._names.get(field, field): value for field, value in row.items()}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Rename the columns."""
        new_names = [self._names.get(name, name) for name in columns.schema.names]
        renamed: Any = columns.rename_columns(new_names)
        return renamed

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the old names of the wanted fields, and the new names.

        Another field may have a new name already, which makes the row bad.
        """
        if wanted is None:
            return super().needs(None)
        old_names = {new_name: old_name for old_name, new_name in self._names.items()}
        wanted_names: list[str] = []
        for name in wanted:
            wanted_names.append(old_names.get(name, name))
        return super().needs(tuple(wanted_names))


# ---- steps that make one field -------------------------------------------------------


class _OneField(FieldTransform):
    """A step that makes one field of others.

    Args:
        target: Name of the field.
        reads: Fields that it reads; None for any.
        requires: Fields that every row must have.
    """

    def __init__(
        self, target: str, reads: Fields, requires: Sequence[str] = ()
    ) -> None:
        self._target = target
        super().__init__(reads, [target], requires)

    def value(self, row: Row) -> Any:
        """Return the value of the field in a row."""
        raise NotImplementedError

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Return the values of the field; None where they are made row by row."""
        return None

    def of_row(self, row: Row) -> Row:
        """Return the row with the field."""
        return {**row, self._target: self.value(row)}

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the columns with that of the field."""
        values = self.column(columns)
        if values is None:
            return None
        return with_column(columns, self._target, values)


@final
class AddField(_OneField):
    """Adds a field to every row, in the place of one of that name.

    Args:
        field: Name of the field.
        value: Value for all rows, or a function that computes it of a row.

    Raises:
        ConfigError: The value is a class, or the name no text.

    Example:
        >>> import tokenlake
        >>> tokenlake.AddField("size", lambda row: len(row["text"]))({"text": "abc"})
        {'text': 'abc', 'size': 3}
    """

    def __init__(self, field: str, value: Any | Callable[[Row], Any]) -> None:
        # A class is callable, and would make an object of it for every row.
        if isinstance(value, type):
            raise ConfigError(
                f"AddField: got the class {value.__name__}, must be a value or a function of a row"
            )
        # A function may read any field, a value reads none.
        reads = None if callable(value) else ()
        super().__init__(one_name("AddField", field), reads)
        self._value = value
        self._constant: Array | None = None
        if not callable(value):
            self._constant = column_or_none([value])

    def value(self, row: Row) -> Any:
        """Return the value, or the result of the function of the row."""
        if callable(self._value):
            return self._value(row)
        return self._value

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Return a column of one value; None for a function."""
        if self._constant is None:
            return None
        return _ARROW.repeat(self._constant[0], columns.num_rows)


@final
class MapField(_OneField):
    """Applies a function to the value of a field; null is a value, too.

    A row without the field is bad (``missing_field``).

    Args:
        field: Name of the field.
        fn: Function of its value.
        output_field: Name of the field for the result; None: the same field.

    Raises:
        ConfigError: A name is no text, or `fn` no function.

    Example:
        >>> import tokenlake
        >>> tokenlake.MapField("text", str.upper)({"text": "abc"})
        {'text': 'ABC'}
    """

    def __init__(
        self, field: str, fn: Callable[[Any], Any], output_field: str | None = None
    ) -> None:
        self._function = function_of("MapField", fn, "a value")
        self._field = one_name("MapField", field)
        target = one_name("MapField", field if output_field is None else output_field)
        super().__init__(target, (self._field,), (self._field,))

    def value(self, row: Row) -> Any:
        """Return the result of the function."""
        return self._function(row[self._field])

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Map one column; the others stay as they are."""
        if self.fault(columns.schema.names):
            return super().on_columns(columns)
        # 1. The results, and the rows for which the function raised no BadRecordError.
        values = columns.column(self._field).to_pylist()
        results, faults = called(self._function, values)
        is_good = np.ones(columns.num_rows, np.bool_)
        for index, _fault in faults:
            is_good[index] = False
        good_rows = Rows(columns).select(is_good)
        good_results = list(compress(results, is_good.tolist()))
        # 2. A column of them, or else objects: values that no column can hold as they
        #    are.
        result_column = column_or_none(good_results)
        if result_column is not None:
            rows = Rows(with_column(good_rows.columns, self._target, result_column))
            return StepOutcome(rows, np.flatnonzero(is_good), bad=faults)
        new_rows: list[Row] = []
        for row, result in zip(good_rows.objects, good_results, strict=True):
            new_rows.append({**row, self._target: result})
        return StepOutcome(Rows(objects=new_rows), np.flatnonzero(is_good), bad=faults)


@final
class ExtractField(_OneField):
    """Copies the value at a path, such as ``a.b[0].c``, into a field.

    ``[0]`` is the first value of a list and ``[-1]`` its last. A field of the row whose
    name is the whole path comes first.

    Args:
        source_path: Path of the value.
        target_field: Name of the new field.
        default: Value where the path leads nowhere, or to null.

    Raises:
        ConfigError: `source_path` is no path.

    Example:
        >>> import tokenlake
        >>> tokenlake.ExtractField("meta.tags[0]", "tag")({"meta": {"tags": ["x", "y"]}})
        {'meta': {'tags': ['x', 'y']}, 'tag': 'x'}
    """

    def __init__(
        self, source_path: str, target_field: str, default: Any = None
    ) -> None:
        if not isinstance(source_path, str) or not _PATH.fullmatch(source_path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"ExtractField: got the path {source_path!r}, must be names separated by dots, and list indices in "
                "brackets, such as 'a.b[0].c'"
            )
        # The keys of the path: names, and numbers of values in lists.
        self._name = source_path
        self._default = default
        keys: list[str | int] = []
        for index, name in _PATH_KEY.findall(source_path):
            keys.append(int(index) if index else name)
        self._path: Path = tuple(keys)
        self._root = str(keys[0])
        # The row may have a field of the whole name, or the field at the root.
        reads = (source_path, self._root)
        super().__init__(one_name("ExtractField", target_field), reads)

    def value(self, row: Row) -> Any:
        """Return the value at the path in a row, or the default."""
        if self._name in row:
            value = row[self._name]
        else:
            value = _value_at(row, self._path)
        if value is None:
            return self._default
        return value

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Return the values at the path; None where they are looked up row by row."""
        names = columns.schema.names
        if self._name in names:
            values = columns.column(self._name)
        elif self._root in names:
            values = _values_at(columns.column(self._root), self._path[1:])
        else:
            values = _ARROW.nulls(columns.num_rows)
        if values is None:
            return None
        return _with_default(values, self._default)


def _value_at(value: Any, path: Path) -> Any:
    """Return the value at a path inside another; None where it leads nowhere."""
    for key in path:
        if isinstance(key, int) and isinstance(value, list):
            items = cast("list[Any]", value)
            has_item = -len(items) <= key < len(items)
            value = items[key] if has_item else None
        elif isinstance(key, str) and isinstance(value, dict):
            value = cast("Row", value).get(key)
        else:
            return None
    return value


def _values_at(values: Any, path: Path) -> Array | None:
    """Return the value at a path in every value of a column.

    It is null where the path leads nowhere. None for types whose values are looked up
    row by row.
    """
    for key in path:
        kind = values.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        is_struct = pa.types.is_struct(kind)
        # A key of the wrong kind, or an unknown name, leads nowhere in any row. So does
        # any key in plain values. Other types (maps, dictionaries) are left to Python.
        if is_list and isinstance(key, int):
            values = _list_element(values, key)
        elif is_struct and isinstance(key, str) and kind.get_field_index(key) >= 0:
            values = _COMPUTE.struct_field(values, [kind.get_field_index(key)])
        elif is_list or is_struct or pa.types.is_primitive(kind) or _is_text(kind):
            return _ARROW.nulls(len(values))
        else:
            return None
    return values


def _is_text(kind: Any) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
    )


def _list_element(lists: Any, index: int) -> Array:
    """Return the value at an index of every list.

    It is null where a list is null or too short.
    """
    list_sizes = _COMPUTE.list_value_length(lists).fill_null(0)
    sizes = list_sizes.to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy()[:-1]
    # A negative index counts from the end of the list.
    if index >= 0:
        has_element = index < sizes
        positions = starts + index
    else:
        has_element = -index <= sizes
        positions = starts + sizes + index
    # Positions of lists that are too short are masked: they lie in other lists.
    indices = _ARROW.array(positions, pa.int64(), mask=~has_element)
    return lists.values.take(indices)


def _with_default(values: Any, default: Any) -> Array | None:
    """Return values with the default in the place of null.

    None where a column cannot hold both as they are.
    """
    if default is None or not values.null_count:
        return values
    constant = column_or_none([default])
    if constant is None:
        return None
    if pa.types.is_null(values.type):
        return _ARROW.repeat(constant[0], len(values))
    # Of different types only texts may be cast: a number would change its type.
    are_texts = _is_text(values.type) and _is_text(constant.type)
    if values.type != constant.type and not are_texts:
        return None
    return values.fill_null(constant[0].cast(values.type))


@final
class CombineFields(_OneField):
    """Joins the texts of several fields, or gives their values to a function.

    Null is left out of the text, and a number becomes its digits; where all are null,
    the result is null. A list, an object or bytes have no text: such a row is bad
    (``not_text``). So is a row that lacks a field (``missing_field``); `ExtractField`
    with a default adds it first.

    Args:
        source_fields: Names of the fields.
        target_field: Name of the new field.
        combiner: Function that makes the result of the list of values, null as None;
            None joins texts.
        separator: Text between the texts.
        drop_sources: True to remove the fields that were combined.
        fields: Another name of `source_fields`.
        output_field: Another name of `target_field`.

    Raises:
        ConfigError: An argument is given by both of its names, or by none.

    Example:
        >>> import tokenlake
        >>> combine = tokenlake.CombineFields(["title", "body"], "text", separator=": ", drop_sources=True)
        >>> combine({"title": "One", "body": "first"})
        {'text': 'One: first'}
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
        # 1. The fields by either of their names.
        step = "CombineFields"
        target = _either(("target_field", target_field), ("output_field", output_field))
        sources = _either(("source_fields", source_fields), ("fields", fields))
        self._sources = name_list(step, sources)
        super().__init__(one_name(step, target), self._sources, self._sources)
        if not isinstance(separator, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{step}: separator: got {separator!r}, must be text")
        # 2. The rule by which they are joined.
        self._separator = separator
        self._combiner: Callable[[Any], Any] | None = None
        if combiner:
            self._combiner = function_of(
                f"{step}: combiner", combiner, "a list of values"
            )
        # 3. The fields that are removed. The new field may have the name of one that
        #    was combined.
        self._dropped = frozenset[str]()
        if drop_sources:
            self._dropped = frozenset(self._sources) - {target}

    def of_row(self, row: Row) -> Row:
        """Return the row with the combined field."""
        combined = super().of_row(row)
        for field in self._dropped:
            del combined[field]
        return combined

    def of_columns(self, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the columns with the combined one."""
        combined = super().of_columns(columns)
        if combined is None:
            return None
        names = [name for name in combined.schema.names if name not in self._dropped]
        return combined.select(names)

    def value(self, row: Row) -> Any:
        """Return the combined value of a row."""
        values = [row[field] for field in self._sources]
        if self._combiner:
            return self._combiner(values)
        for field, value in zip(self._sources, values, strict=True):
            if isinstance(value, _CONTAINERS):
                raise BadRecordError(
                    f"CombineFields: the field {field!r} holds {type(value).__name__}, which is not text; give a "
                    "combiner that converts it",
                    reason="not_text",
                )
        # A null leaves no separator behind. A row of nulls alone has no text.
        texts: list[str] = []
        for value in values:
            if value is not None:
                texts.append(str(value))
        if not texts:
            return None
        return self._separator.join(texts)

    def column(self, columns: pa.RecordBatch) -> Array | None:
        """Join columns of texts and whole numbers."""
        # Floats are joined row by row: Arrow and Python print them in other digits.
        sources = [columns.column(name) for name in self._sources]
        if self._combiner or not all(_has_text(column.type) for column in sources):
            return None
        separator = _ARROW.scalar(self._separator, _TEXT)
        joined = sources[0].cast(_TEXT)
        for source in sources[1:]:
            # Not all at once with null_handling="skip": Arrow 26 leaves out rows where
            # all are null.
            text = source.cast(_TEXT)
            both = _COMPUTE.binary_join_element_wise(joined, text, separator)
            joined = _COMPUTE.coalesce(both, joined, text)
        return joined


def _either(first: tuple[str, Any], second: tuple[str, Any]) -> Any:
    """Return the value of an argument that has two names.

    Args:
        first: One name, and the value that was given by it.
        second: The other name, and the value that was given by it.

    Raises:
        ConfigError: Both or neither have a value.
    """
    first_name, first_value = first
    second_name, second_value = second
    if (first_value is None) == (second_value is None):
        problem = "got neither" if first_value is None else "got both"
        raise ConfigError(
            f"CombineFields: {problem} {first_name!r} and {second_name!r}; two names of one option; give one of them"
        )
    if first_value is None:
        return second_value
    return first_value


def _has_text(kind: Any) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
    )
