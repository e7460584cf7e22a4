"""Sources of rows that lie in memory, and shorthands for tests of sharded sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from tokenlake.etl.export import FlatManifest
from tokenlake.rowwise import Numbered, Row, ShardedDataSource, ShardInfo


@final
class Plain(ShardedDataSource):
    """The least that a source of one's own defines."""

    def __init__(self, shards: Mapping[str, Sequence[Row]]) -> None:
        self._shards = dict(shards)

    @property
    def shard_names(self) -> Sequence[str]:
        return tuple(self._shards)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return iter([dict(row) for row in self._shards[shard_name]])


@final
class Known(ShardedDataSource):
    """A source that knows how many rows it has, and leaves out those without fields:
    their numbers are gaps.
    """

    def __init__(self, shards: Mapping[str, Sequence[Row]]) -> None:
        self._plain, self._shards = Plain(shards), shards

    @property
    def shard_names(self) -> Sequence[str]:
        return self._plain.shard_names

    @property
    def every_row(self) -> bool:
        return all(row for rows in self._shards.values() for row in rows)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return (row for _, row in self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return (
            (number, value)
            for number, value in self._plain.open_shard_numbered(shard_name, row)
            if value
        )

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._plain.get_shard_info(shard_name)
        return replace(info, rows=len(self._shards[shard_name]))


def check_flat(directory: Path) -> None:
    """Compare the files of a flat directory with its manifest."""
    for file in FlatManifest.of(directory).files:
        data = (directory / file.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (
            file.bytes,
            file.sha256,
        )


def counted(**sizes: int) -> dict[str, list[Row]]:
    """Return shards of rows {"id": 0}, {"id": 1}, ..., which go on through all
    shards.
    """
    ids = iter(range(sum(sizes.values())))
    return {
        name: [{"id": next(ids)} for _ in range(size)] for name, size in sizes.items()
    }


def ids(rows: Iterator[Row]) -> list[Any]:
    return [row["id"] for row in rows]


def numbered(
    source: ShardedDataSource, name: str, row: int = 0
) -> list[tuple[int, Row]]:
    return list(source.open_shard_numbered(name, row))
