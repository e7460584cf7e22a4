"""Sources made of others: joined one after the other, cut short, or grouped into batches of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import final

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.rowwise.source import (
    DerivedSource,
    Numbered,
    NumberedSource,
    Row,
    ShardedDataSource,
    ShardInfo,
    beyond,
    check_row,
    index_of,
    rows_from,
    whole_number,
)


@final
class CompositeShardedSource(NumberedSource):
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
        homes = [(source, name) for source in self._sources for name in source.shard_names]
        names = [name for _, name in homes]
        if len(set(names)) < len(names):
            places = [place for place, source in enumerate(self._sources) for _ in source.shard_names]
            names = [f"{place}/{name}" for place, name in zip(places, names, strict=True)]
        self._names, self._homes = tuple(names), homes
        self._places = {name: place for place, name in enumerate(names)}

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @property
    def every_row(self) -> bool:
        return all(source.every_row for source in self._sources)

    @property
    def endless(self) -> bool:
        return any(source.endless for source in self._sources)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        source, name = self._homes[self._place(shard_name)]
        return source.open_shard_numbered(name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        place = self._place(shard_name)
        source, name = self._homes[place]
        return replace(source.get_shard_info(name), name=shard_name, index=place)

    def _place(self, shard_name: str) -> int:
        place = self._places.get(shard_name)
        return index_of(shard_name, self._names) if place is None else place


def _listed(sources: Iterable[ShardedDataSource]) -> tuple[ShardedDataSource, ...]:
    listed = isinstance(sources, Iterable) and not isinstance(sources, ShardedDataSource)  # pyright: ignore[reportUnnecessaryIsInstance]
    found = tuple(sources) if listed else ()
    odd = next((one for one in found if not isinstance(one, ShardedDataSource)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not listed or odd is not None:
        got = type(sources if odd is None else odd).__name__
        raise ConfigError(f"CompositeShardedSource: got a {got}, must be a list of sources")
    if not found:
        raise ConfigError("CompositeShardedSource: got no sources, needs at least one")
    return found


@final
class LimitedShardedSource(DerivedSource):
    """At most `max_rows` of the rows that come out of a source, in the order of its shards.

    All shards stay, the last ones perhaps without rows, and rows keep their numbers. To open a shard in the
    middle, the rows that come out before it are counted: by metadata where they tell, else by reading. A row
    after the limit gives nothing.
    """

    def __init__(self, source: ShardedDataSource, max_rows: int) -> None:
        """Limit `source`; ConfigError unless `max_rows` is a whole number from 0 on."""
        self._source, self._max_rows = source, whole_number("max_rows", max_rows, 0)
        self._lefts = [max_rows]  # rows that may come out before each shard; grows with what is counted

    @property
    def endless(self) -> bool:
        return False

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(shard_name, index_of(shard_name, self.shard_names), row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        return replace(info, rows=self._known(info.index, info.rows) if self.every_row else None)

    def _known(self, index: int, rows: int | None) -> int | None:
        before = [self._source.get_shard_info(name).rows for name in self.shard_names[:index]]
        if rows is None or None in before:
            return None
        return min(rows, max(0, self._max_rows - sum(count or 0 for count in before)))

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


@final
class TokenLimitedSource(DerivedSource):
    """The rows of a source of one shard, up to and including the one that reaches a number of tokens."""

    def __init__(self, source: ShardedDataSource, max_tokens: int) -> None:
        """Limit `source` to `max_tokens` ids of ``input_ids``; the last row comes out whole."""
        self._source, self._max_tokens = source, max_tokens

    @property
    def endless(self) -> bool:
        return False

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return rows_from(row, self._rows(shard_name), shard_name)

    def _rows(self, shard_name: str) -> Iterator[Row]:
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
        return replace(self._source.get_shard_info(shard_name), rows=None)


@final
class BatchedShardedSource(DerivedSource):
    """Another source's shards, a row for every `batch_size` of its rows: {field: list of values}.

    The last batch of a shard may be smaller. A row that lacks a field of its batch has None there. Batches are
    numbered from 0 on in their shard; opening at one opens the source at its first row.
    """

    def __init__(self, source: ShardedDataSource, batch_size: int) -> None:
        """Batch `source`; ConfigError unless `batch_size` is a whole number from 1 on."""
        self._source, self._size = source, whole_number("batch_size", batch_size, 1)

    @property
    def every_row(self) -> bool:
        return True

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
            fields = dict.fromkeys(field for row in some for field in row)
            yield number, {field: [row.get(field) for row in some] for field in fields}
            number += 1

    def _rows_from(self, shard: str, number: int) -> Iterator[Row]:
        """Return the rows from the first one of a batch on."""
        if (known := self.get_shard_info(shard).rows) is None:
            rows = self._source.open_shard(shard)
            known = -(-sum(1 for _ in islice(rows, number * self._size)) // self._size)
        else:
            first = min(number, known) * self._size
            rows = self._source.open_shard_at_row(shard, first) if number < known else iter(())
        if number > known:
            raise beyond(shard, number, known)
        return rows
