"""Outcomes of whole columns, and values as columns where nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.columns import column_of
from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.transforms.base import Outcome

Array = Any  # an Arrow array: its stubs know neither its kinds nor the functions on them
Bools = npt.NDArray[np.bool_]

_BATCH: Final[Any] = pa.RecordBatch
_ARROW: Final[Any] = pa
_SIMPLE: Final = (str, int, bool, float)
_NULL: Final[type[Any]] = type(None)
_MOST_INT: Final = 1 << 63


def changed(columns: pa.RecordBatch, rows: int) -> Outcome:
    """Return the outcome of `rows` rows that all became one: `columns`, which may be none at all."""
    made = Rows(columns) if columns.num_columns else Rows(objects=[{} for _ in range(rows)])
    return Outcome(made, np.arange(rows))


def kept(rows: Rows, keep: Bools, reason: str, bad: tuple[tuple[int, Fault], ...] = ()) -> Outcome:
    """Return the outcome of a filter: `keep` (bool[n]) is false for rows left out, and for bad ones."""
    origin = np.flatnonzero(keep)
    left_out = len(rows) - len(origin) - len(bad)
    return Outcome(rows.select(keep), origin, {reason: left_out} if left_out else {}, bad)


def all_bad(rows: int, fault: Fault) -> Outcome:
    """Return the outcome of rows none of which can be used, for one reason."""
    bad = tuple((index, fault) for index in range(rows))
    return Outcome(Rows(objects=[]), np.zeros(0, np.int64), bad=bad)


def with_column(columns: pa.RecordBatch, name: str, values: Array) -> pa.RecordBatch:
    """Return `columns` with `values` under `name`: in the place of a column of that name, else as the last."""
    arrays: list[Array] = list(columns.columns)
    fields: list[Any] = list(columns.schema)
    field = _ARROW.field(name, values.type)
    at: int = columns.schema.get_field_index(name)
    if at < 0:
        fields, arrays = [*fields, field], [*arrays, values]
    else:
        fields[at], arrays[at] = field, values
    return _BATCH.from_arrays(arrays, schema=_ARROW.schema(fields))


def column_or_none(values: Sequence[Any]) -> Array | None:
    """Return values of one simple kind, or null, as a column that gives the same values back; else None."""
    kinds = frozenset[type[Any]](map(type, values)) - {_NULL}
    if len(kinds) > 1 or not kinds <= frozenset[type[Any]](_SIMPLE):
        return None
    if int in kinds and not all(-_MOST_INT <= value < _MOST_INT for value in values if value is not None):
        return None
    try:
        return column_of(values)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
