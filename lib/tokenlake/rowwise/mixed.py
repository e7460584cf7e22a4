"""Mixtures: several sources combined by weight into one stream of rows.

The order of the stream is reproducible.

Indices of this module:

- *row*: number of a row in the mixture, which is its place in the order
- *draw*: number of a row among all rows drawn from one source, over all its epochs,
  from 0
- *ceiling*: number of draws that a schedule of weights ever takes from a source; None
  if there is no end

To open the mixture at row r, the order says how many draws of each source come before
it, and each source is opened at that draw. For example, with weights a: 0.75 and b:
0.25 and blocks of 4 rows, row 8 is after two blocks, so source a is opened at draw 6
and source b at draw 2.
"""

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
"""Field of a mixed row with the name of its source."""

_SHARD: Final = "mixed"
# "SHARDS": part of the random key that shuffles the shards of a source.
_SHARDS: Final = 0x53484152_4453
_ENDLESS: Final = 1 << 53  # more rows than any source has
_STEP: Final = 1024  # minimum number of rows whose sources are computed at once

Lengths = dict[str, int | None]
"""Name of each source to its number of rows; None if it is not known."""


@final
class MixedShardedSource(NumberedSource):
    """Rows of several sources in one shard, in an order by weights.

    Each row has the name of its source in ``__source__``.

    Counts over blocks follow the weights. Fractions of a row are carried over to the
    next block, so that no source starves. Inside a block, the order is a shuffle by the
    seed. Each source yields its rows in its own order. In later epochs of a restarted
    source, its shards are in a new order; inside a shard the order stays the same.

    The number of a row is its place in the mixture. Opening at a row computes the
    number of rows of each source before it, and opens every source there, at the cost
    of the sources. Earlier rows are read only from sources that leave rows out or do
    not number them. Memory holds a few places of the order, and one row of each source.

    The length of a source may be unknown. The rows are the same, and only `len` is not
    available.
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
        """Mix sources; nothing is opened yet.

        Args:
            sources: Name to source, or a list of sources, which get the names source_0,
                source_1, ...
            weights: Name to weight per row: shares, percentages, or ratios of whole
                numbers. None for equal weights.
            block_size: Number of rows per block.
            seed: Random seed of the shuffle inside blocks, and of the order of shards
                in later epochs. None is 0.
            stop_strategy: Action at the end of a source. ``restart``: restart it,
                without end. ``first_exhausted``: stop before the first row that is
                missing. ``all_exhausted``: continue with the others until all end.
            weight_scheduler: Weights that change. Its steps count rows of the mixture.

        Raises:
            ConfigError: An argument is not allowed, or the weights do not have the
                names of the sources.
        """
        self._sources = _named("sources", sources)
        for source_name, source in self._sources.items():
            if not isinstance(source, ShardedDataSource):
                raise expected(
                    f"sources: {source_name!r}",
                    source,
                    "a source of rows, such as ParquetShardedSource",
                )
        # The order: seed, end, blocks and weights.
        self._seed = 0 if seed is None else whole_number("seed", seed)
        require_one_of("stop_strategy", stop_strategy, STOPS)
        self._stop = stop_strategy
        self._block_size = whole_number("block_size", block_size, 1)
        self._scheduler = _scheduler_of(tuple(self._sources), weights, weight_scheduler)

    def reschedule(self, scheduler: WeightScheduler | None) -> None:
        """Replace the weights. They apply when the mixture is opened next."""
        self._scheduler = _scheduler_of(tuple(self._sources), None, scheduler)

    @property
    def endless(self) -> bool:
        are_endless = [source.endless for source in self._sources.values()]
        if self._stop == "restart":
            return True
        if self._stop == "all_exhausted":
            return any(are_endless)
        return all(are_endless)

    def _count(self, index: int) -> int | None:
        # A mixture that restarts never ends, whatever the lengths are.
        if self._stop == "restart":
            return None
        lengths = self._lengths()
        if None in lengths.values():
            return None
        return self._order(lengths).rows

    def __len__(self) -> int:
        """Return the exact number of rows.

        Raises:
            TypeError: There is no end, or the number is not known.
        """
        if self._stop == "restart":
            raise TypeError(
                "a mixture with stop_strategy='restart' has no length, because it never ends"
            )
        # The message names the sources whose lengths are missing.
        rows = self._count(0)
        if rows is None:
            unknown_names: list[str] = []
            for source_name, length in self._lengths().items():
                if length is None:
                    unknown_names.append(source_name)
            unknown = ", ".join(unknown_names)
            raise TypeError(
                f"the length of the mixture is unknown, because the length of {unknown} is; count its rows"
            )
        return rows

    def __repr__(self) -> str:
        return (
            f"MixedShardedSource({list(self._sources)!r}, stop_strategy={self._stop!r})"
        )

    def _lengths(self) -> Lengths:
        """Return the number of rows of each source, without reading."""
        return {
            source_name: known_length(source)
            for source_name, source in self._sources.items()
        }

    def _rows(self, index: int, row: int) -> Numbered:
        # Lengths are learned when sources end: to ask for them might open every file
        # before the first row.
        lengths: Lengths = dict.fromkeys(self._sources)
        feeds: dict[str, _SourceFeed] = {}
        for source_index, (source_name, source) in enumerate(self._sources.items()):
            feeds[source_name] = _SourceFeed(
                source_name,
                source,
                again=self._stop == "restart",
                seed=self._seed,
                source_index=source_index,
            )
        if self._stop == "all_exhausted":
            # A source that can never be exhausted is an error now, and not after all
            # others.
            for source_name, ceiling in self._ceilings().items():
                rows: int | None = None
                if ceiling is not None:
                    rows = known_length(self._sources[source_name])
                self._length_in_order(source_name, rows, ceiling)
        # Pass over the rows before the first one.
        if row:
            self._seek(feeds, lengths, row)

        # Take rows in the order's turns. When a source ends, its length is known, and
        # so the order after its end.
        has_ended_source = True
        while has_ended_source:
            has_ended_source = False
            for source_name in self._turns(lengths, row):
                source_row = feeds[source_name].take()
                if source_row is None:
                    lengths[source_name] = feeds[source_name].drawn
                    has_ended_source = True
                    break
                # The field would be overwritten, and its value lost.
                if SOURCE_FIELD in source_row:
                    raise BadRecordError(
                        f"source {source_name!r}: a row has a field {SOURCE_FIELD!r} already, in which a mixture "
                        "writes the name of its source; rename it with rename_fields, or use drop_fields",
                        source=source_name,
                        field=SOURCE_FIELD,
                    )
                yield row, {**source_row, SOURCE_FIELD: source_name}
                row += 1
        self._check_end(feeds, lengths)

    def _turns(self, lengths: Lengths, row: int) -> Iterator[str]:
        """Yield the name of the source of each row, from a row on.

        A source of unknown length counts as endless until it ends. The rows before its
        end are the same either way: the caller sets its length when it ends, and calls
        this again from there.

        Args:
            lengths: Number of rows of each source, as far as known.
            row: Number of the first row.
        """
        order = self._order(lengths)
        # Whole blocks are computed at once: the order shuffles inside them.
        step = -(-_STEP // self._block_size) * self._block_size
        while order.rows is None or row < order.rows:
            end_row = (row // step + 1) * step
            if order.rows is not None:
                end_row = min(end_row, order.rows)
            sources = order.lane(0, row, end_row).source.tolist()
            yield from (order.names[source_index] for source_index in sources)
            row = end_row

    def _seek(
        self, feeds: Mapping[str, _SourceFeed], lengths: Lengths, row: int
    ) -> None:
        """Move every source to its first draw at or after a row.

        The lengths of sources that end before it are set.

        Args:
            feeds: Name of each source to its rows.
            lengths: Number of rows of each source, as far as known.
            row: Number of the row.

        Raises:
            ConfigError: The mixture has fewer rows.
        """
        # A source that ends changes the order after its end: the draws are computed
        # again until no further source ends.
        reachable = row
        while True:
            order = self._order(lengths)
            if order.rows is not None:
                reachable = min(reachable, order.rows)
            draw_counts = order.drawn(0, reachable).tolist()
            draws = dict(zip(order.names, draw_counts, strict=True))
            ended_lengths: Lengths = {}
            for source_name, feed in feeds.items():
                reached_draws = feed.seek(draws[source_name])
                if reached_draws < draws[source_name]:
                    ended_lengths[source_name] = reached_draws
            if not ended_lengths:
                break
            # With these lengths, the order before the row differs: compute the draws
            # anew.
            lengths |= ended_lengths
        if reachable < row:
            self._check_end(feeds, lengths)
            raise beyond(_SHARD, row, reachable)

    def _order(self, lengths: Lengths) -> SourceMixture:
        """Return the order of the mixture, in one lane.

        Raises:
            ConfigError: A source can never be exhausted or restarted.
        """
        order_lengths: Lengths = {}
        for source_name, ceiling in self._ceilings().items():
            order_lengths[source_name] = self._length_in_order(
                source_name, lengths[source_name], ceiling
            )
        # A batch of the order is a block, inside which it is shuffled.
        return SourceMixture(
            order_lengths,
            self._scheduler,
            batch_size=self._block_size,
            block_size=self._block_size,
            seed=self._seed,
            stop=self._stop,
        )

    def _ceilings(self) -> Lengths:
        """Return the number of draws that the schedule ever takes from each source.

        It is None if there is no end.
        """
        counts = counts_of(self._scheduler, block_size=self._block_size)
        ceilings: Lengths = {}
        for index, source_name in enumerate(self._scheduler.names):
            ceilings[source_name] = counts.ceiling(index)
        return ceilings

    def _length_in_order(
        self, name: str, rows: int | None, ceiling: int | None
    ) -> int | None:
        """Return the length by which the order treats a source.

        Args:
            name: Name of the source.
            rows: Number of its rows; None if it is not known.
            ceiling: Number of draws that the schedule ever takes from it; None if there
                is no end.

        Raises:
            ConfigError: The source can never be exhausted, or has no rows with which to
                restart.
        """
        if rows == 0 and self._stop != "all_exhausted":
            raise ConfigError(
                f"source {name!r} has no rows, so that stop_strategy={self._stop!r} cannot continue; leave it out, "
                "or use 'all_exhausted'",
                source=name,
            )
        # A restarted source may have any length. For a source that must be exhausted,
        # an unknown length is the most that the schedule takes; for the first that
        # ends, more than any.
        if self._stop == "restart":
            return rows
        if self._stop == "first_exhausted" or ceiling is None:
            if rows is None:
                return _ENDLESS
            return rows
        # With `all_exhausted`, the schedule must take every row.
        if rows is None:
            if not ceiling:
                raise _never_exhausted(name, ceiling)
            return ceiling
        if rows > ceiling:
            raise _never_exhausted(name, ceiling)
        return rows

    def _check_end(self, feeds: Mapping[str, _SourceFeed], lengths: Lengths) -> None:
        """Raise ConfigError if all sources should be exhausted, and one is not."""
        # Only a source whose end was not reached may have rows left.
        for source_name, feed in feeds.items():
            is_unexhausted = (
                self._stop == "all_exhausted" and lengths[source_name] is None
            )
            if is_unexhausted and feed.take() is not None:
                raise _never_exhausted(source_name, feed.drawn - 1)


@final
class _SourceFeed:
    """Rows of one source, as a mixture draws them.

    Epoch 0 reads the shards in the source's own order. If rows are drawn `again`,
    epochs follow each other, and each later epoch reads the shards in a new random
    order; inside a shard the order stays. One shard is open at a time.

    Args:
        name: Name of the source.
        source: Source of the rows.
        again: Whether the source is restarted at its end.
        seed: Random seed of the order of shards.
        source_index: Index of the source in the mixture.
    """

    def __init__(
        self,
        name: str,
        source: ShardedDataSource,
        *,
        again: bool,
        seed: int,
        source_index: int,
    ) -> None:
        self._name = name
        self._source = source
        self._again = again
        self._key = (seed, _SHARDS, source_index)
        # Number of draws before the next one, over all epochs.
        self.drawn = 0
        self._rows = self._walk(0)

    def take(self) -> Row | None:
        """Return the next row; None after the last one.

        Raises:
            SourceError: Rows are drawn again, and there are none.
        """
        row = next(self._rows, None)
        if row is not None:
            self.drawn += 1
        return row

    def seek(self, draws: int) -> int:
        """Move to a draw.

        Rows are passed over by their numbers. They are read only if the source leaves
        rows out or does not know its length.

        Args:
            draws: Number of draws before the next one, counted from the first epoch.

        Returns:
            Number of draws before the next one: `draws`, or the number of all rows if
            there are fewer.
        """
        # Rows are walked anew: a source cannot be moved back.
        if draws != self.drawn:
            self._rows = self._walk(draws)
            next(self._rows)
        return self.drawn

    def _walk(self, draws: int) -> Iterator[Row]:
        """Yield the rows from a draw on, epoch after epoch.

        If draws are passed over, the first item is an empty row, yielded once `drawn`
        is set.
        """
        # Whole shards are passed over first, then whole epochs, then rows of one shard.
        to_skip = draws
        epoch = 0
        has_arrived = not draws
        while True:
            rows_of_epoch = 0
            for shard_name in self._ordered(epoch):
                if to_skip:
                    skipped, rows = self._opened(shard_name, to_skip)
                    to_skip -= skipped
                    rows_of_epoch += skipped
                else:
                    rows = self._source.open_shard(shard_name)
                if not to_skip and not has_arrived:
                    has_arrived = True
                    self.drawn = draws
                    yield {}
                for row in rows:
                    rows_of_epoch += 1
                    yield row
            if not self._again:
                break
            # Every epoch has the same number of rows: whole epochs are passed over by
            # division.
            self._require_rows(rows_of_epoch, epoch)
            skipped_epochs, to_skip = divmod(to_skip, rows_of_epoch)
            epoch += 1 + skipped_epochs
        if not has_arrived:
            self.drawn = draws - to_skip
            yield {}

    def _require_rows(self, rows: int, epoch: int) -> None:
        """Raise SourceError if an epoch had no rows.

        The next epoch would have none either.
        """
        if rows:
            return
        when = ""
        if epoch > 0:
            when = f" in epoch {epoch}, though it had some before"
        raise SourceError(
            f"source {self._name!r} has no rows{when}: it cannot be started again; leave it out",
            source=self._name,
            epoch=epoch,
        )

    def _ordered(self, epoch: int) -> list[str]:
        """Return the names of the shards in the order of an epoch."""
        names = list(self._source.shard_names)
        if epoch == 0 or len(names) < 2:
            return names
        order = shuffled(len(names), key_of(*self._key, epoch)).tolist()
        return [names[shard_index] for shard_index in order]

    def _opened(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Open a shard after its first rows.

        Args:
            shard: Name of the shard.
            skip: Number of rows to pass over.

        Returns:
            skipped: Number of rows that were passed over: `skip`, or all rows of the
                shard if there are fewer.
            rows: Rows after them.
        """
        if not self._source.every_row:
            # Numbers have gaps, so that rows must be counted.
            rows = self._source.open_shard(shard)
            return sum(1 for _ in islice(rows, skip)), rows
        row_count = self._source.get_shard_info(shard).rows
        if row_count is not None and skip >= row_count:
            return row_count, iter(())
        rows = self._source.open_shard_at_row(shard, skip)
        if row_count is not None:
            return skip, rows

        # The number of rows is not known. If the shard is shorter, the error of its
        # first row says its length.
        try:
            return skip, chain(list(islice(rows, 1)), rows)
        except ConfigError as error:
            row_count = error.details.get("rows")
            if error.details.get("row") != skip or not isinstance(row_count, int):
                raise
            return row_count, iter(())


def block_mixture_interleave(
    datasets: Mapping[str, Any] | Sequence[Any],
    weights: Mapping[str, float] | Sequence[float] | None = None,
    block_size: int = 1000,
    seed: int | None = None,
    stop: str = "restart",
) -> MixedShardedSource:
    """Mix datasets block by block.

    Every block follows the weights, and its rows are shuffled.

    Args:
        datasets: Name to dataset, or a list of datasets. A dataset is a ``Dataset`` or
            ``IterableDataset`` of the `datasets` library, any source of this library,
            or a list of rows.
        weights: Name to weight, or a list of weights in the order of the datasets:
            shares, percentages, or ratios of whole numbers. None for equal weights.
            Datasets in a list get the names of the weights, in their order; without
            names they get source_0, source_1, ...
        block_size: Number of rows per block.
        seed: Random seed of the shuffle inside blocks. None is 0.
        stop: Action at the end of a dataset: ``restart`` it, stop
            (``first_exhausted``), or continue with the others (``all_exhausted``).

    Returns:
        Source whose rows have the name of their dataset in ``__source__``. It can be
        iterated over any number of times, and used like any other source.
        ``.drop_fields(["__source__"])`` leaves that field out.

    Raises:
        ConfigError: An argument is not allowed.
    """
    # A mapping of weights names the datasets of a list.
    names = list(weights) if isinstance(weights, Mapping) else None
    named_datasets = _named("datasets", datasets, names)
    if weights is not None and not isinstance(weights, Mapping):
        if not isinstance(weights, list | tuple) or len(weights) != len(named_datasets):
            raise expected(
                "weights",
                weights,
                "a mapping of name to weight, or one for each dataset",
            )
        weights = dict(zip(named_datasets, weights, strict=True))

    # Datasets of other libraries and lists become sources.
    sources: dict[str, ShardedDataSource] = {}
    for dataset_name, dataset in named_datasets.items():
        try:
            if isinstance(dataset, list | tuple):
                sources[dataset_name] = RowsShardedSource(
                    cast("Any", dataset), dataset_name
                )
            elif isinstance(dataset, ShardedDataSource):
                sources[dataset_name] = dataset
            else:
                sources[dataset_name] = HFDatasetShardedSource(dataset, dataset_name)
        except ConfigError as error:
            raise ConfigError(
                f"datasets, {dataset_name!r}: {error}", **error.details
            ) from None
    return MixedShardedSource(sources, weights, block_size, seed, stop)


def _named(
    argument: str, values: object, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return values by their names.

    Args:
        argument: Name of the argument for messages.
        values: Mapping of name to value, or a list, at least one.
        names: Names of the values of a list. None for source_0, source_1, ...

    Raises:
        ConfigError: The values are something else, or a list has another length than
            the names.
    """
    # Either form becomes a mapping.
    values_by_name: Mapping[str, Any] = {}
    if isinstance(values, list | tuple):
        listed_values = cast("Sequence[Any]", values)
        if names is None:
            names = [f"source_{place}" for place in range(len(listed_values))]
        if len(names) != len(listed_values):
            raise ConfigError(
                f"weights: got {len(names)} for {len(listed_values)} {argument}, must be one each"
            )
        values_by_name = dict(zip(names, listed_values, strict=True))
    elif isinstance(values, Mapping):
        values_by_name = cast("Mapping[str, Any]", values)
    are_names = all(
        isinstance(name, str) and name  # pyright: ignore[reportUnnecessaryIsInstance]
        for name in values_by_name
    )
    if not values_by_name or not are_names:
        raise expected(
            argument,
            values,
            "a mapping of at least one name (text), or a list of at least one",
        )
    return dict(values_by_name)


def _scheduler_of(
    names: tuple[str, ...],
    weights: Mapping[str, float] | None,
    scheduler: WeightScheduler | None,
) -> WeightScheduler:
    """Return the schedule of weights.

    Raises:
        ConfigError: Both arguments are given, or the names are not those of the
            sources.
    """
    if weights is not None and scheduler is not None:
        raise ConfigError("got weights and a weight_scheduler, must be one of them")
    if scheduler is not None:
        if not isinstance(scheduler, WeightScheduler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("weight_scheduler", scheduler, "a WeightScheduler")
        check_weight_names("weight_scheduler", names, tuple(scheduler.names))
        return scheduler
    # Weights that do not change are a schedule of one point.
    if weights is None:
        weights = dict.fromkeys(names, 1 / len(names))
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise expected("weights", weights, "a mapping of name to weight")
    check_weight_names("weights", names, tuple(weights))
    return constant({source_name: weights[source_name] for source_name in names})


def _never_exhausted(name: str, ceiling: int) -> ConfigError:
    """Return the error for a source with more rows than the schedule ever takes."""
    return ConfigError(
        f"source {name!r} can never be exhausted: the schedule takes {ceiling} rows of it before its weight stays 0, "
        "and it has more. Give it a weight above 0 at the end of the schedule, or use another stop_strategy",
        source=name,
    )
