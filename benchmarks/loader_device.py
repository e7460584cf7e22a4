"""The way of batches onto a device: `python -m benchmarks.loader_device STORE/NAME`.

It needs the library, JAX and a packed dataset, and no other part of the benchmarks, so
that it runs on a bare machine with an accelerator. It says

- whether batches on devices are those of the host, with a whole epoch of them on their
  way and alive at once, and after resuming in the middle;
- tokens a second onto the device, and CPU seconds for 10^6 of them, beside a memory map
  of 16-bit ids of the same rows (nanoGPT's and Megatron's layout) with `device_put`,
  and beside `device_put` of one batch again and again;
- what a training loop waits for: milliseconds a step beyond those of the same steps on
  one batch that stays on the device, for steps of several lengths.

Ways are run in turns; figures are medians with their range.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenlake as tl

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "loss_mask")
ONE: Final = COLUMNS[:1]
STEPS: Final = (0.002, 0.01, 0.05)  # seconds of a step
WARM: Final = 3  # steps before the clock begins

Batches = Iterator[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as Markdown; exit 1 where a batch on the devices is not the
    host's.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="a packed dataset, STORE/NAME")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument(
        "--batches", type=int, default=400, help="batches of a measured run"
    )
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args(arguments)
    device = jax.devices()[0]
    print(
        f"{len(jax.devices())} x {device.device_kind} ({device.platform}), jax {jax.__version__}"
    )
    dataset = tl.open(asked.dataset)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    wrong = differences(dataset, asked.batch, sharding)
    print(
        f"\n{len(wrong)} differences between devices and host{': ' if wrong else ''}{'; '.join(wrong[:5])}"
    )
    with tempfile.TemporaryDirectory() as folder:
        ids = memory_map(dataset, Path(folder, "ids.u16"))
        ways = _ways(dataset, ids, asked.batch, sharding)
        rates(ways, asked.batch * ids.shape[1], asked.batches, asked.repeat)
        waits(ways, asked.batches, asked.repeat)
    sys.exit(bool(wrong))


def differences(dataset: tl.Dataset, size: int, sharding: Any) -> list[str]:
    """Return the batches of an epoch, and of its second half after resuming, that
    differ from the host's.

    All of the epoch's are asked for before one is looked at: a buffer of the host that
    was used again while it was on its way would show.
    """
    onto = tl.DataLoader(
        dataset, size, sharding=sharding, epochs=1, columns=COLUMNS, prefetch=4
    )
    host = list(tl.DataLoader(dataset, size, epochs=1, columns=COLUMNS, pad_last=True))
    wrong = _compare("step", 0, list(onto), host)
    middle = len(host) // 2
    halfway = tl.DataLoader(dataset, size, sharding=sharding, epochs=1, columns=COLUMNS)
    for _ in islice(halfway, middle):
        pass
    resumed = tl.DataLoader(dataset, size, sharding=sharding, epochs=1, columns=COLUMNS)
    resumed.set_state(halfway.get_state())
    return wrong + _compare("resumed, step", middle, list(resumed), host[middle:])


def _compare(
    what: str, begin: int, found: Sequence[Any], expected: Sequence[Any]
) -> list[str]:
    wrong = (
        []
        if len(found) == len(expected)
        else [f"{len(found)} batches, expected {len(expected)}"]
    )
    for step, (one, other) in enumerate(zip(found, expected, strict=False), begin):
        wrong += [
            f"{what} {step}: {name}"
            for name in other
            if not np.array_equal(one[name], other[name])
        ]
    return wrong


def memory_map(dataset: tl.Dataset, path: Path) -> np.memmap[Any, np.dtype[np.uint16]]:
    """Write all rows as 16-bit ids and return them as a map, uint16[rows, L]."""
    with path.open("wb") as file:
        for batch in tl.DataLoader(dataset, 1024, shuffle=False, epochs=1, columns=ONE):
            ids = batch["input_ids"]
            if int(ids.max()) > np.iinfo(np.uint16).max:
                raise SystemExit(
                    "the memory map is of 16-bit ids; expected a smaller vocabulary"
                )
            file.write(ids.astype(np.uint16).tobytes())
    return np.memmap(path, np.uint16, "r").reshape(-1, ids.shape[1])


def _ways(
    dataset: tl.Dataset, ids: Any, size: int, sharding: Any
) -> dict[str, Callable[[], Batches]]:
    (description,) = dataset.manifest.tokenizer.values()
    eos = description["eos_id"]

    def ours(columns: Sequence[str]) -> Batches:
        return iter(
            tl.DataLoader(
                dataset, size, sharding=sharding, epochs=None, columns=columns
            )
        )

    def host() -> Batches:
        return iter(tl.DataLoader(dataset, size, epochs=None, columns=ONE))

    def mapped() -> Batches:
        for epoch in range(1 << 30):
            order = np.random.default_rng(epoch).permutation(len(ids))
            for begin in range(0, len(order) - size + 1, size):
                yield {
                    "input_ids": jax.device_put(
                        ids[order[begin : begin + size]].astype(np.int32), sharding
                    )
                }

    def mapped_columns() -> Batches:
        # The columns that follow from the places of EOS ids, without a dataset's own
        # segments or loss mask.
        places = np.arange(ids.shape[1], dtype=np.int32)
        for epoch in range(1 << 30):
            order = np.random.default_rng(epoch).permutation(len(ids))
            for begin in range(0, len(order) - size + 1, size):
                rows = ids[order[begin : begin + size]].astype(np.int32)
                is_first = np.ones(rows.shape, np.bool_)
                is_first[:, 1:] = rows[:, :-1] == eos
                starts = np.maximum.accumulate(np.where(is_first, places, 0), axis=1)
                columns = {
                    "input_ids": rows,
                    "segment_ids": np.cumsum(is_first, axis=1, dtype=np.int32),
                    "positions": places - starts,
                    "loss_mask": ~is_first,
                }
                yield {
                    name: jax.device_put(column, sharding)
                    for name, column in columns.items()
                }

    def again() -> Batches:
        batch = np.array(ids[:size], np.int32)
        while True:
            yield {"input_ids": jax.device_put(batch, sharding)}

    return {
        "tokenlake, input_ids": lambda: ours(ONE),
        "tokenlake, four columns": lambda: ours(COLUMNS),
        "tokenlake, input_ids, to the host alone": host,
        "memory map of 16-bit ids": mapped,
        "memory map of 16-bit ids, four columns from EOS ids": mapped_columns,
        "one batch again": again,
    }


@jax.jit
def _touch(total: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return total + sum(jnp.sum(values, dtype=jnp.int32) for values in batch.values())


def rates(
    ways: dict[str, Callable[[], Batches]], ids: int, batches: int, repeats: int
) -> None:
    """Print tokens a second and CPU seconds of each way; every value of a batch is
    added up where it arrives.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            source, total = way(), jnp.zeros((), jnp.int32)
            onto = "host" not in name
            for batch in islice(source, WARM):
                total = _touch(total, batch) if onto else total
            jax.block_until_ready(total)
            wall, cpu = time.perf_counter(), time.process_time()
            for batch in islice(source, batches):
                if onto:
                    total = _touch(total, batch)
                else:
                    batch["input_ids"].sum()
            jax.block_until_ready(total)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            found[name].append(
                (ids * batches / spent[0] / 1e6, spent[1] / (ids * batches / 1e6) * 1e3)
            )
            del source
    print("\n| way | Mtok/s | CPU ms for 1 Mtok |\n|---|---|---|")
    for name, each in found.items():
        print(
            f"| {name} | {_span([one[0] for one in each])} | {_span([one[1] for one in each])} |"
        )


def waits(ways: dict[str, Callable[[], Batches]], batches: int, repeats: int) -> None:
    """Print what steps of several lengths last longer than on a batch that stays
    where it is.
    """
    print(
        "\n| way | " + " | ".join(f"{step * 1e3:.0f} ms steps" for step in STEPS) + " |"
    )
    print("|---|" + "---|" * len(STEPS))
    lines: dict[str, list[str]] = {name: [] for name in ways if "host" not in name}
    for seconds in STEPS:
        work = _work(seconds)
        steps = max(10, min(batches, int(1 / seconds)))
        late: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(repeats):
            (stays,) = islice(ways["one batch again"](), 1)
            bare = _loop(work, (stays for _ in range(WARM + steps)), steps)
            for name, values in late.items():
                values.append((_loop(work, ways[name](), steps) - bare) / steps * 1e3)
        for name, values in late.items():
            lines[name].append(f"{_span(values)} ms")
    for name, line in lines.items():
        print(f"| {name} | {' | '.join(line)} |")


def _loop(work: Callable[..., jax.Array], source: Batches, steps: int) -> float:
    state = jnp.ones((2048, 2048), jnp.bfloat16)
    for batch in islice(source, WARM):
        state = work(state, batch)
    jax.block_until_ready(state)
    begin = time.perf_counter()
    for batch in islice(source, steps):
        state = work(state, batch)
    jax.block_until_ready(state)
    return time.perf_counter() - begin


def _work(seconds: float) -> Callable[..., jax.Array]:
    """Return a step that keeps a device busy for so long, whatever the device."""

    def step(state: jax.Array, batch: dict[str, jax.Array], products: int) -> jax.Array:
        nothing = _touch(jnp.zeros((), jnp.int32), batch) * 0
        state = state + nothing.astype(state.dtype)
        return jax.lax.fori_loop(
            0, products, lambda _, value: jnp.tanh(value @ value), state
        )

    compiled = jax.jit(step, static_argnums=2)
    products, batch = 1, {"input_ids": jnp.zeros((8, 8), jnp.int32)}
    while True:
        state = jax.block_until_ready(
            compiled(jnp.ones((2048, 2048), jnp.bfloat16), batch, products)
        )
        begin = time.perf_counter()
        jax.block_until_ready(compiled(state, batch, products))
        if (spent := time.perf_counter() - begin) > seconds * 0.7 or products > 1 << 16:
            break
        products *= 2
    products = max(1, round(products * seconds / spent))
    return lambda state, batch: compiled(state, batch, products)


def _span(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
