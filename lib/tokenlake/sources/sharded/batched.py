"""Rows by the batch: some at a time, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import final

from tokenlake.errors import ConfigError
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource, without_numbers
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, beyond, check_row


@final
class BatchedShardedSource(ShardedDataSource):
    """Another source's shards, a row for every `batch_size` of its rows: {field: list of values}.

    The last batch of a shard may be smaller. A row that lacks a field of its batch has None there. Batches are
    numbered from 0 on in their shard; opening at one opens the source at its first row.
    """

    def __init__(self, source: ShardedDataSource, batch_size: int) -> None:
        """Batch `source`; ConfigError unless `batch_size` is a whole number from 1 on."""
        if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
            raise ConfigError(f"batch_size: got {batch_size!r}, must be a whole number from 1 on")
        self._source, self._size = source, batch_size

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def endless(self) -> bool:
        return self._source.endless

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._batches(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        rows = info.rows if self._source.every_row else None
        return replace(info, rows=None if rows is None else -(-rows // self._size))

    def _batches(self, shard: str, number: int) -> Numbered:
        rows = self._rows_from(shard, number)
        while some := list(islice(rows, self._size)):
            yield number, _columns(some)
            number += 1

    def _rows_from(self, shard: str, number: int) -> Iterator[Row]:
        """Return the rows from the first one of a batch on."""
        known = self.get_shard_info(shard).rows
        if known is not None and number >= known:
            if number > known:
                raise beyond(shard, number, known)
            return iter(())
        if known is not None:
            return self._source.open_shard_at_row(shard, number * self._size)
        rows = self._source.open_shard(shard)
        passed = sum(1 for _ in islice(rows, number * self._size))
        whole = -(-passed // self._size)
        if whole < number:
            raise beyond(shard, number, whole)
        return rows


def _columns(rows: list[Row]) -> Row:
    fields = dict.fromkeys(field for row in rows for field in row)
    return {field: [row.get(field) for row in rows] for field in fields}
