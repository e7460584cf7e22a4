"""The section `mix` of a configuration: weights, where a mixture ends, its order, and the caps of its sources."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from tokenlake.config.section import (
    Count,
    Fraction,
    Positive,
    Section,
    Seed,
    Step,
    Text,
    Weights,
    problem,
)


class WeightSchedulePoint(Section):
    """Weights that hold from a step on, or that the steps before it move towards."""

    step: Step
    """Step at which exactly these weights hold."""

    weights: Weights
    """Dataset name to weight; they sum to 1."""


def _schedule(points: tuple[WeightSchedulePoint, ...]) -> tuple[WeightSchedulePoint, ...]:
    if not points:
        raise problem("got an empty list, must hold at least one point")
    for before, after in itertools.pairwise(points):
        if after.step <= before.step:
            raise problem(
                f"got step {after.step} after step {before.step}, steps must grow from point to point"
            )
        if set(after.weights) != set(before.weights):
            raise problem(
                f"step {before.step} weighs {sorted(before.weights)}, "
                f"step {after.step} weighs {sorted(after.weights)}: all points must weigh the same datasets"
            )
    return points


class MixStageConfig(Section):
    """Section `mix`."""

    weights: Weights | None = None
    """Dataset name to weight; they sum to 1. null: equal weights."""

    weight_schedule: Annotated[tuple[WeightSchedulePoint, ...], AfterValidator(_schedule)] | None = None
    """Weights that change along the way; where given, it goes before `weights`."""

    weights_by: Literal["rows", "tokens"] = "rows"
    """What weights are shares of: rows, or tokens (by the mean tokens of a row of each source)."""

    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    """How weights move between two points of the schedule."""

    step_rows: Count | None = None
    """Rows of the mixture to a step of the schedule; null: `batch_size`, or where a pipeline loads what it mixes
    `load.batch_size`, so that a step is a training step."""

    block_size: Count = 1000
    """Rows of a lane that are dealt together. The order of sources is shuffled inside as many, but never beyond a
    batch, at whose end the weights hold."""

    stop_strategy: Literal["restart", "first_exhausted", "all_exhausted"] = "restart"
    """When a source ends: start it again, stop, or go on with the others."""

    seed: Seed | None = None
    """Seed of the order; null: the pipeline's seed."""

    lanes: Count | None = None
    """Lanes of the order, part of its identity; null: as many as the sources have work for, at most 64."""

    batch_size: Count = 256
    """Rows of a global batch, for which a stored mixture is laid out."""

    order: Literal[2, 3] = 3
    """Version of the order; 2 makes again, and goes on with, what releases before it wrote."""

    unit_rows: Count | None = None
    """Rows of a unit of work; null: so many that a unit reads hardly more than it writes."""

    total_tokens: Count | None = None
    """Stop after this many tokens; where rows are documents, after the rows that are expected to hold so many."""

    total_rows: Count | None = None
    """Stop after this many rows."""

    epochs: Positive | dict[Text, Positive] | None = None
    """Stop after so many rows as all sources have together, times this; or dataset name to how often its rows come, of
    which the weights follow, too."""

    max_repetitions: Positive | dict[Text, Positive] | None = None
    """How often a source's rows may come at most, of all or dataset name to its own; plans say what is missing."""

    max_fraction: Fraction | dict[Text, Fraction] | None = None
    """The share of a source's rows that may be used, of all or dataset name to its own: always the same rows."""

    target_budget: Count | None = None
    """Tokens of the run that an experiment stands for; with `experiment_budget`."""

    experiment_budget: Count | None = None
    """Tokens of the experiment: each source is shortened to `experiment_budget / target_budget`, so that its rows are
    repeated as often as they would be in the run."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        ends = {"total_tokens": self.total_tokens, "total_rows": self.total_rows, "epochs": self.epochs}
        given = [name for name, value in ends.items() if value is not None]
        if len(given) > 1:
            raise problem(f"got {' and '.join(given)}, must be at most one of {', '.join(ends)}")
        if isinstance(self.epochs, dict):
            options = ("weights", "weight_schedule", "weights_by", "stop_strategy")
            default = type(self).model_fields
            if told := [name for name in options if getattr(self, name) != default[name].default]:
                raise problem(
                    f"got epochs of each dataset and {' and '.join(told)}: epochs decide the weights and the end; "
                    "expected one or the other"
                )
        if (self.target_budget is None) != (self.experiment_budget is None):
            raise problem("got one of target_budget and experiment_budget, must be both or none")
        if (self.experiment_budget or 0) > (self.target_budget or 0):
            raise problem(
                f"got experiment_budget {self.experiment_budget}, must be at most target_budget {self.target_budget}"
            )
        if self.lanes is not None and self.batch_size % self.lanes:
            raise problem(
                f"got batch_size {self.batch_size} and lanes {self.lanes}, batch_size must be a multiple of lanes"
            )
        return self
