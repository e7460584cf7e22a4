"""The first records of a source, looked at before a plan is made: cheaply, and without judging them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.config.resolved import ResolvedSource
from tokenlake.sources.columnar import Windows
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet import open_parquet
from tokenlake.sources.records import read_rows
from tokenlake.sources.rows import Rows
from tokenlake.sources.splits import split_file
from tokenlake.sources.stream import ByteStream
from tokenlake.threads import in_order

_FILES: Final = 8  # empty ones may come first
_HEAD: Final = 256 << 10  # bytes of lines that are looked at before more are read
_THREADS: Final = 4  # that open files
_COLUMNAR: Final = ("parquet", "arrow")


def first_rows(source: ResolvedSource, files: Sequence[InputFile], count: int = 16) -> Rows:
    """Return up to `count` of the first records that can be read, of the first files; maybe none.

    Raises:
        SourceError: a file cannot be read.
    """
    for file in files[:_FILES]:
        rows = _first_lines(source, file, count) if file.format == "jsonl" else None
        rows = rows or _first_read(source, file, count)
        if len(rows):
            return rows
    return Rows(objects=[])


def _first_lines(source: ResolvedSource, file: InputFile, count: int) -> Rows | None:
    """Return the records of the lines that lie whole in the first bytes; None where there are none."""
    with opened(file, source.storage_options) as data:
        head = ByteStream(data).read(_HEAD)
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(head) == _HEAD:
        del lines[-1]  # it may be cut
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            record: Any = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
        if len(found) == count:
            break
    return Rows(objects=found) if found else None


def _first_read(source: ResolvedSource, file: InputFile, count: int) -> Rows:
    lenient = replace(source, on_bad_record="quarantine", where=None)
    part = _beginning(file, source, count)
    for batch in islice(read_rows(part, lenient), 2):
        if len(batch.positions):
            return batch.table.select(np.arange(len(batch.positions)) < count)
    return Rows(objects=[])


def _beginning(file: InputFile, source: ResolvedSource, count: int) -> FileRange:
    if file.format in _COLUMNAR:
        return replace(split_file(file, 1, source.storage_options)[0], rows=count)
    return FileRange(file=file, start=0, stop=file.size, weight=file.size, rows=count)


def columns_of_files(source: ResolvedSource, files: Sequence[InputFile]) -> list[frozenset[str]]:
    """Return the names of the columns of each of the files that have columns (Parquet, Arrow).

    Raises:
        SourceError: a file cannot be read.
    """

    def names(file: InputFile) -> frozenset[str]:
        if file.format == "arrow":
            return frozenset(_first_read(source, file, 1).columns.schema.names)
        with opened(file, source.storage_options) as data, open_parquet(Windows(data)) as parquet:
            schema: pa.Schema = parquet.schema_arrow
            return frozenset(schema.names)

    return list(in_order(names, [file for file in files if file.format in _COLUMNAR], _THREADS))
