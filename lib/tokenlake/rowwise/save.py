"""Any rows as a flat directory: `save_dataset`, `save_iterator`, `create_writer`.

Rows that are written once, when they are needed, and read back from there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from tokenlake.config.sizes import parse_size
from tokenlake.errors import ConfigError
from tokenlake.rowwise.directory import NO_ORIGIN, Origin, WriteStats
from tokenlake.rowwise.files import ArrowShardedSource, JsonShardedSource, ParquetShardedSource
from tokenlake.rowwise.formats import Form
from tokenlake.rowwise.formats import Row as Row_save
from tokenlake.rowwise.source import Numbered, Row, ShardedDataSource, ShardInfo
from tokenlake.rowwise.writer import DEFAULT_NAMING, DEFAULT_SHARD_SIZE, DatasetWriter, Rows

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
    iterator: Iterable[Row_save],
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


_READERS: Final = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTarget:
    """Where rows are written, and how; see :func:`tokenlake.rowwise.save.create_writer`."""

    path: Path
    format: str
    compression: str | None
    num_shards: int | None
    max_shard_size: int | None
    overwrite: bool


@final
class SavedShardedSource(ShardedDataSource):
    """Another source's rows, by way of a flat directory.

    They are written by the first call that needs them: :meth:`save`, the first row drawn, or a question about shards,
    which are the files. After that the other source is not asked again.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        target: SaveTarget,
        origin: Callable[[], Origin] = lambda: NO_ORIGIN,
    ) -> None:
        """Write nothing yet; `origin` is asked when rows are written."""
        self._source, self.target, self._origin = source, target, origin
        self._lock = threading.Lock()
        self._stats: WriteStats | None = None
        self._files: ShardedDataSource | None = None

    def save(self) -> WriteStats:
        """Write the rows, unless this source has done so; a call that fails leaves the target as it was.

        Raises:
            as :func:`save_dataset`.
        """
        with self._lock:
            if self._stats is None:
                target = self.target
                writer = create_writer(
                    target.path,
                    target.format,
                    target.max_shard_size,
                    target.num_shards,
                    target.compression,
                    target.overwrite,
                    origin=self._origin(),
                )
                stats = writer.write(self._source)
                self._files = _READERS[target.format](stats.output_paths)
                self._stats = stats
            return self._stats

    @property
    def shard_names(self) -> Sequence[str]:
        return self._read().shard_names

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self._read().open_shard(shard_name)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._read().open_shard_numbered(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._read().get_shard_info(shard_name)

    def _read(self) -> ShardedDataSource:
        self.save()
        assert self._files is not None
        return self._files

    def __repr__(self) -> str:
        return f"SavedShardedSource({self._source!r}, {str(self.target.path)!r})"
