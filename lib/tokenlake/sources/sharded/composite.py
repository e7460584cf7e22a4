"""Several sources as one, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final

from tokenlake.errors import ConfigError
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, index_of


@final
class CompositeShardedSource(ShardedDataSource):
    """The shards of all sources, in their order.

    Shards keep their names where no two have the same one; else every name begins with the place of its
    source: ``0/a.parquet``, ``1/a.parquet``.
    """

    def __init__(self, sources: Iterable[ShardedDataSource]) -> None:
        """Join `sources`.

        Raises:
            ConfigError: there is none, or one of them is no source.
        """
        self._sources = _listed(sources)
        if not self._sources:
            raise ConfigError("CompositeShardedSource: got no sources, needs at least one")
        for source in self._sources:
            if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    f"CompositeShardedSource: got a {type(source).__name__}, must be a list of sources"
                )
        self._homes = [(source, name) for source in self._sources for name in source.shard_names]
        self._names = _distinct_names(self._sources)
        self._places = {name: place for place, name in enumerate(self._names)}

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @property
    def every_row(self) -> bool:
        return all(source.every_row for source in self._sources)

    @property
    def endless(self) -> bool:
        return any(source.endless for source in self._sources)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        source, name = self._home(shard_name)
        return source.open_shard(name)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        source, name = self._home(shard_name)
        return source.open_shard_numbered(name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        source, name = self._home(shard_name)
        return replace(source.get_shard_info(name), name=shard_name, index=self._places[shard_name])

    def _home(self, shard_name: str) -> tuple[ShardedDataSource, str]:
        place = self._places.get(shard_name)
        return self._homes[index_of(shard_name, self._names) if place is None else place]


def _listed(sources: Iterable[ShardedDataSource]) -> tuple[ShardedDataSource, ...]:
    if isinstance(sources, ShardedDataSource) or not isinstance(sources, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"CompositeShardedSource: got a {type(sources).__name__}, must be a list of sources"
        )
    return tuple(sources)


def _distinct_names(sources: Sequence[ShardedDataSource]) -> tuple[str, ...]:
    names = [name for source in sources for name in source.shard_names]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{place}/{name}" for place, source in enumerate(sources) for name in source.shard_names)
