"""What is done beside training: callbacks with eight hooks, and the measurements that they are told.

::

    class Cheer(Callback):
        def on_evaluate(self, run, results):
            print(run.step, results["held-out"]["perplexity"])

A step calls ``on_step_begin``; after it ``on_log`` and ``on_evaluate`` where they are due; then ``on_step_end``, so
that a checkpoint made there holds what callbacks learned in that step. Callbacks are called in their order.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, final

import jax
import jax.numpy as jnp

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.trainer.config import EarlyStoppingConfig

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


@final
class ProgressCallback(Callback):
    """Writes a line to stderr where a run goes on, and for each measurement and each evaluation."""

    def on_train_begin(self, run: TrainingRun) -> None:
        if run.step:
            self._say(f"step {run.step}/{run.steps}  goes on from here")

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        self._say(str(metrics).replace(f"step {metrics.step}", f"step {metrics.step}/{run.steps}", 1))

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self._say(f"step {run.step}/{run.steps}  {tag}: {shown}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 (what it is for)


@final
class JsonlLog(Callback):
    """Appends a JSON object for each measurement and each evaluation to a file.

    A run that goes on from a checkpoint first takes away what an earlier process wrote about later steps, so that each
    step is told once.

    Args:
        path: of the file; folders are made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def on_train_begin(self, run: TrainingRun) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A line that a killed process left unfinished is of a later step, too.
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= run.step]
        if len(kept) < len(lines):
            unfinished = self._path.with_name(f".{self._path.name}.unfinished")
            unfinished.write_text("".join(kept), encoding="utf-8")
            unfinished.replace(self._path)

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        self._append(metrics.to_json())

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            self._append({"step": run.step, "evaluation": tag, **finite(values)})

    def _append(self, facts: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


@final
class TensorBoardLog(Callback):
    """Writes event files for TensorBoard, by tensorboardX.

    Args:
        folder: of the event files; it is made.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            how = "pip install tensorboardX (log.jsonl needs nothing)"
            raise MissingExtraError(
                f"log.tensorboard needs tensorboardX, which is not installed: {how}"
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        self._write("train", metrics.step, {**metrics.to_json(), "step": None})

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            self._write(tag, run.step, values)

    def on_train_end(self, run: TrainingRun) -> None:
        self._writer.close()

    def _write(self, group: str, step: int, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, step)
        self._writer.flush()


PEAK_FLOPS: Final = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}
"""Beginning of JAX's name of a device -> dense bfloat16 FLOP/s, of the makers' data sheets."""


@final
@dataclass(frozen=True, slots=True)
class TrainingMetrics:
    """What is known at a step that is logged.

    Attributes:
        step: taken so far.
        loss: mean of this step's batch.
        loss_ema: its running mean.
        learning_rate: of this step.
        grad_norm: Euclidean norm of all gradients together, before clipping.
        perplexity: exp of the mean negative log-likelihood of a target; None for losses without one.
        accuracy: share of targets that are the likeliest id, or of answers that are ranked right.
        tokens_per_second: places of batches, padding too, over all devices, since the last measurement; without the
            time of evaluations and checkpoints. None at the first one of a run, of which compiling takes most.
        mfu: model FLOP/s by the peak of the devices (Chowdhery et al. 2022, appendix B); None where that is unknown.
        others: what else the objective sums, by name.
    """

    step: int
    loss: float
    loss_ema: float
    learning_rate: float
    grad_norm: float
    perplexity: float | None = None
    accuracy: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    others: dict[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> dict[str, Any]:
        """Return plain values; without what is unknown, and with null for what is not finite."""
        facts = asdict(self)
        del facts["others"]
        return finite(facts | self.others)

    def __str__(self) -> str:
        shown = [f"step {self.step}", f"loss {self.loss:.4f} (ema {self.loss_ema:.4f})"]
        shown += [f"perplexity {self.perplexity:.4g}"] if self.perplexity is not None else []
        shown += [f"accuracy {self.accuracy:.3f}"] if self.accuracy is not None else []
        shown += [f"grad norm {self.grad_norm:.3g}", f"lr {self.learning_rate:.3g}"]
        shown += [f"{self.tokens_per_second:,.0f} tokens/s"] if self.tokens_per_second is not None else []
        shown += [f"MFU {self.mfu:.1%}"] if self.mfu is not None else []
        return "  ".join(shown)


def finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as JSON takes them: None values left out, infinities and NaN as None."""
    found = {name: value for name, value in facts.items() if value is not None}
    bad = [name for name, value in found.items() if isinstance(value, float) and not math.isfinite(value)]
    return found | dict.fromkeys(bad)


def named(measured: Mapping[str, float]) -> dict[str, float]:
    """Return means by the names people read: with ``perplexity`` (infinite above e**700) in the place of ``nll``."""
    found = dict(measured)
    if "nll" in found:
        nll = found.pop("nll")
        found["perplexity"] = math.exp(nll) if nll < 700 else math.inf if nll >= 700 else math.nan
    return found


@final
class Meter:
    """Counts tokens by the clock.

    Args:
        flops_per_token: of a step, forward and backward.
        peak_flops: of all devices together, a second; None: unknown.
    """

    def __init__(self, flops_per_token: float, peak_flops: float | None) -> None:
        self._flops, self._peak = flops_per_token, peak_flops
        self._begun: float | None = None
        self._tokens, self._left_out = 0, 0.0

    @property
    def running(self) -> bool:
        """Whether a measurement was begun."""
        return self._begun is not None

    def start(self) -> None:
        """Begin a new measurement."""
        self._begun, self._tokens, self._left_out = time.perf_counter(), 0, 0.0

    def add(self, tokens: int) -> None:
        self._tokens += tokens

    @contextmanager
    def left_out(self) -> Generator[None]:
        """Do not count the time of what is done within."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._left_out += time.perf_counter() - begun

    def rates(self) -> dict[str, float]:
        """Return ``tokens_per_second`` and ``mfu`` since the last time, as far as they are known, and begin anew."""
        found: dict[str, float] = {}
        if self._begun is not None and self._tokens:
            seconds = time.perf_counter() - self._begun - self._left_out
            found["tokens_per_second"] = self._tokens / seconds
            if self._peak is not None:
                found["mfu"] = found["tokens_per_second"] * self._flops / self._peak
        self.start()
        return found


def peak_flops(asked: float | str | None, precision: str) -> float | None:
    """Return the FLOP/s of all devices together, as the option ``log.peak_flops`` says; None: unknown.

    Raises:
        ConfigError: it is a text, but not ``measure``.
    """
    devices = jax.devices()
    if isinstance(asked, float | int):
        return asked * len(devices)
    if asked == "measure":
        return measured_flops(precision) * len(devices)
    if asked is not None:
        raise ConfigError(f"log.peak_flops: got {asked!r}, must be a number, 'measure' or null")
    kind = devices[0].device_kind
    known = next((value for name, value in PEAK_FLOPS.items() if kind.startswith(name)), None)
    return None if known is None else known * len(devices)


_LASTS: Final = 0.005  # seconds of a product that is long beside its start, some 50 us on an accelerator
_LARGEST: Final = 16_384


def measured_flops(precision: str) -> float:
    """Return the FLOP/s of one device, of a square matrix product in a precision.

    The product is so large that what it costs to start one does not matter.
    """
    product = jax.jit(jnp.matmul)
    size, seconds = 256, 0.0
    while seconds < _LASTS and size < _LARGEST:
        size *= 2
        matrix = jax.random.normal(jax.random.key(0), (size, size), precision)
        jax.block_until_ready(product(matrix, matrix))
        for attempt in range(5):
            begun = time.perf_counter()
            jax.block_until_ready(product(matrix, matrix))
            spent = time.perf_counter() - begun
            seconds = min(seconds, spent) if attempt else spent
    return 2 * size**3 / seconds
