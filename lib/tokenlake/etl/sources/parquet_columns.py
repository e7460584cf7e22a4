"""The columns of a Parquet file to decode, and row groups that statistics rule out."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.etl.sources import columnar
from tokenlake.etl.sources.column_ranges import ColumnRange
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.parsed import Want
from tokenlake.etl.sources.unfolding import plain_type
from tokenlake.etl.sources.where import Predicate

_DICTIONARY_ENCODINGS: Final = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Types whose statistics order values as DuckDB does, with the Python type of their
# bounds.
_COMPARED_TYPES: Final[tuple[tuple[Callable[[Any], bool], type], ...]] = (
    (pa.types.is_integer, int),
    (pa.types.is_boolean, bool),
    (pa.types.is_date32, datetime.date),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """The leaves of a file's schema that are decoded.

    Attributes:
        text: Path of the text, () if none is wanted.
        names: Names of the columns that are wanted as rows.
        indices: Indices of the leaves in the file's schema, from 0.
        dictionaries: Paths of leaves that are read as dictionaries, so that they can be
            measured before unfolding.
        schema: Schema of all columns that are read, as they are handed over.
    """

    text: tuple[str, ...]
    names: tuple[str, ...]
    indices: tuple[int, ...]
    dictionaries: tuple[str, ...]
    schema: pa.Schema


def wanted_leaves(part: FileRange, parquet: pq.ParquetFile, want: Want) -> Leaves:
    """Return the leaves to decode.

    Raises:
        DamagedFileError: A wanted column is missing or there twice, or the text does
            not consist of strings.
    """
    with columnar.reading(part.file, "its schema"):
        schema: pa.Schema = parquet.schema_arrow
    names: tuple[str, ...] = want.names(schema.names)
    columnar.check_names(part.file, schema.names, names)
    text: tuple[str, ...] = ()
    if want.text is not None:
        text = columnar.text_path(part.file, schema, want.text)

    # All leaves of the columns that are wanted as rows, and of the text's column its
    # one leaf.
    reader: Any = parquet.reader
    paths: list[list[str]] = reader.column_paths
    indices: list[int] = []
    dictionaries: list[str] = []
    for leaf_index, path in enumerate(paths):
        is_text = path == list(text)
        if path[0] in names or is_text:
            indices.append(leaf_index)
            is_row_column = bool(names) and not is_text
            if is_row_column and _is_dictionary(
                parquet.metadata, part, leaf_index, schema
            ):
                dictionaries.append(parquet.metadata.schema.column(leaf_index).path)
    return Leaves(
        text=text,
        names=names,
        indices=tuple(indices),
        dictionaries=tuple(dictionaries),
        schema=_read_schema(schema, names, text),
    )


def _is_dictionary(
    meta: pq.FileMetaData, part: FileRange, index: int, schema: pa.Schema
) -> bool:
    """Say whether a leaf holds strings with a dictionary in one of the row groups.

    Leaves that are read as views have none.
    """
    leaf = meta.schema.column(index)
    # Views refer to their texts, which are therefore not unfolded.
    column_type = schema.field(leaf.path.split(".")[0]).type
    if leaf.physical_type != "BYTE_ARRAY" or "view" in str(column_type):
        return False
    for group in range(part.start, part.stop):
        encodings = meta.row_group(group).column(index).encodings
        if not _DICTIONARY_ENCODINGS.isdisjoint(encodings):
            return True
    return False


def _read_schema(
    schema: pa.Schema, names: tuple[str, ...], text: tuple[str, ...]
) -> pa.Schema:
    """Return the schema of the columns that are read.

    A struct with the text has its one leaf alone.
    """
    fields: list[Any] = []
    for field in schema:
        if field.name in names:
            fields.append(pa.field(field.name, plain_type(field.type), field.nullable))
        elif text and field.name == text[0]:
            fields.append(
                pa.field(field.name, plain_type(_struct_of_path(field.type, text[1:])))
            )
    return pa.schema(fields)


def _struct_of_path(column_type: Any, path: tuple[str, ...]) -> Any:
    """Return a type with one leaf: a struct with the fields of a path alone."""
    if not path:
        return column_type
    field = column_type.field(path[0])
    inner = _struct_of_path(field.type, path[1:])
    return pa.struct([pa.field(field.name, inner, field.nullable)])


def is_excluded(
    predicate: Predicate, meta: pq.FileMetaData, group: int, schema: pa.Schema
) -> bool:
    """Say whether a predicate surely holds for no row of a row group.

    Args:
        predicate: The predicate.
        meta: Footer of the file.
        group: Index of the row group, from 0.
        schema: Arrow schema of the file.
    """
    row_group = meta.row_group(group)
    ranges: dict[str, ColumnRange] = {}
    # Statistics belong to leaves. Predicates name top-level columns, whose one leaf has
    # the same path.
    for leaf_index in range(row_group.num_columns):
        column = row_group.column(leaf_index)
        column_name = column.path_in_schema
        schema_path = meta.schema.column(leaf_index).path
        is_top_level = schema_path == column_name and column_name in schema.names
        if column_name not in predicate.columns or not is_top_level:
            continue
        column_type: Any = schema.field(column_name).type
        if not pa.types.is_nested(column_type):
            ranges[column_name] = _column_range(
                column.statistics, column_type, row_group.num_rows
            )
    return bool(ranges) and predicate.excludes(ranges)


def _column_range(statistics: Any, column_type: Any, rows: int) -> ColumnRange:
    """Return the statistics of a column in a row group.

    Bounds that Python compares differently are left out.
    """
    null_count = None
    if statistics is not None and statistics.has_null_count:
        null_count = statistics.null_count
    if pa.types.is_dictionary(column_type):
        column_type = column_type.value_type
    lower, upper = _bounds(statistics, column_type)
    return ColumnRange(low=lower, high=upper, nulls=null_count, rows=rows)


def _bounds(statistics: Any, column_type: Any) -> tuple[Any, Any]:
    """Return the lower and upper bound of a column, None for an unknown one."""
    if statistics is None or not statistics.has_min_max:
        return None, None
    try:
        lower = statistics.min
        upper = statistics.max
    except (ValueError, pa.ArrowException):
        # Text that is cut inside a character, or nanoseconds, which Python's datetime
        # cannot hold.
        return None, None
    # The upper bound of a float is unknown, because statistics leave NaN out.
    if pa.types.is_floating(column_type):
        # NaN, which differs from itself, is no bound.
        if isinstance(lower, float) and lower == lower:
            return lower, None
        return None, None
    for is_of_type, python_type in _COMPARED_TYPES:
        if is_of_type(column_type):
            expected: Any = python_type
            has_bounds = type(lower) is expected and type(upper) is expected
            if has_bounds and lower <= upper:
                return lower, upper
            return None, None
    return None, None
