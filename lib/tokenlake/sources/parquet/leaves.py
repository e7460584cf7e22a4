"""Which leaves of a Parquet file's schema are read for what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.reading.pageheaders import chunk_start
from tokenlake.sources.columnar.access import reading
from tokenlake.sources.columnar.records import check_names, text_path
from tokenlake.sources.columnar.unfolding import plain_type
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.want import Want


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What is read of a file.

    Attributes:
        text: where the text is, () where none is wanted.
        names: the columns that are wanted as rows.
        indices: the leaves that are decoded, by their number in the file's schema.
        dictionaries: paths of leaves that are read as dictionaries, so that they can be measured first.
        schema: of all that is read, as it is handed over.
    """

    text: tuple[str, ...]
    names: tuple[str, ...]
    indices: tuple[int, ...]
    dictionaries: tuple[str, ...]
    schema: pa.Schema

    def stretches(self, meta: pq.FileMetaData, groups: range) -> Iterator[tuple[int, int]]:
        """Yield [start, stop) of every column chunk that is read in `groups`."""
        for group in groups:
            for index in self.indices:
                column = meta.row_group(group).column(index)
                start = chunk_start(column)
                yield start, start + column.total_compressed_size


def wanted_leaves(part: FileRange, parquet: pq.ParquetFile, want: Want) -> Leaves:
    """Return what to read of a file.

    Raises:
        DamagedFileError: a wanted column is missing or there twice, or the text is not one of strings.
    """
    with reading(part.file, "its schema"):
        schema: pa.Schema = parquet.schema_arrow
    names: tuple[str, ...] = want.names(schema.names)
    check_names(part.file, schema.names, names)
    text = text_path(part.file, schema, want.text) if want.text is not None else ()
    paths: list[list[str]] = _reader(parquet).column_paths
    indices = [at for at, path in enumerate(paths) if path[0] in names or path == list(text)]
    foldable = [at for at in indices if names and paths[at] != list(text)]
    return Leaves(
        text=text,
        names=names,
        indices=tuple(indices),
        dictionaries=_dictionaries(parquet, foldable, part),
        schema=_read_schema(schema, names, text),
    )


def _reader(parquet: pq.ParquetFile) -> Any:
    return parquet.reader


def _dictionaries(parquet: pq.ParquetFile, indices: list[int], part: FileRange) -> tuple[str, ...]:
    """Return the leaves of strings that have a dictionary in a row group of `part`."""
    meta, schema = parquet.metadata, parquet.schema_arrow
    found: list[str] = []
    for index in indices:
        leaf = meta.schema.column(index)
        viewed = "view" in str(schema.field(leaf.path.split(".")[0]).type)
        if leaf.physical_type == "BYTE_ARRAY" and not viewed and _folded(meta, index, part):
            found.append(leaf.path)
    return tuple(found)


def _folded(meta: pq.FileMetaData, index: int, part: FileRange) -> bool:
    return any(
        {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(meta.row_group(group).column(index).encodings)
        for group in range(part.start, part.stop)
    )


def _read_schema(schema: pa.Schema, names: tuple[str, ...], text: tuple[str, ...]) -> pa.Schema:
    """Return the schema of the top-level columns that are read, of the text's struct its one leaf alone."""
    fields: list[Any] = []
    for field in schema:
        if field.name in names:
            fields.append(pa.field(field.name, plain_type(field.type), field.nullable))
        elif text and field.name == text[0]:
            fields.append(pa.field(field.name, plain_type(_narrow(field.type, text[1:]))))
    return pa.schema(fields)


def _narrow(kind: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return kind
    field = kind.field(path[0])
    return pa.struct([pa.field(field.name, _narrow(field.type, path[1:]), field.nullable)])
