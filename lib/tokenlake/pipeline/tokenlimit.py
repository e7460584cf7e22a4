"""Rows until there are enough tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from tokenlake.errors import BadRecordError
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, index_of


@final
class TokenLimitedSource(ShardedDataSource):
    """The rows of a source of one shard, up to the one with which there are at least so many tokens."""

    def __init__(self, source: ShardedDataSource, max_tokens: int) -> None:
        """Limit `source` to `max_tokens` ids of ``input_ids``, and what the last row has above that."""
        self._source, self._max_tokens = source, max_tokens

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        left = self._max_tokens
        for number, row in enumerate(self._source.open_shard(shard_name)):
            if "input_ids" not in row:
                raise BadRecordError(
                    f"mix.total_tokens: row {number} of the mixture has no input_ids to count; tokenize rows before "
                    "they are mixed, or use mix.total_rows",
                    row=number,
                )
            yield row
            left -= len(row["input_ids"])
            if left <= 0:
                return

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return ShardInfo(name=shard_name, index=index_of(shard_name, self.shard_names))
