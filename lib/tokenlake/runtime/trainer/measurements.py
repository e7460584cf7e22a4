"""Measurements of a run: throughput, times, and the share of the peak FLOPs."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

import jax
import jax.numpy as jnp

from tokenlake.errors import ConfigError

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
"""Prefix of JAX's name of a device -> dense bfloat16 FLOP/s, from the makers' data
sheets.
"""


@final
@dataclass(frozen=True, slots=True)
class TrainingMetrics:
    """Measurements at a step that is logged.

    Attributes:
        step: Number of steps taken so far.
        loss: Mean loss of this step's batch.
        loss_ema: Running mean of the loss.
        learning_rate: Learning rate of this step.
        grad_norm: Euclidean norm of all gradients together, before clipping.
        perplexity: Exponential of the mean negative log-likelihood of a target; None
            for losses without one.
        accuracy: Share of targets that are the likeliest id, or of answers that are
            ranked right.
        tokens_per_second: Places of batches per second, padding included, over all
            devices, since the last measurement. The time of evaluations and checkpoints
            is left out. None at the first measurement of a run, which is mostly
            compilation.
        mfu: Model FLOP/s divided by the peak of the devices (Chowdhery et al. 2022,
            appendix B); None if the peak is unknown.
        others: Name -> mean of other sums of the objective.

    Example:
        >>> import tokenlake as tl
        >>> metrics = tl.TrainingMetrics(step=4, loss=6.2, loss_ema=6.3, learning_rate=1e-3, grad_norm=0.8)
        >>> metrics.perplexity is None, sorted(metrics.to_json())
        (True, ['grad_norm', 'learning_rate', 'loss', 'loss_ema', 'step'])
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
        """Return the measurements as JSON values, without unknown ones.

        Numbers that are not finite are null.
        """
        facts = asdict(self)
        del facts["others"]
        return finite(facts | self.others)

    def __str__(self) -> str:
        # Only measurements that this run has, in the order of their importance.
        texts = [f"step {self.step}", f"loss {self.loss:.4f} (ema {self.loss_ema:.4f})"]
        if self.perplexity is not None:
            texts.append(f"perplexity {self.perplexity:.4g}")
        if self.accuracy is not None:
            texts.append(f"accuracy {self.accuracy:.3f}")
        texts.append(f"grad norm {self.grad_norm:.3g}")
        texts.append(f"lr {self.learning_rate:.3g}")
        if self.tokens_per_second is not None:
            texts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        if self.mfu is not None:
            texts.append(f"MFU {self.mfu:.1%}")
        return "  ".join(texts)


def finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for JSON, which has no infinity and no NaN.

    Args:
        facts: Name -> value. A value of None is left out; a number that is not finite
            becomes None.
    """
    json_values: dict[str, Any] = {}
    for metric_name, metric_value in facts.items():
        if metric_value is None:
            continue
        json_values[metric_name] = metric_value
        if isinstance(metric_value, float) and not math.isfinite(metric_value):
            json_values[metric_name] = None
    return json_values


_LARGEST_NLL: Final = 700.0
"""Negative log-likelihood whose exponential is near the largest float64; a larger
one has infinite perplexity.
"""


def named(measured: Mapping[str, float]) -> dict[str, float]:
    """Return means by their public names.

    ``nll`` is replaced by ``perplexity``, its exponential.
    """
    means = dict(measured)
    if "nll" in means:
        nll = means.pop("nll")
        # math.exp raises OverflowError above.
        if nll >= _LARGEST_NLL:
            means["perplexity"] = math.inf
        else:
            means["perplexity"] = math.exp(nll)  # that of NaN is NaN
    return means


@final
class Meter:
    """Measures tokens per second.

    Args:
        flops_per_token: FLOPs of a step per token, forward and backward.
        peak_flops: Peak FLOP/s of all devices together; None: unknown.
    """

    def __init__(self, flops_per_token: float, peak_flops: float | None) -> None:
        self._flops_per_token = flops_per_token
        self._peak_flops = peak_flops
        self._start: float | None = None
        self._tokens = 0
        self._seconds_left_out = 0.0

    @property
    def running(self) -> bool:
        """Whether a measurement was started."""
        return self._start is not None

    def start(self) -> None:
        """Start a new measurement."""
        self._start = time.perf_counter()
        self._tokens = 0
        self._seconds_left_out = 0.0

    def add(self, tokens: int) -> None:
        """Count tokens of a step."""
        self._tokens += tokens

    @contextmanager
    def left_out(self) -> Generator[None]:
        """Leave out the time that the block takes."""
        block_start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds_left_out += time.perf_counter() - block_start

    def rates(self) -> dict[str, float]:
        """Return the rates since the start of the measurement, and start a new one.

        Returns:
            ``tokens_per_second`` if a measurement was started and tokens were counted,
            and ``mfu`` if the peak is known.
        """
        rates: dict[str, float] = {}
        if self._start is not None and self._tokens:
            # Evaluations and checkpoints do not make training slower.
            seconds = time.perf_counter() - self._start - self._seconds_left_out
            rates["tokens_per_second"] = self._tokens / seconds
            if self._peak_flops is not None:
                flops = rates["tokens_per_second"] * self._flops_per_token
                rates["mfu"] = flops / self._peak_flops
        self.start()
        return rates


def peak_flops(option: float | str | None, precision: str) -> float | None:
    """Return the peak FLOP/s of all devices together; None if it is unknown.

    Args:
        option: Value of ``log.peak_flops``: FLOP/s of one device, ``measure``, or None
            for that of known accelerators.
        precision: Name of the type in which ``measure`` multiplies.

    Raises:
        ConfigError: The option is a text other than ``measure``.
    """
    devices = jax.devices()
    if isinstance(option, float | int):
        return option * len(devices)
    if option == "measure":
        return measured_flops(precision) * len(devices)
    if option is not None:
        raise ConfigError(
            f"log.peak_flops: got {option!r}, must be a number, 'measure' or null"
        )
    # The devices of a run are taken to be of one kind, that of the first.
    for prefix, flops in PEAK_FLOPS.items():
        if devices[0].device_kind.startswith(prefix):
            return flops * len(devices)
    return None


_LONG_PRODUCT: Final = 0.005
"""Seconds of a product in comparison to which its start, some 50 us on an
accelerator, does not matter.
"""
_LARGEST_SIZE: Final = 16_384
"""Rows and columns of the largest matrix that is multiplied."""
_REPETITIONS: Final = 5


def measured_flops(precision: str) -> float:
    """Return the FLOP/s of one device, measured by the product of two square matrices.

    The size is doubled until the product takes long enough that the cost of starting it
    does not matter.

    Args:
        precision: Name of the type of the matrices.
    """
    # A matrix product is the operation that the data sheets count.
    product = jax.jit(jnp.matmul)
    matrix_size = 256
    seconds = 0.0
    while seconds < _LONG_PRODUCT and matrix_size < _LARGEST_SIZE:
        matrix_size *= 2
        shape = (matrix_size, matrix_size)
        matrix = jax.random.normal(jax.random.key(0), shape, precision)
        # The first product compiles; of the others the fastest counts.
        jax.block_until_ready(product(matrix, matrix))
        seconds = math.inf
        for _ in range(_REPETITIONS):
            start_time = time.perf_counter()
            jax.block_until_ready(product(matrix, matrix))
            seconds = min(seconds, time.perf_counter() - start_time)
    # size**3 multiplications, and as many additions.
    return 2 * matrix_size**3 / seconds
