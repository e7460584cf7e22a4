"""Parquet footers: what a file says of its row groups."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.opening import opened


def row_group_sizes(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the uncompressed bytes of every row group, from the footer."""
    with opened(file, storage_options) as data:
        meta = footer(data)
    return [meta.row_group(index).total_byte_size for index in range(meta.num_row_groups)]


def footer(data: InputBytes) -> pq.FileMetaData:
    """Return the footer of an open file; DamagedFileError if it cannot be read."""
    with reading(data.file, "its footer"), pq.ParquetFile(data.for_arrow()) as parquet:
        return parquet.metadata


@contextmanager
def reading(file: InputFile, where: str) -> Generator[None]:
    """Turn what Arrow raises inside into DamagedFileError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise damaged(file, f"{where} cannot be read ({error})", where=where) from error
