"""`where`: one SQL predicate over the fields of a record, as DuckDB understands it.

Names are those of the data, letter by letter: ``meta.lang`` is a field of the field
"meta", and a field whose own name has a dot is quoted (``"a.b"``). A type that does not
fit is an error; TRY_CAST returns null for it.

Integers of JSON are BIGINT, beyond that UBIGINT, beyond that DECIMAL(38, 0), and with
more than 38 digits DOUBLE.

The verdict on a record depends on that record alone. Columns have one type in all
records of a file, and are judged together. JSON objects are judged in groups of equal
types (:mod:`tokenlake.etl.sources.where_groups`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.checks import nearest
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.column_ranges import ColumnRange, holds_nowhere
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.sql import engine, parse
from tokenlake.etl.sources.where_groups import field_tree, group_by_types

_ADVICE: Final = (
    "if types do not match, TRY_CAST(field AS type) converts a value, or returns null"
)
_ARROW: Final[Any] = pa


@final
@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of a predicate on n records.

    Attributes:
        mask: bool[n], true where the predicate is true.
        faults: Index to the reason (``where_failed``) for which a record cannot be
            judged; `mask` is false there. Indices count from 0.
    """

    mask: npt.NDArray[np.bool_]
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])


class _UnfitError(Exception):
    """DuckDB cannot compute the expression, or its value is no condition."""


@final
class Predicate:
    """A predicate on records.

    A record for which it is null is left out, as in SQL's WHERE.

    Attributes:
        columns: Top-level fields that it looks at, sorted.
    """

    columns: tuple[str, ...]

    def __init__(self, sql: str) -> None:
        """Compile `sql`.

        An expression that this process has compiled before costs nothing.

        Raises:
            ConfigError: The text is not one expression over fields, or not a pure
                function of a record.
        """
        self._expression = parse(sql)
        self._tree = field_tree(self._expression.paths)
        self.columns = self._expression.columns

    def judge(self, rows: Rows) -> Verdicts:
        """Judge every row by itself.

        A field that an object lacks is null; one that columns lack is an error.

        Raises:
            ConfigError: A column is missing, or the predicate cannot be evaluated on
                columns of these types.
        """
        if rows.has_objects:
            return self._judge_objects(rows)
        columns = self._wanted_columns(rows.columns)
        try:
            return self._judge_columns(columns)
        except _UnfitError as error:
            raise ConfigError(
                self._message(error, columns) + ".", where=self._expression.sql
            ) from error

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Say whether the predicate surely holds for no record with these statistics."""
        return holds_nowhere(self._expression.tree, ranges)

    def _judge_objects(self, rows: Rows) -> Verdicts:
        """Judge JSON objects, in groups of equal types."""
        mask = np.zeros(len(rows), np.bool_)
        faults: dict[int, Fault] = {}
        for indices, columns in group_by_types(rows.objects, self._tree):
            try:
                if columns is None:
                    raise _UnfitError(
                        "a field that it uses is not JSON, or is nested too deeply"
                    )
                verdicts = self._judge_columns(columns)
            except _UnfitError as error:
                fault = Fault("where_failed", self._message(error, columns))
                faults |= dict.fromkeys(indices.tolist(), fault)
                continue
            mask[indices] = verdicts.mask
            for index_in_group, fault in verdicts.faults.items():
                faults[int(indices[index_in_group])] = fault
        return Verdicts(mask, faults)

    def _judge_columns(self, rows: pa.RecordBatch) -> Verdicts:
        """Judge rows of one type each.

        Raises:
            _UnfitError: The predicate does not fit these types.
        """
        # 1. Nearly always all rows can be judged together. Where DuckDB fails on a row
        #    of nulls, too, the types do not fit, and no row can be judged.
        try:
            return Verdicts(self._evaluate(rows))
        except _UnfitError:
            nulls = [_ARROW.nulls(1, column_type) for column_type in rows.schema.types]
            self._evaluate(pa.RecordBatch.from_arrays(nulls, rows.schema.names))

        # 2. Some rows cannot be judged. TRY makes null of them.
        try:
            attempted: Any = engine().evaluate(
                f"TRY(coalesce((\n{self._expression.sql}\n), false))",
                rows,
            )
        except ConfigError:  # such as too little memory for all rows at once
            attempted = pa.nulls(len(rows), pa.bool_())

        # 3. Each of them is judged alone, which gives its own error.
        mask = _as_bools(attempted.fill_null(False)).copy()
        faults: dict[int, Fault] = {}
        for row_index in np.flatnonzero(_as_bools(attempted.is_null())).tolist():
            single_row = rows.take(pa.array([row_index]))
            try:
                mask[row_index] = self._evaluate(single_row)[0]
            except _UnfitError as error:
                faults[row_index] = Fault(
                    "where_failed", self._message(error, single_row)
                )
        return Verdicts(mask, faults)

    def _evaluate(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return bool[n], true where the expression is true.

        Raises:
            _UnfitError: DuckDB cannot compute it.
        """
        try:
            values: Any = engine().evaluate(self._expression.sql, rows)
        except ConfigError as error:
            raise _UnfitError(str(error)) from error
        # NULL as the whole expression: it holds nowhere.
        if pa.types.is_null(values.type):
            return np.zeros(len(rows), np.bool_)
        if not pa.types.is_boolean(values.type):
            raise _UnfitError(
                f"it is of type {values.type}, expected a condition that is true or false; compare it with a value"
            )
        return _as_bools(values.fill_null(False))

    def _message(self, error: _UnfitError, rows: pa.RecordBatch | None) -> str:
        """Return a message about rows that cannot be judged, with their types."""
        message = f"where: {self._expression.sql!r} cannot be evaluated: {error}"
        if rows is None:
            return message
        columns = ", ".join(f"{column.name} {column.type}" for column in rows.schema)
        return f"{message}; it has {columns}; {_ADVICE}"

    def _wanted_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that the predicate looks at.

        Raises:
            ConfigError: A column is missing, or there are several of its name.
        """
        sql = self._expression.sql
        names: list[str] = rows.schema.names
        for column_name in self.columns:
            if names.count(column_name) > 1:
                raise ConfigError(
                    f"where: there are several columns {column_name!r}", where=sql
                )
            if column_name not in names:
                raise _missing_column(sql, column_name, names)
        columns: dict[str, pa.Array[Any]] = {}
        for column_name in self.columns:
            columns[column_name] = _without_offset(rows.column(column_name))
        return pa.RecordBatch.from_pydict(columns)


def _missing_column(sql: str, name: str, names: list[str]) -> ConfigError:
    """Return the error for a predicate that looks at a column which is not there."""
    similar = nearest(name, names)
    hint = ""
    near: list[str] = []
    if similar is not None:
        hint = f" Did you mean {similar}?"
        near.append(similar)
    return ConfigError(
        f"where: {sql!r} looks at {name!r}, which is no column.{hint} "
        f"The columns are {', '.join(names) or 'none'}.",
        where=sql,
        near=near,
    )


def _as_bools(column: Any) -> npt.NDArray[np.bool_]:
    """Return a column of booleans as bool[n]."""
    return column.to_numpy(zero_copy_only=False)


def _without_offset(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return nested values without offsets into their buffers.

    DuckDB does not read such offsets in structs.
    """
    if not pa.types.is_nested(array.type) or not _has_offset(array):
        return array
    nested: Any = array
    return nested.take(pa.array(np.arange(len(array))))


def _has_offset(array: Any) -> bool:
    """Say whether an array, or one inside it, may begin in the middle of its buffers."""
    array_type: Any = array.type
    if array.offset or pa.types.is_map(array_type) or pa.types.is_union(array_type):
        return True
    if pa.types.is_struct(array_type):
        return any(
            _has_offset(array.field(index)) for index in range(array_type.num_fields)
        )
    return pa.types.is_nested(array_type) and _has_offset(array.values)
