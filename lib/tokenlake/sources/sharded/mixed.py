"""Several sources as one stream of rows, mixed by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from tokenlake.errors import BadRecordError
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource, without_numbers
from tokenlake.sources.sharded.feed import Feed
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, beyond, check_row, index_of
from tokenlake.sources.sharded.mixarguments import named_sources, scheduler_of, stop_strategy_of, whole_number
from tokenlake.sources.sharded.turns import Turns

SOURCE_FIELD: Final = "__source__"
"""Field of a mixed row that names the source it is of."""

_SHARD: Final = "mixed"


@final
class MixedShardedSource(ShardedDataSource):
    """Rows of several sources in one shard; each says in ``__source__`` which source it is of.

    Counts over blocks follow the weights, and what is left of a fraction goes over to the next block, so that no source
    starves. Inside a block the order is a shuffle that the seed decides. Each source gives its own rows in its own
    order. One that is started again reads its shards in an order drawn for that epoch; inside a shard, and so where
    it has but one, the order stays.

    A row's number is its place in the mixture. Opening at a row computes how many rows of each source are before it
    and opens every source there, which costs what it costs the sources; what is before is read only of a source that
    leaves rows out or does not number them. In memory are some places of the order and a row of each source.

    How long a source is need not be known: rows are the same, and only `len` differs.
    """

    def __init__(
        self,
        sources: Mapping[str, ShardedDataSource] | Sequence[ShardedDataSource],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: str = "restart",
        weight_scheduler: WeightScheduler | None = None,
    ) -> None:
        """Mix `sources`; nothing is opened yet.

        Args:
            sources: name to source, or a list of sources, which are then called source_0, source_1, ...
            weights: name to weight, per row; they sum to 1. None: equal ones.
            block_size: rows of a block.
            seed: of the shuffle inside blocks, and of the order of shards in later epochs; None is 0.
            stop_strategy: when a source ends: ``restart`` it, without end; stop before the first row that it would
                have to give (``first_exhausted``); or go on with the others until all are at their end
                (``all_exhausted``).
            weight_scheduler: weights that change; its steps count rows of the mixture.

        Raises:
            ConfigError: an argument is not what is allowed; weights are of other names than the sources.
        """
        self._sources = named_sources(sources)
        self._seed = 0 if seed is None else whole_number("seed", seed)
        self._stop = stop_strategy_of(stop_strategy)
        self._turns = Turns(
            scheduler=scheduler_of(tuple(self._sources), weights, weight_scheduler),
            block_size=whole_number("block_size", block_size, least=1),
            seed=self._seed,
            stop=self._stop,
        )

    def reschedule(self, scheduler: WeightScheduler | None) -> None:
        """Take other weights; whoever draws rows now draws by these."""
        self._turns = replace(self._turns, scheduler=scheduler_of(tuple(self._sources), None, scheduler))

    @property
    def shard_names(self) -> Sequence[str]:
        return (_SHARD,)

    @property
    def endless(self) -> bool:
        never = [source.endless for source in self._sources.values()]
        return self._stop == "restart" or (any(never) if self._stop == "all_exhausted" else all(never))

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        index_of(shard_name, self.shard_names)
        return self._rows(row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = index_of(shard_name, self.shard_names)
        rows = None if self._stop == "restart" else self._turns.rows(self._lengths())
        return ShardInfo(name=shard_name, index=index, rows=rows)

    def __len__(self) -> int:
        """Return how many rows come out, exactly; TypeError where there is no end, or it is not known."""
        if self._stop == "restart":
            raise TypeError("a mixture with stop_strategy='restart' has no length: it never ends")
        rows = self.get_shard_info(_SHARD).rows
        if rows is None:
            unknown = [name for name, length in self._lengths().items() if length is None]
            raise TypeError(
                f"the length of this MixedShardedSource is unknown, because that of {', '.join(unknown)} is; "
                "count its rows"
            )
        return rows

    def __repr__(self) -> str:
        return f"MixedShardedSource({list(self._sources)!r}, stop_strategy={self._stop!r})"

    def _lengths(self) -> dict[str, int | None]:
        return {name: _length(source) for name, source in self._sources.items()}

    def _check_weights(self) -> None:
        """Raise ConfigError now, and not after all other rows, if a source can never be exhausted."""
        if self._stop == "all_exhausted":
            none = dict.fromkeys(self._sources)
            self._turns.check(none | {name: _length(self._sources[name]) for name in self._turns.limited})

    def _rows(self, place: int) -> Numbered:
        # Lengths are learned from the rows: asking for them may open every file before the first row comes.
        lengths: dict[str, int | None] = dict.fromkeys(self._sources)
        feeds = self._feeds()
        self._check_weights()
        if place:
            self._seek(feeds, lengths, place)
        going = True
        while going:
            going = False
            for name in self._turns.names(lengths, place):
                row = feeds[name].take()
                if row is None:
                    lengths[name] = feeds[name].drawn
                    going = True
                    break
                yield place, _marked(row, name)
                place += 1
        self._check_end(feeds, lengths)

    def _seek(self, feeds: Mapping[str, Feed], lengths: dict[str, int | None], row: int) -> None:
        """Let every source go on where `row` is; learn the lengths of those that end before it.

        Raises:
            ConfigError: the mixture has fewer rows.
        """
        place = row
        while True:
            place, wanted = self._turns.drawn(lengths, place)
            reached = {name: feed.seek(wanted[name]) for name, feed in feeds.items()}
            ended = {name: draws for name, draws in reached.items() if draws < wanted[name]}
            if not ended:
                break
            lengths |= ended
        if place < row:
            self._check_end(feeds, lengths)
            raise beyond(_SHARD, row, place)

    def _check_end(self, feeds: Mapping[str, Feed], lengths: Mapping[str, int | None]) -> None:
        """Raise ConfigError if all sources should be exhausted, and one is not."""
        for name, feed in feeds.items():
            if self._stop == "all_exhausted" and lengths[name] is None and feed.take() is not None:
                raise self._turns.never_exhausted(name, feed.drawn - 1)

    def _feeds(self) -> dict[str, Feed]:
        again = self._stop == "restart"
        return {
            name: Feed(name, source, again=again, seed=self._seed, place=place)
            for place, (name, source) in enumerate(self._sources.items())
        }


def _length(source: ShardedDataSource) -> int | None:
    if not source.every_row:
        return None
    rows = [source.get_shard_info(name).rows for name in source.shard_names]
    known = [count for count in rows if count is not None]
    return sum(known) if len(known) == len(rows) else None


def _marked(row: Row, name: str) -> Row:
    if SOURCE_FIELD in row:
        raise BadRecordError(
            f"source {name!r}: a row has a field {SOURCE_FIELD!r} already, where a mixture writes the name of its "
            f"source; rename it ({SOURCE_FIELD!r}: 'origin') or drop it with the source's rename_fields or drop_fields",
            source=name,
            field=SOURCE_FIELD,
        )
    return {**row, SOURCE_FIELD: name}
