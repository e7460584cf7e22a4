"""Row groups in which a predicate surely holds nowhere, told by the statistics of a Parquet footer.

Only statistics that order values exactly as DuckDB does are used: integers, booleans, dates and
strings. NaN is the greatest number to DuckDB and is left out by statistics, so floats have a lower
bound alone; of decimals, times and binaries nothing but the nulls is used.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.predicate.where import ColumnRange, Predicate


def excluded(predicate: Predicate, meta: pq.FileMetaData, group: int, schema: pa.Schema) -> bool:
    """Say whether `predicate` surely holds for no row of the row group numbered `group`."""
    row_group = meta.row_group(group)
    ranges: dict[str, ColumnRange] = {}
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        name = column.path_in_schema
        if name in predicate.columns and meta.schema.column(index).path == name and name in schema.names:
            kind: Any = schema.field(name).type
            if not pa.types.is_nested(kind):
                ranges[name] = _range(column.statistics, kind, row_group.num_rows)
    return bool(ranges) and predicate.excludes(ranges)


def _range(statistics: Any, kind: Any, rows: int) -> ColumnRange:
    if statistics is None:
        return ColumnRange(low=None, high=None, nulls=None, rows=rows)
    nulls = statistics.null_count if statistics.has_null_count else None
    low, high = _bounds(statistics, kind.value_type if pa.types.is_dictionary(kind) else kind)
    return ColumnRange(low=low, high=high, nulls=nulls, rows=rows)


def _bounds(statistics: Any, kind: Any) -> tuple[Any, Any]:
    if not statistics.has_min_max:
        return None, None
    try:
        low, high = statistics.min, statistics.max
    except (UnicodeDecodeError, pa.ArrowException):  # cut inside a character
        return None, None
    if pa.types.is_floating(kind):
        return (low, None) if isinstance(low, float) and low == low else (None, None)
    expected = _python_type(kind)
    if expected is None or type(low) is not expected or type(high) is not expected or low > high:
        return None, None
    return low, high


def _python_type(kind: Any) -> type | None:
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_date32(kind):
        return datetime.date
    return str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
