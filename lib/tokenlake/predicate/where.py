"""`where`: one SQL predicate over the fields of a record, as DuckDB understands it.

Names are those of the data, letter by letter: ``meta.lang`` is a field of the field "meta", and a field whose
own name has a dot is quoted (``"a.b"``). A type that does not fit is an error; TRY_CAST makes null of it.

The verdict on a record depends on that record alone. Columns have one type in all records of a file; values of JSON
objects have none but their own (:mod:`tokenlake.predicate.typed`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.faults import Fault
from tokenlake.predicate.bounds import ColumnRange, holds_nowhere
from tokenlake.predicate.duck import engine
from tokenlake.predicate.expression import parse
from tokenlake.predicate.typed import groups, tree_of
from tokenlake.rows import Row, Rows

__all__ = ["ColumnRange", "Predicate", "Verdicts"]

_ADVICE: Final = (
    "where types do not fit, TRY_CAST(field AS type) converts, and makes null of what cannot be converted"
)
_ARROW: Final[Any] = pa
_NO_JSON: Final = "a field that it looks at is no JSON, or nested too deeply"


def _none() -> dict[int, Fault]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a predicate says of n records.

    Attributes:
        mask: bool[n], where it is true.
        faults: why it cannot be evaluated on a record (``where_failed``), by index; `mask` is false there.
    """

    mask: npt.NDArray[np.bool_]
    faults: dict[int, Fault] = field(default_factory=_none)


@final
class Predicate:
    """A predicate on records; a record for which it is null is left out, as in SQL's WHERE.

    Attributes:
        columns: the top-level fields that it looks at, sorted.
    """

    columns: tuple[str, ...]

    def __init__(self, sql: str) -> None:
        """Compile `sql`; what was compiled once in this process costs nothing.

        Raises:
            ConfigError: it is not one expression over fields, or not a pure function of a record.
        """
        self._expression = parse(sql)
        self._tree = tree_of(self._expression.paths)
        self.columns = self._expression.columns

    def judge(self, rows: Rows) -> Verdicts:
        """Judge every row by itself: a field that an object lacks is null, one that columns lack is an error.

        Raises:
            ConfigError: there is no such column, or the predicate cannot be evaluated on columns of these types.
        """
        if rows.has_objects:
            return self._of_objects(rows.objects)
        wanted = self._columns_of(rows.columns)
        try:
            return self._of_columns(wanted)
        except _UnfitError as error:
            raise ConfigError(self._told(error, wanted) + ".", where=self._expression.sql) from error

    def _of_objects(self, objects: list[Row]) -> Verdicts:
        mask, faults = np.zeros(len(objects), np.bool_), dict[int, Fault]()
        for indices, columns in groups(objects, self._tree):
            try:
                if columns is None:
                    raise _UnfitError(_NO_JSON)
                found = self._of_columns(columns)
            except _UnfitError as error:
                faults |= dict.fromkeys(indices.tolist(), self._fault(error, columns))
            else:
                mask[indices] = found.mask
                faults |= {int(indices[index]): fault for index, fault in found.faults.items()}
        return Verdicts(mask, faults)

    def _of_columns(self, rows: pa.RecordBatch) -> Verdicts:
        """Judge rows of one type each; _UnfitError where none of these types can be judged."""
        try:
            return Verdicts(self._value(rows))
        except _UnfitError:
            nulls = [_ARROW.nulls(1, kind) for kind in rows.schema.types]
            self._value(pa.RecordBatch.from_arrays(nulls, rows.schema.names))
        return self._one_by_one(rows)

    def _one_by_one(self, rows: pa.RecordBatch) -> Verdicts:
        """Judge rows some of which cannot be: DuckDB says which may be those, and each of them is asked alone."""
        try:
            tried: Any = engine().evaluate(f"TRY(coalesce((\n{self._expression.sql}\n), false))", rows)
        except ConfigError:  # such as too little memory for all of them at once
            tried = pa.nulls(len(rows), pa.bool_())
        mask, faults = _bools(tried.fill_null(False)).copy(), dict[int, Fault]()
        for index in np.flatnonzero(_bools(tried.is_null())).tolist():
            row = rows.take(pa.array([index]))
            try:
                mask[index] = self._value(row)[0]
            except _UnfitError as error:
                faults[index] = self._fault(error, row)
        return Verdicts(mask, faults)

    def _value(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        try:
            value: Any = engine().evaluate(self._expression.sql, rows)
        except ConfigError as error:
            raise _UnfitError(str(error)) from error
        if pa.types.is_null(value.type):
            return np.zeros(len(rows), np.bool_)
        if not pa.types.is_boolean(value.type):
            raise _UnfitError(
                f"it is of type {value.type}, expected a condition that is true or false; compare it with something"
            )
        return _bools(value.fill_null(False))

    def _fault(self, error: _UnfitError, rows: pa.RecordBatch | None) -> Fault:
        return Fault("where_failed", self._told(error, rows))

    def _told(self, error: _UnfitError, rows: pa.RecordBatch | None) -> str:
        types = "" if rows is None else f"; it has {_types(rows)}; {_ADVICE}"
        return f"where: {self._expression.sql!r} cannot be evaluated: {error}{types}"

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Say whether it surely holds for no record of a stretch with these column ranges."""
        return holds_nowhere(self._expression.tree, ranges)

    def _columns_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names: list[str] = rows.schema.names
        for name in self.columns:
            if names.count(name) > 1:
                raise ConfigError(f"where: there are several columns {name!r}", where=self._expression.sql)
            if name not in names:
                raise self._unknown(name, names)
        return pa.RecordBatch.from_pydict({name: _from_zero(rows.column(name)) for name in self.columns})

    def _unknown(self, name: str, names: list[str]) -> ConfigError:
        folded = {each.lower(): each for each in names}
        near = [folded[each] for each in difflib.get_close_matches(name.lower(), folded, 3, cutoff=0.6)]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return ConfigError(
            f"where: {self._expression.sql!r} looks at {name!r}, which is no column.{hint} "
            f"The columns are {', '.join(names) or 'none'}.",
            where=self._expression.sql,
            near=near,
        )


class _UnfitError(Exception):
    """DuckDB cannot compute it, or its value is no condition."""


def _bools(bits: Any) -> npt.NDArray[np.bool_]:
    return bits.to_numpy(zero_copy_only=False)


def _from_zero(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return nested values without offsets into their buffers, which DuckDB does not take in structs."""
    if not pa.types.is_nested(array.type) or not _has_offset(array):
        return array
    nested: Any = array
    return nested.take(pa.array(np.arange(len(array))))


def _has_offset(array: Any) -> bool:
    kind: Any = array.type
    if array.offset or pa.types.is_map(kind) or pa.types.is_union(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_offset(array.field(index)) for index in range(kind.num_fields))
    return pa.types.is_nested(kind) and _has_offset(array.values)


def _types(rows: pa.RecordBatch) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in rows.schema)
