"""Mixtures: several packed datasets, combined by weight while they are read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal, final

from tokenlake.base.checks import expected, require_one_of, whole_number
from tokenlake.base.markup import named_facts, one_line
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.mixing.caps import Each, SourceCaps, shortened
from tokenlake.runtime.mixing.lane_count import SourceSize, choose_lanes
from tokenlake.runtime.mixing.mixture import (
    MIXTURE_ORDER,
    ORDERS,
    STOPS,
    SourceMixture,
    Stop,
    check_order,
)
from tokenlake.runtime.mixing.order_form import OrderForm, ShuffledOrder, SourceMemory
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.schedule import WeightScheduler, constant
from tokenlake.runtime.mixing.streams import MixtureStream, source_order
from tokenlake.runtime.mixing.weights import check_weight_names, row_weights

_WEIGHTS_BY: Final = ("rows", "tokens")
# Positions in a block are counted in 32 bits.
_MOST_BLOCK: Final = 1 << 31
# Products of rows and weights stay exact below this number.
_MOST_ROWS: Final = 1 << 50


@final
class Mixture:
    """Packed datasets, and the weights by which they are combined.

    All have one length and one tokenizer. The sources come in the order in which the
    flow ``mix`` writes sequences. With ``window=1`` and the same seed, batch size,
    lanes and rows the stream is that of the flow, row by row; by default a loader reads
    more row groups side by side.

    Args:
        datasets: Name -> dataset. The order inside a source depends on its name.
        weights: Name -> share of rows (also in percent, or as a ratio of whole numbers
            such as 30 and 70), or a :class:`tokenlake.WeightScheduler`. A source of
            weight 0 may be left out. None: only with `epochs`.
        stop: End of the stream: "restart" (an exhausted source begins its next epoch;
            the stream has no end, unless `rows` is given), "first_exhausted" or
            "all_exhausted".
        rows: Number of rows after which the stream ends; None: only `stop` decides.
        block_size: Rows of a lane that are dealt together. The order of sources is
            shuffled within a batch at most.
        step_rows: Rows per step of the schedule; None: the batch size.
        weights_by: Unit of the weights: "rows", or "tokens" for shares of ids that are
            not padding.
        order: Version of the order; 2 and 3 are those of mixtures that earlier releases
            wrote. None: the current one, or that of the state from which a loader
            resumes.
        max_repetitions: Largest number of times that the rows of a source may come, for
            all sources or name -> number. It is checked here, and the error lists the
            tokens that each source lacks. Only for a mixture that ends.
        max_fraction: Largest share of a source that is used. A source is shortened to
            it, always to the same rows.
        epochs: Name -> number of times that the rows of a source come. Weights and
            `rows` follow from it.
        target_budget: Tokens of the run that an experiment represents. With
            `experiment_budget`, each source is shortened to their ratio, so that rows
            are repeated as often as in that run.
        experiment_budget: Tokens of the experiment.

    Raises:
        ConfigError: Names, weights, kinds, lengths or tokenizers do not fit each other;
            or a source comes more often than it may.

    Example:
        >>> import tokenlake as tl
        >>> sources = {"code": tl.open("artifacts/code"), "web": tl.open("artifacts/web")}
        >>> mixture = tl.Mixture(sources, {"code": 0.25, "web": 0.75})
        >>> loader = tl.DataLoader(mixture, batch_size=8, seed=0)
        >>> next(iter(loader))["input_ids"].shape
        (8, 64)
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        weights: Mapping[str, float] | WeightScheduler | None = None,
        *,
        stop: Stop = "restart",
        rows: int | None = None,
        block_size: int = 1000,
        step_rows: int | None = None,
        weights_by: Literal["rows", "tokens"] = "rows",
        order: int | None = None,
        max_repetitions: Each = None,
        max_fraction: Each = None,
        epochs: Mapping[str, float] | None = None,
        target_budget: int | None = None,
        experiment_budget: int | None = None,
    ) -> None:
        # Check each argument by itself.
        if not isinstance(datasets, Mapping) or not datasets:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected(
                "datasets",
                datasets,
                "a mapping of name to dataset (tl.open), with at least one",
            )
        for source_name, dataset in datasets.items():
            if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise expected(
                    f"datasets: {source_name!r}",
                    dataset,
                    "a dataset, as tl.open returns it",
                )
        require_one_of("stop", stop, STOPS)
        block_size = whole_number("block_size", block_size, 1, _MOST_BLOCK)
        if rows is not None:
            rows = whole_number("rows", rows, 0, _MOST_ROWS)
        if step_rows is not None:
            step_rows = whole_number("step_rows", step_rows, 1, _MOST_ROWS)
        if epochs is not None and not isinstance(epochs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected(
                "epochs", epochs, "a mapping of name to how often its rows come"
            )

        # Shorten the sources. With `epochs`, weights and rows follow from the rows that
        # are left.
        self.caps: Final = SourceCaps(
            max_repetitions=max_repetitions,
            max_fraction=max_fraction,
            epochs=epochs,
            target_budget=target_budget,
            experiment_budget=experiment_budget,
        )
        self.caps.check_names(datasets)
        source_rows = {name: len(dataset) for name, dataset in datasets.items()}
        self._kept_rows = self.caps.kept(source_rows)
        if epochs is not None:
            _check_epochs_alone(
                {
                    "weights": weights,
                    "rows": rows,
                    "stop": stop,
                    "weights_by": weights_by,
                }
            )
            draws = self.caps.draws(source_rows | self._kept_rows)
            rows = sum(draws.values())
            weights = {name: draw / max(1, rows) for name, draw in draws.items()}

        # Read the weights.
        scheduler = _scheduler_of(weights, datasets)
        _check_sources(datasets, scheduler)
        if not isinstance(weights_by, str) or weights_by not in _WEIGHTS_BY:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"weights_by: got {weights_by!r}, must be one of {', '.join(_WEIGHTS_BY)}"
            )
        self.datasets = {name: datasets[name] for name in scheduler.names}
        self._is_by_tokens = weights_by == "tokens"
        self.scheduler = self._per_row(scheduler) if self._is_by_tokens else scheduler
        self._is_order_requested = order is not None
        if order is None:
            order = MIXTURE_ORDER
        check_order(order)
        self.stop = stop
        self.rows = rows
        self.block_size = block_size
        self.step_rows = step_rows
        self.order = order
        if max_repetitions is not None:
            self._check_repetitions()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the order of the schedule."""
        return tuple(self.datasets)

    @cached_property
    def sizes(self) -> dict[str, SourceSize]:
        """Size of each source, after shortening."""
        sizes: dict[str, SourceSize] = {}
        for source_name, dataset in self.datasets.items():
            totals = dataset.manifest.splits[dataset.split]
            source_size = SourceSize.of(
                rows=totals.rows,
                groups=len(dataset.rows.group_rows),
                tokens=totals.tokens,
                documents=totals.documents,
                width=dataset.manifest.width,
            )
            sizes[source_name] = source_size.shortened(self._kept_rows.get(source_name))
        return sizes

    def lanes(self, batch_size: int) -> int:
        """Return the default number of lanes of the stream.

        It is that of the flow ``mix``.
        """
        # The rows of a step matter only to a schedule that changes.
        step_rows = None
        if self.scheduler.changes:
            step_rows = self.step_rows or batch_size
        return choose_lanes(
            self.sizes,
            self._weights,
            batch_size=batch_size,
            step_rows=step_rows,
            rows=self._length,
        )

    def memory(self) -> dict[str, SourceMemory]:
        """Return the size in memory of each source, and its share of the rows.

        The share is the largest one of the schedule, and a quarter of an equal share at
        least: a trainer may raise a weight that is low now.
        """
        smallest_share = Fraction(1, 4 * len(self.names))
        sources: dict[str, SourceMemory] = {}
        for source_name, dataset in self.datasets.items():
            size = self.sizes[source_name]
            decoded_bytes = dataset.rows.decoded_bytes
            # A shortened source has fewer row groups, most of them whole.
            used_bytes = (
                decoded_bytes * size.groups // max(1, len(dataset.rows.group_rows))
            )
            weights = [point[source_name] for point in self._weights]
            share = max(smallest_share, Fraction(max(weights)))
            sources[source_name] = SourceMemory(
                size.rows, size.groups, used_bytes, share
            )
        return sources

    def stream(
        self,
        forms: Mapping[str, OrderForm],
        *,
        lanes: int,
        batch_size: int,
        seed: int,
        passes: int = 0,
    ) -> MixtureStream:
        """Return the order of the mixture's rows.

        Args:
            forms: Form of the order of each source.
            lanes: Number of lanes.
            batch_size: Rows of a batch.
            seed: Random seed of the run.
            passes: Number of passes before. A later pass deals the rows of each source
                in another order. The order of the sources stays the same, and with it
                the length of the stream.

        Raises:
            ConfigError: No such order is possible.
        """
        # The order itself has no end: the stream ends at a position, whose places in
        # the lanes depend on the batch sizes. The order with an end is made only for
        # its checks.
        order = self._order(lanes, batch_size, seed, self.rows)
        if self.rows is not None:
            order = self._order(lanes, batch_size, seed, None)
        seed_of_pass = seed if passes == 0 else key_of(seed, passes)
        orders: list[ShuffledOrder] = []
        for source_name, dataset in self.datasets.items():
            group_rows = shortened(
                source_name,
                dataset.rows.group_rows,
                self._kept_rows.get(source_name),
                seed=seed,
            )
            orders.append(
                source_order(
                    source_name,
                    group_rows,
                    lanes=lanes,
                    seed=seed_of_pass,
                    form=forms[source_name],
                )
            )
        return MixtureStream(order, orders, rows=self.rows)

    def reweighted(self, at: int, weights: Mapping[str, float]) -> Mixture:
        """Return the same mixture with other weights from a step of its schedule on.

        Args:
            at: Step of the schedule, from `step_after` of the stream. The rows before
                it stay where they are.
            weights: Weight of every source, by rows or tokens as in the mixture.

        Raises:
            ConfigError: The weights are not possible, or a source comes more often than
                it may.
        """
        if self._is_by_tokens:
            # Names are checked first: another name has no mean number of tokens.
            check_weight_names("weights", self.names, weights)
            weights = self._row_weights(weights)
        return self._with(self.scheduler.reweighted(at=at, weights=weights))

    def replayed(self, schedule: WeightScheduler) -> Mixture:
        """Return the mixture with the weights of a schedule that extends its own.

        Otherwise the mixture itself is returned.
        """
        # A state may be older than sources that were added since: they had weight 0
        # until then.
        added_names = [name for name in self.names if name not in schedule.names]
        if set(schedule.names) <= set(self.names):
            schedule = schedule.with_sources(added_names)
        # A schedule remembers the ones that it extends; one of them must be this
        # mixture's.
        before = schedule.before
        while before is not None and before != self.scheduler:
            before = before.before
        return self if before is None else self._with(schedule)

    def in_order_of(self, state: Mapping[str, Any]) -> Mixture:
        """Return the mixture in the order of a state, unless one was requested.

        The mixture itself is returned if the order is the same, or no version of it.
        """
        order = state.get("order")
        is_version = type(order) is int and order in ORDERS
        if self._is_order_requested or not is_version or order == self.order:
            return self
        mixture = self._with(self.scheduler)
        mixture.order = order
        return mixture

    def to_json(self) -> dict[str, Any]:
        """Return the arguments that decide the order, JSON-able.

        These are all but lanes, batch size, seed and datasets.
        """
        arguments: dict[str, Any] = {
            "stop": self.stop,
            "rows": self.rows,
            "block_size": self.block_size,
            "step_rows": self.step_rows,
            "schedule": self.scheduler.to_json(),
        }
        if self._kept_rows:
            arguments["kept"] = self._kept_rows
        return arguments

    def __repr__(self) -> str:
        sources = ", ".join(
            f"{name}: {dataset.name}" for name, dataset in self.datasets.items()
        )
        return f"Mixture({one_line(sources)})"

    def _repr_html_(self) -> str:
        first_weights = self.scheduler.get_weights(0)
        last_weights = self.scheduler.get_weights(self.scheduler.pieces[-1].last.step)
        # One line for each source, with its weight where the schedule begins and ends.
        rows: list[tuple[str, ...]] = []
        for name, dataset in self.datasets.items():
            weights = (f"{first_weights[name]:.6g}", f"{last_weights[name]:.6g}")
            rows.append((name, dataset.name, f"{len(dataset):,}", *weights))
        facts = {"stop": self.stop, "rows": self.rows, "order": self.order}
        return named_facts(
            "Mixture",
            facts,
            ("source", "dataset", "rows", "weight", "last weight"),
            rows,
        )

    @property
    def _weights(self) -> list[dict[str, float]]:
        """Weight of each source, at all points of the schedule."""
        pieces = self.scheduler.pieces
        points = [piece.first for piece in pieces]
        points.append(pieces[-1].last)
        weights: list[dict[str, float]] = []
        for point in points:
            weights.append(dict(zip(self.names, point.given, strict=True)))
        return weights

    @cached_property
    def _length(self) -> int | None:
        """Number of rows of the stream; None: it has no end.

        The number hardly depends on the lanes.
        """
        # One lane and batches of one row are the cheapest order that ends at the same
        # place.
        return self._order(1, 1, 0, self.rows).rows

    def _order(
        self, lanes: int, batch_size: int, seed: int, rows: int | None
    ) -> SourceMixture:
        return SourceMixture(
            self._used_rows,
            self.scheduler,
            lanes=lanes,
            batch_size=batch_size,
            block_size=self.block_size,
            step_rows=self.step_rows or batch_size,
            seed=seed,
            stop=self.stop,
            rows=rows,
            order=self.order,
        )

    def _with(self, scheduler: WeightScheduler) -> Mixture:
        """Return the same mixture with another schedule."""
        # Cached values follow from the schedule, and are computed again.
        mixture = copy.copy(self)
        for cached in ("_length", "sizes"):
            vars(mixture).pop(cached, None)
        mixture.scheduler = scheduler
        if self.caps.max_repetitions is not None:
            mixture._check_repetitions()
        return mixture

    @property
    def shortened(self) -> dict[str, int]:
        """Number of rows that are used, of each source that is shortened."""
        return dict(self._kept_rows)

    @property
    def _used_rows(self) -> dict[str, int]:
        """Number of rows that are used, of each source."""
        return {
            source_name: self._kept_rows.get(source_name, len(dataset))
            for source_name, dataset in self.datasets.items()
        }

    def _check_repetitions(self) -> None:
        """Raise ConfigError where a source comes more often than it may."""
        if self._length is None:
            raise ConfigError(
                "max_repetitions: this mixture is endless and repeats its sources forever; expected rows, epochs, "
                "or another `stop`"
            )
        # The whole run is counted before it begins, when its weights can still be
        # changed.
        drawn = self._order(1, 1, 0, self.rows).drawn_before(self._length)
        drawn_rows = dict(zip(self.names, map(int, drawn), strict=True))
        self.caps.check(drawn_rows, self._used_rows, self._mean_tokens)

    @property
    def _mean_tokens(self) -> dict[str, Fraction]:
        """Mean number of tokens of a row of each source."""
        means: dict[str, Fraction] = {}
        for source_name, dataset in self.datasets.items():
            totals = dataset.manifest.splits[dataset.split]
            means[source_name] = Fraction(totals.tokens, max(1, totals.rows))
        return means

    def _row_weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return weights by rows for weights by tokens."""
        return row_weights(
            weights, {name: float(mean) for name, mean in self._mean_tokens.items()}
        )

    def _per_row(self, scheduler: WeightScheduler) -> WeightScheduler:
        """Return the schedule by rows for a schedule by tokens.

        Raises:
            ConfigError: The schedule was extended.
        """
        if scheduler.before is not None:
            raise ConfigError(
                "weights_by: 'tokens' with a schedule that was extended: its points would be converted again; "
                "expected a schedule of points, or weights by rows"
            )
        data = scheduler.to_json()
        points: list[dict[str, Any]] = []
        for point in data["points"]:
            weights = self._row_weights(point["weights"])
            points.append({"step": point["step"], "weights": weights})
        return WeightScheduler(points, data["interpolation"])


def _check_epochs_alone(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError where `epochs` is not alone.

    Other arguments may not set the weights or the end, too.
    """
    defaults = (None, "restart", "rows")
    names: list[str] = []
    for argument_name, argument in arguments.items():
        if argument not in defaults:
            names.append(argument_name)
    if names:
        raise ConfigError(
            f"epochs: they set the weights and the end of the mixture, and so would {', '.join(names)}; "
            "expected one or the other"
        )


def _scheduler_of(
    weights: Mapping[str, float] | WeightScheduler | None,
    datasets: Mapping[str, Dataset],
) -> WeightScheduler:
    """Return the schedule of weights, sources in the order of the datasets.

    Raises:
        ConfigError: The weights are neither a mapping nor a schedule.
    """
    if weights is None:
        raise ConfigError(
            "weights: got None; expected name -> share of rows, or epochs of each source"
        )
    if isinstance(weights, WeightScheduler):
        return weights
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise expected(
            "weights",
            weights,
            "a mapping of name to share of rows, or a WeightScheduler",
        )
    ordered: dict[str, float] = {}
    for source_name in datasets:
        if source_name in weights:
            ordered[source_name] = weights[source_name]
    # Keep the weights of unknown names: the check of the sources lists them.
    for source_name, weight in weights.items():
        ordered.setdefault(source_name, weight)
    return constant(ordered)


def _check_sources(datasets: Mapping[str, Dataset], scheduler: WeightScheduler) -> None:
    """Raise ConfigError where weights and datasets do not fit together.

    Their names must be equal, and the datasets have one tokenizer.
    """
    if set(scheduler.names) != set(datasets):
        raise ConfigError(
            f"weights are of {', '.join(map(str, scheduler.names))}, datasets are {', '.join(datasets) or 'none'}; "
            "expected the same names"
        )
    tokenizers: dict[str, list[str]] = {}
    for source_name in scheduler.names:
        for description in datasets[source_name].manifest.tokenizer.values():
            source = f"{source_name} ({description['name']})"
            tokenizers.setdefault(str(description["probe"]), []).append(source)
    if len(tokenizers) > 1:
        # A version that was mixed itself may name one tokenizer several times.
        groups: list[str] = []
        for sources in tokenizers.values():
            groups.append(", ".join(dict.fromkeys(sources)))
        listed = " | ".join(groups)
        raise ConfigError(
            f"sources of different tokenizers cannot be mixed: {listed}; expected one tokenizer"
        )
