"""The optimizer, its weight decay and its learning-rate schedule."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import optax.contrib

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.runtime.trainer.config import OptimizerConfig, ScheduleConfig
from tokenlake.runtime.trainer.fingerprint import path_name
from tokenlake.runtime.trainer.losses import Params


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer, which clips gradients first if configured so.

    Its ``update`` takes ``obj_fn``, the loss as a function of the parameters: Sophia
    differentiates it twice.

    Args:
        config: Section `optimizer`.
        schedule: Step -> learning rate.

    Raises:
        NotAvailableError: No supported library has the optimizer.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.trainer import make_optimizer, make_schedule
        >>> config = tl.TrainingConfig(optimizer={"name": "adamw", "weight_decay": 0.1})
        >>> optimizer = make_optimizer(config.optimizer, make_schedule(config.schedule, steps=100))
    """
    # Options left out are not passed on: optax has the defaults of the authors.
    options: dict[str, Any] = {}
    for option_name in ("b1", "b2", "eps"):
        option_value = getattr(config, option_name)
        if option_value is not None:
            options[option_name] = option_value
    decay = config.weight_decay
    mask = decayed(config.no_decay)
    optimizer: Any
    match config.name:
        case "adamw":  # Loshchilov and Hutter 2019
            optimizer = optax.adamw(schedule, weight_decay=decay, mask=mask, **options)
        case "lion":  # Chen et al. 2023
            optimizer = optax.lion(schedule, weight_decay=decay, mask=mask, **options)
        # Liu et al. 2023, with Hutchinson's estimate of the curvature every ten steps.
        case "sophia":
            optimizer = optax.contrib.sophia(
                schedule, weight_decay=decay, weight_decay_mask=mask, **options
            )
        # Mishchenko and Defazio 2023; the learning rate is a factor of the one that it
        # finds.
        case "prodigy":
            betas = (options.pop("b1", 0.9), options.pop("b2", 0.999))
            optimizer = optax.contrib.prodigy(
                schedule, betas=betas, weight_decay=decay, **options
            )
        case "adam8bit":
            raise NotAvailableError(
                "optimizer.name: got 'adam8bit', and neither optax nor optax.contrib has an optimizer with 8-bit "
                "states; expected adamw, lion, sophia or prodigy (lion keeps one moment instead of two)",
                field_path="optimizer.name",
            )
    # Clipping comes first, so that the moments are those of clipped gradients.
    if config.clip is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(config.clip), optimizer)
    # All accept `obj_fn`, and only Sophia uses it.
    return optax.with_extra_args_support(optimizer)


def decayed(no_decay: tuple[str, ...]) -> Callable[[Params], Any]:
    """Return the function that says which parameters have weight decay.

    It takes parameters and returns a pytree of bool.

    Args:
        no_decay: Regular expressions; parameters whose path one of them matches have
            none.
    """

    def mask(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(has_decay, params)

    def has_decay(path: tuple[Any, ...], _leaf: Any) -> bool:
        param_name = path_name(path)
        return not any(re.search(pattern, param_name) for pattern in no_decay)

    return mask


def make_schedule(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Return the function from a step, counted from 0, to its learning rate, float32[].

    Args:
        config: Section `schedule`; with a warm-up the peak is reached at step
            ``warmup``.
        steps: Number of steps of the run; the schedule ends there unless the
            configuration names another step.

    Raises:
        ConfigError: The warm-up is longer than the schedule, or there are more cycles
            than steps.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.trainer import make_schedule
        >>> config = tl.TrainingConfig(schedule={"peak": 1e-3, "warmup": 10})
        >>> schedule = make_schedule(config.schedule, steps=100)
        >>> round(float(schedule(10)), 6)
        0.001
    """
    end_step = config.steps or steps
    if config.name != "constant" and config.warmup >= end_step:
        raise ConfigError(
            f"schedule.warmup: got {config.warmup} steps of {end_step}; expected fewer than the schedule has",
            field_path="schedule.warmup",
        )
    fall = _after_warmup(config, end_step - config.warmup)
    if not config.warmup:
        return fall
    rise = optax.linear_schedule(0.0, config.peak, config.warmup)
    return optax.join_schedules([rise, fall], [config.warmup])


def _after_warmup(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Return the part of the schedule after the warm-up.

    Args:
        config: Section `schedule`.
        steps: Number of steps from the end of the warm-up to the end of the schedule.
    """
    peak = config.peak
    floor = config.floor
    match config.name:
        case "constant":
            return optax.constant_schedule(peak)
        case "linear":
            return optax.linear_schedule(peak, peak * floor, steps)
        # Half a cosine (Loshchilov and Hutter 2017, equation 5, without restarts).
        case "cosine":
            return optax.cosine_decay_schedule(peak, steps, alpha=floor)
        case "cosine_restarts":
            return _cosine_restarts(config, steps)
        # Warm-up, stable, decay: the peak, then a line to the floor (Hu et al. 2024,
        # section 4).
        case "wsd":
            decay_steps = max(1, round(steps * config.decay))
            fall = optax.linear_schedule(peak, peak * floor, decay_steps)
            return optax.join_schedules(
                [optax.constant_schedule(peak), fall], [steps - decay_steps]
            )


def _cosine_restarts(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Return half cosines of equal length, each of which begins at the peak.

    They follow equation 5 of the cosine's paper.
    """
    if config.cycles > steps:
        raise ConfigError(
            f"schedule.cycles: got {config.cycles} in {steps} steps; expected at most one for each step",
            field_path="schedule.cycles",
        )
    # Steps are whole numbers: the lengths of two cycles differ by at most one.
    starts = [steps * cycle // config.cycles for cycle in range(config.cycles + 1)]
    half_cosines: list[optax.Schedule] = []
    for start_step, end_step in pairwise(starts):
        cycle_steps = end_step - start_step
        half_cosines.append(
            optax.cosine_decay_schedule(config.peak, cycle_steps, alpha=config.floor)
        )
    return optax.join_schedules(half_cosines, starts[1:-1])
