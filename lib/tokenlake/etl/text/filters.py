"""Steps that keep some rows: by a function, by a field, or by an SQL predicate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.sources.where import Predicate
from tokenlake.etl.text.fields import function_of, name_list, one_name
from tokenlake.etl.text.transform import (
    Array,
    Bools,
    Faults,
    Fields,
    StepOutcome,
    Transform,
    called,
    kept,
    needed,
    plain_columns,
)

_COMPUTE: Final[Any] = pc
_CONTAINERS: Final = (str, bytes, list, tuple, dict)


class RowFilter(Transform):
    """Keeps some rows as they are.

    Args:
        reads: the fields that it looks at, None for any.
    """

    def __init__(self, reads: Fields) -> None:
        self._reads = reads

    @abstractmethod
    def keeps(self, row: Row) -> bool:
        """Say whether a row stays."""

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None."""
        return example if self.keeps(example) else None

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Judge many rows; columns stay columns for the steps that follow."""
        keep, bad = self.judge(rows)
        return kept(rows, keep, self.reason, bad)

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Return which rows stay, bool[n], and which are bad."""
        columns, objects = plain_columns(rows), list[Row]()
        if columns is None:
            objects = rows.objects
        else:
            if self._reads is not None:
                columns = columns.select([name for name in self._reads if name in columns.schema.names])
            objects = columns.to_pylist() if columns.num_columns else [{}] * columns.num_rows
        verdicts, bad = called(self.keeps, objects)
        return np.array([verdict is True for verdict in verdicts], np.bool_), bad

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields that it looks at, and what is wanted."""
        return needed(wanted, self._reads)


@final
class FilterTransform(RowFilter):
    """Keeps the rows for which a function of the row is true."""

    reason = "filter_transform"

    def __init__(self, predicate: Callable[[Row], object]) -> None:
        """Take the function."""
        super().__init__(None)
        self._predicate = function_of("FilterTransform", predicate, "a row")

    def keeps(self, row: Row) -> bool:
        """Ask the function."""
        return bool(self._predicate(row))


@final
class FilterByField(RowFilter):
    """Keeps the rows for which a function of one field's value is true; a row without the field is left out."""

    reason = "filter_by_field"

    def __init__(self, field: str, predicate: Callable[[Any], object]) -> None:
        """Take the field, and the function of its value."""
        self._field = one_name("FilterByField", field)
        super().__init__((self._field,))
        self._predicate = function_of("FilterByField", predicate, "a value")

    def keeps(self, row: Row) -> bool:
        """Ask the function."""
        return self._field in row and bool(self._predicate(row[self._field]))


@final
class FilterNonEmpty(RowFilter):
    """Keeps the rows where none of the fields is missing, null, an empty text, list or object."""

    reason = "filter_non_empty"

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("FilterNonEmpty", fields)
        super().__init__(self._fields)

    def keeps(self, row: Row) -> bool:
        """Look at the fields."""
        return not any(_is_empty(row.get(field)) for field in self._fields)

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Judge the columns of these fields."""
        columns = plain_columns(rows)
        if columns is None:
            return super().judge(rows)
        if not set(self._fields) <= set(columns.schema.names):
            return np.zeros(len(rows), np.bool_), ()
        return np.logical_and.reduce([_filled(columns.column(field)) for field in self._fields]), ()


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _filled(column: Array) -> Bools:
    """Return bool[n], where a column's value is neither null nor empty."""
    kind = column.type
    types = pa.types
    bytes_like = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if any(is_kind(kind) for is_kind in bytes_like):
        filled = _COMPUTE.greater(_COMPUTE.binary_length(column), 0)
    elif types.is_list(kind) or types.is_large_list(kind):
        filled = _COMPUTE.greater(_COMPUTE.list_value_length(column), 0)
    elif types.is_primitive(kind) or (types.is_struct(kind) and kind.num_fields):
        filled = column.is_valid()
    else:
        return np.array([not _is_empty(value) for value in column.to_pylist()], np.bool_)
    return filled.fill_null(False).to_numpy(zero_copy_only=False)


@final
class Where(RowFilter):
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
        super().__init__(self._predicate.columns)

    def keeps(self, row: Row) -> bool:
        """Judge one row. For many rows :meth:`on_rows` is far faster."""
        keep, bad = self.judge(Rows(objects=[row]))
        for _, fault in bad:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return bool(keep[0])

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Judge all rows at once.

        Raises:
            ConfigError: the predicate cannot be evaluated on columns of these types.
        """
        verdicts = self._predicate.judge(rows)
        return verdicts.mask, tuple(sorted(verdicts.faults.items()))
