"""One step of training, to be compiled: gradients of the parts of a batch, and what the optimizer makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from tokenlake.errors import ConfigError
from tokenlake.trainer.losses import DeviceBatch, Objective, Params, Sums

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
    """

    step: jax.Array
    params: Params
    optimizer: Any
    loss_ema: jax.Array


def lowered(objective: Objective, precision: str) -> Objective:
    """Return the objective with the model's arithmetic in `precision`; gradients are those of float32 parameters."""
    if precision == "float32":
        return objective

    def cast(leaf: jax.Array) -> jax.Array:
        return leaf.astype(precision) if leaf.dtype == jnp.float32 else leaf

    def cast_objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        return objective(jax.tree.map(cast, params), batch, jax.tree.map(cast, reference))

    return cast_objective


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

    The mean is over the targets of the whole batch, so that accumulating changes nothing but rounding.

    Args:
        objective: what is minimized.
        optimizer: of :func:`tokenlake.trainer.optimizers.make_optimizer`.
        schedule: step -> learning rate; only told.
        accumulate: equal parts of a batch, one after the other.
        ema: decay of the running mean of the loss.
    """

    def gradients(params: Params, reference: Params | None, batch: DeviceBatch) -> tuple[Any, Sums]:
        def loss_of(params: Params) -> tuple[jax.Array, Sums]:
            sums = objective(params, batch, reference)
            return sums.loss, sums

        return jax.grad(loss_of, has_aux=True)(params)

    def summed(params: Params, reference: Params | None, parts: DeviceBatch) -> tuple[Any, Sums]:
        """Gradients and sums over all parts."""
        if accumulate == 1:
            return gradients(params, reference, _first(parts))

        def add(total: Any, part: DeviceBatch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, gradients(params, reference, part)), None

        shapes = jax.eval_shape(gradients, params, reference, _first(parts))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, nothing, parts)[0]

    def step(state: TrainState, reference: Params | None, batch: DeviceBatch) -> tuple[TrainState, Means]:
        parts = _split(batch, accumulate)
        total, sums = summed(state.params, reference, parts)
        weight = jnp.where(sums.weight > 0, sums.weight, 1)
        grads = jax.tree.map(lambda grad: grad / weight, total)

        def one_part(params: Params) -> jax.Array:
            """What Sophia differentiates twice: the loss of the first part."""
            return means(objective(params, _first(parts), reference))["loss"]

        updates, kept = optimizer.update(grads, state.optimizer, state.params, obj_fn=one_part)
        measured = means(sums)
        loss_ema = jnp.where(
            state.step == 0, measured["loss"], ema * state.loss_ema + (1 - ema) * measured["loss"]
        )
        told = measured | {
            "loss_ema": loss_ema,
            "grad_norm": _norm(grads),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        }
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, kept, loss_ema), told

    return step


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


def _norm(grads: Any) -> jax.Array:
    """The Euclidean norm of all gradients together, float32[]."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)))
