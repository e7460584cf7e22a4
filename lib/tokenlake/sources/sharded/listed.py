"""Rows that lie in a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, final

from tokenlake.errors import ConfigError
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, beyond, check_row, index_of


@final
class RowsShardedSource(ShardedDataSource):
    """A list of rows as one shard; rows come out as copies, so that nobody changes the list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str = "rows") -> None:
        """Take the rows, which are not copied; `name`: of the shard.

        Raises:
            ConfigError: they are no list, or one of them is not a mapping of field to value.
        """
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"rows: got a {type(rows).__name__}, must be a list of rows")
        for number, row in enumerate(cast("Sequence[object]", rows)):
            if not isinstance(row, Mapping):
                raise ConfigError(
                    f"rows: row {number} is a {type(row).__name__}, must be a mapping of field to value",
                    row=number,
                )
        self._rows, self._names = rows, (name,)

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        index_of(shard_name, self._names)
        return self._from(row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return ShardInfo(name=shard_name, index=index_of(shard_name, self._names), rows=len(self._rows))

    def _from(self, row: int) -> Numbered:
        if row > len(self._rows):
            raise beyond(self._names[0], row, len(self._rows))
        for number in range(row, len(self._rows)):
            yield number, dict(self._rows[number])
