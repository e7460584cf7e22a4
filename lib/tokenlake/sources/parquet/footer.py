"""Parquet footers: what a file says of its row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow.parquet as pq

from tokenlake.sources.columnar.access import reading
from tokenlake.sources.columnar.windows import WindowFile, Windows
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.opening import opened

_BUFFER_BYTES: Final = 1 << 20  # a column chunk is streamed, never held compressed as a whole


def row_group_sizes(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the uncompressed bytes of every row group, from the footer."""
    with opened(file, storage_options) as data:
        meta = footer(data)
    return [meta.row_group(index).total_byte_size for index in range(meta.num_row_groups)]


def row_group_starts(data: InputBytes) -> list[int]:
    """Return the number of the first row of every row group, and behind them the number of rows.

    Raises:
        DamagedFileError: the footer cannot be read, or its counts disagree.
    """
    return first_rows(data.file, footer(data))


def footer(data: InputBytes) -> pq.FileMetaData:
    """Return the footer of an open file; DamagedFileError if it cannot be read."""
    with open_parquet(data, Windows(data)) as parquet:
        return parquet.metadata


def first_rows(file: InputFile, meta: pq.FileMetaData) -> list[int]:
    """Return the same as `row_group_starts` for a footer that was read."""
    rows = [meta.row_group(index).num_rows for index in range(meta.num_row_groups)]
    if sum(rows) != meta.num_rows or min(rows, default=0) < 0:
        raise damaged(
            file, f"its footer counts {meta.num_rows} rows, its {len(rows)} row groups together {sum(rows)}"
        )
    return list(accumulate(rows, initial=0))


def open_parquet(
    data: InputBytes,
    windows: Windows,
    dictionaries: Sequence[str] = (),
    meta: pq.FileMetaData | None = None,
) -> pq.ParquetFile:
    """Open a Parquet file for reading in steps, page checksums verified.

    Args:
        windows: what a remote file is read through; a local one is read by its path.
        dictionaries: paths of the columns of strings that are read as dictionaries.
        meta: the footer if it is known.

    Raises:
        DamagedFileError: its footer cannot be read.
    """
    source: Any = data.for_arrow() if data.file.is_local else WindowFile(windows, data.file.size)
    with reading(data.file, "its footer"):
        return pq.ParquetFile(
            source,
            metadata=meta,
            read_dictionary=list(dictionaries),
            page_checksum_verification=True,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
        )
