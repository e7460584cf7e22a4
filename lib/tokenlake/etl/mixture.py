"""The order of a mixture with every choice made: plain values in a job, and the stream that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from tokenlake.errors import IntegrityError
from tokenlake.mixing.mixture import MIXTURE_ORDER, SourceMixture
from tokenlake.mixing.random import Int64
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.mixing.stream import MixtureStream, source_order


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSpec:
    """The arguments of :class:`tokenlake.mixing.mixture.SourceMixture`, in plain values.

    Attributes:
        lengths: source -> rows, in configuration order.
        points: (step, source -> weight per row).
        interpolation: between points.
        lanes, batch_size, block_size, step_rows, seed, stop: of the order.
        rows: where the stream is cut; None: at its own end.
        order: version of the order.
    """

    lengths: Mapping[str, int]
    points: tuple[tuple[int, Mapping[str, float]], ...]
    interpolation: Literal["step", "linear", "cosine"]
    lanes: int
    batch_size: int
    block_size: int
    step_rows: int
    seed: int
    stop: Literal["restart", "first_exhausted", "all_exhausted"]
    rows: int | None
    order: int = MIXTURE_ORDER

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a spec from ``dataclasses.asdict``, also after a trip through JSON."""
        points = tuple((step, dict(weights)) for step, weights in data["points"])
        fields: dict[str, Any] = {**data, "lengths": dict(data["lengths"]), "points": points}
        return cls(**fields)


def open_mixture(spec: MixtureSpec) -> SourceMixture:
    """Return the mixture that a spec describes; ConfigError where there is none such."""
    points = [{"step": step, "weights": dict(weights)} for step, weights in spec.points]
    return SourceMixture(
        spec.lengths,
        WeightScheduler(points, spec.interpolation),
        lanes=spec.lanes,
        batch_size=spec.batch_size,
        block_size=spec.block_size,
        step_rows=spec.step_rows,
        seed=spec.seed,
        stop=spec.stop,
        rows=spec.rows,
        order=spec.order,
    )


def open_stream(spec: MixtureSpec, group_rows: Mapping[str, Int64]) -> MixtureStream:
    """Return the stream of a mixture.

    Args:
        group_rows: source to the rows of each of its row groups, int64[G].

    Raises:
        IntegrityError: a source has other rows than the spec says.
    """
    for name, rows in spec.lengths.items():
        if rows != (got := int(group_rows[name].sum())):
            raise IntegrityError(
                f"source {name!r} has {got} rows; expected {rows}, with which it was planned"
            )
    mixture = open_mixture(spec)
    orders = [
        source_order(name, group_rows[name], lanes=spec.lanes, seed=spec.seed) for name in mixture.names
    ]
    return MixtureStream(mixture, orders)
