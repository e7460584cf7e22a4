"""What a mixture would come to, guessed before its tokens are there: by samples of the texts instead of manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tokenlake.build.mixing.planning.ends import rows_of
from tokenlake.config.resolved_mix import ResolvedMixture
from tokenlake.mixing import Mixture, WeightScheduler, row_weights


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is of a source, or is drawn of it."""

    rows: int
    tokens: int


def guess_drawn(asked: ResolvedMixture, there: Mapping[str, Amount], append_eos: bool) -> dict[str, Amount]:
    """Return what a mixture of documents would draw of each source.

    The counts are those of one lane; more lanes change them by a few rows.

    Args:
        there: about how much of each source there is, at least a row and a token, in configuration order.
        append_eos: whether packing adds a token to each document.

    Raises:
        ConfigError: there is no such mixture of so much.
    """
    mixture = Mixture(
        {name: amount.rows for name, amount in there.items()},
        WeightScheduler(_points(asked, there), asked.interpolation),
        batch_size=asked.batch_size,
        block_size=asked.block_size,
        step_rows=asked.step_rows,
        seed=asked.seed,
        stop=asked.stop,
    )
    per_row = [Fraction(amount.tokens, amount.rows) + append_eos for amount in there.values()]
    rows = rows_of(asked, mixture, sum(amount.rows for amount in there.values()), per_row, None)
    drawn = map(int, mixture.drawn_before(rows if mixture.rows is None else min(rows, mixture.rows)))
    return {
        name: Amount(many, round(Fraction(many * amount.tokens, amount.rows)))
        for many, (name, amount) in zip(drawn, there.items(), strict=True)
    }


def _points(asked: ResolvedMixture, there: Mapping[str, Amount]) -> list[dict[str, object]]:
    means = {name: amount.tokens / amount.rows for name, amount in there.items()}
    points = [
        (step, {name: float(weights.get(name, 0.0)) for name in there}) for step, weights in asked.points
    ]
    if asked.weights_by == "tokens":
        points = [(step, row_weights(weights, means)) for step, weights in points]
    return [{"step": step, "weights": weights} for step, weights in points]
