"""A mixture with every choice made: weights per row, lanes, and the row at which it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tokenlake.build.mixing.job import RowsOut
from tokenlake.build.mixing.order import open_mixture
from tokenlake.build.mixing.planning.ends import rows_of
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.config.resolved_mix import ResolvedMixture
from tokenlake.errors import ConfigError
from tokenlake.manifest.mixture import MOST_BLOCK, MOST_LANES
from tokenlake.mixing import Mixture, row_weights
from tokenlake.mixing.lanes import choose_lanes


def weighed(parents: Sequence[FoundParent], asked: ResolvedMixture) -> tuple[FoundParent, ...]:
    """Return the parents that have a weight at any point of the schedule; ConfigError where none has."""
    found = tuple(
        parent for parent in parents if any(weights.get(parent.name) for _, weights in asked.points)
    )
    if not found:
        raise ConfigError("mix.weights: all are 0; expected a weight above 0 for at least one dataset")
    return found


def settled(
    asked: ResolvedMixture, parents: Sequence[FoundParent], out: RowsOut
) -> tuple[MixtureSpec, Mixture]:
    """Return the mixture of parents, all of which have rows, as it is asked for.

    Raises:
        ConfigError: there is no such mixture.
    """
    _require_bounds(asked)
    spec = MixtureSpec(
        lengths={parent.name: parent.rows for parent in parents},
        points=_points(asked, parents),
        interpolation=asked.interpolation,
        lanes=1,
        batch_size=asked.batch_size,
        block_size=asked.block_size,
        step_rows=asked.step_rows,
        seed=asked.seed,
        stop=asked.stop,
        rows=None,
        order=asked.order,
    )
    single = open_mixture(spec)
    lanes = asked.lanes
    if lanes is None:
        lanes = choose_lanes(
            {parent.name: parent.size for parent in parents},
            [weights for _, weights in spec.points],
            batch_size=asked.batch_size,
            step_rows=asked.step_rows if single.scheduler.changes else None,
            rows=_rows(asked, single, parents, out),
        )
    spec = replace(spec, lanes=lanes)
    # Where sources begin anew, as many rows come of each however many lanes there are.
    whole = single if asked.stop == "restart" else open_mixture(spec)
    spec = replace(spec, rows=_rows(asked, whole, parents, out))
    return spec, open_mixture(spec)


def _require_bounds(asked: ResolvedMixture) -> None:
    for name, value, most in (
        ("lanes", asked.lanes or 1, MOST_LANES),
        ("block_size", asked.block_size, MOST_BLOCK),
    ):
        if value > most:
            raise ConfigError(f"mix.{name}: {value}; expected at most {most}", expected=most, got=value)


def _points(
    asked: ResolvedMixture, parents: Sequence[FoundParent]
) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """The points of the schedule, in weights per row, in the order of the parents."""
    points = [
        (step, {parent.name: float(weights.get(parent.name, 0.0)) for parent in parents})
        for step, weights in asked.points
    ]
    if asked.weights_by == "tokens":
        means = {parent.name: parent.tokens / parent.rows for parent in parents}
        points = [(step, row_weights(weights, means)) for step, weights in points]
    return tuple(points)


def _rows(asked: ResolvedMixture, mixture: Mixture, parents: Sequence[FoundParent], out: RowsOut) -> int:
    return rows_of(
        asked,
        mixture,
        sum(parent.rows for parent in parents),
        [Fraction(parent.tokens, parent.rows) + out.append_eos for parent in parents],
        parents[0].manifest.seq_length,
    )
