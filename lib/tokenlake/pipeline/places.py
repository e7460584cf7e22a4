"""Where in a source of rows an epoch stands, as four integers, and reading on from there.

Sources in shards are opened right at a row, as well as they can: files of blocks and lines seek, a mixture lets each of
its sources seek, a packed source packs again what comes before. Any other iterable is drawn from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row


class RowPlace(NamedTuple):
    """A row of an epoch, or the place behind one.

    Attributes:
        ordinal: rows of the epoch before it.
        shard: place of its shard; 0 where a source has none.
        number: of the row in its shard.
        passed: rows of the same number before it: an expanding transform makes several of one.
    """

    ordinal: int
    shard: int
    number: int
    passed: int

    @property
    def behind(self) -> RowPlace:
        """Right behind this row."""
        return RowPlace(self.ordinal + 1, self.shard, self.number, self.passed + 1)


START = RowPlace(0, 0, 0, 0)


def rows_from(source: Iterable[Row], place: RowPlace) -> Iterator[tuple[RowPlace, Row]]:
    """Yield the rows of an epoch from a place on, each with its own."""
    if isinstance(source, ShardedDataSource) and _goes_by_shards(source):
        yield from _from_shards(source, place)
        return
    for ordinal, row in islice(enumerate(source), place.ordinal, None):
        yield RowPlace(ordinal, 0, 0, 0), row


def identity_of(source: Iterable[Row]) -> dict[str, Any]:
    """Return what can be told of a source without reading it, and must be the same where its places are used again."""
    if not isinstance(source, ShardedDataSource):
        return {"shards": None, "bytes": None}
    return {"shards": source.num_shards(), "bytes": sum(size for _, size, _ in source.versions)}


def _from_shards(source: ShardedDataSource, place: RowPlace) -> Iterator[tuple[RowPlace, Row]]:
    ordinal = place.ordinal
    for shard, name in list(enumerate(source.shard_names))[place.shard :]:
        first = place.number if shard == place.shard else 0
        last = passed = -1
        for number, row in source.open_shard_numbered(name, first):
            passed = passed + 1 if number == last else 0
            last = number
            if shard == place.shard and number == place.number and passed < place.passed:
                continue
            yield RowPlace(ordinal, shard, number, passed), row
            ordinal += 1


def _goes_by_shards(source: ShardedDataSource) -> bool:
    """Whether iterating over a source is going through its shards: a class of a user may do something else."""
    kind, base = type(source), ShardedDataSource
    return kind.__iter__ is base.__iter__ and kind.iter_shards is base.iter_shards
