"""Rows that are written once, when they are needed, and read back from there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tokenlake.flat.manifest import NO_ORIGIN, Origin
from tokenlake.flat.save import create_writer
from tokenlake.flat.stats import WriteStats
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.filebacked import ArrowShardedSource, JsonShardedSource, ParquetShardedSource
from tokenlake.sources.sharded.info import ShardInfo

_READERS: Final = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTarget:
    """Where rows are written, and how; see :func:`tokenlake.flat.save.create_writer`."""

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
