"""Training over the loader: a loop, its losses, metrics and callbacks; ``pip install 'tokenlake[train]'``.

A model is a pure function ``apply(params, batch)``. A loss gives sums, so that parts of a batch add up; a step makes
parameters of them; the trainer takes steps, and tells callbacks. Model, optimizer, loader and callbacks are saved
together: a run that was killed goes on as if it had not been.

Names load on first use: a configuration can be checked where JAX is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenlake.lazy_names import lazy_names

if TYPE_CHECKING:
    from tokenlake.trainer.callbacks import Callback as Callback
    from tokenlake.trainer.config import TrainingConfig as TrainingConfig
    from tokenlake.trainer.config import load_training_config as load_training_config
    from tokenlake.trainer.losses import Sums as Sums
    from tokenlake.trainer.losses import cross_entropy as cross_entropy
    from tokenlake.trainer.losses import focal as focal
    from tokenlake.trainer.losses import language_model as language_model
    from tokenlake.trainer.losses import over_logits as over_logits
    from tokenlake.trainer.losses import targets_of as targets_of
    from tokenlake.trainer.mesh import batch_sharding as batch_sharding
    from tokenlake.trainer.mesh import make_mesh as make_mesh
    from tokenlake.trainer.metrics import TrainingMetrics as TrainingMetrics
    from tokenlake.trainer.optimizers import make_optimizer as make_optimizer
    from tokenlake.trainer.preferences import dpo as dpo
    from tokenlake.trainer.preferences import kto as kto
    from tokenlake.trainer.preferences import orpo as orpo
    from tokenlake.trainer.schedules import make_schedule as make_schedule
    from tokenlake.trainer.trainer import Trainer as Trainer

_HOMES: Final = {
    "Callback": "callbacks",
    "Sums": "losses",
    "Trainer": "trainer",
    "TrainingConfig": "config",
    "TrainingMetrics": "metrics",
    "load_training_config": "config",
    "make_optimizer": "optimizers",
    "make_schedule": "schedules",
    **dict.fromkeys(("batch_sharding", "make_mesh"), "mesh"),
    **dict.fromkeys(("cross_entropy", "focal", "language_model", "over_logits", "targets_of"), "losses"),
    **dict.fromkeys(("dpo", "kto", "orpo"), "preferences"),
}
"""Each public name and the module that defines it."""

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


__getattr__ = lazy_names(__name__, _HOMES, "train")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
