"""Training on one GPU: ``python -m benchmarks.gpu STORE/NAME``, at most ten minutes.

It needs the library, JAX with its trainer's packages, a packed dataset of 16-bit ids,
and nothing else of the benchmarks, so that it runs on a bare machine. It prints
Markdown tables, and a failing variant prints its error:

- the rates of the card: a matrix product and a copy, both large;
- attention over packed rows, forward and backward, by each implementation;
- the loss of the vocabulary, forward and backward, by chunks of several sizes;
- the step of a decoder (``examples/decoder.py``) on one packed batch that stays on the
  card, in bfloat16;
- the same step in ``tl.Trainer`` on batches of the loader, and its cost beside the bare
  step;
- rates of batches onto the card: :mod:`benchmarks.loader_device`.

Model FLOPs utilization (MFU) is the share of the card's peak rate that goes into the model::

    FLOPs of a token = 6 N + 12 L D K
    MFU              = tokens per second * FLOPs of a token / peak

N is the number of parameters, of which a tied embedding counts once; L and D are layers
and width; K is the mean number of ids that an id attends to, in its document and not
after it: 1,024.5 for a row of 2,048 ids of one document. Nothing is added for values
that are computed again. A second column leaves attention out (6 N alone). The peak of
an H100 or H200 is 989 TFLOP/s: dense products in bfloat16, from the maker's data sheet.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import tokenlake as tl
from benchmarks import loader_device
from examples import decoder as example
from tokenlake.runtime.loader import Placement
from tokenlake.runtime.trainer import (
    Trainer,
    TrainState,
    cross_entropy,
    language_model,
    load_training_config,
    lowered,
    make_optimizer,
    make_schedule,
    make_step,
    over_logits,
)

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")
PEAK_FLOPS: Final = 989e12
"""Dense products in bfloat16 of an H100 or H200, FLOP/s."""
SECTIONS: Final = ("card", "attention", "loss", "step", "trainer", "loader")
WARM: Final = 3  # calls, or steps, before the clock begins
GROUPS: Final = 3  # groups of calls that are timed; the median counts
CALLS: Final = 5  # calls of a group


@dataclass(frozen=True)
class Case:
    """A step to measure.

    Attributes:
        preset: Name of the decoder's sizes.
        rows: Number of rows of a batch.
        options: Options of the decoder.
        chunk: Number of places of a row whose logits exist at once; None: all.
    """

    preset: str
    rows: int
    options: example.Options
    chunk: int | None = None

    def __str__(self) -> str:
        options = self.options
        return (
            f"{self.preset}, {self.rows} rows, {options.attention}, "
            f"remat {options.remat}, unroll {options.unroll or 'all'}, chunk {self.chunk or 'none'}"
        )


CASES: Final = (
    Case("124M", 32, example.Options(attention="cudnn"), chunk=512),
    Case("124M", 16, example.Options(attention="cudnn")),
    Case("350M", 16, example.Options(attention="cudnn"), chunk=512),
    Case(
        "350M",
        16,
        example.Options(attention="cudnn", remat="elementwise", unroll=1),
        chunk=512,
    ),
    Case("1.3B", 8, example.Options(attention="cudnn", remat="elementwise"), chunk=512),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables of the chosen sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="a packed dataset of 16-bit ids, STORE/NAME")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--steps",
        type=int,
        default=80,
        help="measured steps of the trainer, and of the bare step beside it",
    )
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    print(
        f"{device.device_kind} ({device.platform}), JAX {jax.__version__}", flush=True
    )
    dataset = tl.open(options.dataset)
    if "card" in options.only:
        print_card()
    if "attention" in options.only:
        print_attention(packed_batch(dataset, 16))
    if "loss" in options.only:
        print_loss(packed_batch(dataset, 16))
    if "step" in options.only:
        print_steps(dataset, CASES)
    if "trainer" in options.only:
        print_trainer(options.dataset, CASES[1], options.steps)
    if "loader" in options.only:
        loader_device.main([options.dataset])


# -- measurements


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of a call of a function of the device, the median of some
    groups of calls.
    """
    for _ in range(WARM):
        jax.block_until_ready(function(*arguments))
    groups: list[float] = []
    for _ in range(GROUPS):
        start = time.perf_counter()
        for _ in range(CALLS):
            result = function(*arguments)
        jax.block_until_ready(result)
        groups.append((time.perf_counter() - start) / CALLS)
    return statistics.median(groups)


def print_row(name: str, measure: Callable[[], Sequence[str]], columns: int) -> None:
    """Print a row of a table; the error of a variant that fails, without ending the
    benchmark.
    """
    start = time.perf_counter()
    try:
        cells = list(measure())
    except Exception as error:
        first_line = str(error).strip().split("\n")[0]
        cells = [f"{type(error).__name__}: {first_line[:200]}"] + [""] * (columns - 1)
    print(
        f"| {name} | {' | '.join(cells)} | {time.perf_counter() - start:.0f} |",
        flush=True,
    )


def print_head(*columns: str) -> None:
    """Print the head of a table, whose last column is the time that the row took."""
    names = [*columns, "s in all"]
    print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def packed_batch(dataset: tl.Dataset, rows: int) -> dict[str, jax.Array]:
    """Return one batch on the device."""
    with tl.DataLoader(dataset, rows, seed=0, columns=COLUMNS) as loader:
        batch = next(iter(loader))
    return {name: jax.device_put(values) for name, values in batch.items()}


def visible_ids(batch: dict[str, Any]) -> float:
    """Return the mean number of ids that an id attends to: those of its document up
    to itself.
    """
    return float(np.mean(np.asarray(batch["positions"]) + 1.0))


# -- sections


def print_card() -> None:
    """Print the rates of a large product and a large copy."""
    print_head("card", "rate")
    size = 8192
    matrix = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    product = jax.jit(jnp.matmul)
    numbers = jnp.zeros(1 << 29, jnp.float32)
    copy = jax.jit(lambda values: values + 1)

    def product_rate() -> list[str]:
        return [
            f"{2 * size**3 / seconds_of(product, matrix, matrix) / 1e12:.0f} TFLOP/s"
        ]

    def copy_rate() -> list[str]:
        return [f"{2 * numbers.nbytes / seconds_of(copy, numbers) / 1e12:.2f} TB/s"]

    print_row("product of 8192 x 8192 matrices, bfloat16", product_rate, 1)
    print_row("read and write 2 GiB", copy_rate, 1)


def print_attention(batch: dict[str, jax.Array]) -> None:
    """Print the milliseconds of attention, forward and backward, of 6 heads of 128
    features.

    The difference is that of the gradients from those of plain attention in float32, as
    a share of their norm. Numbers in bfloat16 make it some thousandths. Documents that
    are not kept apart make it large.
    """
    print_head("attention, forward and backward", "ms", "difference")
    segment_ids = batch["segment_ids"]
    shape = (*segment_ids.shape, 6, 128)
    query, key, value = (
        jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
        for seed in range(3)
    )
    kinds: dict[str, Callable[..., jax.Array]] = {}
    for name in ("cudnn", "plain"):
        kinds[name] = example.attention_of(name, segment_ids, jnp.bfloat16)
    kinds["cudnn, documents not kept apart"] = partial(
        jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
    )
    for blocks in ((128, 64, 64), (128, 128, 64), (64, 64, 32)):
        kinds[f"Pallas (Triton), blocks {blocks}"] = partial(
            pallas, segment_ids=segment_ids, blocks=blocks
        )

    with jax.default_matmul_precision("float32"):
        wide = [values.astype(jnp.float32) for values in (query, key, value)]
        expected = gradient_of_attention(kinds["plain"])(*wide)
    for name, attend in kinds.items():
        gradient = gradient_of_attention(attend)

        def cells(gradient: Callable[..., Any] = gradient) -> list[str]:
            milliseconds = 1e3 * seconds_of(gradient, query, key, value)
            difference = difference_of(gradient(query, key, value), expected)
            return [f"{milliseconds:.2f}", f"{difference:.1e}"]

        print_row(name, cells, 2)


def gradient_of_attention(attend: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Return the compiled gradient of the sum of squares of attention's results."""

    def sum_of_squares(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(attend(query, key, value).astype(jnp.float32)))

    return jax.jit(jax.grad(sum_of_squares, argnums=(0, 1, 2)))


def difference_of(arrays: Sequence[jax.Array], expected: Sequence[jax.Array]) -> float:
    """Return the largest norm of a difference of two arrays, as a share of the norm
    of the expected one.
    """
    differences: list[float] = []
    for array, other in zip(arrays, expected, strict=True):
        differences.append(
            float(
                jnp.linalg.norm(array.astype(jnp.float32) - other)
                / jnp.linalg.norm(other)
            )
        )
    return max(differences)


def pallas(
    query: Any, key: Any, value: Any, *, segment_ids: Any, blocks: tuple[int, int, int]
) -> jax.Array:
    """Return attention by the kernel for GPUs that JAX's Pallas has (deprecated in
    JAX 0.11).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jax.experimental.pallas.ops.gpu import attention
    forward_query, forward_key, backward = blocks
    sizes = attention.BlockSizes(
        block_q=forward_query,
        block_k=forward_key,
        block_q_dkv=backward,
        block_kv_dkv=backward,
        block_q_dq=backward,
        block_kv_dq=backward,
    )
    scale = query.shape[-1] ** -0.5
    return attention.mha(query, key, value, segment_ids, scale, True, sizes)


def print_loss(batch: dict[str, jax.Array]) -> None:
    """Print the milliseconds of the loss over GPT-2's vocabulary, forward and
    backward, of 768 features.
    """
    print_head("loss, forward and backward", "ms")
    rows, length = batch["targets"].shape
    hidden = jax.random.normal(jax.random.key(0), (rows, length, 768), jnp.bfloat16)
    head = jax.random.normal(jax.random.key(1), (768, 50_304), jnp.bfloat16) / 28

    def through_logits(params: Any, chunk: int | None) -> jax.Array:
        return over_logits(params, batch["targets"], cross_entropy, chunk).loss

    def with_gradient(params: Any, chunk: int | None) -> jax.Array:
        objective = language_model(lambda params, batch: params, chunk=chunk)
        return objective(params, batch, None).loss

    for name, loss in (
        ("logits differentiated by JAX", through_logits),
        ("gradient at once", with_gradient),
    ):
        for chunk in (None, 512, 256, 128):
            gradient = jax.jit(jax.grad(partial(loss, chunk=chunk)))

            def milliseconds(gradient: Any = gradient) -> list[str]:
                return [f"{1e3 * seconds_of(gradient, (hidden, head)):.2f}"]

            print_row(f"{name}, chunk {chunk or 'none'}", milliseconds, 1)


def print_steps(dataset: tl.Dataset, cases: Sequence[Case]) -> None:
    """Print the step of each case on one batch that stays on the device."""
    print_head("step", "ms", "tokens/s", "MFU", "MFU of 6 N alone")
    for case in cases:
        print_row(str(case), partial(step_row, dataset, case), 4)


def step_row(dataset: tl.Dataset, case: Case) -> list[str]:
    """Return the cells of a case."""
    batch = packed_batch(dataset, case.rows)
    seconds = step_seconds(dataset, case, batch)
    config = example.PRESETS[case.preset]
    parameters = parameters_of(case, dataset.vocab_size)
    tokens_per_second = batch["input_ids"].size / seconds
    flops_of_attention = 12 * config.layers * config.width * visible_ids(batch)
    utilization = tokens_per_second * (6 * parameters + flops_of_attention) / PEAK_FLOPS
    without_attention = tokens_per_second * 6 * parameters / PEAK_FLOPS
    return [
        f"{1e3 * seconds:.1f}",
        f"{tokens_per_second:,.0f}",
        f"{utilization:.1%}",
        f"{without_attention:.1%}",
    ]


def step_seconds(
    dataset: tl.Dataset,
    case: Case,
    batch: dict[str, jax.Array],
    groups: int = GROUPS,
    calls: int = CALLS,
) -> float:
    """Return the seconds of a step, the median of some groups of steps.

    Args:
        dataset: Dataset of the batch.
        case: Step to measure.
        batch: Packed rows on the device.
        groups: Number of groups.
        calls: Number of steps of a group. A card that is busy for seconds runs at a
            lower clock than for one second.
    """
    config = training_config(case, "unused", WARM)
    apply = partial(example.decoder, options=case.options)
    schedule = make_schedule(config.schedule, 1000)
    optimizer = make_optimizer(config.optimizer, schedule)
    objective = lowered(language_model(apply, chunk=case.chunk), config.precision)
    step = jax.jit(
        make_step(objective, optimizer, schedule, accumulate=1, ema=0.99),
        donate_argnums=0,
    )
    params = example.init(
        jax.random.key(0), example.PRESETS[case.preset], dataset.vocab_size
    )
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        jax.jit(optimizer.init)(params),
        jnp.zeros(()),
        jnp.zeros(2, jnp.int32),
    )
    del params  # the step takes its memory over
    for _ in range(WARM):
        state, measured = step(state, None, batch)
    jax.block_until_ready(state)
    seconds: list[float] = []
    for _ in range(groups):
        start = time.perf_counter()
        for _ in range(calls):
            state, measured = step(state, None, batch)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / calls)
    if not np.isfinite(float(measured["loss"])):
        raise ArithmeticError(f"the loss is {float(measured['loss'])} after the steps")
    return statistics.median(seconds)


def parameters_of(case: Case, vocabulary: int) -> int:
    """Return the number of parameters of a case."""
    init = partial(
        example.init, config=example.PRESETS[case.preset], vocabulary=vocabulary
    )
    shapes = jax.eval_shape(init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def training_config(
    case: Case, dataset: str, steps: int, folder: str = "."
) -> tl.TrainingConfig:
    """Return the configuration of a run of a case."""
    return load_training_config(
        {
            "data": {"dataset": dataset, "batch_size": case.rows},
            "steps": steps,
            "precision": "bfloat16",
            "loss": {"chunk": case.chunk},
            "optimizer": {"weight_decay": 0.1, "b2": 0.95, "clip": 1.0},
            "schedule": {"peak": 3e-4},
            "log": {
                "every": 10,
                "progress": False,
                "jsonl": str(Path(folder) / "log.jsonl"),
            },
        }
    )


class Clock(tl.Callback):
    """Seconds of the steps after the first ones, until all work of the device is
    done.
    """

    def __init__(self) -> None:
        self.start = 0.0
        self.seconds = 0.0

    def on_step_begin(self, run: Any) -> None:
        if run.step == WARM:
            jax.block_until_ready(run.state)
            self.start = time.perf_counter()

    def on_step_end(self, run: Any) -> None:
        if run.step == run.steps:
            jax.block_until_ready(run.state)
            self.seconds = time.perf_counter() - self.start


def print_trainer(dataset: str, case: Case, steps: int) -> None:
    """Print the step of the trainer beside the bare step on a batch that stays on the
    device.

    All take as many steps in a row: a card that is busy for seconds runs at a lower
    clock.

    With columns that the host computes, no other program than the step runs on the
    device. With ``XLA_FLAGS=--xla_gpu_enable_command_buffer=`` set, XLA starts kernels
    one by one and records no graphs of them, which must be changed where a batch has
    another address.
    """
    print_head("trainer", "ms", "cost beside the bare step")
    opened = tl.open(dataset)
    batch = packed_batch(opened, case.rows)
    bare: list[float] = []

    def bare_row() -> list[str]:
        bare.append(step_seconds(opened, case, batch, groups=1, calls=steps))
        return [f"{1e3 * bare[-1]:.2f}", ""]

    def trainer_row(platforms: frozenset[str]) -> list[str]:
        with columns_of_host(platforms):
            seconds = trainer_seconds(opened, case, dataset, steps)
        return [f"{1e3 * seconds:.2f}", f"{seconds / statistics.median(bare) - 1:+.2%}"]

    print_row(f"bare step: {case}", bare_row, 2)
    print_row(
        "tl.Trainer and tl.DataLoader", partial(trainer_row, frozenset({"cpu"})), 2
    )
    print_row(
        "the same, columns of the host",
        partial(trainer_row, frozenset({"cpu", "gpu"})),
        2,
    )
    print_row("bare step again", bare_row, 2)


def trainer_seconds(opened: tl.Dataset, case: Case, dataset: str, steps: int) -> float:
    """Return the seconds of a step of the trainer on the batches of its loader."""
    clock = Clock()
    params = example.init(
        jax.random.key(0), example.PRESETS[case.preset], opened.vocab_size
    )
    apply = partial(example.decoder, options=case.options)
    with tempfile.TemporaryDirectory() as folder:
        config = training_config(case, dataset, WARM + steps, folder)
        Trainer.from_config(config, apply, params, callbacks=[clock]).train()
    return clock.seconds / steps


@contextmanager
def columns_of_host(platforms: frozenset[str]) -> Iterator[None]:
    """Let the host compute the columns of batches for the devices of some platforms."""
    before = Placement.SHARING
    Placement.SHARING = platforms
    try:
        yield
    finally:
        Placement.SHARING = before


if __name__ == "__main__":
    main()
