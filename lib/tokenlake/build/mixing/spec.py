"""The order of a mixture with every choice made, as JSON: enough to compute it anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from tokenlake.mixing import MIXTURE_ORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSpec:
    """The arguments of :class:`tokenlake.mixing.Mixture`, in plain values.

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
