"""Callbacks of training: eight hooks, called in the order of the callbacks.

Example::

    class Cheer(Callback):
        def on_evaluate(self, run, results):
            print(run.step, results["held-out"]["perplexity"])

A step calls ``on_step_begin``; after it ``on_log`` and ``on_evaluate`` where they are due; then ``on_step_end``, so
that a checkpoint made there includes the state of the callbacks after that step.
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
    """What a callback may see and do."""

    @property
    def step(self) -> int:
        """Steps taken so far."""
        ...

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    def stop(self, reason: str = "") -> None:
        """End the run after this step, whatever the reason; without one, ``stopped`` says that none was given."""

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder for them and none of this step."""


class Callback:
    """A base whose hooks do nothing."""

    def on_train_begin(self, run: TrainingRun) -> None:
        """Before the first step of this process, which need not be the run's first."""

    def on_train_end(self, run: TrainingRun) -> None:
        """After the last step."""

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        """Before the first batch of a pass of the loader; of a pass without end, once."""

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        """After the last batch of a pass of the loader."""

    def on_step_begin(self, run: TrainingRun) -> None:
        """Before a step; ``run.step`` were taken."""

    def on_step_end(self, run: TrainingRun) -> None:
        """After a step, which the devices may still be at."""

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        """Every ``log.every`` steps, and at the last one."""

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        """Every ``evaluation.every`` steps, and at the last one, if there are held-out sets."""

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run must know of this callback, JSON-able."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`get_state` gave."""


@final
class CheckpointCallback(Callback):
    """Saves every so many steps, and at the end.

    Args:
        every: steps.
    """

    def __init__(self, every: int) -> None:
        self._every = every

    def on_step_end(self, run: TrainingRun) -> None:
        if run.step % self._every == 0:
            run.save()

    def on_train_end(self, run: TrainingRun) -> None:
        run.save()


@final
class EarlyStopping(Callback):
    """Ends a run when a held-out metric has not fallen for some evaluations.

    Args:
        config: which metric, and how patiently.
    """

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self.best, self.waited = math.inf, 0

    def on_train_begin(self, run: TrainingRun) -> None:
        self._check(run)

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        tag, metric = self._config.tag, self._config.metric
        if metric not in results.get(tag, {}):
            known = ", ".join(f"{tag}: {', '.join(names)}" for tag, names in results.items())
            why = f"got {metric} of {tag}, which is not evaluated; expected one of {known}"
            raise ConfigError(f"early_stopping: {why}")
        value = results[tag][metric]
        if value < self.best - self._config.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self._check(run)

    def get_state(self) -> dict[str, Any]:
        # JSON has no infinity.
        return {"best": self.best if math.isfinite(self.best) else None, "waited": self.waited}

    def set_state(self, state: Mapping[str, Any]) -> None:
        best = state["best"]
        self.best, self.waited = math.inf if best is None else float(best), int(state["waited"])

    def _check(self, run: TrainingRun) -> None:
        if self.waited >= self._config.patience:
            metric = f"{self._config.metric} of {self._config.tag}"
            run.stop(f"{metric} has not fallen below {self.best:.6g} for {self.waited} evaluations")
