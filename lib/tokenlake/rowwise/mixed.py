"""Several sources as one stream of rows, mixed by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, cast, final

from tokenlake.base.checks import expected, require_one_of, whole_number
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.rowwise.combine import HFDatasetShardedSource, RowsShardedSource
from tokenlake.rowwise.shards import Numbered, Row, beyond, known_length
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource
from tokenlake.runtime.mixing.counts import counts_of
from tokenlake.runtime.mixing.mixture import STOPS, SourceMixture
from tokenlake.runtime.mixing.random import key_of, shuffled
from tokenlake.runtime.mixing.schedule import WeightScheduler, constant
from tokenlake.runtime.mixing.weights import check_weight_names

SOURCE_FIELD: Final = "__source__"
"""Field of a mixed row that names the source it is of."""

_SHARD: Final = "mixed"
_SHARDS: Final = 0x53484152_4453  # "SHARDS": the stream of chance that shards are shuffled by
_ENDLESS: Final = 1 << 53  # rows that no source has
_STEP: Final = 1024  # places that are looked up at a time, where blocks are smaller

Lengths = dict[str, int | None]
"""Name of each source to its rows; None where only reading it would tell."""


@final
class MixedShardedSource(NumberedSource):
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

    _names = (_SHARD,)

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
            weights: name to weight, per row: shares, percentages, or ratios of whole numbers. None: equal ones.
            block_size: rows of a block.
            seed: of the shuffle inside blocks, and of the order of shards in later epochs; None is 0.
            stop_strategy: when a source ends: ``restart`` it, without end; stop before the first row that it would
                have to give (``first_exhausted``); or go on with the others until all are at their end
                (``all_exhausted``).
            weight_scheduler: weights that change; its steps count rows of the mixture.

        Raises:
            ConfigError: an argument is not what is allowed; weights are of other names than the sources.
        """
        self._sources = _named("sources", sources)
        for name, source in self._sources.items():
            if not isinstance(source, ShardedDataSource):
                raise expected(f"sources: {name!r}", source, "a source of rows, such as ParquetShardedSource")
        self._seed = 0 if seed is None else whole_number("seed", seed)
        require_one_of("stop_strategy", stop_strategy, STOPS)
        self._stop, self._block_size = stop_strategy, whole_number("block_size", block_size, 1)
        self._scheduler = _scheduler_of(tuple(self._sources), weights, weight_scheduler)

    def reschedule(self, scheduler: WeightScheduler | None) -> None:
        """Take other weights; whoever opens the mixture after this draws by these."""
        self._scheduler = _scheduler_of(tuple(self._sources), None, scheduler)

    @property
    def endless(self) -> bool:
        never = [source.endless for source in self._sources.values()]
        return self._stop == "restart" or (any(never) if self._stop == "all_exhausted" else all(never))

    def _count(self, index: int) -> int | None:
        lengths = dict.fromkeys(self._sources) if self._stop == "restart" else self._lengths()
        return None if None in lengths.values() else self._order(lengths).rows

    def __len__(self) -> int:
        """Return how many rows come out, exactly; TypeError where there is no end, or it is not known."""
        if self._stop == "restart":
            raise TypeError("a mixture with stop_strategy='restart' has no length: it never ends")
        if (rows := self._count(0)) is None:
            unknown = ", ".join(name for name, length in self._lengths().items() if length is None)
            raise TypeError(f"the mixture's length is unknown, because that of {unknown} is; count its rows")
        return rows

    def __repr__(self) -> str:
        return f"MixedShardedSource({list(self._sources)!r}, stop_strategy={self._stop!r})"

    def _lengths(self) -> Lengths:
        return {name: known_length(source) for name, source in self._sources.items()}

    def _rows(self, index: int, row: int) -> Numbered:
        # Lengths are learned from the rows: asking for them may open every file before the first row comes.
        lengths: Lengths = dict.fromkeys(self._sources)
        feeds = {
            name: _SourceFeed(name, source, again=self._stop == "restart", seed=self._seed, place=place)
            for place, (name, source) in enumerate(self._sources.items())
        }
        if self._stop == "all_exhausted":
            # A source that can never be exhausted is an error now, and not behind all others.
            for name, most in self._ceilings().items():
                self._told(name, None if most is None else known_length(self._sources[name]), most)
        place = row
        if place:
            self._seek(feeds, lengths, place)
        while True:
            for name in self._turns(lengths, place):
                taken = feeds[name].take()
                if taken is None:
                    lengths[name] = feeds[name].drawn
                    break
                if SOURCE_FIELD in taken:
                    how = "rename it with rename_fields, or use drop_fields"
                    why = f"a row has a field {SOURCE_FIELD!r} already, where a mixture writes the name of its source"
                    raise BadRecordError(f"source {name!r}: {why}; {how}", source=name, field=SOURCE_FIELD)
                yield place, {**taken, SOURCE_FIELD: name}
                place += 1
            else:
                break
        self._check_end(feeds, lengths)

    def _turns(self, lengths: Lengths, place: int) -> Iterator[str]:
        """Yield the name of the source at each place, from `place` on.

        A source of unknown length is taken for endless until it ends. The places before its end are the same either
        way: who reads it notes its length when it is known, and asks again from there on.
        """
        order = self._order(lengths)
        step = -(-_STEP // self._block_size) * self._block_size
        while order.rows is None or place < order.rows:
            stop = (place // step + 1) * step
            stop = stop if order.rows is None else min(stop, order.rows)
            yield from (order.names[source] for source in order.lane(0, place, stop).source.tolist())
            place = stop

    def _seek(self, feeds: Mapping[str, _SourceFeed], lengths: Lengths, row: int) -> None:
        """Let every source go on where `row` is; learn the lengths of those that end before it.

        Raises:
            ConfigError: the mixture has fewer rows.
        """
        place = row
        while True:
            order = self._order(lengths)
            place = place if order.rows is None else min(place, order.rows)
            wanted = dict(zip(order.names, order.drawn(0, place).tolist(), strict=True))
            reached = {name: feed.seek(wanted[name]) for name, feed in feeds.items()}
            ended = {name: draws for name, draws in reached.items() if draws < wanted[name]}
            if not ended:
                break
            lengths |= ended
        if place < row:
            self._check_end(feeds, lengths)
            raise beyond(_SHARD, row, place)

    def _order(self, lengths: Lengths) -> SourceMixture:
        """Return the order of the mixture, in one lane; ConfigError if a source can never be exhausted or restarted."""
        told = {name: self._told(name, lengths[name], most) for name, most in self._ceilings().items()}
        size = self._block_size  # and of a batch: the order is shuffled inside a block
        return SourceMixture(
            told, self._scheduler, batch_size=size, block_size=size, seed=self._seed, stop=self._stop
        )

    def _ceilings(self) -> Lengths:
        """Rows that the schedule takes of each source, ever; None: there is no end to them."""
        counts = counts_of(self._scheduler, block_size=self._block_size)
        return {name: counts.ceiling(place) for place, name in enumerate(self._scheduler.names)}

    def _told(self, name: str, rows: int | None, most: int | None) -> int | None:
        """Return the length that the order is told; `most`: rows that the schedule takes of the source, ever."""
        if rows == 0 and self._stop != "all_exhausted":
            why = f"has no rows, so that stop_strategy={self._stop!r} has nothing to go on with"
            raise ConfigError(f"source {name!r} {why}; leave it out, or use 'all_exhausted'", source=name)
        if self._stop == "restart":
            return rows
        if self._stop == "first_exhausted" or most is None:
            return _ENDLESS if rows is None else rows
        if (rows is None and not most) or (rows is not None and rows > most):
            raise _never_exhausted(name, most)
        return most if rows is None else rows

    def _check_end(self, feeds: Mapping[str, _SourceFeed], lengths: Lengths) -> None:
        """Raise ConfigError if all sources should be exhausted, and one is not."""
        for name, feed in feeds.items():
            if self._stop == "all_exhausted" and lengths[name] is None and feed.take() is not None:
                raise _never_exhausted(name, feed.drawn - 1)


@final
class _SourceFeed:
    """The rows of one source as a mixture draws them.

    Epoch 0 reads the shards in the source's own order. Where rows are drawn `again`, an epoch follows another, and
    every later one reads the shards in an order drawn for it; inside a shard the order stays. One shard is open at
    a time, from the first row on that is drawn.
    """

    def __init__(self, name: str, source: ShardedDataSource, *, again: bool, seed: int, place: int) -> None:
        self._name, self._source, self._again = name, source, again
        self._key = (seed, _SHARDS, place)
        self.drawn = 0
        """How many draws come before the next one, over all epochs."""
        self._rows = self._walk(0)

    def take(self) -> Row | None:
        """Return the next row, None after the last one.

        Raises:
            SourceError: rows are drawn again, and there are none.
        """
        row = next(self._rows, None)
        self.drawn += row is not None
        return row

    def seek(self, draws: int) -> int:
        """Go on at draw number `draws`, counted from the first epoch on; return how many draws come before it.

        Those are `draws`, or all there are, if there are fewer. Rows are passed over by their numbers; they are read
        only where a source leaves rows out or does not know its length.
        """
        if draws != self.drawn:
            self._rows = self._walk(draws)
            next(self._rows)
        return self.drawn

    def _walk(self, draws: int) -> Iterator[Row]:
        """Yield the rows from a draw on, epoch after epoch; behind draws that are passed over, first an empty row."""
        left, epoch, came, there = draws, 0, 0, not draws
        while True:
            for shard in self._ordered(epoch):
                passed, rows = self._opened(shard, left) if left else (0, self._source.open_shard(shard))
                left, came = left - passed, came + passed
                if not left and not there:
                    self.drawn, there = draws, True
                    yield {}
                for row in rows:
                    came += 1
                    yield row
            if not self._again:
                break
            self._require_rows(came, epoch)
            skipped, left = divmod(left, came)
            epoch, came = epoch + 1 + skipped, 0
        if not there:
            self.drawn = draws - left
            yield {}

    def _require_rows(self, came: int, epoch: int) -> None:
        if not came:
            first = "" if epoch == 0 else f" in epoch {epoch}, though it had some before"
            why = f"source {self._name!r} gives no rows{first}: it cannot be started again; leave it out"
            raise SourceError(why, source=self._name, epoch=epoch)

    def _ordered(self, epoch: int) -> list[str]:
        names = list(self._source.shard_names)
        if epoch == 0 or len(names) < 2:
            return names
        return [names[place] for place in shuffled(len(names), key_of(*self._key, epoch)).tolist()]

    def _opened(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Return how many of the first `skip` rows of a shard there are, and the rows after them."""
        if not self._source.every_row:  # numbers have gaps: how many rows come before one, only reading tells
            rows = self._source.open_shard(shard)
            return sum(1 for _ in islice(rows, skip)), rows
        there = self._source.get_shard_info(shard).rows
        if there is not None and skip >= there:
            return there, iter(())
        rows = self._source.open_shard_at_row(shard, skip)
        if there is not None:
            return skip, rows
        try:  # the first row may be beyond the end: then the error says where that is
            return skip, chain(list(islice(rows, 1)), rows)
        except ConfigError as error:
            there = error.details.get("rows")
            if error.details.get("row") != skip or not isinstance(there, int):
                raise
            return there, iter(())


def block_mixture_interleave(
    datasets: Mapping[str, Any] | Sequence[Any],
    weights: Mapping[str, float] | Sequence[float] | None = None,
    block_size: int = 1000,
    seed: int | None = None,
    stop: str = "restart",
) -> MixedShardedSource:
    """Mix datasets block by block; in every block the weights hold, and its rows are shuffled.

    Args:
        datasets: name to dataset, or a list of datasets. A dataset is a ``Dataset`` or ``IterableDataset`` of the
            `datasets` library, any source of ours, or a list of rows.
        weights: name to weight, or a list of weights in the order of the datasets: shares, percentages, or ratios of
            whole numbers. None: equal ones.
            Datasets in a list are called as the weights are, in their order; without names source_0, source_1, ...
        block_size: rows of a block.
        seed: of the shuffle inside blocks; None is 0.
        stop: when a dataset ends: ``restart`` it, stop (``first_exhausted``), or go on with the others
            (``all_exhausted``).

    Returns:
        A source, whose rows say in ``__source__`` which dataset they are of: iterate over it, as often as you like,
        or use it wherever a source is taken. ``.drop_fields(["__source__"])`` leaves that field out.

    Raises:
        ConfigError: an argument is not what is allowed.
    """
    names = list(weights) if isinstance(weights, Mapping) else None
    given = _named("datasets", datasets, names)
    if weights is not None and not isinstance(weights, Mapping):
        if not isinstance(weights, list | tuple) or len(weights) != len(given):
            raise expected("weights", weights, "a mapping of name to weight, or one for each dataset")
        weights = dict(zip(given, weights, strict=True))
    sources: dict[str, ShardedDataSource] = {}
    for name, dataset in given.items():
        try:
            if isinstance(dataset, list | tuple):
                sources[name] = RowsShardedSource(cast("Any", dataset), name)
            else:
                own = isinstance(dataset, ShardedDataSource)
                sources[name] = dataset if own else HFDatasetShardedSource(dataset, name)
        except ConfigError as error:
            raise ConfigError(f"datasets, {name!r}: {error}", **error.details) from None
    return MixedShardedSource(sources, weights, block_size, seed, stop)


def _named(what: str, given: object, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a mapping as it is, and a list by `names`, else as source_0, source_1, ...; at least one."""
    if isinstance(given, list | tuple):
        listed = cast("Sequence[Any]", given)
        names = [f"source_{place}" for place in range(len(listed))] if names is None else names
        if len(names) != len(listed):
            raise ConfigError(f"weights: got {len(names)} for {len(listed)} {what}, must be one each")
        given = dict(zip(names, listed, strict=True))
    found = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {})
    if not found or not all(isinstance(name, str) and name for name in found):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise expected(what, given, "a mapping of at least one name (text), or a list of at least one")
    return dict(found)


def _scheduler_of(
    names: tuple[str, ...], weights: Mapping[str, float] | None, scheduler: WeightScheduler | None
) -> WeightScheduler:
    """Return the weights, as they change; ConfigError unless they are of just these names."""
    if weights is not None and scheduler is not None:
        raise ConfigError("got weights and a weight_scheduler, must be one of them: a scheduler has weights")
    if scheduler is not None:
        if not isinstance(scheduler, WeightScheduler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("weight_scheduler", scheduler, "a WeightScheduler")
        check_weight_names("weight_scheduler", names, tuple(scheduler.names))
        return scheduler
    weights = dict.fromkeys(names, 1 / len(names)) if weights is None else weights
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise expected("weights", weights, "a mapping of name to weight")
    check_weight_names("weights", names, tuple(weights))
    return constant({name: weights[name] for name in names})


def _never_exhausted(name: str, most: int) -> ConfigError:
    """Return the error for a source of which the schedule takes no more than `most` rows, and which has more."""
    why = f"can never be exhausted: the schedule takes {most} rows of it before its weight stays 0, and it has more"
    how = "Give it a weight above 0 at the end of the schedule, or use another stop_strategy"
    return ConfigError(f"source {name!r} {why}. {how}", source=name)
