"""What the trainer costs beside the step itself: its loop against a bare one over the
same compiled step.

::

    python -m tokenlake.demo
    python -m benchmarks.trainer .demo/artifacts/demo

Both loops take the same batches of the same loader through the same function, turn
about and in one process; the trainer also measures, logs to a file and calls callbacks.
The function is one that costs next to nothing, so that the loops can be told apart on a
machine that others use, too: what the trainer adds to a step is a time, whatever the
step. It is then set against the step of a small decoder. CPU seconds of the process,
from the third step on, when all is compiled; medians of pairs.
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
from tokenlake.runtime.trainer import (
    Objective,
    Sums,
    Trainer,
    TrainState,
    batch_sharding,
    language_model,
    load_training_config,
    make_mesh,
    make_optimizer,
    make_schedule,
    make_step,
)

WARM: Final = 2  # steps that are not measured
COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")


class Clock(tl.Callback):
    """CPU seconds from the step after the warm ones to the end."""

    def __init__(self) -> None:
        self.cpu = 0.0

    def on_step_begin(self, run: Any) -> None:
        if run.step == WARM:
            jax.block_until_ready(run.state)
            self.cpu = time.process_time()

    def on_train_end(self, run: Any) -> None:
        jax.block_until_ready(run.state)
        self.cpu = time.process_time() - self.cpu


def with_trainer(config: tl.TrainingConfig, objective: Objective, params: Any) -> float:
    """Return CPU seconds of a step of the trainer's loop."""
    assert config.steps is not None
    clock = Clock()
    Trainer.from_config(
        config, decoder, params, objective=objective, callbacks=[clock]
    ).train()
    return clock.cpu / (config.steps - WARM)


def bare(config: tl.TrainingConfig, objective: Objective, params: Any) -> float:
    """Return CPU seconds of a step of a loop that only loads and steps."""
    assert config.data is not None and config.steps is not None
    schedule = make_schedule(config.schedule, config.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = jax.jit(
        make_step(objective, optimizer, schedule, accumulate=1, ema=config.log.ema),
        donate_argnums=0,
    )
    params = jax.tree.map(jnp.copy, params)
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        optimizer.init(params),
        jnp.zeros(()),
        jnp.zeros(2, jnp.int32),
    )
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
    cpu = 0.0
    with loader:
        for taken, batch in enumerate(loader):
            if taken == WARM:
                jax.block_until_ready(state)
                cpu = time.process_time()
            if taken == config.steps:
                break
            state, _ = step(state, None, batch)
        jax.block_until_ready(state)
    return (time.process_time() - cpu) / (config.steps - WARM)


def next_to_nothing(params: Any, batch: Any, reference: Any) -> Sums:
    """A loss of one sum over the batch, with the parts that a language model's has."""
    loss = jnp.sum(batch["input_ids"] * params["norm"][0])
    return Sums(
        loss, jnp.float32(batch["input_ids"].size), {"nll": loss, "accuracy": loss}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the trainer's loop costs.")
    parser.add_argument("dataset", help="STORE/NAME, or STORE/NAME@v3")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="of a loop; a tenth of them with the decoder",
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument(
        "--width", type=int, default=32, help="of the decoder's one layer"
    )
    options = parser.parse_args(arguments)
    vocabulary = tl.open(options.dataset).tokenizer.get_vocab_size()
    params = init(
        jax.random.key(0), vocabulary=vocabulary, width=options.width, layers=1, heads=1
    )
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "data": {"dataset": options.dataset, "batch_size": options.batch_size},
            "log": {
                "every": 10,
                "progress": False,
                "jsonl": str(Path(folder) / "log.jsonl"),
            },
        }
        config = load_training_config(asked | {"steps": options.steps})
        small = {"norm": params["norm"]}
        added: list[float] = []
        for at in range(options.pairs):
            # Turn about, so that neither is always the one that runs on a warmer
            # machine.
            order = (bare, with_trainer) if at % 2 else (with_trainer, bare)
            found = {each: each(config, next_to_nothing, small) for each in order}
            added.append(found[with_trainer] - found[bare])
            print(
                f"pair {at + 1}: bare {1e3 * found[bare]:.2f} ms a step, trainer {1e3 * found[with_trainer]:.2f}"
            )
        config = load_training_config(
            asked | {"steps": WARM + max(1, options.steps // 10)}
        )
        step = bare(config, language_model(decoder), params)
    more = statistics.median(added)
    print(
        f"the trainer adds {1e3 * more:.2f} ms to a step: {more / step:.2%} of the decoder's {1e3 * step:.0f} ms"
    )


if __name__ == "__main__":
    main()
