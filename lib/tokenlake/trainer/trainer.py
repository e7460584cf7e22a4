"""The loop of training: batches of a loader through a compiled step, and callbacks beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tokenlake.errors import ConfigError, DivergedError
from tokenlake.loader.dataset import open as open_dataset
from tokenlake.loader.loader import DataLoader
from tokenlake.loader.state import BatchLoader
from tokenlake.trainer.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStopping,
    JsonlLog,
    Meter,
    ProgressCallback,
    TensorBoardLog,
    TrainingMetrics,
    named,
    peak_flops,
)
from tokenlake.trainer.config import EvaluationConfig, HeldOutSet, LossConfig, TrainingConfig, TrainingData
from tokenlake.trainer.losses import (
    Apply,
    DeviceBatch,
    Objective,
    Params,
    Sums,
    dpo,
    kto,
    language_model,
    orpo,
)
from tokenlake.trainer.step import (
    Checkpoints,
    Means,
    TrainState,
    batch_sharding,
    lowered,
    make_mesh,
    make_optimizer,
    make_schedule,
    make_step,
    means,
    param_shardings,
)

_COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")
_WITH_REFERENCE: Final = ("dpo", "kto")


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

    A batch of the loader is one step. Where the folder of checkpoints holds some, the run goes on from the newest, with
    the loader, the optimizer and the callbacks where they were: what follows is what would have followed.

    Args:
        apply: the model, a pure function of parameters and a batch; returns logits (B, T, V), or hidden states
            (B, T, D) and a head (D, V), of which logits are made in chunks.
        params: pytree of the first parameters; they are copied. A resumed run needs the same ones (for their shapes,
            and where a reference is made of them).
        loader: global batches, sharded by :func:`~tokenlake.trainer.step.batch_sharding`, or numpy ones, whose fields
            that are no numbers are left out. ``tl.AsyncDataLoader(source, batch_size)`` makes one of any source or
            mixture of rows.
        config: a checked configuration; `data` and `evaluation.sets` only count for :meth:`from_config`.
        evaluation: tag -> loader of a held-out set, with one pass.
        objective: what is minimized, in the place of ``config.loss``.
        reference: parameters that DPO and KTO compare with; None: those of the start.
        callbacks: called before those that the configuration asks for.

    Raises:
        ConfigError: something does not fit together, or the checkpoint is of another run; says what.
    """

    def __init__(
        self,
        apply: Apply,
        params: Params,
        loader: BatchLoader,
        config: TrainingConfig,
        *,
        evaluation: Mapping[str, DataLoader] | None = None,
        objective: Objective | None = None,
        reference: Params | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        if not isinstance(loader, BatchLoader):  # pyright: ignore[reportUnnecessaryIsInstance]
            wanted = "expected a tl.DataLoader, or of rows tl.AsyncDataLoader(source, batch_size)"
            raise ConfigError(f"loader: got a {type(loader).__name__}, {wanted}")
        self.config, self.loader, self.evaluation = config, loader, dict(evaluation or {})
        try:
            self.steps = config.steps or len(loader)
        except TypeError:
            why = "got none, and the loader never ends, or does not know where"
            raise ConfigError(f"steps: {why}; expected steps, or data with epochs") from None
        self.mesh = make_mesh(config.mesh)
        self._rows, self._everywhere = batch_sharding(self.mesh), NamedSharding(self.mesh, PartitionSpec())
        schedule = make_schedule(config.schedule, self.steps)
        optimizer = make_optimizer(config.optimizer, schedule)
        self._objective = lowered(objective or make_objective(config.loss, apply), config.precision)
        step = make_step(
            self._objective, optimizer, schedule, accumulate=config.accumulate, ema=config.log.ema
        )
        placed = self._copied(params)
        kept = jax.tree.map(self._settled, _copied(optimizer.init(placed)))
        scalars = jax.device_put((jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)), self._everywhere)
        self.state = TrainState(scalars[0], placed, kept, scalars[1])
        compared = params if reference is None and config.loss.name in _WITH_REFERENCE else reference
        self._reference = None if compared is None else self._copied(compared)
        self._reference_mark = None if self._reference is None else fingerprint(self._reference)
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
        self.step, self.stopped = 0, ""
        self.metrics: TrainingMetrics | None = None
        self._checkpoints: Checkpoints | None = None
        if config.checkpoint.folder is not None:
            self._checkpoints = Checkpoints(config.checkpoint.folder, config.checkpoint.keep)
            if self._checkpoints.latest is not None:
                self._resume(self._checkpoints)

    @classmethod
    def from_config(cls, config: TrainingConfig, apply: Apply, params: Params, **options: Any) -> Self:
        """Return a trainer that opens the data and the held-out sets that its configuration names.

        Args:
            config: with `data`.
            apply: the model.
            params: the first parameters.
            options: the other keyword arguments of :class:`Trainer`.

        Raises:
            ConfigError: as the class, and where `data` is missing.
        """
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
            rows, size = open_dataset(each.dataset, split=each.split), each.batch_size or data.batch_size
            evaluation[tag] = DataLoader(rows, size, shuffle=False, epochs=1, **batches)
        return cls(apply, params, loader, config, evaluation=evaluation, **options)

    @property
    def params(self) -> Params:
        """The parameters now; the next step gives their memory to the next ones."""
        return self.state.params

    def stop(self, reason: str) -> None:
        """End the run after this step; :attr:`stopped` keeps the reason."""
        self.stopped = reason

    def train(self) -> TrainingMetrics | None:
        """Take the steps that are left.

        Returns:
            What was measured last; None if no step was left.

        Raises:
            DivergedError: the loss is not finite any more, as is seen when it is measured, or a checkpoint is due.
        """
        self._tell("on_train_begin")
        before = -1
        try:
            while self.step < self.steps and not self.stopped:
                empty, before = self.step == before, self.step
                batches = iter(self.loader)
                epoch = self.loader.epoch
                self._tell("on_epoch_begin", epoch)
                for batch in batches:
                    self._take(batch)
                    if self.step >= self.steps or self.stopped:
                        break
                self._tell("on_epoch_end", epoch)
                # A run that goes on at the very end of a pass finds nothing there, and another pass follows.
                if empty and self.step == before:
                    wanted = "expected batches that a pass has rows for, or drop_last=False"
                    raise ConfigError(f"the loader has no batch from step {self.step} on; {wanted}")
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
            DivergedError: the loss is not finite any more; good checkpoints are not pushed out by bad ones.
        """
        if self._checkpoints is None:
            return
        with self._meter.left_out():
            self._require_finite(float(self.state.loss_ema))
            self._checkpoints.save(self.state, self.loader, self._facts())

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
                self._tell("on_evaluate", self.evaluate())
        self._tell("on_step_end")

    def _placed(self, batch: Mapping[str, Any]) -> DeviceBatch:
        if all(isinstance(value, jax.Array) for value in batch.values()):
            return batch
        arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray | jax.Array)}
        return {name: jax.device_put(value, self._rows) for name, value in arrays.items()}

    def _log(self, measured: Means) -> None:
        values = {name: float(value) for name, value in jax.device_get(measured).items()}
        self._require_finite(values["loss_ema"])
        facts = named(values) | self._meter.rates()
        known = {name: facts.pop(name) for name in list(facts) if name in _MEASURED}
        self.metrics = TrainingMetrics(step=self.step, **known, others=facts)
        self._tell("on_log", self.metrics)

    def _require_finite(self, loss_ema: float) -> None:
        """Raise DivergedError once a loss was not finite, which its running mean remembers."""
        if not math.isfinite(loss_ema):
            newest = None if self._checkpoints is None else self._checkpoints.latest
            kept = "" if newest is None else f"; the checkpoint of step {newest} is the newest"
            raise DivergedError(
                f"the loss was not finite at step {self.step} or before it{kept}. Ids beyond the model's vocabulary do "
                "that, and a learning rate that is too high: look at the ids, lower schedule.peak, set optimizer.clip"
            )

    def _held_out(self, tag: str, loader: DataLoader) -> dict[str, float]:
        total: Sums | None = None
        for count, batch in enumerate(loader.iter_from_step(0), 1):
            sums = self._evaluate(self.params, self._placed(batch), self._reference)
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            if count == self.config.evaluation.batches:
                break
        loader.close()
        if total is None:
            raise ConfigError(f"evaluation: the set {tag!r} has no batch; expected one row at least")
        return named({name: float(value) for name, value in jax.device_get(means(total)).items()})

    def _tell(self, hook: str, *facts: Any) -> None:
        for listener in self._hooks[hook]:
            listener(self, *facts)

    # -- making a run

    def _copied(self, params: Params) -> Params:
        """Return parameters in their places, of which nobody else has the memory."""
        return _copied(jax.device_put(params, param_shardings(params, self.mesh, self.config.mesh.rules)))

    def _settled(self, leaf: jax.Array) -> jax.Array:
        """Moments lie where their parameters do; what belongs to none, such as a count, on all devices."""
        return leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, self._everywhere)

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
        there, here = checkpoints.facts(), self._facts()
        problems = [
            f"{name} is {json.dumps(there['run'].get(name))} there and {json.dumps(value)} here"
            for name, value in here["run"].items()
            if there["run"].get(name) != value
        ]
        if problems:
            what = f"{checkpoints.folder}: the checkpoint of step {checkpoints.latest} is of another run"
            told = f"{what}: {'; '.join(problems)}; expected the same, or another folder"
            raise ConfigError(told, differs=problems)
        self.state = checkpoints.restore(self.state, self.loader)
        self.step = int(self.state.step)
        for name, callback in self._remembering():
            if name in there["callbacks"]:
                callback.set_state(there["callbacks"][name])

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
        return {"run": run, "callbacks": {name: state for name, state in remembered.items() if state}}

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


@jax.jit
def _bit_sums(tree: Params) -> jax.Array:
    """A number for each leaf, uint32[n]: the sum of its bits, each times an odd number of its place, modulo 2**32."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32).reshape(-1)
        return jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    return jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(tree)])


def fingerprint(params: Params) -> str:
    """Return what tells parameters from others, equal for every way to cut them over devices."""
    return np.asarray(_bit_sums(params)).tobytes().hex()
