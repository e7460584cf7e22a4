"""Steps that choose, rename, add, map, extract and combine the fields of rows. Rows given in are never changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.transform import (
    Array,
    Fields,
    StepOutcome,
    Transform,
    all_bad,
    called,
    changed,
    column_or_none,
    with_column,
)

_SHOWN = 12  # fields of a row that a message names


@final
class SelectFields(Transform):
    """Leaves the fields named alone, in this order; a row that lacks one is bad (``missing_field``)."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("SelectFields", fields)

    def __call__(self, example: Row) -> Row:
        """Return a row of these fields alone."""
        require("SelectFields", example, self._fields)
        return {field: example[field] for field in self._fields}

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Select the columns."""
        fault = missing("SelectFields", columns.schema.names, self._fields)
        if fault:
            return all_bad(columns.num_rows, fault)
        return changed(columns.select(list(self._fields)), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields named, each of which must be there."""
        return self._fields


@final
class DropFields(Transform):
    """Takes the fields named away, where they are."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("DropFields", fields)
        self._unwanted = frozenset(self._fields)

    def __call__(self, example: Row) -> Row:
        """Return the row without these fields."""
        return {field: value for field, value in example.items() if field not in self._unwanted}

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Take the columns away."""
        left = [name for name in columns.schema.names if name not in self._unwanted]
        return changed(columns.select(left), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return what is wanted, without these fields."""
        return None if wanted is None else tuple(name for name in wanted if name not in self._unwanted)


@final
class RenameFields(Transform):
    """Gives fields new names, ``{old: new}``; the others stay, and so does the order. Two may swap names.

    A row that lacks an old name is bad (``missing_field``), and so is one where a new name is another field's
    already (``field_collision``).
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        """Take the names; ConfigError unless they are text, and all new ones different."""
        if not isinstance(mapping, Mapping) or not mapping:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"RenameFields: got {mapping!r}, must be a mapping {{old: new}} of names")
        self._names = dict(mapping)
        _check_names("RenameFields", [*self._names, *self._names.values()])
        _refuse_merging(self._names)

    def __call__(self, example: Row) -> Row:
        """Return the row with its fields renamed."""
        require("RenameFields", example, tuple(self._names))
        fault = self._collision(example)
        if fault:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return {self._names.get(field, field): value for field, value in example.items()}

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Rename the columns."""
        names: list[str] = columns.schema.names
        fault = missing("RenameFields", names, tuple(self._names)) or self._collision(names)
        if fault:
            return all_bad(columns.num_rows, fault)
        renamed: Any = columns.rename_columns([self._names.get(name, name) for name in names])
        return changed(renamed, columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the old names of what is wanted; of the new names any field that may be in their way."""
        if wanted is None:
            return None
        old = {new: name for name, new in self._names.items()}
        return union([old.get(name, name) for name in wanted], self._names, self._names.values())

    def _collision(self, names: Row | list[str]) -> Fault | None:
        for old, new in self._names.items():
            if new in names and new not in self._names:
                return Fault(
                    "field_collision",
                    f"RenameFields: {old!r} cannot become {new!r}, because the row has a field {new!r} already; "
                    "rename or drop that one first",
                )
        return None


def _refuse_merging(names: Mapping[str, str]) -> None:
    for new in names.values():
        olds = [old for old, name in names.items() if name == new]
        if len(olds) > 1:
            raise ConfigError(
                f"RenameFields: {olds[0]!r} and {olds[1]!r} would both become {new!r}; give them different names"
            )


def name_list(what: str, fields: object) -> tuple[str, ...]:
    """Return names of fields; ConfigError unless they are a list of at least one, all different."""
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise ConfigError(f"{what}: got {fields!r}, must be a list of names, such as ['text']")
    names = _check_names(what, list(cast("Sequence[object]", fields)))
    if len(set(names)) < len(names):
        raise ConfigError(f"{what}: got {names!r}, where a name comes twice")
    return tuple(names)


def one_name(what: str, field: object) -> str:
    """Return the name of a field; ConfigError unless it is text."""
    return _check_names(what, [field])[0]


def require(what: str, names: Row | list[str], fields: Sequence[str]) -> None:
    """Raise BadRecordError unless a row has all `fields`."""
    fault = missing(what, names, fields)
    if fault:
        lacking = [field for field in fields if field not in names]
        raise BadRecordError(fault.detail, reason=fault.reason, fields=lacking)


def missing(what: str, names: Row | list[str], fields: Sequence[str]) -> Fault | None:
    """Return the fault of a row with the fields `names` that lacks one of `fields`."""
    lacking = [field for field in fields if field not in names]
    if not lacking:
        return None
    told = f"field{'s' * (len(lacking) > 1)} {', '.join(map(repr, lacking))}"
    has = ", ".join(map(repr, list(names)[:_SHOWN])) or "no fields"
    return Fault("missing_field", f"{what}: the row has no {told}; it has {has}")


def union(*names: Iterable[str]) -> tuple[str, ...]:
    """Return all names once, in their order."""
    return tuple(dict.fromkeys(name for some in names for name in some))


def _check_names(what: str, names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{what}: got {name!r}, names of fields must be text")
    return names


_ARROW: Final[Any] = pa


@final
class AddField(Transform):
    """Gives every row a field, in the place of one of that name: the same value for all, or a function of the row."""

    def __init__(self, field: str, value: Any | Callable[[Row], Any]) -> None:
        """Take the name of the field, and its value or what computes it."""
        self._field, self._value = one_name("AddField", field), value
        self._compute = cast("Callable[[Row], Any]", value) if callable(value) else None
        if isinstance(value, type):
            raise ConfigError(
                f"AddField: got the class {value.__name__}, must be a value or a function of a row"
            )
        self._column = None if self._compute else column_or_none([value])

    def __call__(self, example: Row) -> Row:
        """Return the row with the field."""
        return {**example, self._field: self._compute(example) if self._compute else self._value}

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Add a column of one value."""
        if self._column is None:
            return None
        values = _ARROW.repeat(self._column[0], columns.num_rows)
        return changed(with_column(columns, self._field, values), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return what is wanted, without this field; a function may look at anything."""
        if wanted is None or self._compute:
            return None
        return tuple(name for name in wanted if name != self._field)


@final
class MapField(Transform):
    """Puts ``fn(value)`` in the place of a field's value, or into another field; null is a value, too.

    A row without the field is bad (``missing_field``).
    """

    def __init__(self, field: str, fn: Callable[[Any], Any], output_field: str | None = None) -> None:
        """Take the field, the function of its value, and where its result goes (None: the same field)."""
        if not callable(fn):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(f"MapField: got {fn!r}, must be a function of a value")
        self._field, self._function = one_name("MapField", field), fn
        self._output = one_name("MapField", field if output_field is None else output_field)

    def __call__(self, example: Row) -> Row:
        """Return the row with the function's result."""
        require("MapField", example, (self._field,))
        return {**example, self._output: self._function(example[self._field])}

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Map one column; the others stay as they are."""
        fault = missing("MapField", columns.schema.names, (self._field,))
        if fault:
            return all_bad(columns.num_rows, fault)
        values, bad = called(self._function, columns.column(self._field).to_pylist())
        keep = np.ones(columns.num_rows, np.bool_)
        keep[[index for index, _ in bad]] = False
        left = Rows(columns).select(keep)
        made = column_or_none(list(compress(values, keep.tolist())))
        if made is not None:
            rows = Rows(with_column(left.columns, self._output, made))
        else:  # values that no column can hold as they are
            mapped = compress(values, keep.tolist())
            rows = Rows(
                objects=[
                    {**row, self._output: value} for row, value in zip(left.objects, mapped, strict=True)
                ]
            )
        return StepOutcome(rows, np.flatnonzero(keep), bad=bad)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._output], [self._field])


_COMPUTE: Final[Any] = pc
_ExtractionARROW: Final[Any] = pa
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

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Take the column out of those around it."""
        names = columns.schema.names
        if self._name in names:
            values = columns.column(self._name)
        elif self._path[0] in names:
            values = _inside(columns.column(str(self._path[0])), self._path[1:])
        else:
            values = _ExtractionARROW.nulls(columns.num_rows)
        values = None if values is None else _filled(values, self._default)
        if values is None:
            return None
        return changed(with_column(columns, self._target, values), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field that the path begins with, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._target], [self._name, str(self._path[0])])


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
            values = _COMPUTE.struct_field(values, [at]) if at >= 0 else _ExtractionARROW.nulls(len(values))
        elif plain or pa.types.is_struct(kind) or pa.types.is_primitive(kind) or _is_text(kind):
            return _ExtractionARROW.nulls(len(values))
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
    return lists.values.take(_ExtractionARROW.array(indices, pa.int64(), mask=~there))


def _filled(values: Any, default: Any) -> Array | None:
    """Return `values` with `default` in the place of null; None where a column cannot hold both as they are."""
    if default is None or not values.null_count:
        return values
    constant = column_or_none([default])
    if constant is None:
        return None
    if pa.types.is_null(values.type):
        return _ExtractionARROW.repeat(constant[0], len(values))
    if values.type != constant.type and not (_is_text(values.type) and _is_text(constant.type)):
        return None
    return values.fill_null(constant[0].cast(values.type))


_CombiningCOMPUTE: Final[Any] = pc
_CONTAINERS: Final = (list, tuple, dict, set, bytes)


@final
class CombineFields(Transform):
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
        sources = _either(("source_fields", source_fields), ("fields", fields))
        self._target = one_name(
            "CombineFields", _either(("target_field", target_field), ("output_field", output_field))
        )
        self._sources = name_list("CombineFields", sources)
        if combiner is not None and not callable(combiner):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(
                f"CombineFields: combiner: got {combiner!r}, must be a function of a list of values"
            )
        if not isinstance(separator, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"CombineFields: separator: got {separator!r}, must be text")
        self._combiner, self._separator, self._drops = combiner, separator, bool(drop_sources)
        self._dropped = frozenset(self._sources) - {self._target} if drop_sources else frozenset[str]()

    def __call__(self, example: Row) -> Row:
        """Return the row with the combined field."""
        require("CombineFields", example, self._sources)
        values = [example[field] for field in self._sources]
        combined = self._combiner(values) if self._combiner else self._joined(values)
        row = {**example, self._target: combined}
        return (
            {name: value for name, value in row.items() if name not in self._dropped}
            if self._dropped
            else row
        )

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome | None:
        """Join columns of texts and whole numbers."""
        fault = missing("CombineFields", columns.schema.names, self._sources)
        if fault:
            return all_bad(columns.num_rows, fault)
        sources = [columns.column(name) for name in self._sources]
        if self._combiner or not all(_has_text(column.type) for column in sources):
            return None
        texts = [column.cast(pa.large_string()) for column in sources]
        joined = texts[0]
        for text in texts[1:]:
            # Not all at once with null_handling="skip": Arrow 26 leaves out rows where all are null.
            both = _CombiningCOMPUTE.binary_join_element_wise(joined, text, self._scalar())
            joined = _CombiningCOMPUTE.coalesce(both, joined, text)
        made = with_column(columns, self._target, joined)
        left = [name for name in made.schema.names if name not in self._dropped]
        return changed(made.select(left), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields that are combined, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._target], self._sources)

    def _scalar(self) -> Any:
        scalar: Any = pa.scalar
        return scalar(self._separator, pa.large_string())

    def _joined(self, values: list[Any]) -> str | None:
        for field, value in zip(self._sources, values, strict=True):
            if isinstance(value, _CONTAINERS):
                told = f"CombineFields: the field {field!r} holds {type(value).__name__}, which is no text"
                raise BadRecordError(f"{told}; a combiner makes one of it", reason="not_text")
        texts = [str(value) for value in values if value is not None]
        return self._separator.join(texts) if texts else None


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
