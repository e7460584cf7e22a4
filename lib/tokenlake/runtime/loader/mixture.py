"""Several packed datasets as one stream, mixed while it is read."""

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
from tokenlake.runtime.mixing.mixture import MIXTURE_ORDER, STOPS, SourceMixture, Stop, check_order
from tokenlake.runtime.mixing.order import EpochOrder
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.schedule import WeightScheduler, constant
from tokenlake.runtime.mixing.streams import MixtureStream, source_order
from tokenlake.runtime.mixing.weights import row_weights

_WEIGHTS_BY: Final = ("rows", "tokens")
_MOST_BLOCK: Final = 1 << 31
_MOST_ROWS: Final = 1 << 50


@final
class Mixture:
    """Packed datasets of one length and one tokenizer, and the weights to mix them by.

    ::

        mixture = tl.Mixture({"code": code, "web": web}, {"code": 0.3, "web": 0.7})
        loader = tl.DataLoader(mixture, batch_size=256, seed=0)

    What comes where is the function that the flow ``mix`` writes by at the level of sequences: with the same seed,
    batch size, lanes and rows the stream is the same, row by row.

    Args:
        datasets: name -> dataset; the order inside a source depends on its name.
        weights: name -> share of rows (also in percent, or as a ratio of whole numbers, as 30 and 70), or a
            :class:`tokenlake.WeightScheduler`. A source of weight 0 may be left out.
            None: only with `epochs`.
        stop: "restart" (a source that ends begins its next epoch: no end, unless `rows` says one), "first_exhausted"
            or "all_exhausted".
        rows: where the stream is cut.
        block_size: rows of a lane that are dealt together; the order of sources is shuffled inside a batch at most.
        step_rows: rows per step of the schedule; None: the batch size.
        weights_by: "rows", or "tokens": weights are shares of ids that are not padding.
        order: version of the order; 2 goes on with what was written, or begun, by releases before it.
        max_repetitions: how often the rows of a source may come, of all sources or name -> its own: checked here, and
            said with what is missing. A mixture without end has no such number.
        max_fraction: the share of a source that may be used: it is shortened to that, always to the same rows.
        epochs: name -> how often the rows of a source come; weights and `rows` follow from it.
        target_budget, experiment_budget: tokens of the run that an experiment stands for, and of the experiment: each
            source is shortened to their ratio, so that rows are repeated as often as they would be in the run.

    Raises:
        ConfigError: names, weights, kinds, lengths or tokenizers do not fit each other; or a source comes more often
            than it may.
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
        order: int = MIXTURE_ORDER,
        max_repetitions: Each = None,
        max_fraction: Each = None,
        epochs: Mapping[str, float] | None = None,
        target_budget: int | None = None,
        experiment_budget: int | None = None,
    ) -> None:
        if not isinstance(datasets, Mapping) or not datasets:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("datasets", datasets, "a mapping of name to dataset (tl.open), with at least one")
        for name, dataset in datasets.items():
            if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise expected(f"datasets: {name!r}", dataset, "a dataset, as tl.open returns it")
        require_one_of("stop", stop, STOPS)
        block_size = whole_number("block_size", block_size, 1, _MOST_BLOCK)
        if rows is not None:
            rows = whole_number("rows", rows, 0, _MOST_ROWS)
        if step_rows is not None:
            step_rows = whole_number("step_rows", step_rows, 1, _MOST_ROWS)
        if epochs is not None and not isinstance(epochs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("epochs", epochs, "a mapping of name to how often its rows come")
        self.caps: Final = SourceCaps(
            max_repetitions=max_repetitions,
            max_fraction=max_fraction,
            epochs=epochs,
            target_budget=target_budget,
            experiment_budget=experiment_budget,
        )
        self.caps.check_names(datasets)
        totals = {name: len(dataset) for name, dataset in datasets.items()}
        self._kept = self.caps.kept(totals)
        if epochs is not None:
            given = {"weights": weights, "rows": rows, "stop": stop, "weights_by": weights_by}
            if told := [name for name, value in given.items() if value not in (None, "restart", "rows")]:
                raise ConfigError(
                    f"epochs: of each source they decide the weights and the end, and {', '.join(told)} would do so "
                    "again; expected one or the other"
                )
            draws = self.caps.draws(totals | self._kept)
            rows = sum(draws.values())
            weights = {name: drawn / max(1, rows) for name, drawn in draws.items()}
        if weights is None:
            raise ConfigError("weights: got None; expected name -> share of rows, or epochs of each source")
        if not isinstance(weights, Mapping | WeightScheduler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("weights", weights, "a mapping of name to share of rows, or a WeightScheduler")
        if isinstance(weights, WeightScheduler):
            scheduler = weights
        else:  # in the order of the datasets; those of no dataset stay, for the check to name them
            named = {name: weights[name] for name in datasets if name in weights}
            scheduler = constant(named | {name: each for name, each in weights.items() if name not in named})
        _check_sources(datasets, scheduler)
        if not isinstance(weights_by, str) or weights_by not in _WEIGHTS_BY:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"weights_by: got {weights_by!r}, must be one of {', '.join(_WEIGHTS_BY)}")
        self.datasets = {name: datasets[name] for name in scheduler.names}
        self._by_tokens = weights_by == "tokens"
        self.scheduler = self._per_row(scheduler) if self._by_tokens else scheduler
        check_order(order)
        self.stop, self.rows, self.block_size, self.step_rows = stop, rows, block_size, step_rows
        self.order = order
        if max_repetitions is not None:
            self._check_repetitions()

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order of the schedule."""
        return tuple(self.datasets)

    @cached_property
    def sizes(self) -> dict[str, SourceSize]:
        """How large each source is."""
        found = dict[str, SourceSize]()
        for name, dataset in self.datasets.items():
            totals = dataset.manifest.splits[dataset.split]
            size = SourceSize.of(
                rows=totals.rows,
                groups=len(dataset.rows.group_rows),
                tokens=totals.tokens,
                documents=totals.documents,
                width=dataset.manifest.width,
            )
            found[name] = size.shortened(self._kept.get(name))
        return found

    def lanes(self, batch_size: int) -> int:
        """Return into how many lanes the stream is cut by default: as many as the flow ``mix`` takes."""
        pieces = self.scheduler.pieces
        weights = [dict(zip(self.names, piece.first.given, strict=True)) for piece in pieces]
        weights.append(dict(zip(self.names, pieces[-1].last.given, strict=True)))
        return choose_lanes(
            self.sizes,
            weights,
            batch_size=batch_size,
            step_rows=(self.step_rows or batch_size) if self.scheduler.changes else None,
            rows=self._length,
        )

    def stream(self, *, lanes: int, batch_size: int, seed: int, passes: int = 0) -> MixtureStream:
        """Return the order of the mixture's rows; ConfigError where there can be none.

        Where it is cut is a matter of positions, and which places of lanes these are, of the batch sizes.

        Args:
            passes: how many came before. A later one deals each source's rows in another order; which source comes
                where stays, and so the stream is as long.
        """
        order = self._order(lanes, batch_size, seed, self.rows)
        if self.rows is not None:
            order = self._order(lanes, batch_size, seed, None)
        dealt = seed if passes == 0 else key_of(seed, passes)
        orders = list[EpochOrder]()
        for name, dataset in self.datasets.items():
            kept = shortened(name, dataset.rows.group_rows, self._kept.get(name), seed=seed)
            orders.append(source_order(name, kept, lanes=lanes, seed=dealt))
        return MixtureStream(order, orders, rows=self.rows)

    def reweighted(self, at: int, weights: Mapping[str, float]) -> Mixture:
        """Return the same mixture with other weights from a step of its schedule on.

        Args:
            at: the step, which `step_after` of the stream says: no row before it moves.
            weights: of all sources, of rows or tokens as those of the mixture.

        Raises:
            ConfigError: the weights cannot be, or a source comes more often than it may.
        """
        if self._by_tokens:
            weights = self._row_weights(weights)
        return self._with(self.scheduler.reweighted(at=at, weights=weights))

    def replayed(self, schedule: WeightScheduler) -> Mixture:
        """Return the mixture with the weights of a schedule that extends its own, else itself."""
        before = schedule.before
        while before is not None and before != self.scheduler:
            before = before.before
        return self if before is None else self._with(schedule)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the order, beside lanes, batch size, seed and the datasets."""
        return {
            "stop": self.stop,
            "rows": self.rows,
            "block_size": self.block_size,
            "step_rows": self.step_rows,
            "schedule": self.scheduler.to_json(),
            **({"kept": self._kept} if self._kept else {}),
        }

    def __repr__(self) -> str:
        sources = ", ".join(f"{name}: {dataset.name}" for name, dataset in self.datasets.items())
        return f"Mixture({one_line(sources)})"

    def _repr_html_(self) -> str:
        first, last = (self.scheduler.get_weights(step) for step in (0, self.scheduler.pieces[-1].last.step))
        rows = [
            (name, dataset.name, f"{len(dataset):,}", f"{first[name]:.6g}", f"{last[name]:.6g}")
            for name, dataset in self.datasets.items()
        ]
        facts = {"stop": self.stop, "rows": self.rows, "order": self.order}
        return named_facts("Mixture", facts, ("source", "dataset", "rows", "weight", "last weight"), rows)

    @cached_property
    def _length(self) -> int | None:
        """Rows of the stream, which hardly depend on lanes; None: it has no end."""
        return self._order(1, 1, 0, self.rows).rows

    def _order(self, lanes: int, batch_size: int, seed: int, rows: int | None) -> SourceMixture:
        return SourceMixture(
            self._used,
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
        other = copy.copy(self)
        for name in ("_length", "sizes"):
            vars(other).pop(name, None)
        other.scheduler = scheduler
        if self.caps.max_repetitions is not None:
            other._check_repetitions()
        return other

    @property
    def shortened(self) -> dict[str, int]:
        """How many rows are used of the sources of which not all are."""
        return dict(self._kept)

    @property
    def _used(self) -> dict[str, int]:
        """How many rows are used of each source."""
        return {name: self._kept.get(name, len(dataset)) for name, dataset in self.datasets.items()}

    def _check_repetitions(self) -> None:
        if self._length is None:
            raise ConfigError(
                "max_repetitions: a mixture that begins its sources again without end repeats them without end; "
                "expected rows, epochs, or another `stop`"
            )
        drawn = self._order(1, 1, 0, self.rows).drawn_before(self._length)
        self.caps.check(dict(zip(self.names, map(int, drawn), strict=True)), self._used, self._mean_tokens)

    @property
    def _mean_tokens(self) -> dict[str, Fraction]:
        totals = {name: dataset.manifest.splits[dataset.split] for name, dataset in self.datasets.items()}
        return {name: Fraction(each.tokens, max(1, each.rows)) for name, each in totals.items()}

    def _row_weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        return row_weights(weights, {name: float(mean) for name, mean in self._mean_tokens.items()})

    def _per_row(self, scheduler: WeightScheduler) -> WeightScheduler:
        if scheduler.before is not None:
            raise ConfigError(
                "weights_by: 'tokens' with a schedule that was extended: its points would be read anew; "
                "expected a schedule of points, or weights per row"
            )
        data = scheduler.to_json()
        points = [
            {"step": point["step"], "weights": self._row_weights(point["weights"])}
            for point in data["points"]
        ]
        return WeightScheduler(points, data["interpolation"])


def _check_sources(datasets: Mapping[str, Dataset], scheduler: WeightScheduler) -> None:
    unknown = [name for name in scheduler.names if name not in datasets]
    idle = [name for name in datasets if name not in scheduler.names]
    if unknown or idle:
        raise ConfigError(
            f"weights are of {', '.join(map(str, scheduler.names))}, datasets are {', '.join(datasets) or 'none'}; "
            "expected the same names"
        )
    tokenizers: dict[str, list[str]] = {}
    for name in scheduler.names:
        for facts in datasets[name].manifest.tokenizer.values():
            tokenizers.setdefault(str(facts["probe"]), []).append(f"{name} ({facts['name']})")
    if len(tokenizers) > 1:
        shown = " | ".join(", ".join(dict.fromkeys(names)) for names in tokenizers.values())
        raise ConfigError(f"sources of different tokenizers cannot be mixed: {shown}; expected one tokenizer")
