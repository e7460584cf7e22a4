"""Callbacks of training: eight hooks. Callbacks are called in their order.

Example::

    class Cheer(Callback):
        def on_evaluate(self, run, results):
            print(run.step, results["held-out"]["perplexity"])

Each step calls ``on_step_begin`` first, and afterwards ``on_log`` and ``on_evaluate``
if they are due, and ``on_step_end`` last: a checkpoint that is saved there includes the
state of the callbacks after that step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, final

from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer.config import EarlyStoppingConfig
from tokenlake.runtime.trainer.measurements import TrainingMetrics

Results: TypeAlias = Mapping[str, Mapping[str, float]]
"""Tag of a held-out set -> name -> value: loss, perplexity, accuracy, ..."""


class TrainingRun(Protocol):
    """Interface of a training run for its callbacks."""

    @property
    def step(self) -> int:
        """Steps taken so far."""
        ...

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    def stop(self, reason: str = "") -> None:
        """End the run after this step.

        ``stopped`` of the run keeps the reason, or says that none was given.
        """

    def save(self) -> None:
        """Write a checkpoint, unless the step has one already.

        A run without a folder for checkpoints writes none.
        """


class Callback:
    """Base class of callbacks; its hooks do nothing.

    Example:
        >>> import tokenlake as tl
        >>> class PrintLoss(tl.Callback):
        ...     def on_log(self, run, metrics):
        ...         print(metrics.step, metrics.loss)
    """

    def on_train_begin(self, run: TrainingRun) -> None:
        """Called before the first step of this process.

        A resumed run has earlier steps.
        """

    def on_train_end(self, run: TrainingRun) -> None:
        """Called after the last step."""

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        """Called before the first batch of a pass over the data.

        An endless loader has one pass.
        """

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        """Called after the last batch of a pass over the data."""

    def on_step_begin(self, run: TrainingRun) -> None:
        """Called before a step; ``run.step`` steps were taken."""

    def on_step_end(self, run: TrainingRun) -> None:
        """Called after a step was started; the devices may still be computing it."""

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        """Called every ``log.every`` steps, and at the last one."""

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        """Called after an evaluation, if there are held-out sets.

        There is one every ``evaluation.every`` steps, and at the last step.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the state that a resumed run restores, as JSON values."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that :meth:`get_state` returned."""


@final
class CheckpointCallback(Callback):
    """Saves a checkpoint at regular steps, and at the end.

    Args:
        every: Number of steps between checkpoints.
    """

    def __init__(self, every: int) -> None:
        self._every = every

    def on_step_end(self, run: TrainingRun) -> None:
        if run.step % self._every == 0:
            run.save()

    def on_train_end(self, run: TrainingRun) -> None:
        # The last step need not be a multiple of `every`.
        run.save()


@final
class EarlyStopping(Callback):
    """Ends a run when a held-out metric has not fallen for some evaluations.

    Args:
        config: Metric, patience and smallest gain.
    """

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        # The first evaluation is always a gain.
        self.best = math.inf
        self.waited = 0

    def on_train_begin(self, run: TrainingRun) -> None:
        # A resumed run may have waited long enough before it was interrupted.
        self._check(run)

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        # Objectives have metrics of their own: a wrong name shows only now.
        tag = self._config.tag
        metric = self._config.metric
        if metric not in results.get(tag, {}):
            evaluated = [
                f"{name}: {', '.join(values)}" for name, values in results.items()
            ]
            raise ConfigError(
                f"early_stopping: got {metric} of {tag}, which is not evaluated; expected one of {', '.join(evaluated)}"
            )
        # Not falling by at least `min_delta` is no gain.
        metric_value = results[tag][metric]
        if metric_value < self.best - self._config.min_delta:
            self.best = metric_value
            self.waited = 0
        else:
            self.waited += 1
        self._check(run)

    def get_state(self) -> dict[str, Any]:
        # JSON has no infinity.
        best = None
        if math.isfinite(self.best):
            best = self.best
        return {"best": best, "waited": self.waited}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.best = math.inf
        if state["best"] is not None:
            self.best = float(state["best"])
        self.waited = int(state["waited"])

    def _check(self, run: TrainingRun) -> None:
        """End the run if it has waited long enough."""
        if self.waited >= self._config.patience:
            metric = f"{self._config.metric} of {self._config.tag}"
            run.stop(
                f"{metric} has not fallen below {self.best:.6g} for {self.waited} evaluations"
            )
