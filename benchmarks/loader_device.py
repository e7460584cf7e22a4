"""Batches of a loader on a device: `python -m benchmarks.loader_device STORE/NAME`.

It needs the library, JAX and a packed dataset, and no other part of the benchmarks, so
that it runs on a bare machine with an accelerator. It prints

- whether batches on devices are those of the host, with a whole epoch of them in
  transfer and alive at once, and after resuming in the middle;
- tokens a second onto the device, and CPU seconds for 10^6 of them, beside `device_put`
  from a memory map of 16-bit ids of the same rows (the layout of nanoGPT and Megatron),
  and beside `device_put` of the same batch in every step;
- waiting time of a training loop: milliseconds of a step beyond those of the same step
  on a batch that stays on the device, for steps of several lengths.

Paths are run in turns. Figures are medians with their range.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenlake as tl

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "loss_mask")
IDS_ALONE: Final = COLUMNS[:1]

STEPS: Final = (0.002, 0.01, 0.05)
"""Seconds of a step."""

WARM: Final = 3
"""Number of steps before the clock starts."""

Batches = Iterator[dict[str, Any]]

HOST: Final = "tokenlake, input_ids, to the host alone"
SAME_BATCH: Final = "one batch again"

_MATRIX: Final = (2048, 2048)
"""Shape of the matrices that a step multiplies."""


@final
@dataclass(frozen=True)
class BatchPath:
    """Path of batches to a device, or to the host.

    Attributes:
        open: Function that returns endless batches.
        has_device: False if the batches stay on the host.
    """

    open: Callable[[], Batches]
    has_device: bool = True


Paths = Mapping[str, BatchPath]
"""Name of a path in the tables -> path."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as Markdown. Exit with 1 if a batch differs from the host's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="a packed dataset, STORE/NAME")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument(
        "--batches", type=int, default=400, help="batches of a measured run"
    )
    parser.add_argument("--repeat", type=int, default=3, help="number of measured runs")
    options = parser.parse_args(arguments)

    device = jax.devices()[0]
    print(
        f"{len(jax.devices())} x {device.device_kind} ({device.platform}), jax {jax.__version__}"
    )
    dataset = tl.open(options.dataset)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    # 1. Compare the batches with the host's.
    different_columns = differences(dataset, options.batch, sharding)
    summary = f"\n{len(different_columns)} differences between devices and host"
    if different_columns:
        summary += f": {'; '.join(different_columns[:5])}"
    print(summary)

    # 2. Rates and waiting times.
    with tempfile.TemporaryDirectory() as folder:
        mapped_rows = memory_map(dataset, Path(folder, "ids.u16"))
        paths = _paths(dataset, mapped_rows, options.batch, sharding)
        batch_ids = options.batch * mapped_rows.shape[1]
        print_rates(paths, batch_ids, options.batches, options.repeat)
        print_waits(paths, options.batches, options.repeat)
    sys.exit(1 if different_columns else 0)


def differences(dataset: tl.Dataset, batch_size: int, sharding: Any) -> list[str]:
    """Return the columns of batches that differ from the host's.

    All batches of an epoch are compared, and those of its second half after resuming.
    The whole epoch is requested before one batch is read: a buffer of the host that is
    used again during its transfer would show.

    Args:
        dataset: Dataset to read.
        batch_size: Number of rows of a batch.
        sharding: Sharding of the batches on devices.
    """

    def open_loader(**options: Any) -> tl.DataLoader:
        return tl.DataLoader(
            dataset,
            batch_size,
            sharding=sharding,
            epochs=1,
            columns=COLUMNS,
            **options,
        )

    # 1. A whole epoch.
    host_loader = tl.DataLoader(
        dataset, batch_size, epochs=1, columns=COLUMNS, pad_last=True
    )
    # All batches of the devices are alive at once.
    device_batches = list(open_loader(prefetch=4))
    host_batches = list(host_loader)
    different_columns = _compare("step", 0, device_batches, host_batches)

    # 2. The second half, after resuming.
    middle = len(host_batches) // 2
    interrupted_loader = open_loader()
    for _ in islice(interrupted_loader, middle):
        pass
    resumed_loader = open_loader()
    resumed_loader.set_state(interrupted_loader.get_state())
    different_columns += _compare(
        "resumed, step", middle, list(resumed_loader), host_batches[middle:]
    )
    return different_columns


def _compare(
    title: str, first_step: int, batches: Sequence[Any], expected: Sequence[Any]
) -> list[str]:
    """Return a description of each column that differs.

    Args:
        title: Beginning of each description.
        first_step: Step of the first batch.
        batches: Batches to compare.
        expected: Batches of the host.
    """
    different_columns: list[str] = []
    if len(batches) != len(expected):
        different_columns.append(f"{len(batches)} batches, expected {len(expected)}")
    # Batches that one side lacks were reported above.
    pairs = zip(batches, expected, strict=False)
    for step, (batch, expected_batch) in enumerate(pairs, first_step):
        for column, values in expected_batch.items():
            if not np.array_equal(batch[column], values):
                different_columns.append(f"{title} {step}: {column}")
    return different_columns


def memory_map(dataset: tl.Dataset, path: Path) -> np.memmap[Any, np.dtype[np.uint16]]:
    """Write all rows as 16-bit ids and return them as a map, uint16[rows, L]."""
    loader = tl.DataLoader(dataset, 1024, shuffle=False, epochs=1, columns=IDS_ALONE)
    with path.open("wb") as file:
        for batch in loader:
            ids = batch["input_ids"]
            # The comparison is with the layout of nanoGPT, which has 16 bits.
            if int(ids.max()) > np.iinfo(np.uint16).max:
                raise SystemExit(
                    "the memory map is of 16-bit ids; expected a smaller vocabulary"
                )
            file.write(ids.astype(np.uint16).tobytes())
    return np.memmap(path, np.uint16, "r").reshape(-1, ids.shape[1])


# -- paths


def _paths(dataset: tl.Dataset, ids: Any, batch_size: int, sharding: Any) -> Paths:
    """Return the paths that are compared.

    Args:
        dataset: Dataset to read.
        ids: The same rows as a memory map, uint16[rows, L].
        batch_size: Number of rows of a batch.
        sharding: Sharding of the batches on devices.
    """
    # All sources of a packed dataset have one tokenizer.
    (description,) = dataset.manifest.tokenizer.values()
    eos_id = description["eos_id"]

    # Tokenlake's loader.
    def open_loader(columns: Sequence[str], sharding: Any) -> Batches:
        return iter(
            tl.DataLoader(
                dataset, batch_size, sharding=sharding, epochs=None, columns=columns
            )
        )

    # The memory map: ids alone, or with the columns that follow from them.
    def mapped_ids() -> Batches:
        for rows in _shuffled_rows(ids, batch_size):
            yield {"input_ids": jax.device_put(rows, sharding)}

    def mapped_columns() -> Batches:
        for rows in _shuffled_rows(ids, batch_size):
            batch: dict[str, Any] = {}
            for column, values in _columns_of_ids(rows, eos_id).items():
                batch[column] = jax.device_put(values, sharding)
            yield batch

    # The bound: a transfer of the same memory in every step.
    def same_batch() -> Batches:
        batch = np.array(ids[:batch_size], np.int32)
        while True:
            yield {"input_ids": jax.device_put(batch, sharding)}

    return {
        "tokenlake, input_ids": BatchPath(lambda: open_loader(IDS_ALONE, sharding)),
        "tokenlake, four columns": BatchPath(lambda: open_loader(COLUMNS, sharding)),
        HOST: BatchPath(lambda: open_loader(IDS_ALONE, None), has_device=False),
        "memory map of 16-bit ids": BatchPath(mapped_ids),
        "memory map of 16-bit ids, four columns from EOS ids": BatchPath(
            mapped_columns
        ),
        SAME_BATCH: BatchPath(same_batch),
    }


def _shuffled_rows(ids: Any, batch_size: int) -> Iterator[Any]:
    """Yield int32[batch_size, L] of shuffled rows, epoch after epoch.

    Args:
        ids: Memory map of all rows, uint16[rows, L].
        batch_size: Number of rows of a batch.
    """
    for epoch in count():
        order = np.random.default_rng(epoch).permutation(len(ids))
        for begin in range(0, len(order) - batch_size + 1, batch_size):
            yield ids[order[begin : begin + batch_size]].astype(np.int32)


def _columns_of_ids(rows: Any, eos_id: int) -> dict[str, Any]:
    """Return the columns that follow from the EOS ids of rows.

    They are not those of the dataset, which has segments and a loss mask of its own.

    Args:
        rows: Rows of ids, int32[n, L].
        eos_id: Id that ends a document.
    """
    places = np.arange(rows.shape[1], dtype=np.int32)
    # A document begins with a row, and after each EOS.
    is_first = np.ones(rows.shape, np.bool_)
    is_first[:, 1:] = rows[:, :-1] == eos_id
    starts = np.maximum.accumulate(np.where(is_first, places, 0), axis=1)
    return {
        "input_ids": rows,
        "segment_ids": np.cumsum(is_first, axis=1, dtype=np.int32),
        "positions": places - starts,
        "loss_mask": ~is_first,
    }


# -- rates


@jax.jit
def _add_values(total: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Return a total plus all values of a batch."""
    return total + sum(jnp.sum(values, dtype=jnp.int32) for values in batch.values())


def print_rates(paths: Paths, batch_ids: int, batches: int, repeats: int) -> None:
    """Print tokens a second and CPU seconds of each path.

    All values of a batch are added up where it arrives.

    Args:
        paths: Paths to measure.
        batch_ids: Number of ids of a batch.
        batches: Number of batches of a run.
        repeats: Number of runs of each path.
    """
    mtok = batch_ids * batches / 1e6
    # Paths take turns, so that all run on a machine that is equally busy.
    rates: dict[str, list[float]] = {path_name: [] for path_name in paths}
    cpu_milliseconds: dict[str, list[float]] = {path_name: [] for path_name in paths}
    for _ in range(repeats):
        for path_name, path in paths.items():
            wall_seconds, cpu_seconds = _seconds_of(path, batches)
            rates[path_name].append(mtok / wall_seconds)
            cpu_milliseconds[path_name].append(cpu_seconds / mtok * 1e3)
    print("\n| path | Mtok/s | CPU ms for 1 Mtok |\n|---|---|---|")
    for path_name in paths:
        rate = _median_and_range(rates[path_name])
        cpu_time = _median_and_range(cpu_milliseconds[path_name])
        print(f"| {path_name} | {rate} | {cpu_time} |")


def _seconds_of(path: BatchPath, batches: int) -> tuple[float, float]:
    """Return the wall and CPU seconds of some batches of a path.

    Args:
        path: Path to measure.
        batches: Number of batches.
    """
    # The first batches are slower: programs are compiled and threads start.
    source = path.open()
    total = jnp.zeros((), jnp.int32)
    for batch in islice(source, WARM):
        if path.has_device:
            total = _add_values(total, batch)
    jax.block_until_ready(total)
    # The clock includes the work of the device on the last batch.
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    for batch in islice(source, batches):
        if path.has_device:
            total = _add_values(total, batch)
        else:
            batch["input_ids"].sum()
    jax.block_until_ready(total)
    return time.perf_counter() - wall_start, time.process_time() - cpu_start


# -- waiting times


def print_waits(paths: Paths, batches: int, repeats: int) -> None:
    """Print the time of steps beyond that of steps on a batch that stays on the device.

    Args:
        paths: Paths to measure.
        batches: Largest number of steps of a run.
        repeats: Number of runs of each path.
    """
    column_names = [f"{seconds * 1e3:.0f} ms steps" for seconds in STEPS]
    print(f"\n| path | {' | '.join(column_names)} |")
    print("|---|" + "---|" * len(STEPS))
    # Only batches on devices are compared with a batch that stays there.
    cells: dict[str, list[str]] = {}
    for path_name, path in paths.items():
        if path.has_device:
            cells[path_name] = []
    for seconds in STEPS:
        step = _busy_step(seconds)
        # A run takes a second, or has few steps.
        steps = max(10, min(batches, int(1 / seconds)))
        # Milliseconds that a step of each path waits, in every run.
        waits: dict[str, list[float]] = {path_name: [] for path_name in cells}
        for _ in range(repeats):
            # The loop without a loader runs first in each turn.
            resident_batch = next(paths[SAME_BATCH].open())
            resident_seconds = _loop_seconds(step, repeat(resident_batch), steps)
            for path_name, milliseconds in waits.items():
                loop_seconds = _loop_seconds(step, paths[path_name].open(), steps)
                milliseconds.append((loop_seconds - resident_seconds) / steps * 1e3)
        for path_name, milliseconds in waits.items():
            cells[path_name].append(f"{_median_and_range(milliseconds)} ms")
    for path_name, cells_of_path in cells.items():
        print(f"| {path_name} | {' | '.join(cells_of_path)} |")


def _loop_seconds(step: Callable[..., jax.Array], source: Batches, steps: int) -> float:
    """Return the wall seconds of some steps.

    Args:
        step: Function of a state and a batch that returns the next state.
        source: Batches.
        steps: Number of steps.
    """
    state = jnp.ones(_MATRIX, jnp.bfloat16)
    for batch in islice(source, WARM):
        state = step(state, batch)
    jax.block_until_ready(state)
    start = time.perf_counter()
    for batch in islice(source, steps):
        state = step(state, batch)
    jax.block_until_ready(state)
    return time.perf_counter() - start


def _busy_step(seconds: float) -> Callable[..., jax.Array]:
    """Return a step that keeps any device busy for some time.

    Args:
        seconds: Time of the step.
    """

    def multiply(
        state: jax.Array, batch: dict[str, jax.Array], products: int
    ) -> jax.Array:
        # The step reads the batch, but its values do not change the state.
        zero = _add_values(jnp.zeros((), jnp.int32), batch) * 0
        state = state + zero.astype(state.dtype)
        return jax.lax.fori_loop(
            0, products, lambda _, matrix: jnp.tanh(matrix @ matrix), state
        )

    # Double the number of products until the step is about long enough, and then scale
    # it.
    compiled = jax.jit(multiply, static_argnums=2)
    # The size of the batch does not matter here.
    batch = {"input_ids": jnp.zeros((8, 8), jnp.int32)}
    products = 1
    while True:
        state = jnp.ones(_MATRIX, jnp.bfloat16)
        state = jax.block_until_ready(compiled(state, batch, products))
        start = time.perf_counter()
        jax.block_until_ready(compiled(state, batch, products))
        measured_seconds = time.perf_counter() - start
        if measured_seconds > seconds * 0.7 or products > 1 << 16:
            break
        products *= 2
    products = max(1, round(products * seconds / measured_seconds))
    return lambda state, batch: compiled(state, batch, products)


def _median_and_range(values: Sequence[float]) -> str:
    """Return the median and the range of values, as ``5.02 (4.90 to 5.31)``."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
