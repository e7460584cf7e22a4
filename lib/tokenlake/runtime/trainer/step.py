"""One training step, to be compiled: it updates the parameters.

The gradients of the parts of a batch are summed for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import jax
import jax.numpy as jnp
import optax

from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer.losses import (
    DeviceBatch,
    Objective,
    Params,
    SharedSums,
    Sums,
    WholeBatchObjective,
)

Means: TypeAlias = dict[str, jax.Array]
"""Name -> float32[], on the devices."""
StepFunction: TypeAlias = (
    "Callable[[TrainState, Params | None, DeviceBatch], tuple[TrainState, Means]]"
)


class TrainState(NamedTuple):
    """State that a step changes, all of it on the devices.

    Attributes:
        step: Number of steps taken so far, int32[].
        params: Pytree of parameters, float32 or of the types that the run was given.
        optimizer: State of the optimizer.
        loss_ema: Running mean of the loss, float32[].
        bad_steps: First step whose loss was not finite, and first step whose gradient
            norm was not finite, int32[2]; 0 where there was none. They stay on the
            devices until they are read, so that a step waits for nothing.
    """

    step: jax.Array
    params: Params
    optimizer: Any
    loss_ema: jax.Array
    bad_steps: jax.Array


def lowered(objective: Objective, precision: str) -> Objective:
    """Return the objective with the arithmetic of its model in another precision.

    Args:
        objective: Objective of float32 parameters; gradients remain those of float32
            parameters.
        precision: Name of the type, such as ``bfloat16``.
    """
    if precision == "float32":
        return objective
    if isinstance(objective, WholeBatchObjective):
        return _LoweredWholeBatch(objective, precision)

    def lowered_objective(
        params: Params, batch: DeviceBatch, reference: Params | None
    ) -> Sums:
        return objective(_cast(params, precision), batch, _cast(reference, precision))

    return lowered_objective


def _cast(params: Params, precision: str) -> Params:
    """Return parameters with their float32 arrays converted to another type."""

    def cast_leaf(leaf: jax.Array) -> jax.Array:
        # Integers, and types that the run was given on purpose, stay.
        if leaf.dtype != jnp.float32:
            return leaf
        return leaf.astype(precision)

    return jax.tree.map(cast_leaf, params)


@final
@dataclass(frozen=True, eq=False)  # JAX keys compiled functions by the object
class _LoweredWholeBatch(WholeBatchObjective):
    """Objective with a term over the whole batch, in another precision.

    It is made by :func:`lowered`.

    Attributes:
        objective: Objective of float32 parameters.
        precision: Name of the type.
    """

    objective: WholeBatchObjective
    precision: str

    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        return self.objective.widen(batch)

    def shared_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None
    ) -> SharedSums:
        lower = partial(_cast, precision=self.precision)
        return self.objective.shared_sums(lower(params), part, lower(reference))

    def part_sums(
        self,
        params: Params,
        part: DeviceBatch,
        reference: Params | None,
        shared: SharedSums,
    ) -> Sums:
        lower = partial(_cast, precision=self.precision)
        return self.objective.part_sums(lower(params), part, lower(reference), shared)


def means(sums: Sums) -> Means:
    """Return the means of sums: ``loss`` and the parts.

    All are 0 for a batch of padding, which has no weight.
    """
    weight = jnp.where(sums.weight > 0, sums.weight, 1)
    means_by_name = {"loss": sums.loss / weight}
    for part_name, part_sum in sums.parts.items():
        means_by_name[part_name] = part_sum / weight
    return means_by_name


def make_step(
    objective: Objective,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: optax.Schedule,
    *,
    accumulate: int,
    ema: float,
) -> StepFunction:
    """Return the function that takes one training step.

    It maps a state, the reference and a batch to the next state and the measurements.
    The mean is over the targets of the whole batch. A term over the whole batch, such
    as z0 of KTO, is the same for all parts
    (:class:`~tokenlake.runtime.trainer.losses.WholeBatchObjective`). Therefore
    accumulation changes nothing but rounding::

        gradient of the mean loss = (sum over parts of the gradient of the part's sum) / (sum over parts of weights)

    Args:
        objective: Objective to minimize.
        optimizer: Optimizer of :func:`make_optimizer`.
        schedule: Step -> learning rate; it is only reported, the optimizer has its own.
        accumulate: Number of equal parts of a batch, which are computed one after the
            other.
        ema: Decay of the running mean of the loss.
    """

    def step(
        state: TrainState, reference: Params | None, batch: DeviceBatch
    ) -> tuple[TrainState, Means]:
        parts, part_objective = _prepared(
            objective, state.params, reference, batch, accumulate
        )

        def gradients(part: DeviceBatch) -> tuple[Any, Sums]:
            def loss_of(params: Params) -> tuple[jax.Array, Sums]:
                sums = part_objective(params, part, reference)
                return sums.loss, sums

            return jax.grad(loss_of, has_aux=True)(state.params)

        # Gradients of sums add up; divided by the weight they are those of the mean.
        gradient_sums, sums = _added_up(gradients, parts, accumulate)
        weight = jnp.where(sums.weight > 0, sums.weight, 1)
        grads = jax.tree.map(lambda grad: grad / weight, gradient_sums)

        # The update.
        def first_part_loss(params: Params) -> jax.Array:
            """Return the mean loss of the first part.

            Sophia differentiates it twice.
            """
            return means(part_objective(params, _first(parts), reference))["loss"]

        updates, optimizer_state = optimizer.update(
            grads, state.optimizer, state.params, obj_fn=first_part_loss
        )
        params = optax.apply_updates(state.params, updates)

        # The measurements.
        measured = means(sums)
        # The running mean begins at the first loss, and not at 0.
        loss = measured["loss"]
        loss_ema = jnp.where(
            state.step == 0, loss, ema * state.loss_ema + (1 - ema) * loss
        )
        squares = [
            jnp.sum(jnp.square(leaf.astype(jnp.float32)))
            for leaf in jax.tree.leaves(grads)
        ]
        grad_norm = jnp.sqrt(sum(squares))
        measured["loss_ema"] = loss_ema
        measured["grad_norm"] = grad_norm
        measured["learning_rate"] = jnp.asarray(schedule(state.step), jnp.float32)

        # The first steps with a loss or a gradient that is not finite. They are counted
        # from 1, so that 0 means none.
        next_step = state.step + 1
        is_bad = ~jnp.isfinite(jnp.stack([loss, grad_norm]))
        bad_steps = jnp.where(
            (state.bad_steps == 0) & is_bad, next_step, state.bad_steps
        )
        return TrainState(
            next_step, params, optimizer_state, loss_ema, bad_steps
        ), measured

    return step


_PartObjective: TypeAlias = "Callable[[Params, DeviceBatch, Params | None], Sums]"


def _prepared(
    objective: Objective,
    params: Params,
    reference: Params | None,
    batch: DeviceBatch,
    accumulate: int,
) -> tuple[DeviceBatch, _PartObjective]:
    """Return the parts of a batch, and the objective of a part.

    For an objective with a term over the whole batch, that term is computed here and
    given to the parts.
    """
    if not isinstance(objective, WholeBatchObjective):
        return _split(batch, accumulate), objective
    # Columns that are made of other rows must exist before the rows are cut into parts.
    parts = _split(objective.widen(batch), accumulate)

    def shared_of(part: DeviceBatch) -> SharedSums:
        return objective.shared_sums(params, part, reference)

    shared = jax.lax.stop_gradient(_added_up(shared_of, parts, accumulate))
    return parts, partial(objective.part_sums, shared=shared)


_Sum = TypeVar("_Sum")


def _added_up(
    function: Callable[[DeviceBatch], _Sum], parts: DeviceBatch, count: int
) -> _Sum:
    """Return the sum of a function over the parts.

    The parts come one after the other, in the memory of one.

    Args:
        function: Function from a part to a pytree of arrays.
        parts: Columns of shape (parts, B / parts, ...).
        count: Number of parts.
    """
    if count == 1:
        return function(_first(parts))

    def add(total: _Sum, part: DeviceBatch) -> tuple[_Sum, None]:
        return jax.tree.map(jnp.add, total, function(part)), None

    # The sums begin at zeros, whose shapes are known without computing a part.
    shapes = jax.eval_shape(function, _first(parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, parts)
    return total


def _first(parts: DeviceBatch) -> dict[str, jax.Array]:
    """Return the columns of the first part."""
    return {name: column[0] for name, column in parts.items()}


def _split(batch: DeviceBatch, accumulate: int) -> dict[str, jax.Array]:
    """Cut columns (B, ...) into (parts, B / parts, ...).

    Part p has the rows p, p + parts, p + 2 * parts, ...: so each device keeps its own
    rows.
    """

    def split(name: str, value: jax.Array) -> jax.Array:
        rows = value.shape[0]
        if rows % accumulate:
            raise ConfigError(
                f"accumulate: got {accumulate}, and a batch has {rows} rows in {name}; expected a divisor of {rows}"
            )
        return jnp.moveaxis(
            value.reshape(rows // accumulate, accumulate, *value.shape[1:]), 1, 0
        )

    return {name: split(name, column) for name, column in batch.items()}
