"""The first rows of a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import final

from tokenlake.errors import ConfigError
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource, without_numbers
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, check_row, index_of


@final
class LimitedShardedSource(ShardedDataSource):
    """At most `max_rows` of the rows that come out of a source, in the order of its shards.

    All shards stay, the last ones perhaps without rows, and rows keep their numbers. To open a shard in the
    middle, the rows that come out before it are counted: by metadata where they tell, else by reading. A row
    after the limit gives nothing.
    """

    def __init__(self, source: ShardedDataSource, max_rows: int) -> None:
        """Limit `source`; ConfigError unless `max_rows` is a whole number from 0 on."""
        if isinstance(max_rows, bool) or not hasattr(max_rows, "__index__") or max_rows < 0:
            raise ConfigError(f"max_rows: got {max_rows!r}, must be a whole number from 0 on")
        self._source, self._max_rows = source, max_rows
        self._lefts = [max_rows]  # rows that may come out before each shard; grows with what is counted

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(shard_name, index_of(shard_name, self.shard_names), row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        return replace(info, rows=self._known(info.index, info.rows) if self.every_row else None)

    def _known(self, index: int, rows: int | None) -> int | None:
        left = self._max_rows
        for name in self.shard_names[:index] if rows is not None else ():
            before = self._source.get_shard_info(name).rows
            if before is None:
                return None
            left -= min(before, left)
        return None if rows is None else min(rows, left)

    def _rows(self, name: str, index: int, row: int) -> Numbered:
        left = self._left(index)
        used = row if self.every_row else self._count(index, left, before=row)
        yield from islice(self._source.open_shard_numbered(name, row), max(left - used, 0))

    def _left(self, index: int) -> int:
        """Return how many rows may come out of the shard at `index`."""
        while len(self._lefts) <= index:
            left = self._lefts[-1]
            self._lefts.append(left - (self._count(len(self._lefts) - 1, left) if left else 0))
        return self._lefts[index]

    def _count(self, index: int, left: int, before: int | None = None) -> int:
        """Return how many rows come out of a shard, at most `left`; only those numbered below `before`."""
        name = self.shard_names[index]
        known = self._source.get_shard_info(name).rows if self.every_row and before is None else None
        if known is not None:
            return min(known, left)
        rows = self._source.open_shard_numbered(name) if before != 0 else ()
        numbers = takewhile(lambda number: before is None or number < before, (number for number, _ in rows))
        return sum(1 for _ in islice(numbers, left))
