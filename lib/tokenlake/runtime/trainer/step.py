"""One step of training, to be compiled: gradients of the parts of a batch are added up and update the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, final

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
StepFunction: TypeAlias = "Callable[[TrainState, Params | None, DeviceBatch], tuple[TrainState, Means]]"


class TrainState(NamedTuple):
    """What training changes, all of it on the devices.

    Attributes:
        step: taken so far, int32[].
        params: float32, or what the model was given as.
        optimizer: its state.
        loss_ema: running mean of the loss, float32[].
        bad_steps: first step whose loss was not finite, and first step whose gradient norm was not finite, int32[2];
            0 where there was none. They stay on the devices until somebody asks, so that a step waits for nothing.
    """

    step: jax.Array
    params: Params
    optimizer: Any
    loss_ema: jax.Array
    bad_steps: jax.Array


def lowered(objective: Objective, precision: str) -> Objective:
    """Return the objective with the model's arithmetic in `precision`; gradients are those of float32 parameters."""
    if precision == "float32":
        return objective
    if isinstance(objective, WholeBatchObjective):
        return _LoweredWholeBatch(objective, precision)

    def lowered_objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        return objective(_cast(params, precision), batch, _cast(reference, precision))

    return lowered_objective


def _cast(params: Params, precision: str) -> Params:
    """Return parameters whose float32 arrays are of another type."""

    def cast_leaf(leaf: jax.Array) -> jax.Array:
        return leaf.astype(precision) if leaf.dtype == jnp.float32 else leaf

    return jax.tree.map(cast_leaf, params)


@final
@dataclass(frozen=True, eq=False)  # JAX keeps what it compiles by the object
class _LoweredWholeBatch(WholeBatchObjective):
    """See :func:`lowered`.

    Attributes:
        objective: whose arithmetic is lowered.
        precision: name of the type.
    """

    objective: WholeBatchObjective
    precision: str

    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        return self.objective.widen(batch)

    def shared_sums(self, params: Params, part: DeviceBatch, reference: Params | None) -> SharedSums:
        lower = partial(_cast, precision=self.precision)
        return self.objective.shared_sums(lower(params), part, lower(reference))

    def part_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None, shared: SharedSums
    ) -> Sums:
        lower = partial(_cast, precision=self.precision)
        return self.objective.part_sums(lower(params), part, lower(reference), shared)


def means(sums: Sums) -> Means:
    """Divide; without any weight, as of a batch of padding, all are 0."""
    weight = jnp.where(sums.weight > 0, sums.weight, 1)
    return {"loss": sums.loss / weight} | {name: value / weight for name, value in sums.parts.items()}


def make_step(
    objective: Objective,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: optax.Schedule,
    *,
    accumulate: int,
    ema: float,
) -> StepFunction:
    """Return the function from a state, the reference and a batch to the next state and what was measured.

    The mean is over the targets of the whole batch. A term over the whole batch, such as z0 of KTO, is the same for all
    parts (:class:`~tokenlake.runtime.trainer.losses.WholeBatchObjective`). So accumulating changes nothing
    but rounding.

    Args:
        objective: what is minimized.
        optimizer: of :func:`make_optimizer`.
        schedule: step -> learning rate; only told.
        accumulate: equal parts of a batch, one after the other.
        ema: decay of the running mean of the loss.
    """

    def step(state: TrainState, reference: Params | None, batch: DeviceBatch) -> tuple[TrainState, Means]:
        parts, part_objective = _prepared(objective, state.params, reference, batch, accumulate)

        def gradients(part: DeviceBatch) -> tuple[Any, Sums]:
            def loss_of(params: Params) -> tuple[jax.Array, Sums]:
                sums = part_objective(params, part, reference)
                return sums.loss, sums

            return jax.grad(loss_of, has_aux=True)(state.params)

        total, sums = _added_up(gradients, parts, accumulate)
        weight = jnp.where(sums.weight > 0, sums.weight, 1)
        grads = jax.tree.map(lambda grad: grad / weight, total)

        def one_part(params: Params) -> jax.Array:
            """What Sophia differentiates twice: the loss of the first part."""
            return means(part_objective(params, _first(parts), reference))["loss"]

        updates, kept = optimizer.update(grads, state.optimizer, state.params, obj_fn=one_part)
        measured = means(sums)
        loss = measured["loss"]
        later = ema * state.loss_ema + (1 - ema) * loss
        loss_ema = jnp.where(state.step == 0, loss, later)
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)]
        grad_norm = jnp.sqrt(sum(squares))
        told = measured | {
            "loss_ema": loss_ema,
            "grad_norm": grad_norm,
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        }
        params = optax.apply_updates(state.params, updates)
        taken = state.step + 1
        is_bad = ~jnp.isfinite(jnp.stack([loss, grad_norm]))
        bad_steps = jnp.where((state.bad_steps == 0) & is_bad, taken, state.bad_steps)
        return TrainState(taken, params, kept, loss_ema, bad_steps), told

    return step


_PartObjective: TypeAlias = "Callable[[Params, DeviceBatch, Params | None], Sums]"


def _prepared(
    objective: Objective,
    params: Params,
    reference: Params | None,
    batch: DeviceBatch,
    accumulate: int,
) -> tuple[DeviceBatch, _PartObjective]:
    """Return the parts of a batch, and the objective of a part."""
    if not isinstance(objective, WholeBatchObjective):
        return _split(batch, accumulate), objective
    # What depends on other rows is settled before the rows are cut into parts.
    parts = _split(objective.widen(batch), accumulate)

    def shared_of(part: DeviceBatch) -> SharedSums:
        return objective.shared_sums(params, part, reference)

    shared = jax.lax.stop_gradient(_added_up(shared_of, parts, accumulate))
    return parts, partial(objective.part_sums, shared=shared)


_Sum = TypeVar("_Sum")


def _added_up(function: Callable[[DeviceBatch], _Sum], parts: DeviceBatch, count: int) -> _Sum:
    """Return the sum of a function of each part, a pytree of arrays; one part after the other, in the memory of one."""
    if count == 1:
        return function(_first(parts))

    def add(total: _Sum, part: DeviceBatch) -> tuple[_Sum, None]:
        return jax.tree.map(jnp.add, total, function(part)), None

    shapes = jax.eval_shape(function, _first(parts))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, parts)[0]


def _first(parts: DeviceBatch) -> dict[str, jax.Array]:
    return {name: value[0] for name, value in parts.items()}


def _split(batch: DeviceBatch, accumulate: int) -> dict[str, jax.Array]:
    """Turn columns (B, ...) into (parts, B / parts, ...); a part has rows of all devices, which keep their own."""

    def split(name: str, value: jax.Array) -> jax.Array:
        rows = value.shape[0]
        if rows % accumulate:
            raise ConfigError(
                f"accumulate: got {accumulate}, and a batch has {rows} rows in {name}; expected a divisor of {rows}"
            )
        return jnp.moveaxis(value.reshape(rows // accumulate, accumulate, *value.shape[1:]), 1, 0)

    return {name: split(name, value) for name, value in batch.items()}


AXES: Final = ("data", "fsdp", "tensor")
