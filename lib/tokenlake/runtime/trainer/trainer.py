"""The training loop: each batch of the loader is one compiled step.

Callbacks run between steps.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, Self, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from tokenlake.errors import ConfigError, DivergedError
from tokenlake.runtime.loader.state import BatchLoader
from tokenlake.runtime.trainer.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStopping,
)
from tokenlake.runtime.trainer.checkpoints import Checkpoints, Restored, saved_arrays
from tokenlake.runtime.trainer.config import (
    LossConfig,
    TrainingConfig,
    load_training_config,
)
from tokenlake.runtime.trainer.data import make_held_out_loaders, make_loader
from tokenlake.runtime.trainer.fingerprint import ArrayFacts, reference_mark
from tokenlake.runtime.trainer.loaders import (
    check_held_out,
    check_loader,
    from_beginning,
)
from tokenlake.runtime.trainer.logs import JsonlLog, ProgressCallback, TensorBoardLog
from tokenlake.runtime.trainer.losses import (
    Apply,
    DeviceBatch,
    Objective,
    Params,
    Sums,
    language_model,
)
from tokenlake.runtime.trainer.measurements import (
    Meter,
    TrainingMetrics,
    named,
    peak_flops,
)
from tokenlake.runtime.trainer.mesh import (
    batch_sharding,
    make_mesh,
    param_shardings,
    row_sharding,
)
from tokenlake.runtime.trainer.optimizer import make_optimizer, make_schedule
from tokenlake.runtime.trainer.preference_losses import dpo, kto, orpo
from tokenlake.runtime.trainer.step import Means, TrainState, lowered, make_step, means

_WITH_REFERENCE: Final = ("dpo", "kto")
"""Losses that compare the model with reference parameters."""
ConfigSource: TypeAlias = TrainingConfig | Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, a mapping of its keys, or the path of a YAML file."""


def make_objective(config: LossConfig, apply: Apply) -> Objective:
    """Return the objective that section `loss` of a configuration names.

    Args:
        config: Section `loss`.
        apply: Model whose outputs the objective compares with its targets.
    """
    if config.name == "dpo":
        return dpo(
            apply, beta=config.beta, smoothing=config.smoothing, chunk=config.chunk
        )
    if config.name == "orpo":
        return orpo(apply, beta=config.beta, chunk=config.chunk)
    if config.name == "kto":
        return kto(
            apply,
            beta=config.beta,
            desirable=config.desirable,
            undesirable=config.undesirable,
            chunk=config.chunk,
        )
    # Cross-entropy is the focal loss with an exponent of 0.
    gamma = 0.0
    if config.name == "focal":
        gamma = config.gamma
    return language_model(apply, gamma=gamma, z_loss=config.z_loss, chunk=config.chunk)


@final
class Trainer:
    """A training run.

    Each batch of the loader is one step. If the checkpoint folder holds checkpoints,
    the run resumes from the newest one: loader, optimizer and callbacks continue where
    they were, and the steps are those of an uninterrupted run. A damaged checkpoint is
    named in a warning, and the run resumes from the newest one that is not damaged.

    Args:
        apply: Model, a pure function of parameters and a batch. It returns logits (B,
            T, V), or hidden states (B, T, D) and a head (D, V), from which logits are
            computed in chunks.
        params: Pytree of the initial parameters; they are copied. A resumed run needs
            the same ones: their shapes are compared, and the reference may be made of
            them.
        loader: Loader of global batches, sharded by
            :func:`~tokenlake.runtime.trainer.mesh.batch_sharding`, or of numpy batches.
            Fields that are not numbers are left out. ``tl.AsyncDataLoader(source,
            batch_size)`` makes a loader of any source or mixture of rows.
        config: Configuration, mapping of its keys, or path of a YAML file. Its `data`
            and `evaluation.sets` are used by :meth:`from_config` only.
        evaluation: Tag -> loader of a held-out set, of the same kinds as `loader`. Each
            evaluation begins at its first batch.
        objective: Objective that is minimized instead of ``config.loss``.
        reference: Parameters that DPO and KTO compare with; None: the initial ones.
        callbacks: Callbacks that are called before those of the configuration.

    Raises:
        ConfigError: Arguments contradict each other, or the checkpoint is of another
            run; the message says which.
        IntegrityError: There are checkpoints, and all of them are damaged.

    Example:
        >>> import jax
        >>> import tokenlake as tl
        >>> def apply(params, batch):
        ...     return params["embed"][batch["input_ids"]] @ params["embed"].T
        >>> params = {"embed": 0.02 * jax.random.normal(jax.random.key(0), (600, 8))}
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8, seed=0)
        >>> config = {"steps": 2, "schedule": {"peak": 1e-3}}
        >>> metrics = tl.Trainer(apply, params, loader, config).train()
        >>> metrics.step
        2
    """

    def __init__(
        self,
        apply: Apply,
        params: Params,
        loader: BatchLoader,
        config: ConfigSource,
        *,
        evaluation: Mapping[str, BatchLoader] | None = None,
        objective: Objective | None = None,
        reference: Params | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        config = load_training_config(config)
        self.config = config
        self.loader = loader

        # The devices, and the batches that are cut over them.
        self.mesh = make_mesh(config.mesh)
        self._rows = batch_sharding(self.mesh)
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        row_parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        check_loader(
            "loader",
            loader,
            row_parts,
            accumulate=config.accumulate,
            batches=config.steps,
        )
        self.evaluation = check_held_out(
            evaluation or {}, loader, row_parts, config.evaluation.batches
        )
        self._beginnings = {
            tag: held_out.get_state() for tag, held_out in self.evaluation.items()
        }
        self.steps = _total_steps(config, loader)

        # The state on the devices.
        schedule = make_schedule(config.schedule, self.steps)
        optimizer = make_optimizer(config.optimizer, schedule)
        self.state = self._first_state(params, optimizer)
        # Some models keep infinities among their parameters, such as an attention mask.
        self._unbounded = _not_finite(saved_arrays(self.state))
        if reference is None and config.loss.name in _WITH_REFERENCE:
            reference = params
        self._reference: Params | None = None
        self._reference_mark: str | None = None
        if reference is not None:
            self._reference = self._copied(reference)
            self._reference_mark = reference_mark(self._reference)

        # The compiled functions. Shardings of the state are given, because the
        # partitioner could choose others after the first step.
        self._objective = lowered(
            objective or make_objective(config.loss, apply), config.precision
        )
        step_function = make_step(
            self._objective,
            optimizer,
            schedule,
            accumulate=config.accumulate,
            ema=config.log.ema,
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        self._step = jax.jit(
            step_function, donate_argnums=0, out_shardings=(shardings, self._everywhere)
        )
        self._evaluate = jax.jit(self._objective)

        # Measurements and callbacks.
        flops_per_token = _flops_per_token(config, self.params)
        self._meter = Meter(
            flops_per_token, peak_flops(config.log.peak_flops, config.precision)
        )
        self._callbacks = (*callbacks, *self._configured_callbacks())
        self._hooks = _hooks_of(self._callbacks)
        self.metrics: TrainingMetrics | None = None

        # The position of the run, which a checkpoint replaces.
        self.step = 0
        self.stopped = ""
        self._stops = False
        self._checkpoints = _checkpoints_of(config)
        if self._checkpoints is not None and self._checkpoints.latest is not None:
            self._resume(self._checkpoints)

    @classmethod
    def from_config(
        cls, config: ConfigSource, apply: Apply, params: Params, **options: Any
    ) -> Self:
        """Return a trainer that opens the data that its configuration names.

        It opens the held-out sets, too.

        Args:
            config: Configuration with section `data`, mapping of its keys, or path of a
                YAML file.
            apply: Model, as for :class:`Trainer`.
            params: Initial parameters, as for :class:`Trainer`.
            options: Other keyword arguments of :class:`Trainer`.

        Raises:
            ConfigError: Section `data` is missing; or as for :class:`Trainer`.
        """
        config = load_training_config(config)
        sharding = batch_sharding(make_mesh(config.mesh))
        loader = make_loader(config, sharding)
        evaluation = make_held_out_loaders(config, sharding)
        return cls(apply, params, loader, config, evaluation=evaluation, **options)

    @property
    def params(self) -> Params:
        """The current parameters; the next step reuses their memory."""
        return self.state.params

    def stop(self, reason: str = "") -> None:
        """End the run after this step.

        Args:
            reason: Reason, kept in :attr:`stopped`; without one, that says that no
                reason was given.
        """
        self._stops = True
        self.stopped = "no reason was given"
        # A callback that is not type-checked may pass None, or a value with no text.
        if reason is not None and str(reason).strip():  # pyright: ignore[reportUnnecessaryComparison]
            self.stopped = str(reason)

    def train(self) -> TrainingMetrics | None:
        """Take the remaining steps.

        Returns:
            The last measurement, which may be of an earlier process whose checkpoint
            this run resumed from; None if nothing was ever measured.

        Raises:
            DivergedError: A loss, a gradient or a parameter is not finite. This is
                checked at each measurement, evaluation and checkpoint, and at the end;
                the error names the first step with such a value.
        """
        self._tell("on_train_begin")
        first_step = self.step
        try:
            self._train_passes()
            if self.step > first_step:
                self._check_end()
            self._tell("on_train_end")
        finally:
            # Also after an error: the threads of the loader end, and a checkpoint that
            # is being written is finished.
            self.loader.close()
            if self._checkpoints is not None:
                self._checkpoints.wait()
        return self.metrics

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the held-out sets: tag -> name -> value.

        The values are means over all targets: loss, perplexity, accuracy, ...
        """
        return {
            tag: self._evaluate_set(tag, loader)
            for tag, loader in self.evaluation.items()
        }

    def save(self) -> None:
        """Write a checkpoint in the background, unless the step has one already.

        A run without a folder for checkpoints writes none.

        Raises:
            DivergedError: A loss, a gradient or an array is not finite. Nothing is
                written, so that no good checkpoint is deleted in favour of a bad one.
        """
        if self._checkpoints is None:
            return
        # The time of a checkpoint is not that of training.
        with self._meter.left_out():
            self._check_steps(jax.device_get(self.state.bad_steps))
            # The end of a run may be a step that was saved already.
            if self._checkpoints.holds(self.step):
                return
            arrays = saved_arrays(self.state)
            self._check_arrays(arrays)
            self._checkpoints.save(self.state, self.loader, self._facts(), arrays)

    @property
    def _is_done(self) -> bool:
        return self._stops or self.step >= self.steps

    # -- the loop

    def _train_passes(self) -> None:
        """Take steps, one pass over the loader after another, until the run is done."""
        # An interrupted run may resume at the very end of a pass, which then has no
        # batch: another pass follows. Only two empty passes in a row mean that there
        # are no batches.
        was_empty = False
        while not self._is_done:
            step_before = self.step
            batches = iter(self.loader)
            epoch = self.loader.epoch
            self._tell("on_epoch_begin", epoch)
            for batch in batches:
                self._take_step(batch)
                if self._is_done:
                    break
            self._tell("on_epoch_end", epoch)
            is_empty = self.step == step_before
            if is_empty and was_empty:
                raise ConfigError(
                    f"the loader has no batch from step {self.step} on; expected enough rows in a pass for a batch, "
                    "or drop_last=False"
                )
            was_empty = is_empty

    def _take_step(self, batch: Mapping[str, Any]) -> None:
        self._tell("on_step_begin")
        is_first = not self._meter.running
        # The new state takes the memory of the old one, which nobody may read any more.
        self.state, measured = self._step(
            self.state, self._reference, self._placed(batch)
        )
        self.step += 1

        # Count the places that the model is given, padding included. A prompt column is
        # left out: the ids of the prompt are in the answers too.
        for column_name, column in batch.items():
            is_prompt = column_name.startswith("prompt")
            if column_name.endswith("input_ids") and not is_prompt:
                self._meter.add(column.size)
        if is_first:
            # Rates are measured from the end of compilation on.
            jax.block_until_ready(measured)
            self._meter.start()

        # Both wait for the devices, and are therefore not done at every step. The last
        # step always has them, so that a run ends with its figures.
        is_last = self.step == self.steps
        is_log_due = is_last or self.step % self.config.log.every == 0
        is_evaluation_due = is_last or self.step % self.config.evaluation.every == 0
        if is_log_due:
            self._log(measured)
        if self.evaluation and is_evaluation_due:
            with self._meter.left_out():
                self._check_steps(jax.device_get(self.state.bad_steps))
                self._tell("on_evaluate", self.evaluate())
        self._tell("on_step_end")

    def _placed(self, batch: Mapping[str, Any]) -> DeviceBatch:
        """Return a batch on the devices of the mesh.

        Fields that are not numbers are left out.
        """
        devices = self._rows.device_set
        placed: dict[str, jax.Array] = {}
        for field_name, field in batch.items():
            # A loader with a sharding has put its columns there already.
            if isinstance(field, jax.Array) and field.sharding.device_set == devices:
                placed[field_name] = field
            elif isinstance(field, np.ndarray | jax.Array):
                placed[field_name] = self._cut_over_devices(field_name, field)
        return placed

    def _cut_over_devices(self, name: str, value: np.ndarray | jax.Array) -> jax.Array:
        """Return a field with its rows cut over the devices."""
        parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        if not value.ndim or not value.shape[0] or value.shape[0] % parts:
            raise ConfigError(
                f"step {self.step + 1}: {name} has shape {value.shape}, whose rows cannot be cut over {parts} devices; "
                f"expected a multiple of {parts} rows: give the loader drop_last=True, or a sharding of "
                "tokenlake.trainer.batch_sharding"
            )
        # One value for each row, such as a label, has no ids that `context` could cut.
        if value.ndim == 1:
            return jax.device_put(value, row_sharding(self.mesh))
        return jax.device_put(value, self._rows)

    def _log(self, measured: Means) -> None:
        # All numbers are read at once: each transfer waits for the devices.
        numbers, bad_steps = jax.device_get((measured, self.state.bad_steps))
        self._check_steps(bad_steps)
        means_by_name = {name: float(number) for name, number in numbers.items()}
        metrics = named(means_by_name) | self._meter.rates()

        # Numbers that TrainingMetrics has no attribute for are the objective's own.
        known_metrics: dict[str, float] = {}
        other_metrics: dict[str, float] = {}
        for metric_name, number in metrics.items():
            if metric_name in _MEASURED:
                known_metrics[metric_name] = number
            else:
                other_metrics[metric_name] = number
        self.metrics = TrainingMetrics(
            step=self.step, **known_metrics, others=other_metrics
        )
        self._tell("on_log", self.metrics)

    def _evaluate_set(self, tag: str, loader: BatchLoader) -> dict[str, float]:
        """Return the metrics of a held-out set.

        They are means over the targets of its batches.
        """
        # The sums of batches add up on the devices, and only the means are read.
        total: Sums | None = None
        for count, batch in enumerate(from_beginning(loader, self._beginnings[tag]), 1):
            sums = self._evaluate(self.params, self._placed(batch), self._reference)
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            if count == self.config.evaluation.batches:
                break
        # `evaluation.batches` may end the pass early, while threads read ahead.
        loader.close()
        if total is None:
            raise ConfigError(
                f"evaluation: the set {tag!r} has no batch; expected one row at least"
            )
        numbers = jax.device_get(means(total))
        return named({name: float(number) for name, number in numbers.items()})

    # -- numbers that are not finite

    def _check_end(self) -> None:
        """Check the last step and its parameters.

        Where there are checkpoints, saving checked the parameters.
        """
        self._check_steps(jax.device_get(self.state.bad_steps))
        if self._checkpoints is None:
            self._check_arrays(saved_arrays(self.state))

    def _check_steps(self, bad_steps: np.ndarray) -> None:
        """Raise DivergedError if a step was not finite.

        Its loss and its gradient norm are checked.
        """
        # Steps count from 1 here: 0 means that all numbers were finite. The earlier of
        # both steps is the cause, the other one its consequence.
        loss_step = int(bad_steps[0])
        gradient_step = int(bad_steps[1])
        if not loss_step and not gradient_step:
            return
        if loss_step and (not gradient_step or loss_step <= gradient_step):
            raise self._diverged(loss_step, "the loss was not finite")
        raise self._diverged(
            gradient_step, "the norm of the gradient was not finite, while the loss was"
        )

    def _check_arrays(self, arrays: Mapping[str, ArrayFacts]) -> None:
        """Raise DivergedError if a parameter or a moment is not finite.

        An array that was not finite at the start may stay so.
        """
        array_names = sorted(_not_finite(arrays) - self._unbounded)
        if not array_names:
            return
        arrays_named = array_names[0]
        if len(array_names) > 1:
            arrays_named = f"{array_names[0]} and {len(array_names) - 1} more"
        raise self._diverged(
            self.step,
            f"{arrays_named} is not finite after it, while loss and gradient were",
        )

    def _diverged(self, step: int, problem: str) -> DivergedError:
        """Return the error of a step with a number that is not finite."""
        newest_checkpoint = ""
        if self._checkpoints is not None and self._checkpoints.latest is not None:
            newest_checkpoint = (
                f"; the checkpoint of step {self._checkpoints.latest} is the newest"
            )
        return DivergedError(
            f"step {step}: {problem}{newest_checkpoint}. Possible causes are ids beyond the model's vocabulary, a "
            "learning rate that is too high, and a division by 0 or a square root of 0 in the model: check the ids "
            "and the model, lower schedule.peak, set optimizer.clip",
            step=step,
        )

    def _tell(self, hook: str, *facts: Any) -> None:
        """Call a hook of all callbacks that define it."""
        for listener in self._hooks[hook]:
            listener(self, *facts)

    # -- the parts of a run

    def _first_state(
        self, params: Params, optimizer: optax.GradientTransformationExtraArgs
    ) -> TrainState:
        """Return the state before the first step, on the devices of the mesh."""
        # The optimizer makes its moments of parameters that are in their places, so
        # that they lie beside these.
        placed_params = self._copied(params)
        return TrainState(
            step=self._put_everywhere(jnp.zeros((), jnp.int32)),
            params=placed_params,
            optimizer=jax.tree.map(
                self._placed_moment, _copied(optimizer.init(placed_params))
            ),
            loss_ema=self._put_everywhere(jnp.zeros((), jnp.float32)),
            bad_steps=self._put_everywhere(jnp.zeros(2, jnp.int32)),
        )

    def _copied(self, params: Params) -> Params:
        """Return copies of parameters, cut over the devices as the mesh rules say."""
        shardings = param_shardings(params, self.mesh, self.config.mesh.rules)
        return _copied(jax.device_put(params, shardings))

    def _put_everywhere(self, leaf: jax.Array) -> jax.Array:
        return jax.device_put(leaf, self._everywhere)

    def _placed_moment(self, leaf: jax.Array) -> jax.Array:
        """Return an array of the optimizer in its place.

        A moment lies where its parameter does. An array that belongs to no parameter,
        such as a count, lies on all devices.
        """
        if isinstance(leaf.sharding, NamedSharding):
            return leaf
        return self._put_everywhere(leaf)

    def _configured_callbacks(self) -> list[Callback]:
        """Return the callbacks that the configuration asks for.

        Only the first process writes logs.
        """
        config = self.config
        callbacks: list[Callback] = []
        if config.early_stopping is not None:
            tag = config.early_stopping.tag
            if tag not in self.evaluation:
                tags = ", ".join(self.evaluation) or "there are none"
                raise ConfigError(
                    f"early_stopping.tag: got {tag!r}, expected the tag of a held-out set: {tags}"
                )
            callbacks.append(EarlyStopping(config.early_stopping))
        if jax.process_index() == 0:
            if config.log.progress:
                callbacks.append(ProgressCallback())
            if config.log.jsonl is not None:
                callbacks.append(JsonlLog(config.log.jsonl))
            if config.log.tensorboard is not None:
                callbacks.append(TensorBoardLog(config.log.tensorboard))
        # It comes last: a checkpoint has the states of the others after its step.
        if config.checkpoint.folder is not None:
            callbacks.append(CheckpointCallback(config.checkpoint.every))
        return callbacks

    # -- checkpoints

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Continue from the newest checkpoint that is not damaged."""
        restored = checkpoints.restore(self.state, self.loader, self._check_same_run)
        if restored.damaged and jax.process_index() == 0:
            _warn_of_damage(checkpoints.folder, restored)
        self.state = restored.state
        self.step = restored.step
        metrics = restored.facts.get("metrics")
        if metrics is not None:
            self.metrics = TrainingMetrics(**metrics)
        # A callback that the earlier run did not have begins without a state.
        states = restored.facts["callbacks"]
        for callback_name, callback in self._named_callbacks():
            if callback_name in states:
                callback.set_state(states[callback_name])

    def _check_same_run(self, step: int, facts: Mapping[str, Any]) -> None:
        """Raise ConfigError if the facts of a checkpoint are those of another run."""
        # Every option that differs is named, so that one attempt is enough to fix all.
        recorded = facts["run"]
        problems: list[str] = []
        for option_name, option_value in self._run_facts().items():
            recorded_value = recorded.get(option_name)
            if recorded_value != option_value:
                problems.append(
                    f"{option_name} is {json.dumps(recorded_value)} there and {json.dumps(option_value)} here"
                )
        if problems:
            assert self._checkpoints is not None
            raise ConfigError(
                f"{self._checkpoints.folder}: the checkpoint of step {step} belongs to another run: "
                f"{'; '.join(problems)}; expected the same, or another folder",
                differs=problems,
            )

    def _facts(self) -> dict[str, Any]:
        """Return the facts of a checkpoint.

        They are the identity of the run, the states of callbacks, and the last
        measurement.
        """
        # Most callbacks have no state, and no entry.
        states: dict[str, Any] = {}
        for callback_name, callback in self._named_callbacks():
            state = callback.get_state()
            if state:
                states[callback_name] = state
        metrics = None
        if self.metrics is not None:
            metrics = asdict(self.metrics)
        return {"run": self._run_facts(), "callbacks": states, "metrics": metrics}

    def _run_facts(self) -> dict[str, Any]:
        """Return the options that decide the numbers of a run.

        Only a run with the same ones may resume it.
        """
        # A schedule without an end of its own ends with the run, whose length decides
        # its rates.
        schedule = self.config.schedule.acting
        if "steps" in schedule:
            schedule["steps"] = self.config.schedule.steps or self.steps
        return {
            "loss": self.config.loss.acting,
            "optimizer": self.config.optimizer.acting,
            "schedule": schedule,
            "reference": self._reference_mark,
        }

    def _named_callbacks(self) -> list[tuple[str, Callback]]:
        """Return the callbacks with names that they also have in a resumed run.

        A name is the class and the number of earlier callbacks of that class, such as
        ``EarlyStopping-0``.
        """
        counts: dict[str, int] = {}
        callbacks: list[tuple[str, Callback]] = []
        for callback in self._callbacks:
            class_name = type(callback).__name__
            count = counts.get(class_name, 0)
            counts[class_name] = count + 1
            callbacks.append((f"{class_name}-{count}", callback))
        return callbacks


_MEASURED: Final = frozenset(TrainingMetrics.__dataclass_fields__) - {"step", "others"}
"""Measurements that TrainingMetrics has an attribute for."""


def _total_steps(config: TrainingConfig, loader: BatchLoader) -> int:
    """Return the number of steps of the whole run.

    It is the configured one, or that of the loader.
    """
    if config.steps is not None:
        return config.steps
    try:
        return len(loader)
    except TypeError:
        raise ConfigError(
            "steps: got none, and the loader never ends, or its length is unknown; expected steps, or data with "
            "epochs"
        ) from None


def _flops_per_token(config: TrainingConfig, params: Params) -> float:
    """Return the FLOPs of a step per token.

    It is the configured number, or 6 per parameter (Kaplan et al. 2020).
    """
    if config.log.flops_per_token is not None:
        return config.log.flops_per_token
    # Two for each parameter in the forward pass, and four in the backward pass.
    return 6.0 * sum(leaf.size for leaf in jax.tree.leaves(params))


def _checkpoints_of(config: TrainingConfig) -> Checkpoints | None:
    """Return the checkpoints in the configured folder; None without a folder."""
    if config.checkpoint.folder is None:
        return None
    return Checkpoints(config.checkpoint.folder, config.checkpoint.keep)


def _hooks_of(callbacks: Iterable[Callback]) -> dict[str, list[Callable[..., None]]]:
    """Return hook -> methods of the callbacks that define it.

    Hooks of the base class do nothing and are left out.
    """
    hooks: dict[str, list[Callable[..., None]]] = {}
    for hook_name, base_method in vars(Callback).items():
        if hook_name.startswith("on_"):
            hooks[hook_name] = [
                getattr(callback, hook_name)
                for callback in callbacks
                if getattr(type(callback), hook_name) is not base_method
            ]
    return hooks


def _copied(tree: Params) -> Params:
    """Return copies of arrays, for a compiled step.

    The step reuses the memory of its state, so nobody else may hold it.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def _not_finite(arrays: Mapping[str, ArrayFacts]) -> frozenset[str]:
    """Return the names of arrays that hold NaN or infinities."""
    return frozenset(name for name, facts in arrays.items() if not facts.is_finite)


def _warn_of_damage(folder: str, restored: Restored) -> None:
    """Warn of damaged checkpoints, and say from which step the run resumes."""
    steps = " and ".join(map(str, restored.damaged))
    reasons = "; ".join(restored.damaged.values())
    warnings.warn(
        f"{folder}: {reasons}. The run resumes from step {restored.step}; the damaged checkpoints (step {steps}) are "
        "deleted when it writes its next one",
        RuntimeWarning,
        stacklevel=4,
    )
