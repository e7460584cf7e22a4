"""Optimizers: from the section `optimizer` to a transformation of optax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import jax
import optax
import optax.contrib

from tokenlake.errors import NotAvailableError
from tokenlake.trainer.config import OptimizerConfig
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
