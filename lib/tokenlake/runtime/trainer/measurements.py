"""Measurements of a training run: throughput, times, and the share of the peak FLOPs."""

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
