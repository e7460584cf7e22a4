"""A mixture with every choice made: weights per row, lanes, units, the row at which it ends, and what it comes to.

The rows of a unit, where the configuration leaves them open: a unit takes some neighbouring rows of each source from
each lane. They begin inside a row group and end inside one, so that together about one row group more than they need is
decoded for each lane and source. For a unit that takes twelve times the bytes of a row group of every source from each
lane, 13 / 12 = 1.08 of what it takes are decoded. A unit that is a whole stream is cut at the ends of its lanes only:
half of that is enough, which is what :func:`tokenlake.runtime.mixing.lane_count.choose_lanes` sees to.

    unit rows   12 x lanes x (sum over sources of a row group's bytes) / (bytes of a row), in whole batches; what is
                left at the end, if it is less than two thirds of that, goes to the last unit.

Nothing here depends on the number of workers. Another schedule may get other units; write them into the configuration
to make a mixture longer without beginning anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Final, final

from tokenlake.base import numbers
from tokenlake.config.pipeline import MixStageConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.job import RowsOut
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.runtime.mixing.caps import SourceCaps
from tokenlake.runtime.mixing.lane_count import SourceSize, choose_lanes, group_rows
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.weights import row_weights
from tokenlake.runtime.store.draws import SourceDraw, open_mixture, token_shares
from tokenlake.runtime.store.mixture import (
    MOST_BLOCK,
    MOST_LANES,
    Level,
    MixedSource,
    MixtureOrder,
    MixtureSpec,
    WeightPoint,
)

Amounts = Mapping[str, tuple[int, int]]
"""Rows and tokens of each source, in configuration order."""

_FURTHEST: Final = 1 << 50  # rows: more than any store holds


def rows_of(
    asked: MixStageConfig,
    mixture: SourceMixture,
    rows: int,
    per_row: Sequence[Fraction],
    width: int | None,
) -> int:
    """Return how many rows the mixture gets.

    Args:
        asked: where it is to end.
        mixture: the order, which is not cut.
        rows: of all sources together: an epoch; or the epochs of each, where these are given.
        per_row: ids that a row of each source adds, in the mean, in the order of the mixture.
        width: of rows that are packed already, which all count for so many ids.

    Raises:
        ConfigError: the sources end before that, or it never ends.
    """
    if asked.total_rows is not None:
        wanted = asked.total_rows
    elif asked.epochs is not None:
        wanted = rows if isinstance(asked.epochs, Mapping) else round(Fraction(asked.epochs) * rows)
    elif asked.total_tokens is None:
        wanted = mixture.rows
        if wanted is None:
            raise ConfigError(
                "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs"
            )
    elif width is not None:
        wanted = -(-asked.total_tokens // width)
    else:
        wanted = _rows_with(asked.total_tokens, mixture, per_row)
    if wanted < 1:
        raise ConfigError(
            f"mix: comes to {wanted} rows; expected at least 1. Set a later end, or longer sources"
        )
    return wanted


def _rows_with(tokens: int, mixture: SourceMixture, per_row: Sequence[Fraction]) -> int:
    """Return after how many rows so many ids are expected."""

    def expected(position: int) -> Fraction:
        drawn = mixture.drawn_before(position)
        return sum((int(count) * each for count, each in zip(drawn, per_row, strict=True)), Fraction(0))

    most = _FURTHEST if mixture.rows is None else mixture.rows
    if mixture.rows is not None and expected(most) < tokens:
        raise ConfigError(
            f"mix.total_tokens: {tokens:,}, but the sources end after {most:,} rows with about "
            f"{math.floor(expected(most)):,} tokens; ask for at most that, leave it out to take all, or set "
            "mix.stop_strategy: restart",
            expected=math.floor(expected(most)),
            got=tokens,
        )
    high = 1  # what is far beyond the answer takes numbers that are too large to count with
    while high < most and expected(high) < tokens:
        high = min(high * 2, most)
    return bisect_left(range(1, high), tokens, key=expected) + 1


def weighed(parents: Sequence[FoundParent], asked: MixStageConfig) -> tuple[FoundParent, ...]:
    """Return the parents that have a weight at any point of the schedule; ConfigError where none has."""
    found = tuple(
        parent for parent in parents if any(weights.get(parent.name) for _, weights in asked.points)
    )
    if not found:
        raise ConfigError("mix.weights: all are 0; expected a weight above 0 for at least one dataset")
    return found


def settled(
    asked: MixStageConfig, parents: Sequence[FoundParent], out: RowsOut
) -> tuple[MixtureSpec, SourceMixture]:
    """Return the mixture of parents, all of which have rows, as it is asked for.

    Raises:
        ConfigError: there is no such mixture.
    """
    limits = (("lanes", asked.lanes or 1, MOST_LANES), ("block_size", asked.block_size, MOST_BLOCK))
    for name, value, most in limits:
        if value > most:
            raise ConfigError(f"mix.{name}: {value}; expected at most {most}", expected=most, got=value)
    there = {parent.name: (parent.rows, parent.tokens) for parent in parents}
    spec = spec_of(asked, there)
    single, rows = open_mixture(spec, to_end=True), epoch_rows(asked, there)
    per_row = [Fraction(parent.tokens, parent.rows) + out.append_eos for parent in parents]
    width = parents[0].width
    lanes = asked.lanes or choose_lanes(
        {parent.name: parent.size.shortened(spec.order.kept.get(parent.name)) for parent in parents},
        [point.weights for point in spec.order.points],
        batch_size=asked.batch_size,
        step_rows=asked.step_rows if single.scheduler.changes else None,
        rows=rows_of(asked, single, rows, per_row, width),
    )
    spec = replace(spec, order=replace(spec.order, lanes=lanes))
    # Where sources begin anew, as many rows come of each however many lanes there are.
    whole = single if asked.stop_strategy == "restart" else open_mixture(spec, to_end=True)
    spec = replace(spec, order=replace(spec.order, rows=rows_of(asked, whole, rows, per_row, width)))
    return spec, open_mixture(spec)


def spec_of(asked: MixStageConfig, there: Amounts) -> MixtureSpec:
    """Return the mixture that is asked for, in one lane and without an end, its weights per row.

    Args:
        there: of the sources.
    """
    kept = caps_of(asked, there).kept({name: rows for name, (rows, _) in there.items()})
    wanted: Sequence[tuple[int, Mapping[str, float]]] = asked.points
    if isinstance(asked.epochs, Mapping):
        draws, rows = caps_of(asked, there).draws(_used(asked, there)), epoch_rows(asked, there)
        wanted = [(0, {name: drawn / max(1, rows) for name, drawn in draws.items()})]
    points = [(step, {name: float(weights.get(name, 0.0)) for name in there}) for step, weights in wanted]
    if asked.weights_by == "tokens":
        means = {name: tokens / rows for name, (rows, tokens) in there.items()}
        points = [(step, row_weights(weights, means)) for step, weights in points]
    order = MixtureOrder(
        lanes=1,
        rows=0,
        points=tuple(WeightPoint(step, weights) for step, weights in points),
        version=asked.order,
        interpolation=asked.weight_schedule_type,
        stop=asked.stop_strategy,
        kept=kept,
        **{name: getattr(asked, name) for name in ("batch_size", "block_size", "step_rows", "seed")},
    )
    return MixtureSpec(lengths={name: rows for name, (rows, _) in there.items()}, order=order)


def caps_of(asked: MixStageConfig, there: Amounts) -> SourceCaps:
    """Return the caps of the sources; ConfigError where they cannot be, or are of other sources."""
    epochs = asked.epochs if isinstance(asked.epochs, Mapping) else None
    same = ("max_repetitions", "max_fraction", "target_budget", "experiment_budget")
    caps = SourceCaps(epochs=epochs, **{name: getattr(asked, name) for name in same})
    caps.check_names(there)
    return caps


def _used(asked: MixStageConfig, there: Amounts) -> dict[str, int]:
    """How many rows are used of each source."""
    rows = {name: each for name, (each, _) in there.items()}
    return rows | caps_of(asked, there).kept(rows)


def epoch_rows(asked: MixStageConfig, there: Amounts) -> int:
    """Return the rows of an epoch of all sources, of what is used of each; or of the epochs asked of each."""
    used = _used(asked, there)
    if isinstance(asked.epochs, Mapping):
        used = caps_of(asked, there).draws(used)
    return sum(used.values())


def missing(asked: MixStageConfig, there: Amounts, drawn: Mapping[str, int]) -> list[str]:
    """Return a line for each source that comes more often than it may.

    Args:
        drawn: rows of each source in the mixture.
    """
    return caps_of(asked, there).missing(drawn, _used(asked, there), _mean_tokens(there))


def check_caps(asked: MixStageConfig, there: Amounts, drawn: Mapping[str, int]) -> None:
    """Raise ConfigError where a source comes more often than it may; arguments as of :func:`missing`."""
    caps_of(asked, there).check(drawn, _used(asked, there), _mean_tokens(there))


def _mean_tokens(there: Amounts) -> dict[str, Fraction]:
    return {name: Fraction(tokens, max(1, rows)) for name, (rows, tokens) in there.items()}


_GROUPS_PER_UNIT: Final = 12


def choose_unit_rows(
    sizes: Mapping[str, SourceSize], weights: Iterable[Mapping[str, float]], *, lanes: int, batch_size: int
) -> int:
    """Return the rows of a unit; arguments as of :func:`tokenlake.runtime.mixing.lane_count.choose_lanes`."""
    rows = lanes * _GROUPS_PER_UNIT * group_rows(sizes, weights)
    return math.ceil(rows / batch_size) * batch_size


_MANY_EPOCHS: Final = 4
"""Beyond so many times, seeing the same rows again teaches hardly more (Muennighoff et al. 2023, arXiv:2305.16264)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixForecast:
    """What a mixture will come to.

    Attributes:
        level: what is mixed.
        rows: of the stream.
        tokens: ids that are written, EOS included and padding not; expected.
        sequences: rows that are written; where documents are packed, expected.
        lanes, batch_size: of the order.
        kept: rows that are used of the sources of which not all are.
        units, unit_rows: of work.
        sources: by name, in the order of the mixture: what the manifest will say, but with expected tokens.
    """

    level: Level
    rows: int
    tokens: int
    sequences: int
    lanes: int
    batch_size: int
    kept: Mapping[str, int]
    units: int
    unit_rows: int
    sources: Mapping[str, MixedSource]

    def used(self, name: str) -> int:
        """Return how many rows of a source are used."""
        return self.kept.get(name, self.sources[name].rows)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        found = asdict(self)
        for name, one in self.sources.items():
            told = {field: getattr(one, field) for field in _TOLD}
            reference, epochs = f"{one.dataset}@v{one.version}", one.drawn_rows / self.used(name)
            found["sources"][name] = {"parent": reference, **told, "epochs": epochs}
        if not self.kept:
            del found["kept"]
        return found


_TOLD: Final = (
    *("split", "rows", "tokens", "drawn_rows", "drawn_tokens", "full_epochs", "partial_rows", "unread_rows"),
    *("asked", "asked_tokens"),
)


def forecast_of(
    level: Level,
    asked: MixStageConfig,
    parents: Sequence[FoundParent],
    drawn: Mapping[str, SourceDraw],
    out: RowsOut,
    spec: MixtureSpec,
    *,
    units: int,
    unit_rows: int,
) -> MixForecast:
    """Sum up what the order draws."""
    shares = token_shares(
        {name: draw.asked for name, draw in drawn.items()},
        {parent.name: parent.rows for parent in parents},
        {parent.name: parent.tokens for parent in parents},
    )
    sources = {
        parent.name: MixedSource(
            dataset=parent.manifest.dataset,
            version=parent.manifest.version,
            split=parent.split,
            window=parent.window,
            rows=parent.rows,
            tokens=parent.tokens,
            drawn_rows=(draw := drawn[parent.name]).rows,
            drawn_tokens=round(Fraction(draw.rows * parent.tokens, parent.rows)),
            full_epochs=draw.full_epochs,
            unread_rows=draw.unread,
            asked=draw.asked,
            asked_tokens=shares[parent.name] if asked.weights_by == "tokens" else None,
            achieved_rows=0.0,
            achieved_tokens=0.0,
        )
        for parent in parents
    }
    rows = sum(one.drawn_rows for one in sources.values())
    tokens = sum(one.drawn_tokens for one in sources.values()) + rows * out.append_eos
    return MixForecast(
        level=level,
        rows=rows,
        tokens=tokens,
        sequences=-(-tokens // (out.width or 1)) if out.pack else rows,
        lanes=spec.order.lanes,
        batch_size=spec.order.batch_size,
        kept=spec.order.kept,
        units=units,
        unit_rows=unit_rows,
        sources=sources,
    )


def notes_on(forecast: MixForecast) -> list[str]:
    """Return what a user should know of a mixture before it is made."""
    notes: list[str] = []
    for name, one in forecast.sources.items():
        rows = forecast.used(name)
        epochs = one.drawn_rows / rows
        if rows < one.rows:
            notes.append(
                f"{name}: shortened to {numbers.count(rows)} of its {numbers.count(one.rows)} rows "
                f"({numbers.percent(rows, one.rows)})"
            )
        if epochs > _MANY_EPOCHS:
            notes.append(
                f"{name}: each of its {numbers.count(rows)} rows comes about {epochs:.1f} times; beyond "
                f"{_MANY_EPOCHS} times it teaches little more. Give it less weight, or more data"
            )
        if one.unread_rows > one.rows - rows:
            part = numbers.percent(one.unread_rows, one.rows)
            notes.append(
                f"{name}: {numbers.count(one.unread_rows)} of its {numbers.count(one.rows)} rows ({part}) are not read"
            )
    return notes
