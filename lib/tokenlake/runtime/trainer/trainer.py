"""The loop of training: batches of a loader through a compiled step, and callbacks beside it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, Self, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tokenlake.errors import ConfigError, DivergedError
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.loader import DataLoader
from tokenlake.runtime.loader.state import BatchLoader
from tokenlake.runtime.trainer.callbacks import Callback, CheckpointCallback, EarlyStopping
from tokenlake.runtime.trainer.checkpoints import Checkpoints, Restored, saved_arrays
from tokenlake.runtime.trainer.config import (
    EvaluationConfig,
    HeldOutSet,
    LossConfig,
    TrainingConfig,
    TrainingData,
    load_training_config,
)
from tokenlake.runtime.trainer.fingerprint import ArrayFacts, reference_mark
from tokenlake.runtime.trainer.loaders import check_held_out, check_loader, from_beginning
from tokenlake.runtime.trainer.logs import JsonlLog, ProgressCallback, TensorBoardLog
from tokenlake.runtime.trainer.losses import Apply, DeviceBatch, Objective, Params, Sums, language_model
from tokenlake.runtime.trainer.measurements import Meter, TrainingMetrics, named, peak_flops
from tokenlake.runtime.trainer.mesh import batch_sharding, make_mesh, param_shardings
from tokenlake.runtime.trainer.optimizer import make_optimizer, make_schedule
from tokenlake.runtime.trainer.preference_losses import dpo, kto, orpo
from tokenlake.runtime.trainer.step import Means, TrainState, lowered, make_step, means

_COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")
_WITH_REFERENCE: Final = ("dpo", "kto")
ConfigSource: TypeAlias = TrainingConfig | Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, a mapping of its keys, or the path of a YAML file."""


def make_objective(config: LossConfig, apply: Apply) -> Objective:
    """Return what the section `loss` asks for, of a model."""
    if config.name == "dpo":
        return dpo(apply, beta=config.beta, smoothing=config.smoothing, chunk=config.chunk)
    if config.name == "orpo":
        return orpo(apply, beta=config.beta, chunk=config.chunk)
    if config.name == "kto":
        weights = {"desirable": config.desirable, "undesirable": config.undesirable}
        return kto(apply, beta=config.beta, chunk=config.chunk, **weights)
    gamma = config.gamma if config.name == "focal" else 0.0
    return language_model(apply, gamma=gamma, z_loss=config.z_loss, chunk=config.chunk)


@final
class Trainer:
    """A run of training.

    ::

        config = tl.load_training_config("train.yaml")
        trainer = tl.Trainer.from_config(config, apply, params)
        trainer.train()

    A batch of the loader is one step. Where the folder of checkpoints holds some, the run resumes from the newest, with
    the loader, the optimizer and the callbacks where they were: what follows is what would have followed. A damaged
    checkpoint is named in a warning, and the run resumes from the newest one that is not damaged.

    Args:
        apply: the model, a pure function of parameters and a batch; returns logits (B, T, V), or hidden states
            (B, T, D) and a head (D, V), of which logits are made in chunks.
        params: pytree of the first parameters; they are copied. A resumed run needs the same ones (for their shapes,
            and where a reference is made of them).
        loader: global batches, sharded by :func:`~tokenlake.runtime.trainer.mesh.batch_sharding`, or numpy
            ones, whose fields that are no numbers are left out. ``tl.AsyncDataLoader(source, batch_size)``
            makes one of any source or mixture of rows.
        config: a configuration, a mapping of its keys, or the path of a YAML file; `data` and `evaluation.sets` only
            count for :meth:`from_config`.
        evaluation: tag -> loader of a held-out set, of the kinds that `loader` may be. Each evaluation begins at its
            first batch.
        objective: what is minimized, in the place of ``config.loss``.
        reference: parameters that DPO and KTO compare with; None: those of the start.
        callbacks: called before those that the configuration asks for.

    Raises:
        ConfigError: something does not fit together, or the checkpoint is of another run; says what.
        IntegrityError: there are checkpoints, and all of them are damaged.
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
        self.mesh = make_mesh(config.mesh)
        row_parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        check_loader("loader", loader, row_parts, accumulate=config.accumulate, batches=config.steps)
        self.config, self.loader = config, loader
        self.evaluation = check_held_out(evaluation or {}, loader, row_parts, config.evaluation.batches)
        self._beginnings = {tag: held_out.get_state() for tag, held_out in self.evaluation.items()}
        try:
            self.steps = config.steps or len(loader)
        except TypeError:
            why = "got none, and the loader never ends, or does not know where"
            raise ConfigError(f"steps: {why}; expected steps, or data with epochs") from None
        self._rows, self._everywhere = batch_sharding(self.mesh), NamedSharding(self.mesh, PartitionSpec())
        schedule = make_schedule(config.schedule, self.steps)
        optimizer = make_optimizer(config.optimizer, schedule)
        self._objective = lowered(objective or make_objective(config.loss, apply), config.precision)
        step = make_step(
            self._objective, optimizer, schedule, accumulate=config.accumulate, ema=config.log.ema
        )
        placed = self._copied(params)
        kept = jax.tree.map(self._settled, _copied(optimizer.init(placed)))
        self.state = TrainState(
            step=self._put_everywhere(jnp.zeros((), jnp.int32)),
            params=placed,
            optimizer=kept,
            loss_ema=self._put_everywhere(jnp.zeros((), jnp.float32)),
            bad_steps=self._put_everywhere(jnp.zeros(2, jnp.int32)),
        )
        # Some models keep infinities among their parameters, such as an attention mask.
        self._unbounded = _not_finite(saved_arrays(self.state))
        compared = params if reference is None and config.loss.name in _WITH_REFERENCE else reference
        self._reference = None if compared is None else self._copied(compared)
        self._reference_mark = None if self._reference is None else reference_mark(self._reference)
        # Where things lie is said, or the partitioner might choose another place after the first step.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        self._step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, self._everywhere))
        self._evaluate = jax.jit(self._objective)
        flops = config.log.flops_per_token or 6.0 * sum(leaf.size for leaf in jax.tree.leaves(self.params))
        self._meter = Meter(flops, peak_flops(config.log.peak_flops, config.precision))
        self._callbacks = (*callbacks, *self._configured())
        self._hooks = {
            name: [
                getattr(each, name) for each in self._callbacks if getattr(type(each), name) is not nothing
            ]
            for name, nothing in vars(Callback).items()
            if name.startswith("on_")
        }
        self.step = 0
        self._stops, self.stopped = False, ""
        self.metrics: TrainingMetrics | None = None
        self._checkpoints: Checkpoints | None = None
        if config.checkpoint.folder is not None:
            self._checkpoints = Checkpoints(config.checkpoint.folder, config.checkpoint.keep)
            if self._checkpoints.latest is not None:
                self._resume(self._checkpoints)

    @classmethod
    def from_config(cls, config: ConfigSource, apply: Apply, params: Params, **options: Any) -> Self:
        """Return a trainer that opens the data and the held-out sets that its configuration names.

        Args:
            config: a configuration, a mapping of its keys, or the path of a YAML file; with `data`.
            apply: the model.
            params: the first parameters.
            options: the other keyword arguments of :class:`Trainer`.

        Raises:
            ConfigError: as the class, and where `data` is missing.
        """
        config = load_training_config(config)
        if (data := config.data) is None:
            raise ConfigError(
                "data: required, but missing; expected data: {dataset: STORE/NAME, batch_size: 8}"
            )
        batches: dict[str, Any] = {
            "columns": None if config.loss.name in ("dpo", "orpo", "kto") else _COLUMNS,
            "padding": data.padding,
            "sharding": batch_sharding(make_mesh(config.mesh)),
        }
        rows = open_dataset(data.dataset, split=data.split)
        loader = DataLoader(rows, data.batch_size, seed=data.seed, epochs=data.epochs, **batches)
        evaluation: dict[str, DataLoader] = {}
        for tag, each in _sets(config.evaluation, data).items():
            rows = open_dataset(each.dataset, split=each.split)
            size = each.batch_size or BatchSizes.of(data.batch_size).first
            evaluation[tag] = DataLoader(rows, size, shuffle=False, epochs=1, **batches)
        return cls(apply, params, loader, config, evaluation=evaluation, **options)

    @property
    def params(self) -> Params:
        """The parameters now; the next step gives their memory to the next ones."""
        return self.state.params

    def stop(self, reason: str = "") -> None:
        """End the run after this step; :attr:`stopped` keeps the reason, and says so where none was given."""
        self._stops = True
        told = "" if reason is None else str(reason)  # pyright: ignore[reportUnnecessaryComparison]
        self.stopped = told if told.strip() else "no reason was given"

    def train(self) -> TrainingMetrics | None:
        """Take the steps that are left.

        Returns:
            What was measured last, also by an earlier process whose checkpoint this run resumed from; None if nothing
            was ever measured.

        Raises:
            DivergedError: a loss, a gradient or a parameter is not finite. That is checked where something is logged,
                evaluated or saved, and at the end; the error names the first such step.
        """
        self._tell("on_train_begin")
        first_step = self.step
        before = -1
        try:
            while not self._is_done:
                empty, before = self.step == before, self.step
                batches = iter(self.loader)
                epoch = self.loader.epoch
                self._tell("on_epoch_begin", epoch)
                for batch in batches:
                    self._take(batch)
                    if self._is_done:
                        break
                self._tell("on_epoch_end", epoch)
                # A run that goes on at the very end of a pass finds nothing there, and another pass follows.
                if empty and self.step == before:
                    wanted = "expected batches that a pass has rows for, or drop_last=False"
                    raise ConfigError(f"the loader has no batch from step {self.step} on; {wanted}")
            if self.step > first_step:
                self._check_end()
            self._tell("on_train_end")
        finally:
            self.loader.close()
            if self._checkpoints is not None:
                self._checkpoints.wait()
        return self.metrics

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Return what the held-out sets give now: tag -> loss, perplexity, accuracy, ..., means over all targets."""
        return {tag: self._held_out(tag, loader) for tag, loader in self.evaluation.items()}

    def save(self) -> None:
        """Write a checkpoint, in the background; nothing if the run has no folder, or one of this step.

        Raises:
            DivergedError: a loss, a gradient or an array is not finite; a bad checkpoint pushes out no good one.
        """
        if self._checkpoints is None:
            return
        with self._meter.left_out():
            self._check_steps(jax.device_get(self.state.bad_steps))
            if self._checkpoints.holds(self.step):
                return
            arrays = saved_arrays(self.state)
            self._check_arrays(arrays)
            self._checkpoints.save(self.state, self.loader, self._facts(), arrays)

    @property
    def _is_done(self) -> bool:
        return self._stops or self.step >= self.steps

    # -- the loop

    def _take(self, batch: Mapping[str, Any]) -> None:
        self._tell("on_step_begin")
        first = not self._meter.running
        self.state, measured = self._step(self.state, self._reference, self._placed(batch))
        self.step += 1
        # What the model is given, padding too; a prompt that stands alone is in the answers, too.
        ids = (name for name in batch if name.endswith("input_ids") and not name.startswith("prompt"))
        self._meter.add(sum(batch[name].size for name in ids))
        if first:
            # Rates begin when all is compiled.
            jax.block_until_ready(measured)
            self._meter.start()
        last = self.step == self.steps
        if last or self.step % self.config.log.every == 0:
            self._log(measured)
        if self.evaluation and (last or self.step % self.config.evaluation.every == 0):
            with self._meter.left_out():
                self._check_steps(jax.device_get(self.state.bad_steps))
                self._tell("on_evaluate", self.evaluate())
        self._tell("on_step_end")

    def _placed(self, batch: Mapping[str, Any]) -> DeviceBatch:
        """Return a batch on the devices of the mesh; fields that are no numbers are left out."""
        placed: dict[str, jax.Array] = {}
        for name, value in batch.items():
            if isinstance(value, jax.Array) and value.sharding.device_set == self._rows.device_set:
                placed[name] = value
            elif isinstance(value, np.ndarray | jax.Array):
                placed[name] = self._cut_over_devices(name, value)
        return placed

    def _cut_over_devices(self, name: str, value: np.ndarray | jax.Array) -> jax.Array:
        """Return a field with its rows cut over the devices."""
        parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        rows = value.shape[0] if value.ndim else 0
        if not rows or rows % parts:
            raise ConfigError(
                f"step {self.step + 1}: {name} has shape {value.shape}, whose rows cannot be cut over {parts} devices; "
                f"expected a multiple of {parts} rows: give the loader drop_last=True, or a sharding of "
                "tokenlake.trainer.batch_sharding"
            )
        return jax.device_put(value, self._rows)

    def _log(self, measured: Means) -> None:
        numbers, bad_steps = jax.device_get((measured, self.state.bad_steps))
        self._check_steps(bad_steps)
        facts = named({name: float(value) for name, value in numbers.items()}) | self._meter.rates()
        known = {name: facts.pop(name) for name in list(facts) if name in _MEASURED}
        self.metrics = TrainingMetrics(step=self.step, **known, others=facts)
        self._tell("on_log", self.metrics)

    def _held_out(self, tag: str, loader: BatchLoader) -> dict[str, float]:
        total: Sums | None = None
        for count, batch in enumerate(from_beginning(loader, self._beginnings[tag]), 1):
            sums = self._evaluate(self.params, self._placed(batch), self._reference)
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            if count == self.config.evaluation.batches:
                break
        loader.close()
        if total is None:
            raise ConfigError(f"evaluation: the set {tag!r} has no batch; expected one row at least")
        return named({name: float(value) for name, value in jax.device_get(means(total)).items()})

    # -- what is not finite

    def _check_end(self) -> None:
        """Check the last step, and the parameters that it made; a checkpoint checks them by itself."""
        self._check_steps(jax.device_get(self.state.bad_steps))
        if self._checkpoints is None:
            self._check_arrays(saved_arrays(self.state))

    def _check_steps(self, bad_steps: np.ndarray) -> None:
        """Raise DivergedError if the loss or the gradient norm of a step was not finite."""
        loss_step, gradient_step = (int(step) for step in bad_steps)
        steps = [step for step in (loss_step, gradient_step) if step]
        if not steps:
            return
        step = min(steps)
        if step == loss_step:
            what = "the loss was not finite"
        else:
            what = "the norm of the gradient was not finite, while the loss was"
        raise self._diverged(step, what)

    def _check_arrays(self, arrays: Mapping[str, ArrayFacts]) -> None:
        """Raise DivergedError if a parameter or a moment is not finite that was finite at the start."""
        names = sorted(_not_finite(arrays) - self._unbounded)
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            what = f"{names[0]}{more} is not finite after it, while loss and gradient were"
            raise self._diverged(self.step, what)

    def _diverged(self, step: int, what: str) -> DivergedError:
        newest = None if self._checkpoints is None else self._checkpoints.latest
        kept = "" if newest is None else f"; the checkpoint of step {newest} is the newest"
        return DivergedError(
            f"step {step}: {what}{kept}. Ids beyond the model's vocabulary do that, a learning rate that is too high, "
            "and a division by 0 or a square root at 0 in the model: look at the ids and the model, lower "
            "schedule.peak, set optimizer.clip",
            step=step,
        )

    def _tell(self, hook: str, *facts: Any) -> None:
        for listener in self._hooks[hook]:
            listener(self, *facts)

    # -- making a run

    def _copied(self, params: Params) -> Params:
        """Return parameters in their places, of which nobody else has the memory."""
        return _copied(jax.device_put(params, param_shardings(params, self.mesh, self.config.mesh.rules)))

    def _put_everywhere(self, leaf: jax.Array) -> jax.Array:
        return jax.device_put(leaf, self._everywhere)

    def _settled(self, leaf: jax.Array) -> jax.Array:
        """Moments lie where their parameters do; what belongs to none, such as a count, on all devices."""
        return leaf if isinstance(leaf.sharding, NamedSharding) else self._put_everywhere(leaf)

    def _configured(self) -> list[Callback]:
        """The callbacks that the configuration asks for; one process tells of all."""
        config, found = self.config, list[Callback]()
        if (early := config.early_stopping) is not None:
            if early.tag not in self.evaluation:
                known = ", ".join(self.evaluation) or "there are none"
                why = f"got {early.tag!r}, expected the tag of a held-out set: {known}"
                raise ConfigError(f"early_stopping.tag: {why}")
            found.append(EarlyStopping(early))
        if jax.process_index() == 0:
            found += [ProgressCallback()] if config.log.progress else []
            found += [JsonlLog(config.log.jsonl)] if config.log.jsonl is not None else []
            found += [TensorBoardLog(config.log.tensorboard)] if config.log.tensorboard is not None else []
        if config.checkpoint.folder is not None:
            found.append(CheckpointCallback(config.checkpoint.every))
        return found

    # -- checkpoints

    def _resume(self, checkpoints: Checkpoints) -> None:
        restored = checkpoints.restore(self.state, self.loader, self._check_same_run)
        if restored.damaged and jax.process_index() == 0:
            _warn_of_damage(checkpoints.folder, restored)
        self.state = restored.state
        self.step = restored.step
        metrics = restored.facts.get("metrics")
        if metrics is not None:
            self.metrics = TrainingMetrics(**metrics)
        remembered = restored.facts["callbacks"]
        for name, callback in self._remembering():
            if name in remembered:
                callback.set_state(remembered[name])

    def _check_same_run(self, step: int, facts: Mapping[str, Any]) -> None:
        """Raise ConfigError if the facts of a checkpoint are those of another run."""
        there, here = facts["run"], self._facts()["run"]
        problems = [
            f"{name} is {json.dumps(there.get(name))} there and {json.dumps(value)} here"
            for name, value in here.items()
            if there.get(name) != value
        ]
        if problems:
            assert self._checkpoints is not None
            what = f"{self._checkpoints.folder}: the checkpoint of step {step} is of another run"
            told = f"{what}: {'; '.join(problems)}; expected the same, or another folder"
            raise ConfigError(told, differs=problems)

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint holds beside arrays and the loader: which run it is of, and what callbacks remember."""
        config = self.config
        schedule = config.schedule.acting
        if "steps" in schedule:
            schedule["steps"] = config.schedule.steps or self.steps
        run: dict[str, Any] = {
            "loss": config.loss.acting,
            "optimizer": config.optimizer.acting,
            "schedule": schedule,
            "reference": self._reference_mark,
        }
        remembered = {name: callback.get_state() for name, callback in self._remembering()}
        return {
            "run": run,
            "callbacks": {name: state for name, state in remembered.items() if state},
            "metrics": None if self.metrics is None else asdict(self.metrics),
        }

    def _remembering(self) -> list[tuple[str, Callback]]:
        """Callbacks by names that a resumed run gives them, too: their class, and how many of it come before."""
        classes = [type(each).__name__ for each in self._callbacks]
        return [
            (f"{name}-{classes[:at].count(name)}", each)
            for at, (name, each) in enumerate(zip(classes, self._callbacks, strict=True))
        ]


_MEASURED: Final = frozenset(TrainingMetrics.__dataclass_fields__) - {"step", "others"}


def _sets(asked: EvaluationConfig, data: TrainingData) -> Mapping[str, HeldOutSet]:
    """Return the held-out sets that are named, and those of the data itself where they are wanted."""
    if not asked.held_out:
        return asked.sets
    manifest = open_dataset(data.dataset, split=data.split).manifest
    if not manifest.held_out:
        name = f"{manifest.dataset}@v{manifest.version}"
        raise ConfigError(
            f"evaluation.held_out: true, but {name} holds no documents out; expected a version that is built with "
            "`eval` of its datasets, such as datasets: [{name: code, eval: 500, ...}]. What the parents of a mixture "
            "hold out is packed by itself: datasets: [{name: code, dataset: NAME.code.tokens, split: eval_code}]; name "
            "the result in evaluation.sets"
        )
    own = {tag: HeldOutSet(dataset=data.dataset, split=split) for tag, split in manifest.held_out.items()}
    return own | asked.sets


def _copied(tree: Params) -> Params:
    """Return arrays that share no memory with others: what is given away must belong to nobody else."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def _not_finite(arrays: Mapping[str, ArrayFacts]) -> frozenset[str]:
    """Return the names of arrays that hold NaN or infinities."""
    return frozenset(name for name, facts in arrays.items() if not facts.is_finite)


def _warn_of_damage(folder: str, restored: Restored) -> None:
    steps = " and ".join(map(str, restored.damaged))
    reasons = "; ".join(restored.damaged.values())
    warnings.warn(
        f"{folder}: {reasons}. The run resumes from step {restored.step}; the damaged checkpoints (step {steps}) are "
        "deleted when it writes its next one",
        RuntimeWarning,
        stacklevel=4,
    )
