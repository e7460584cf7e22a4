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
# Types whose values can be empty; a number never is.
_CONTAINERS: Final = (str, bytes, list, tuple, dict)
# Types that Arrow measures in bytes.
_BYTES_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


class RowFilter(Transform):
    """Keeps some rows as they are, and leaves the others out.

    Args:
        reads: Fields that the filter reads; None for any.
    """

    def __init__(self, reads: Fields) -> None:
        self._reads = reads

    @abstractmethod
    def keeps(self, row: Row) -> bool:
        """Return whether a row is kept."""

    def __call__(self, example: Row) -> Row | None:
        """Return the row, or None to leave it out."""
        return example if self.keeps(example) else None

    def on_rows(self, rows: Rows) -> StepOutcome:
        """Filter many rows; columns stay columns for the steps that follow."""
        is_kept, bad = self.judge(rows)
        return kept(rows, is_kept, self.reason, bad)

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Return which rows are kept, bool[n], and the faults of bad rows."""
        # A row that fails has no verdict. None is left out as false is; the fault
        # reports it.
        verdicts, bad = called(self.keeps, self._objects(rows))
        return np.array([verdict is True for verdict in verdicts], np.bool_), bad

    def _objects(self, rows: Rows) -> list[Row]:
        """Return the rows as objects, with the fields that the filter reads.

        Objects keep all fields; of columns the others are not converted.
        """
        columns = plain_columns(rows)
        if columns is None:
            return rows.objects
        if self._reads is not None:
            names = [name for name in self._reads if name in columns.schema.names]
            columns = columns.select(names)
        # Without columns Arrow knows no number of rows to make objects of.
        if not columns.num_columns:
            return [{}] * columns.num_rows
        return columns.to_pylist()

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields that the filter reads, and those that are wanted."""
        return needed(wanted, self._reads)


@final
class FilterTransform(RowFilter):
    """Keeps the rows for which a function of the row is true.

    Args:
        predicate: Function of a row.

    Example:
        >>> import tokenlake
        >>> keep = tokenlake.FilterTransform(lambda row: row["n"] > 1)
        >>> keep({"n": 1}), keep({"n": 2})
        (None, {'n': 2})
    """

    reason = "filter_transform"

    def __init__(self, predicate: Callable[[Row], object]) -> None:
        super().__init__(None)
        self._predicate = function_of("FilterTransform", predicate, "a row")

    def keeps(self, row: Row) -> bool:
        """Return whether the function of the row is true."""
        return bool(self._predicate(row))


@final
class FilterByField(RowFilter):
    """Keeps the rows for which a function of one field's value is true.

    A row without the field is left out.

    Args:
        field: Name of the field.
        predicate: Function of its value.

    Example:
        >>> import tokenlake
        >>> keep = tokenlake.FilterByField("lang", lambda lang: lang == "en")
        >>> keep({"lang": "de"}), keep({"lang": "en"})
        (None, {'lang': 'en'})
    """

    reason = "filter_by_field"

    def __init__(self, field: str, predicate: Callable[[Any], object]) -> None:
        self._field = one_name("FilterByField", field)
        super().__init__((self._field,))
        self._predicate = function_of("FilterByField", predicate, "a value")

    def keeps(self, row: Row) -> bool:
        """Return whether the function of the field's value is true."""
        return self._field in row and bool(self._predicate(row[self._field]))


@final
class FilterNonEmpty(RowFilter):
    """Keeps the rows where all of some fields hold something.

    A field that is missing, null, an empty text, list or object holds nothing.

    Args:
        fields: Names of the fields.

    Raises:
        ConfigError: They are no list of different names.

    Example:
        >>> import tokenlake
        >>> keep = tokenlake.FilterNonEmpty(["text"])
        >>> keep({"text": ""}), keep({"text": "a"})
        (None, {'text': 'a'})
    """

    reason = "filter_non_empty"

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = name_list("FilterNonEmpty", fields)
        super().__init__(self._fields)

    def keeps(self, row: Row) -> bool:
        """Return whether all of the fields hold something."""
        return not any(_is_empty(row.get(field)) for field in self._fields)

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Return which rows are kept, by the columns of these fields."""
        columns = plain_columns(rows)
        if columns is None:
            return super().judge(rows)
        # A column that is missing is missing in every row.
        if not set(self._fields) <= set(columns.schema.names):
            return np.zeros(len(rows), np.bool_), ()
        is_kept = np.ones(len(rows), np.bool_)
        for field in self._fields:
            is_kept &= _is_filled(columns.column(field))
        return is_kept, ()


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _is_filled(column: Array) -> Bools:
    """Return which values of a column are neither null nor empty: bool[n]."""
    column_type = column.type
    types = pa.types
    if any(is_type(column_type) for is_type in _BYTES_TYPES):
        is_filled = _COMPUTE.greater(_COMPUTE.binary_length(column), 0)
    elif types.is_list(column_type) or types.is_large_list(column_type):
        is_filled = _COMPUTE.greater(_COMPUTE.list_value_length(column), 0)
    elif types.is_primitive(column_type):
        is_filled = column.is_valid()
    elif types.is_struct(column_type) and column_type.num_fields:
        # An object of columns has all of its fields, and is never empty.
        is_filled = column.is_valid()
    else:
        # Types that Arrow measures in no one call, value by value.
        verdicts = [not _is_empty(value) for value in column.to_pylist()]
        return np.array(verdicts, np.bool_)
    return is_filled.fill_null(False).to_numpy(zero_copy_only=False)


@final
class Where(RowFilter):
    """Keeps the rows for which an SQL predicate (DuckDB) is true.

    A field that an object lacks is null; one that columns lack is an error. A row on
    whose values the predicate cannot be evaluated is bad (``where_failed``).

    Args:
        predicate: Expression over fields, such as ``lang = 'en' and length(text) >
            200``.

    Raises:
        ConfigError: The predicate is not one expression over fields.

    Example:
        >>> import tokenlake
        >>> keep = tokenlake.Where("length(text) > 2")
        >>> keep({"text": "ab"}), keep({"text": "abc"})
        (None, {'text': 'abc'})
    """

    reason = "where"

    def __init__(self, predicate: str) -> None:
        if not isinstance(predicate, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Where: got {predicate!r}, must be an SQL predicate, such as \"lang = 'en'\""
            )
        self._sql = predicate
        self._predicate = Predicate(predicate)
        super().__init__(self._predicate.columns)

    def keeps(self, row: Row) -> bool:
        """Return whether the predicate is true of one row.

        For many rows :meth:`on_rows` is far faster.
        """
        is_kept, bad = self.judge(Rows(objects=[row]))
        for _, fault in bad:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return bool(is_kept[0])

    def judge(self, rows: Rows) -> tuple[Bools, Faults]:
        """Return which rows are kept, bool[n], and the faults of bad rows.

        Raises:
            ConfigError: The predicate cannot be evaluated on columns of these types.
        """
        verdicts = self._predicate.judge(rows)
        return verdicts.mask, tuple(sorted(verdicts.faults.items()))
