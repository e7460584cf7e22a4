"""One step of training, to be compiled; its optimizer, and the mesh that it runs on.

Gradients of the parts of a batch are added up, and the optimizer makes new parameters of them.

Devices are a mesh of three axes. Rows of a batch are cut over ``data`` and ``fsdp``. Parameters are cut over ``tensor``
as rules say, and over ``fsdp`` along the largest dimension that is left and can be cut (Rajbhandari et al. 2020: stage
3). XLA's partitioner adds the communication; a model is written as for one device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.trainer.config import MeshConfig, OptimizerConfig, ScheduleConfig
from tokenlake.trainer.fingerprint import path_name
from tokenlake.trainer.losses import (
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
    parts (:class:`~tokenlake.trainer.losses.WholeBatchObjective`). So accumulating changes nothing but rounding.

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


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer, behind the clipping of gradients where that is asked for.

    Its ``update`` takes ``obj_fn``, the loss as a function of the parameters: Sophia differentiates it twice.

    Raises:
        NotAvailableError: no library that is known here has it.
    """
    options = {name: value for name in ("b1", "b2", "eps") if (value := getattr(config, name)) is not None}
    decay, mask, made = config.weight_decay, decayed(config.no_decay), cast("Any", None)
    match config.name:
        case "adamw":  # Loshchilov and Hutter 2019
            made = optax.adamw(schedule, weight_decay=decay, mask=mask, **options)
        case "lion":  # Chen et al. 2023
            made = optax.lion(schedule, weight_decay=decay, mask=mask, **options)
        case "sophia":  # Liu et al. 2023, with Hutchinson's estimate of the curvature every ten steps
            made = optax.contrib.sophia(schedule, weight_decay=decay, weight_decay_mask=mask, **options)
        case "prodigy":  # Mishchenko and Defazio 2023; the learning rate is a factor of the one that it finds
            betas = options.pop("b1", 0.9), options.pop("b2", 0.999)
            made = optax.contrib.prodigy(schedule, betas=betas, weight_decay=decay, **options)
        case "adam8bit":
            raise NotAvailableError(
                "optimizer.name: got 'adam8bit', and neither optax nor optax.contrib has an optimizer with 8-bit "
                "states; expected adamw, lion, sophia or prodigy (lion keeps one moment instead of two)",
                field_path="optimizer.name",
            )
    clipped = made if config.clip is None else optax.chain(optax.clip_by_global_norm(config.clip), made)
    return optax.with_extra_args_support(clipped)


def decayed(no_decay: tuple[str, ...]) -> Callable[[Params], Any]:
    """Return the function from parameters to a pytree of bool: which of them have weight decay."""

    def mask(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: not any(re.search(pattern, path_name(path)) for pattern in no_decay), params
        )

    return mask


def make_schedule(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Return the learning rate of each step, counted from 0, float32[].

    Args:
        config: which; with a warm-up the peak is reached at step ``warmup``.
        steps: of the run; the end of the schedule unless the configuration names another.

    Raises:
        ConfigError: the warm-up is longer than the schedule.
    """
    end = config.steps or steps
    if config.name != "constant" and config.warmup >= end:
        why = f"got {config.warmup} steps of {end}; expected fewer than the schedule has"
        raise ConfigError(f"schedule.warmup: {why}", field_path="schedule.warmup")
    fall = _after_warmup(config, end - config.warmup)
    if not config.warmup:
        return fall
    rise = optax.linear_schedule(0.0, config.peak, config.warmup)
    return optax.join_schedules([rise, fall], [config.warmup])


def _after_warmup(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Return what comes after the warm-up, in so many steps."""
    peak, floor = config.peak, config.floor
    match config.name:
        case "constant":
            return optax.constant_schedule(peak)
        case "linear":
            return optax.linear_schedule(peak, peak * floor, steps)
        case "cosine":  # half of one (Loshchilov and Hutter 2017, equation 5, without restarts)
            return optax.cosine_decay_schedule(peak, steps, alpha=floor)
        case "cosine_restarts":  # as many equal half cosines, each from the peak on (equation 5 there)
            if config.cycles > steps:
                why = f"got {config.cycles} in {steps} steps; expected at most one for each step"
                raise ConfigError(f"schedule.cycles: {why}", field_path="schedule.cycles")
            starts = [steps * cycle // config.cycles for cycle in range(config.cycles + 1)]
            lengths = [after - before for before, after in pairwise(starts)]
            cycles = [optax.cosine_decay_schedule(peak, length, alpha=floor) for length in lengths]
            return optax.join_schedules(cycles, starts[1:-1])
        case "wsd":  # warm-up, stable, decay: the peak, then a line to the floor (Hu et al. 2024, section 4)
            decay = max(1, round(steps * config.decay))
            fall = optax.linear_schedule(peak, peak * floor, decay)
            return optax.join_schedules([optax.constant_schedule(peak), fall], [steps - decay])


AXES: Final = ("data", "fsdp", "tensor")
_ROWS: Final = PartitionSpec(("data", "fsdp"))


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of all devices of all processes, or of those given.

    Raises:
        ConfigError: the axes do not make up the devices.
    """
    found = jax.devices() if devices is None else devices
    rest = config.fsdp * config.tensor
    data = config.data or max(1, len(found) // rest)
    if data * rest != len(found):
        raise ConfigError(
            f"mesh: got data {data}, fsdp {config.fsdp} and tensor {config.tensor}, which are {data * rest} devices; "
            f"expected a product of {len(found)}, as many as there are"
        )
    return Mesh(np.array(found, dtype=object).reshape(data, config.fsdp, config.tensor), AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return where the rows of a batch lie: what ``tl.DataLoader(sharding=...)`` is given."""
    return NamedSharding(mesh, _ROWS)


def param_shardings(
    params: Params, mesh: Mesh, rules: Mapping[str, Sequence[str | None]] | None = None
) -> Any:
    """Return the sharding of each parameter, a pytree like `params`.

    Args:
        params: arrays or their shapes.
        mesh: of :func:`make_mesh`.
        rules: regular expression of a path, as ``layers/up`` -> axis of each dimension; the first that is found counts.

    Raises:
        ConfigError: a rule fits no parameter, names more dimensions than there are, or cuts one into unequal parts;
            or there is a tensor axis and no rule uses it.
    """
    rules = rules or {}
    named = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    for pattern in rules:
        if not any(re.search(pattern, name) for name in named):
            raise ConfigError(f"mesh.rules: {pattern!r} fits no parameter; there are {', '.join(named)}")
    if mesh.shape["tensor"] > 1 and not any("tensor" in axes for axes in rules.values()):
        why = f"got {mesh.shape['tensor']}, and no rule says which dimensions to cut"
        raise ConfigError(f"mesh.tensor: {why}; expected mesh.rules, as {{'up': [null, tensor]}}")

    def placed(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, _spec(path_name(path), leaf.shape, mesh, rules))

    return jax.tree_util.tree_map_with_path(placed, params)


def _spec(
    name: str, shape: tuple[int, ...], mesh: Mesh, rules: Mapping[str, Sequence[str | None]]
) -> PartitionSpec:
    pattern = next((pattern for pattern in rules if re.search(pattern, name)), None)
    axes: list[str | None] = [] if pattern is None else list(rules[pattern])
    axes += [None] * (len(shape) - len(axes))
    cuts = [size % mesh.shape[axis] for axis, size in zip(axes, shape, strict=False) if axis is not None]
    if len(axes) > len(shape) or any(cuts):
        why = f"{pattern!r} cuts {name} of shape {shape} along {axes}"
        wanted = f"at most {len(shape)} axes, each dividing its dimension, of {dict(mesh.shape)}"
        raise ConfigError(f"mesh.rules: {why}; expected {wanted}")
    parts = mesh.shape["fsdp"]
    free = [at for at, axis in enumerate(axes) if axis is None and shape[at] and shape[at] % parts == 0]
    if parts > 1 and free and "fsdp" not in axes:
        axes[max(free, key=lambda at: shape[at])] = "fsdp"
    return PartitionSpec(*axes)
