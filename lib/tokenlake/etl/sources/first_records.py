"""The first records of a source and the columns of its files, read before planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from tokenlake.base.threads import in_order
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.records import read_rows
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.splits import split_file

_FILES: Final = 8  # that are opened: empty ones may come first
_BLOCK_BYTES: Final = 1 << 20  # of lines or elements that are read at a time
_BLOCKS: Final = 2  # of a file
_THREADS: Final = 4  # that open files


def first_rows(
    source: ResolvedSource, files: Sequence[InputFile], count: int = 16
) -> Rows:
    """Return up to `count` of the first records that can be read, maybe none.

    Raises:
        SourceError: A file cannot be read.
    """
    for file in islice((file for file in files if not file.companion), _FILES):
        first_records = _first_rows_of_file(source, file, count)
        if len(first_records):
            return first_records
    return Rows(objects=[])


def _first_rows_of_file(source: ResolvedSource, file: InputFile, count: int) -> Rows:
    """Return up to `count` of the first records of a file that can be read."""
    # Bad records are skipped here, and predicates ignored: a preview must not fail
    # before the build that would report them.
    lenient = replace(source, on_bad_record="quarantine", where=None)
    # The smallest range that a format allows: one row group or batch, the records of
    # one range, or the file, of which only the first blocks are read.
    part = FileRange(file=file, start=0, stop=file.size, weight=file.size)
    if file.has_blocks:
        part = split_file(file, 1, source.storage_options)[0]
    elif file.has_records:
        part = split_file(file, max(1, file.size), source.storage_options)[0]
    batches = read_rows(replace(part, rows=count), lenient, block_bytes=_BLOCK_BYTES)
    for batch in islice(batches, _BLOCKS):
        if len(batch.positions):
            return batch.table.select(np.arange(len(batch.positions)) < count)
    return Rows(objects=[])


def columns_of_files(
    source: ResolvedSource, files: Sequence[InputFile]
) -> list[frozenset[str]]:
    """Return the column names of each file that has columns (Parquet, Arrow).

    Raises:
        SourceError: A file cannot be read.
    """
    from tokenlake.etl.sources.parquet import open_parquet

    def names(file: InputFile) -> frozenset[str]:
        if file.format == "arrow":
            return frozenset(_first_rows_of_file(source, file, 1).columns.schema.names)
        with (
            opened(file, source.storage_options) as data,
            open_parquet(data) as parquet,
        ):
            schema: pa.Schema = parquet.schema_arrow
            return frozenset(schema.names)

    files_with_columns = [file for file in files if file.has_blocks]
    return list(in_order(names, files_with_columns, _THREADS))
