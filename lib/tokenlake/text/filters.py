"""Steps that keep some rows: by a function, by a field, by an SQL predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.sources.where import Predicate
from tokenlake.text.fields import name_list, one_name, union
from tokenlake.text.transform import Array, Bools, Fields, StepOutcome, Transform, called, kept

_COMPUTE: Final[Any] = pc
_CONTAINERS: Final = (str, bytes, list, tuple, dict)


@final
class FilterTransform(Transform):
    """Keeps the rows for which a function of the row is true."""

    reason = "filter_transform"

    def __init__(self, predicate: Callable[[Row], object]) -> None:
        """Take the function."""
        self._predicate = _function("FilterTransform", predicate, "a row")

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None."""
        return example if self._predicate(example) else None

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Judge the rows one by one."""
        # Columns stay columns for the steps that follow: rows that have objects are taken by these.
        objects = rows.objects if rows.has_objects else rows.columns.to_pylist()
        keep, bad = _judged(self._predicate, objects)
        return kept(rows, keep, self.reason, bad)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return None: the function may look at anything."""
        return None


@final
class FilterByField(Transform):
    """Keeps the rows for which a function of one field's value is true; a row without the field is left out."""

    reason = "filter_by_field"

    def __init__(self, field: str, predicate: Callable[[Any], object]) -> None:
        """Take the field, and the function of its value."""
        self._field = one_name("FilterByField", field)
        self._predicate = _function("FilterByField", predicate, "a value")

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None."""
        return example if self._field in example and self._predicate(example[self._field]) else None

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Judge one column; the others are not looked at."""
        if self._field not in columns.schema.names:
            return kept(Rows(columns), np.zeros(columns.num_rows, np.bool_), self.reason)
        keep, bad = _judged(self._predicate, columns.column(self._field).to_pylist())
        return kept(Rows(columns), keep, self.reason, bad)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field, and what is wanted."""
        return None if wanted is None else union(wanted, [self._field])


@final
class FilterNonEmpty(Transform):
    """Keeps the rows where none of the fields is missing, null, an empty text, list or object."""

    reason = "filter_non_empty"

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("FilterNonEmpty", fields)

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None."""
        return None if any(_is_empty(example.get(field)) for field in self._fields) else example

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Judge the columns of these fields."""
        keep = np.ones(columns.num_rows, np.bool_)
        for field in self._fields:
            there = field in columns.schema.names
            keep &= _filled(columns.column(field)) if there else np.zeros(columns.num_rows, np.bool_)
        return kept(Rows(columns), keep, self.reason)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields, and what is wanted."""
        return None if wanted is None else union(wanted, self._fields)


def _function(what: str, value: Any, of: str) -> Callable[[Any], object]:
    if not callable(value):
        raise ConfigError(f"{what}: got {value!r}, must be a function of {of}")
    return value


def _judged(
    predicate: Callable[[Any], object], values: Sequence[Any]
) -> tuple[Bools, tuple[tuple[int, Fault], ...]]:
    verdicts, bad = called(lambda value: bool(predicate(value)), values)
    return np.array([verdict is True for verdict in verdicts], np.bool_), bad


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _filled(column: Array) -> Bools:
    """Return bool[n], where a column's value is neither null nor empty."""
    kind = column.type
    types = pa.types
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    ):
        filled = _COMPUTE.greater(_COMPUTE.binary_length(column), 0)
    elif types.is_list(kind) or types.is_large_list(kind):
        filled = _COMPUTE.greater(_COMPUTE.list_value_length(column), 0)
    elif types.is_primitive(kind) or (types.is_struct(kind) and kind.num_fields):
        filled = column.is_valid()
    else:
        return np.array([not _is_empty(value) for value in column.to_pylist()], np.bool_)
    return filled.fill_null(False).to_numpy(zero_copy_only=False)


@final
class Where(Transform):
    """Keeps the rows for which an SQL predicate (DuckDB) is true, such as ``lang = 'en' and length(text) > 200``.

    A field that an object lacks is null; one that columns lack is an error. A row whose values the predicate cannot be
    evaluated on is bad (``where_failed``).
    """

    reason = "where"

    def __init__(self, predicate: str) -> None:
        """Compile the predicate; ConfigError unless it is one expression over fields."""
        if not isinstance(predicate, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Where: got {predicate!r}, must be an SQL predicate, such as \"lang = 'en'\"")
        self._sql, self._predicate = predicate, Predicate(predicate)

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None. For many rows :meth:`on_rows` is far faster."""
        verdicts = self._predicate.judge(Rows(objects=[example]))
        for fault in verdicts.faults.values():
            raise BadRecordError(fault.detail, reason=fault.reason)
        return example if verdicts.mask[0] else None

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Judge all rows at once.

        Raises:
            ConfigError: the predicate cannot be evaluated on columns of these types.
        """
        verdicts = self._predicate.judge(rows)
        return kept(rows, verdicts.mask, self.reason, tuple(sorted(verdicts.faults.items())))

    def on_columns(self, columns: pa.RecordBatch) -> StepOutcome:
        """Judge all rows at once."""
        return self.on_rows(Rows(columns))

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields of the predicate, and what is wanted."""
        return None if wanted is None else union(wanted, self._predicate.columns)
