"""Optimizers and learning rates: from the sections `optimizer` and `schedule` to what optax takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

import jax
import optax
import optax.contrib

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.trainer.config import OptimizerConfig, ScheduleConfig
from tokenlake.trainer.losses import Params


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer, behind the clipping of gradients where that is asked for.

    Its ``update`` takes ``obj_fn``, the loss as a function of the parameters: Sophia differentiates it twice.

    Raises:
        NotAvailableError: no library that is known here has it.
    """
    options = {name: value for name in ("b1", "b2", "eps") if (value := getattr(config, name)) is not None}
    made = _MAKERS[config.name](config, schedule, options)
    clipped = made if config.clip is None else optax.chain(optax.clip_by_global_norm(config.clip), made)
    return optax.with_extra_args_support(clipped)


def decayed(no_decay: tuple[str, ...]) -> Callable[[Params], Any]:
    """Return the function from parameters to a pytree of bool: which of them have weight decay."""

    def mask(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: not any(re.search(pattern, path_name(path)) for pattern in no_decay), params
        )

    return mask


def path_name(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as text: ``layers/norm_1``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


_Options: TypeAlias = Mapping[str, Any]


def _adamw(config: OptimizerConfig, schedule: optax.Schedule, options: _Options) -> Any:
    """Loshchilov and Hutter 2019."""
    return optax.adamw(schedule, weight_decay=config.weight_decay, mask=decayed(config.no_decay), **options)


def _lion(config: OptimizerConfig, schedule: optax.Schedule, options: _Options) -> Any:
    """Chen et al. 2023."""
    return optax.lion(schedule, weight_decay=config.weight_decay, mask=decayed(config.no_decay), **options)


def _sophia(config: OptimizerConfig, schedule: optax.Schedule, options: _Options) -> Any:
    """Liu et al. 2023, with Hutchinson's estimate of the curvature every ten steps."""
    return optax.contrib.sophia(
        schedule, weight_decay=config.weight_decay, weight_decay_mask=decayed(config.no_decay), **options
    )


def _prodigy(config: OptimizerConfig, schedule: optax.Schedule, options: _Options) -> Any:
    """Mishchenko and Defazio 2023; the learning rate is a factor of the one that it finds."""
    betas = options.get("b1", 0.9), options.get("b2", 0.999)
    others = {name: value for name, value in options.items() if name == "eps"}
    return optax.contrib.prodigy(schedule, betas=betas, weight_decay=config.weight_decay, **others)


def _adam8bit(config: OptimizerConfig, schedule: optax.Schedule, options: _Options) -> Any:
    raise NotAvailableError(
        "optimizer.name: got 'adam8bit', and neither optax nor optax.contrib has an optimizer with 8-bit states; "
        "expected adamw, lion, sophia or prodigy (lion keeps one moment instead of two)",
        field_path="optimizer.name",
    )


_MAKERS: Final[dict[str, Callable[[OptimizerConfig, optax.Schedule, _Options], Any]]] = {
    "adamw": _adamw,
    "lion": _lion,
    "sophia": _sophia,
    "prodigy": _prodigy,
    "adam8bit": _adam8bit,
}


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
        raise ConfigError(
            f"schedule.warmup: got {config.warmup} steps of {end}; expected fewer than the schedule has",
            field_path="schedule.warmup",
        )
    fall = _FALLS[config.name](config, end - config.warmup)
    if not config.warmup:
        return fall
    rise = optax.linear_schedule(0.0, config.peak, config.warmup)
    return optax.join_schedules([rise, fall], [config.warmup])


def _constant(config: ScheduleConfig, steps: int) -> optax.Schedule:
    return optax.constant_schedule(config.peak)


def _linear(config: ScheduleConfig, steps: int) -> optax.Schedule:
    return optax.linear_schedule(config.peak, config.peak * config.floor, steps)


def _cosine(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Half a cosine from the peak to the floor (Loshchilov and Hutter 2017, equation 5, without restarts)."""
    return optax.cosine_decay_schedule(config.peak, steps, alpha=config.floor)


def _cosine_restarts(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """As many equal half cosines, each from the peak on (equation 5 there)."""
    if config.cycles > steps:
        raise ConfigError(
            f"schedule.cycles: got {config.cycles} in {steps} steps; expected at most one for each step",
            field_path="schedule.cycles",
        )
    starts = [steps * cycle // config.cycles for cycle in range(config.cycles + 1)]
    cycles = [_cosine(config, after - before) for before, after in pairwise(starts)]
    return optax.join_schedules(cycles, starts[1:-1])


def _wsd(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """Warm-up, stable, decay: the peak, and then a line to the floor (Hu et al. 2024, section 4)."""
    decay = max(1, round(steps * config.decay))
    return optax.join_schedules([_constant(config, steps), _linear(config, decay)], [steps - decay])


_FALLS: Final[dict[str, Callable[[ScheduleConfig, int], optax.Schedule]]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_restarts": _cosine_restarts,
    "wsd": _wsd,
}
"""Name -> what comes after the warm-up, from how many steps that has."""
