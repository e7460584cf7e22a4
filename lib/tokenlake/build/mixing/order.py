"""The stream of a mixture, as plan and workers agree on it."""

from __future__ import annotations

from collections.abc import Mapping

from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.errors import IntegrityError
from tokenlake.mixing import Mixture, MixtureStream, WeightScheduler, source_order
from tokenlake.order.random import Int64


def open_mixture(spec: MixtureSpec) -> Mixture:
    """Return the mixture that a spec describes; ConfigError where there is none such."""
    points = [{"step": step, "weights": dict(weights)} for step, weights in spec.points]
    return Mixture(
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
