"""Several sources as one stream of rows, mixed by weights.

The arguments of a mixture, checked.

The rows of one source as a mixture draws them: epoch after epoch, from any draw on.

Whose turn it is at each place of a mixture, also where nobody knows yet how many rows a source has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import index
from typing import Any, Final, cast, final

from tokenlake.config.suggestion import did_you_mean, nearest
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.mixing.counts import Counts
from tokenlake.mixing.mixture import Mixture
from tokenlake.mixing.random import key_of, shuffled
from tokenlake.mixing.schedule import WeightScheduler, constant
from tokenlake.rowwise.source import (
    Numbered,
    Row,
    ShardedDataSource,
    ShardInfo,
    beyond,
    check_row,
    index_of,
    without_numbers,
)

STOP_STRATEGIES: Final = ("restart", "first_exhausted", "all_exhausted")


def named_sources(sources: object) -> dict[str, ShardedDataSource]:
    """Return sources by name; those in a list are source_0, source_1, ...; ConfigError if they are anything else."""
    if isinstance(sources, Mapping):
        named = dict(cast("Mapping[str, ShardedDataSource]", sources))
    elif isinstance(sources, list | tuple):
        listed = cast("Sequence[ShardedDataSource]", sources)
        named = {f"source_{place}": source for place, source in enumerate(listed)}
    else:
        raise ConfigError(
            f"sources: got a {type(sources).__name__}, must be a mapping of name to source, or a list of sources"
        )
    if not named:
        raise ConfigError("sources: got none, a mixture needs at least one")
    for name, source in named.items():
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"sources: got the name {name!r}, must be text that is not empty")
        if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"sources: {name!r} is a {type(source).__name__}, must be a source of rows, such as "
                "ParquetShardedSource; block_mixture_interleave also takes datasets and lists"
            )
    return named


def scheduler_of(
    names: tuple[str, ...], weights: Mapping[str, float] | None, scheduler: WeightScheduler | None
) -> WeightScheduler:
    """Return the weights, as they change; ConfigError unless they are of just these names."""
    if weights is not None and scheduler is not None:
        raise ConfigError("got weights and a weight_scheduler, must be one of them: a scheduler has weights")
    if scheduler is not None:
        if not isinstance(scheduler, WeightScheduler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"weight_scheduler: got a {type(scheduler).__name__}, must be a WeightScheduler"
            )
        _check_names("weight_scheduler", names, tuple(scheduler.names))
        return scheduler
    if weights is None:
        return constant(dict.fromkeys(names, 1 / len(names)))
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"weights: got a {type(weights).__name__}, must be a mapping of name to weight")
    _check_names("weights", names, tuple(weights))
    return constant({name: weights[name] for name in names})


def _check_names(what: str, names: tuple[str, ...], keys: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in keys]
    unknown = [key for key in keys if key not in names]
    if not missing and not unknown:
        return
    told = [f"no weight for {', '.join(map(repr, missing))}"] if missing else []
    told += [f"{key!r} is no source{_hint(key, names)}" for key in unknown]
    raise ConfigError(
        f"{what}: {'; '.join(told)}; weights must be of just the sources: {', '.join(names)}",
        missing=missing,
        unknown=unknown,
    )


def _hint(key: str, names: tuple[str, ...]) -> str:
    near = nearest(key, names)
    return "" if near is None else f" (did you mean {near!r}?)"


def stop_strategy_of(strategy: object) -> str:
    """Return a stop strategy; ConfigError, with the nearest one, if there is no such."""
    if strategy in STOP_STRATEGIES:
        return str(strategy)
    raise ConfigError(
        f"stop_strategy: got {strategy!r}, must be one of {', '.join(STOP_STRATEGIES)}"
        f"{did_you_mean(strategy, STOP_STRATEGIES)}",
        got=repr(strategy),
        expected=list(STOP_STRATEGIES),
    )


def whole_number(what: str, value: Any, least: int | None = None) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number, and one from `least` on."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{what}: got {value!r}, must be a whole number", got=repr(value))
    if least is not None and index(value) < least:
        raise ConfigError(f"{what}: got {value!r}, must be at least {least}", got=repr(value))
    return index(value)


_SHARDS: Final = 0x53484152_4453  # "SHARDS": the stream of chance that shards are shuffled by


@final
class Feed:
    """Rows of a source, drawn one after the other.

    Epoch 0 reads the shards in the source's own order. Where rows are drawn `again`, an epoch follows another, and
    every later one reads the shards in an order drawn for it; inside a shard the order stays. One shard is open at
    a time, from the first row on that is drawn.
    """

    def __init__(self, name: str, source: ShardedDataSource, *, again: bool, seed: int, place: int) -> None:
        """Begin before the first row; nothing is opened yet.

        Args:
            name: of the source, for messages.
            again: begin another epoch after the last row.
            seed, place: of the mixture, and of the source in it: they decide the order of shards in later epochs.
        """
        self._name, self._source, self._again = name, source, again
        self._key = (seed, _SHARDS, place)
        self.drawn = 0
        """How many draws come before the next one, over all epochs."""
        self._begin(0)

    def take(self) -> Row | None:
        """Return the next row, None after the last one.

        Raises:
            SourceError: rows are drawn again, and there are none.
        """
        while (row := next(self._rows, None)) is None:
            name = next(self._shards, None)
            if name is not None:
                _, self._rows = self._opened(name, 0)
            elif not self._restarted():
                return None
        self._came += 1
        self.drawn += 1
        return row

    def seek(self, draws: int) -> int:
        """Go on at draw number `draws`, counted from the first epoch on; return how many draws come before it.

        Those are `draws`, or all there are, if there are fewer. Rows are passed over by their numbers; only where
        a source leaves rows out, or does not say how many there are, are they read.
        """
        if draws == self.drawn:
            return draws
        self._begin(0)
        left = draws
        while left:
            name = next(self._shards, None)
            if name is not None:
                passed, self._rows = self._opened(name, left)
                left, self._came = left - passed, self._came + passed
            elif not self._again:
                break
            else:
                self._require_rows()
                epochs, left = divmod(left, self._came)
                self._begin(self._epoch + 1 + epochs)
        self.drawn = draws - left
        return self.drawn

    def _begin(self, epoch: int) -> None:
        self._epoch, self._came = epoch, 0
        self._rows: Iterator[Row] = iter(())
        self._shards = iter(self._ordered(epoch))

    def _restarted(self) -> bool:
        if self._again:
            self._require_rows()
            self._begin(self._epoch + 1)
        return self._again

    def _require_rows(self) -> None:
        if not self._came:
            first = "" if self._epoch == 0 else f" in epoch {self._epoch}, though it had some before"
            raise SourceError(
                f"source {self._name!r} gives no rows{first}: it cannot be started again. Leave it out, let each "
                "pass over it give its rows, or use stop_strategy='all_exhausted'",
                source=self._name,
                epoch=self._epoch,
            )

    def _ordered(self, epoch: int) -> list[str]:
        names = list(self._source.shard_names)
        if epoch == 0 or len(names) < 2:
            return names
        return [names[place] for place in shuffled(len(names), key_of(*self._key, epoch)).tolist()]

    def _opened(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Return how many of the first `skip` rows of a shard there are, and the rows after them."""
        if not skip:
            return 0, self._source.open_shard(shard)
        if not self._source.every_row:  # numbers have gaps: how many rows come before one, only reading tells
            rows = self._source.open_shard(shard)
            return sum(1 for _ in islice(rows, skip)), rows
        said = self._source.get_shard_info(shard).rows
        if said is None:
            return self._tried(shard, skip)
        if skip >= said:
            return said, iter(())
        return skip, self._source.open_shard_at_row(shard, skip)

    def _tried(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Open at a row that may be beyond the end: then the error says where that is."""
        rows = self._source.open_shard_at_row(shard, skip)
        try:
            first = list(islice(rows, 1))
        except ConfigError as error:
            said = error.details.get("rows")
            if error.details.get("row") != skip or not isinstance(said, int):
                raise
            return said, iter(())
        return skip, chain(first, rows)


Lengths = Mapping[str, int | None]
"""Name of each source to its rows, None where only reading it would tell."""

_ENDLESS: Final = 1 << 53  # rows that no source has
_STEP: Final = 1024  # places that are looked up at a time, where blocks are smaller


@final
@dataclass(frozen=True, slots=True)
class Turns:
    """The order of a mixture in one lane.

    A source of unknown length is taken for endless until it ends. The places before its end are the same either way:
    who reads it tells its length when it is known, and asks again from there on.

    Attributes:
        scheduler: the weights; its names are those of the sources.
        block_size, seed, stop: as :class:`tokenlake.mixing.mixture.Mixture` takes them.
    """

    scheduler: WeightScheduler
    block_size: int
    seed: int
    stop: str

    @property
    def limited(self) -> tuple[str, ...]:
        """The sources of which the schedule takes only so many rows, before their weights stay 0."""
        return tuple(name for name, most in self._ceilings().items() if most is not None)

    def check(self, lengths: Lengths) -> None:
        """Raise ConfigError if a source has no row to go on with, or can never be exhausted."""
        for name, most in self._ceilings().items():
            self._told(name, lengths[name], most)

    def rows(self, lengths: Lengths) -> int | None:
        """Return how many rows the mixture has; None: it has no end, or it is not known. Raises as :meth:`check`."""
        return None if self.stop == "restart" or None in lengths.values() else self._mixture(lengths).rows

    def names(self, lengths: Lengths, place: int) -> Iterator[str]:
        """Yield the name of the source at each place, from `place` on; raises as :meth:`check`."""
        mixture = self._mixture(lengths)
        names, rows = mixture.names, mixture.rows
        step = -(-_STEP // self.block_size) * self.block_size
        while rows is None or place < rows:
            stop = (place // step + 1) * step
            stop = stop if rows is None else min(stop, rows)
            for source in mixture.lane(0, place, stop).source.tolist():
                yield names[source]
            place = stop

    def drawn(self, lengths: Lengths, place: int) -> tuple[int, dict[str, int]]:
        """Return `place`, or the end if that is before it; and how many rows of each source come before that."""
        mixture = self._mixture(lengths)
        place = place if mixture.rows is None else min(place, mixture.rows)
        return place, dict(zip(mixture.names, mixture.drawn(0, place).tolist(), strict=True))

    def never_exhausted(self, name: str, most: int) -> ConfigError:
        """Return the error for a source of which the schedule takes no more than `most` rows, and which has more."""
        return ConfigError(
            f"source {name!r} can never be exhausted: the schedule takes {most} rows of it before its weight stays 0, "
            "and it has more. Give it a weight above 0 at the end of the schedule, leave it out, or use another "
            "stop_strategy",
            source=name,
        )

    def _mixture(self, lengths: Lengths) -> Mixture:
        told = {name: self._told(name, lengths[name], most) for name, most in self._ceilings().items()}
        size = self.block_size  # and of a batch: the order is shuffled inside a block
        return Mixture(told, self.scheduler, batch_size=size, block_size=size, seed=self.seed, stop=self.stop)

    def _ceilings(self) -> dict[str, int | None]:
        """Rows that the schedule takes of each source, ever; None: there is no end to them."""
        counts = Counts(self.scheduler, block_size=self.block_size)
        return {name: counts.ceiling(place) for place, name in enumerate(self.scheduler.names)}

    def _told(self, name: str, rows: int | None, most: int | None) -> int | None:
        """Return the length that the mixture is told; `most`: rows that the schedule takes of the source, ever."""
        if rows == 0 and self.stop != "all_exhausted":
            raise ConfigError(
                f"source {name!r} has no rows, so that stop_strategy={self.stop!r} has nothing to go on with; leave it "
                "out, or use stop_strategy='all_exhausted'",
                source=name,
            )
        if self.stop == "restart":
            return rows
        if self.stop == "first_exhausted" or most is None:
            return _ENDLESS if rows is None else rows
        if (rows is None and not most) or (rows is not None and rows > most):
            raise self.never_exhausted(name, most)
        return most if rows is None else rows


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
