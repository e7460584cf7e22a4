"""Training on one GPU: ``python -m benchmarks.gpu STORE/NAME``, at most ten minutes.

It needs the library, JAX, the trainer's packages and a packed dataset of 16-bit ids. It
needs no other part of the benchmarks, so that it runs on a bare machine. It prints
Markdown tables. A variant that fails prints its error:

- the rates of the card: a matrix product and a copy, both large;
- attention over packed rows, forward and backward, by each implementation;
- the loss of the vocabulary, forward and backward, by chunks of several sizes;
- the step of a decoder (``examples/decoder.py``) on one packed batch that stays on the
  card, in bfloat16;
- the same step in ``tl.Trainer`` on batches of the loader, and its cost beside the bare
  step;
- rates of batches onto the card: :mod:`benchmarks.loader_device`.

Model FLOPs utilization (MFU) is the share of the card's peak rate that the model uses::

    FLOPs of a token = 6 N + 12 L D K
    MFU              = tokens per second * FLOPs of a token / peak

- N is the number of parameters; a tied embedding counts once.
- L and D are the number of layers and their width.
- K is the mean number of ids that an id attends to: those of its document up to itself.
  It is 1,024.5 for a row of 2,048 ids of one document.

Values that are computed again (rematerialization) add nothing. A second column leaves
attention out (6 N alone). The peak of an H100 or H200 is 989 TFLOP/s: dense products in
bfloat16, from the maker's data sheet.
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

WARM: Final = 3
"""Number of calls or steps before the clock starts."""

GROUPS: Final = 3
"""Number of groups of calls that are timed; the median counts."""

CALLS: Final = 5
"""Number of calls of a group."""

BATCH_ROWS: Final = 16
"""Number of rows of the batch for attention and the loss."""

HEADS: Final = 6
HEAD_WIDTH: Final = 128
"""Number of heads of attention, and features of a head."""


@dataclass(frozen=True)
class Case:
    """A step to measure.

    Attributes:
        preset: Name of the decoder's sizes.
        rows: Number of rows of a batch.
        options: Options of the decoder.
        chunk: Number of places of a row whose logits are in memory at once; None: all.
    """

    preset: str
    rows: int
    options: example.Options
    chunk: int | None = None

    def __str__(self) -> str:
        options = self.options
        unroll = options.unroll or "all"
        chunk = self.chunk or "none"
        return (
            f"{self.preset}, {self.rows} rows, {options.attention}, "
            f"remat {options.remat}, unroll {unroll}, chunk {chunk}"
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
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=SECTIONS,
        help="sections to print (default: all)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=80,
        help="measured steps of the trainer, and of the bare step beside it",
    )
    options = parser.parse_args(arguments)
    # Device and data.
    device = jax.devices()[0]
    print(
        f"{device.device_kind} ({device.platform}), JAX {jax.__version__}", flush=True
    )
    dataset = tl.open(options.dataset)
    # Sections, each with a table of its own.
    if "card" in options.only:
        print_card()
    if "attention" in options.only:
        print_attention(packed_batch(dataset, BATCH_ROWS))
    if "loss" in options.only:
        print_loss(packed_batch(dataset, BATCH_ROWS))
    if "step" in options.only:
        print_steps(dataset, CASES)
    if "trainer" in options.only:
        print_trainer(options.dataset, CASES[1], options.steps)
    if "loader" in options.only:
        loader_device.main([options.dataset])


# -- measurements


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the median seconds of a call of a function on the device.

    Args:
        function: Function to measure.
        arguments: Its arguments.
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
    """Print a row of a table.

    If its variant fails, the row has the error, and the benchmark continues.

    Args:
        name: First cell of the row.
        measure: Function that returns the cells after the first.
        columns: Number of these cells.
    """
    start = time.perf_counter()
    try:
        cells = list(measure())
    except Exception as error:
        # Kernels fail in many ways. The error is the result of this variant.
        first_line = str(error).strip().split("\n")[0]
        cells = [f"{type(error).__name__}: {first_line[:200]}"]
        cells += [""] * (columns - 1)
    seconds = time.perf_counter() - start
    print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


def print_head(*columns: str) -> None:
    """Print the head of a table. Its last column is the time of the row's measurement.

    Args:
        columns: Names of the other columns.
    """
    names = [*columns, "s in all"]
    print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def packed_batch(dataset: tl.Dataset, rows: int) -> dict[str, jax.Array]:
    """Return one batch of some rows on the device."""
    with tl.DataLoader(dataset, rows, seed=0, columns=COLUMNS) as loader:
        batch = next(iter(loader))
    return {column: jax.device_put(values) for column, values in batch.items()}


def visible_ids(batch: dict[str, Any]) -> float:
    """Return the mean number of ids that an id attends to.

    These are the ids of its document up to itself.
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
        flops = 2 * size**3
        rate = flops / seconds_of(product, matrix, matrix)
        return [f"{rate / 1e12:.0f} TFLOP/s"]

    def copy_rate() -> list[str]:
        # Every byte is read and written.
        rate = 2 * numbers.nbytes / seconds_of(copy, numbers)
        return [f"{rate / 1e12:.2f} TB/s"]

    print_row("product of 8192 x 8192 matrices, bfloat16", product_rate, 1)
    print_row("read and write 2 GiB", copy_rate, 1)


def print_attention(batch: dict[str, jax.Array]) -> None:
    """Print the milliseconds of attention, forward and backward.

    The difference is that of the gradients from those of plain attention in float32, as
    a share of their norm. It is some thousandths for numbers in bfloat16. It is large
    if documents are not kept apart.

    Args:
        batch: Packed rows on the device.
    """
    print_head("attention, forward and backward", "ms", "difference")
    segment_ids = batch["segment_ids"]
    shape = (*segment_ids.shape, HEADS, HEAD_WIDTH)
    query, key, value = (
        jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
        for seed in range(3)
    )

    # 1. Implementations.
    implementations: dict[str, Callable[..., jax.Array]] = {}
    for kernel in ("cudnn", "plain"):
        implementations[kernel] = example.attention_of(
            kernel, segment_ids, jnp.bfloat16
        )
    implementations["cudnn, documents not kept apart"] = partial(
        jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
    )
    for blocks in ((128, 64, 64), (128, 128, 64), (64, 64, 32)):
        implementations[f"Pallas (Triton), blocks {blocks}"] = partial(
            pallas, segment_ids=segment_ids, blocks=blocks
        )

    # 2. Gradients to compare with, with products in full precision.
    with jax.default_matmul_precision("float32"):
        wide = [values.astype(jnp.float32) for values in (query, key, value)]
        expected = gradient_of_attention(implementations["plain"])(*wide)

    # 3. Time and gradients of each implementation.
    for implementation, attend in implementations.items():
        gradient = gradient_of_attention(attend)

        def cells(gradient: Callable[..., Any] = gradient) -> list[str]:
            milliseconds = 1e3 * seconds_of(gradient, query, key, value)
            difference = difference_of(gradient(query, key, value), expected)
            return [f"{milliseconds:.2f}", f"{difference:.1e}"]

        print_row(implementation, cells, 2)


def gradient_of_attention(attend: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Return the compiled gradient of the sum of squares of attention's results."""

    def sum_of_squares(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(attend(query, key, value).astype(jnp.float32)))

    return jax.jit(jax.grad(sum_of_squares, argnums=(0, 1, 2)))


def difference_of(arrays: Sequence[jax.Array], expected: Sequence[jax.Array]) -> float:
    """Return the largest relative difference of pairs of arrays.

    It is the norm of the difference, over the norm of the expected array.

    Args:
        arrays: Arrays to compare.
        expected: Expected arrays.
    """
    differences: list[float] = []
    for array, expected_array in zip(arrays, expected, strict=True):
        difference = jnp.linalg.norm(array.astype(jnp.float32) - expected_array)
        differences.append(float(difference / jnp.linalg.norm(expected_array)))
    return max(differences)


def pallas(
    query: Any, key: Any, value: Any, *, segment_ids: Any, blocks: tuple[int, int, int]
) -> jax.Array:
    """Return attention by the Pallas kernel for GPUs in JAX (deprecated in JAX 0.11).

    Args:
        query: Queries, [rows, L, heads, features].
        key: Keys, of the same shape.
        value: Values, of the same shape.
        segment_ids: Segment of each id, int32[rows, L].
        blocks: Sizes of the blocks: of queries and keys forward, and of both backward.
    """
    # The import warns that the module is deprecated.
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
    """Print the milliseconds of the loss over GPT-2's vocabulary, of 768 features.

    Args:
        batch: Packed rows on the device.
    """
    print_head("loss, forward and backward", "ms")
    batch_rows, length = batch["targets"].shape
    hidden = jax.random.normal(
        jax.random.key(0), (batch_rows, length, 768), jnp.bfloat16
    )
    head = jax.random.normal(jax.random.key(1), (768, 50_304), jnp.bfloat16) / 28

    # Both losses are of the same hidden states; the gradient is that of the hidden
    # states and of the vocabulary's matrix.
    def through_logits(params: Any, chunk: int | None) -> jax.Array:
        return over_logits(params, batch["targets"], cross_entropy, chunk).loss

    def with_gradient(params: Any, chunk: int | None) -> jax.Array:
        objective = language_model(lambda params, batch: params, chunk=chunk)
        return objective(params, batch, None).loss

    # A row for each loss and number of places whose logits exist at once.
    losses = {
        "logits differentiated by JAX": through_logits,
        "gradient at once": with_gradient,
    }
    for loss_name, loss in losses.items():
        for chunk in (None, 512, 256, 128):
            gradient = jax.jit(jax.grad(partial(loss, chunk=chunk)))

            def milliseconds(gradient: Any = gradient) -> list[str]:
                return [f"{1e3 * seconds_of(gradient, (hidden, head)):.2f}"]

            print_row(f"{loss_name}, chunk {chunk or 'none'}", milliseconds, 1)


def print_steps(dataset: tl.Dataset, cases: Sequence[Case]) -> None:
    """Print the time of a step of each case, on one batch that stays on the device."""
    print_head("step", "ms", "tokens/s", "MFU", "MFU of 6 N alone")
    for case in cases:
        print_row(str(case), partial(step_row, dataset, case), 4)


def step_row(dataset: tl.Dataset, case: Case) -> list[str]:
    """Return the cells of a case: milliseconds, tokens per second, and both MFU."""
    batch = packed_batch(dataset, case.rows)
    seconds = step_seconds(dataset, case, batch)
    tokens_per_second = batch["input_ids"].size / seconds
    # FLOPs of a token, as in the docstring of the module.
    config = example.PRESETS[case.preset]
    flops_of_parameters = 6 * parameters_of(case, dataset.vocab_size)
    flops_of_attention = 12 * config.layers * config.width * visible_ids(batch)
    flops = flops_of_parameters + flops_of_attention
    return [
        f"{1e3 * seconds:.1f}",
        f"{tokens_per_second:,.0f}",
        f"{tokens_per_second * flops / PEAK_FLOPS:.1%}",
        f"{tokens_per_second * flops_of_parameters / PEAK_FLOPS:.1%}",
    ]


def step_seconds(
    dataset: tl.Dataset,
    case: Case,
    batch: dict[str, jax.Array],
    groups: int = GROUPS,
    calls: int = CALLS,
) -> float:
    """Return the median seconds of a step over some groups of steps.

    Args:
        dataset: Dataset of the batch.
        case: Step to measure.
        batch: Packed rows on the device.
        groups: Number of groups.
        calls: Number of steps of a group. A card that is busy for seconds runs at a
            lower clock than for one second.

    Raises:
        ArithmeticError: The loss is not finite after the steps.
    """
    # 1. Compile the step, and make the state.
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
    del params  # the step takes over its memory

    # 2. Step.
    for _ in range(WARM):
        state, measured = step(state, None, batch)
    jax.block_until_ready(state)
    # The median of the groups leaves out disturbances by other programs.
    seconds: list[float] = []
    for _ in range(groups):
        start = time.perf_counter()
        for _ in range(calls):
            state, measured = step(state, None, batch)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / calls)
    # A step with a wrong result must not count.
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
    """Return the configuration of a run of a case.

    Args:
        case: Step to measure.
        dataset: Dataset of the run, STORE/NAME.
        steps: Number of steps.
        folder: Folder for the log.
    """
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
    """Callback that measures the wall seconds of a run, without its first steps.

    They end when all work of the device is done.
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
    """Print the step of the trainer beside a bare step.

    The batch of the bare step stays on the device. All variants take as many steps in a
    row: a card that is busy for seconds runs at a lower clock.

    If the host computes all columns, the device runs no other program than the step.
    With ``XLA_FLAGS=--xla_gpu_enable_command_buffer=`` set, XLA starts kernels one by
    one and does not record graphs of them. A graph must be changed if a batch has
    another address.

    Args:
        dataset: Dataset of the run, STORE/NAME.
        case: Step to measure.
        steps: Number of measured steps.
    """
    print_head("trainer", "ms", "cost beside the bare step")
    # Every row is measured when it is printed. The bare step runs before and after the
    # trainer.
    opened_dataset = tl.open(dataset)
    batch = packed_batch(opened_dataset, case.rows)
    bare_times: list[float] = []

    def bare_row() -> list[str]:
        seconds = step_seconds(opened_dataset, case, batch, groups=1, calls=steps)
        bare_times.append(seconds)
        return [f"{1e3 * seconds:.2f}", ""]

    def trainer_row(platforms: frozenset[str]) -> list[str]:
        with columns_of_host(platforms):
            seconds = trainer_seconds(dataset, case, opened_dataset.vocab_size, steps)
        cost = seconds / statistics.median(bare_times) - 1
        return [f"{1e3 * seconds:.2f}", f"{cost:+.2%}"]

    # By default, the host computes the columns of batches for CPUs alone.
    columns_of_device = partial(trainer_row, frozenset({"cpu"}))
    all_columns_of_host = partial(trainer_row, frozenset({"cpu", "gpu"}))
    print_row(f"bare step: {case}", bare_row, 2)
    print_row("tl.Trainer and tl.DataLoader", columns_of_device, 2)
    print_row("the same, columns of the host", all_columns_of_host, 2)
    print_row("bare step again", bare_row, 2)


def trainer_seconds(dataset: str, case: Case, vocabulary: int, steps: int) -> float:
    """Return the seconds of a step of the trainer on the batches of its loader.

    Args:
        dataset: Dataset of the run, STORE/NAME.
        case: Step to measure.
        vocabulary: Number of ids of the vocabulary.
        steps: Number of measured steps.
    """
    clock = Clock()
    params = example.init(jax.random.key(0), example.PRESETS[case.preset], vocabulary)
    apply = partial(example.decoder, options=case.options)
    with tempfile.TemporaryDirectory() as folder:
        config = training_config(case, dataset, WARM + steps, folder)
        Trainer.from_config(config, apply, params, callbacks=[clock]).train()
    return clock.seconds / steps


@contextmanager
def columns_of_host(platforms: frozenset[str]) -> Iterator[None]:
    """Let the host compute the columns of batches for the devices of some platforms."""
    default_platforms = Placement.SHARING
    Placement.SHARING = platforms
    try:
        yield
    finally:
        Placement.SHARING = default_platforms


if __name__ == "__main__":
    main()
