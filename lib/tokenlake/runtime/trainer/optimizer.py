"""The optimizer, its weight decay and its learning-rate schedule."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import jax
import optax.contrib

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.runtime.trainer.config import OptimizerConfig, ScheduleConfig
from tokenlake.runtime.trainer.fingerprint import path_name
from tokenlake.runtime.trainer.losses import Params


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
