"""Any rows as a flat directory: `save_dataset`, `save_iterator`, `create_writer`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from tokenlake.config.sizes import parse_size
from tokenlake.errors import ConfigError
from tokenlake.flat.form import Form
from tokenlake.flat.manifest import NO_ORIGIN, Origin
from tokenlake.flat.rowtypes import Row
from tokenlake.flat.stats import WriteStats
from tokenlake.flat.writer import DEFAULT_NAMING, DEFAULT_SHARD_SIZE, DatasetWriter, Rows

MOST_SHARDS: Final = 100_000


def create_writer(
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
    origin: Origin = NO_ORIGIN,
) -> DatasetWriter:
    """Return a writer of a flat directory.

    Args:
        output_path: the directory; it is made when missing.
        format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
        max_shard_size: a file ends where another row group would make it larger; bytes, or text like "500MB". None:
            500 MB, or no limit where `num_shards` is given.
        num_shards: exactly this many files, each with an equal share of the rows, in order. Only a file that would
            be larger than a `max_shard_size` given beside it is split into several.
        compression: ``none``, ``gzip``, ``lz4`` or ``zstd``; None: zstd in Parquet, else none. Arrow knows no gzip,
            JSON Lines no lz4.
        overwrite: replace the data files of a directory that is not empty; else it is an error.
        schema: types of the columns; None: the first 1,000 rows decide, and lines of JSON need none.
        naming: names of files, without extension, of ``split``, ``index`` and ``count``.
        origin: what the manifest is to say of where the rows come from.

    Raises:
        ConfigError: an argument is not what is allowed, or the target is not empty.
        NotAvailableError: `output_path` is a URL.
    """
    return DatasetWriter(
        output_path,
        Form.of(format, compression),
        max_bytes=shard_bytes(max_shard_size, num_shards),
        num_shards=num_shards,
        overwrite=overwrite,
        schema=schema,
        naming=naming,
        origin=origin,
    )


def save_dataset(
    source: Rows,
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
) -> WriteStats:
    """Write the rows of a source (or of any iterable of dicts) as a flat directory; in bounded memory, in order.

    Args:
        source: the rows; for the other arguments see :func:`create_writer`.

    Raises:
        as :func:`create_writer` and :meth:`DatasetWriter.write`; whatever is raised, the target stays as it was.
    """
    writer = create_writer(
        output_path, format, max_shard_size, num_shards, compression, overwrite, schema=schema, naming=naming
    )
    return writer.write(source)


def save_iterator(
    iterator: Iterable[Row],
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    compression: str | None = None,
    num_shards: int | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
) -> WriteStats:
    """As :func:`save_dataset`, for rows of which nobody knows how many there are.

    With `num_shards` they go to a compressed file first, beside the target: equal shares need their number.
    """
    return save_dataset(
        iterator,
        output_path,
        format,
        max_shard_size,
        num_shards,
        compression,
        overwrite,
        schema=schema,
        naming=naming,
    )


def shard_bytes(max_shard_size: int | str | None, num_shards: int | None) -> int | None:
    """Check both limits, and return that of bytes.

    Raises:
        ConfigError: one is no size or count.
    """
    if num_shards is not None and (
        isinstance(num_shards, bool)
        or not hasattr(num_shards, "__index__")
        or not 1 <= num_shards <= MOST_SHARDS
    ):
        raise ConfigError(
            f"num_shards: got {num_shards!r}, must be a whole number from 1 to {MOST_SHARDS}, or None"
        )
    if max_shard_size is None:
        return None if num_shards is not None else DEFAULT_SHARD_SIZE
    try:
        return parse_size(max_shard_size)
    except ConfigError as error:
        raise ConfigError(f"max_shard_size: {error}") from error
