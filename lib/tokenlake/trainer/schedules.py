"""Learning rates: from the section `schedule` to a function of the step, as optax takes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import optax

from tokenlake.errors import ConfigError
from tokenlake.trainer.config import ScheduleConfig


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
