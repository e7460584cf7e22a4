"""Objects of the `datasets` library as sources; that library is not imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from tokenlake.sources.sharded import inmemory
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo


@final
class HFDatasetShardedSource(ShardedDataSource):
    """A ``Dataset`` or ``IterableDataset``, its rows in the order in which it gives them itself."""

    def __init__(self, dataset: Any, name: str | None = None, *, num_shards: int = 1) -> None:
        """Wrap `dataset`; nothing is read or copied.

        Args:
            dataset: a ``Dataset`` or an ``IterableDataset``.
            name: what shards are called by; by default the dataset's split.
            num_shards: contiguous shards, as :class:`tokenlake.sources.sharded.inmemory.HFDatasetShardedSource` says.

        Raises:
            ConfigError: `dataset` is something else, or has fewer shards.
        """
        self._wrapped = inmemory.HFDatasetShardedSource(dataset, name, num_shards=num_shards)

    @property
    def shard_names(self) -> Sequence[str]:
        return self._wrapped.shard_names

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self._wrapped.open_shard(shard_name)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._wrapped.open_shard_numbered(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._wrapped.get_shard_info(shard_name)
        return ShardInfo(name=info.name, index=info.index, rows=info.rows)


def wrap_hf_dataset(dataset: Any, name: str | None = None, *, num_shards: int = 1) -> HFDatasetShardedSource:
    """Return the rows of a ``Dataset`` or ``IterableDataset``; see :class:`HFDatasetShardedSource`."""
    return HFDatasetShardedSource(dataset, name, num_shards=num_shards)
