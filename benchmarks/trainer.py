"""What the trainer costs beside the step itself: its loop against a bare one over the same compiled step.

::

    python -m tokenlake.demo
    python -m benchmarks.trainer .demo/artifacts/demo

Both loops take the same batches of the same loader through the same function, turn about and in one process; the
trainer also measures, logs to a file and calls callbacks. A pair's figure is the trainer's CPU seconds by the bare
loop's, from the third step on, when all is compiled; the median of the pairs counts, and their spread is told.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp

import tokenlake as tl
from examples.train_jax import decoder, init
from tokenlake.trainer import Trainer, language_model, load_training_config, make_optimizer, make_schedule
from tokenlake.trainer.mesh import batch_sharding, make_mesh
from tokenlake.trainer.step import TrainState, make_step

WARM: Final = 2  # steps that are not measured
COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")


class Clock(tl.Callback):
    """CPU and wall seconds from the step after the warm ones to the end."""

    def __init__(self) -> None:
        self.begun = self.cpu = self.wall = 0.0

    def on_step_begin(self, run: Any) -> None:
        if run.step == WARM:
            jax.block_until_ready(run.state)
            self.begun, self.cpu = time.perf_counter(), time.process_time()

    def on_train_end(self, run: Any) -> None:
        jax.block_until_ready(run.state)
        self.wall, self.cpu = time.perf_counter() - self.begun, time.process_time() - self.cpu


def with_trainer(config: tl.TrainingConfig, params: Any) -> tuple[float, float]:
    """Return CPU and wall seconds of the trainer's loop."""
    clock = Clock()
    Trainer.from_config(config, decoder, params, callbacks=[clock]).train()
    return clock.cpu, clock.wall


def bare(config: tl.TrainingConfig, params: Any) -> tuple[float, float]:
    """Return CPU and wall seconds of a loop that only loads and steps."""
    assert config.data is not None and config.steps is not None
    schedule = make_schedule(config.schedule, config.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = jax.jit(
        make_step(language_model(decoder), optimizer, schedule, accumulate=1, ema=config.log.ema),
        donate_argnums=0,
    )
    params = jax.tree.map(jnp.copy, params)
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), jnp.zeros(()))
    data = config.data
    sharding = batch_sharding(make_mesh(config.mesh))
    loader = tl.DataLoader(
        tl.open(data.dataset, split=data.split),
        data.batch_size,
        seed=data.seed,
        epochs=None,
        columns=COLUMNS,
        sharding=sharding,
    )
    begun = cpu = 0.0
    with loader:
        for taken, batch in enumerate(loader):
            if taken == WARM:
                jax.block_until_ready(state)
                begun, cpu = time.perf_counter(), time.process_time()
            if taken == config.steps:
                break
            state, _ = step(state, None, batch)
        jax.block_until_ready(state)
    return time.process_time() - cpu, time.perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the trainer's loop costs.")
    parser.add_argument("dataset", help="STORE/NAME, or STORE/NAME@v3")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args(arguments)
    vocabulary = tl.open(options.dataset).tokenizer.get_vocab_size()
    params = init(jax.random.key(0), vocabulary=vocabulary, width=options.width, layers=1, heads=1)
    with tempfile.TemporaryDirectory() as folder:
        config = load_training_config(
            {
                "data": {"dataset": options.dataset, "batch_size": options.batch_size},
                "steps": options.steps,
                "log": {"every": 10, "progress": False, "jsonl": str(Path(folder) / "log.jsonl")},
            }
        )
        pairs: list[tuple[float, float]] = []
        for at in range(options.pairs):
            # Turn about, so that neither is always the one that runs on a warmer machine.
            first, second = (bare, with_trainer) if at % 2 else (with_trainer, bare)
            found = {each: each(config, params) for each in (first, second)}
            cpu, wall = (ours / theirs for ours, theirs in zip(found[with_trainer], found[bare], strict=True))
            each = found[bare][0] / (options.steps - WARM)
            print(
                f"pair {at + 1}: trainer / bare {cpu:.3f} of CPU, {wall:.3f} of wall; a step {1e3 * each:.0f} ms"
            )
            pairs.append((cpu, wall))
    cpu, wall = (statistics.median(values) for values in zip(*pairs, strict=True))
    print(f"median {100 * (cpu - 1):+.1f}% of CPU, {100 * (wall - 1):+.1f}% of wall")


if __name__ == "__main__":
    main()
