"""CPU time that the trainer adds to a step, beside a bare loop over the same step.

::

    python -m tokenlake.demo
    python -m benchmarks.trainer .demo/artifacts/demo

Both loops put the same batches of the same loader through the same compiled function,
in turns and in one process. The trainer also measures, logs to a file and calls
callbacks. It adds the same time to every step. Therefore the function takes almost no
time, so that the loops can be told apart on a machine that others use, too. The added
time is then compared with the step of a small decoder. Measured are CPU seconds of the
process, from the third step on, when all is compiled. Figures are medians of pairs.
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

WARM: Final = 2
"""Number of steps that are not measured."""

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")


class Clock(tl.Callback):
    """Callback that measures the CPU seconds of a run, without its first steps."""

    def __init__(self) -> None:
        self.start = 0.0
        self.seconds = 0.0

    def on_step_begin(self, run: Any) -> None:
        if run.step == WARM:
            jax.block_until_ready(run.state)
            self.start = time.process_time()

    def on_train_end(self, run: Any) -> None:
        jax.block_until_ready(run.state)
        self.seconds = time.process_time() - self.start


def trainer_seconds(
    config: tl.TrainingConfig, objective: Objective, params: Any
) -> float:
    """Return the CPU seconds of a step of the trainer's loop.

    Args:
        config: Configuration of the run.
        objective: Function of the step.
        params: Parameters of the model.
    """
    assert config.steps is not None
    clock = Clock()
    trainer = Trainer.from_config(
        config, decoder, params, objective=objective, callbacks=[clock]
    )
    trainer.train()
    return clock.seconds / (config.steps - WARM)


def bare_seconds(config: tl.TrainingConfig, objective: Objective, params: Any) -> float:
    """Return the CPU seconds of a step of a loop that only loads and steps.

    Args:
        config: Configuration of the run.
        objective: Function of the step.
        params: Parameters of the model.
    """
    assert config.data is not None and config.steps is not None
    # 1. Compile the step, and make the state.
    schedule = make_schedule(config.schedule, config.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = jax.jit(
        make_step(objective, optimizer, schedule, accumulate=1, ema=config.log.ema),
        donate_argnums=0,
    )
    # The step takes over the memory of the state.
    params = jax.tree.map(jnp.copy, params)
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        optimizer.init(params),
        jnp.zeros(()),
        jnp.zeros(2, jnp.int32),
    )

    # 2. Step over the batches of the loader.
    loader = tl.DataLoader(
        tl.open(config.data.dataset, split=config.data.split),
        config.data.batch_size,
        seed=config.data.seed,
        epochs=None,
        columns=COLUMNS,
        sharding=batch_sharding(make_mesh(config.mesh)),
    )
    start = 0.0
    with loader:
        for number, batch in enumerate(loader):
            if number == WARM:
                jax.block_until_ready(state)
                start = time.process_time()
            if number == config.steps:
                break
            state, _ = step(state, None, batch)
        jax.block_until_ready(state)
    return (time.process_time() - start) / (config.steps - WARM)


def minimal_objective(params: Any, batch: Any, reference: Any) -> Sums:
    """Return a loss of one sum over the batch, with the parts of a language model's."""
    loss = jnp.sum(batch["input_ids"] * params["norm"][0])
    tokens = jnp.float32(batch["input_ids"].size)
    return Sums(loss, tokens, {"nll": loss, "accuracy": loss})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the added time of each pair, and its median beside the decoder's step."""
    parser = argparse.ArgumentParser(
        description="CPU time that the trainer adds to a step."
    )
    parser.add_argument("dataset", help="STORE/NAME, or STORE/NAME@v3")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="steps of a loop; a tenth of them with the decoder",
    )
    parser.add_argument(
        "--pairs", type=int, default=7, help="number of pairs of both loops"
    )
    parser.add_argument("--batch-size", type=int, default=2, help="rows of a batch")
    parser.add_argument(
        "--width", type=int, default=32, help="width of the decoder, of one layer"
    )
    options = parser.parse_args(arguments)
    # Parameters of the decoder. The objective without work uses one of them.
    vocabulary = tl.open(options.dataset).tokenizer.get_vocab_size()
    params = init(
        jax.random.key(0), vocabulary=vocabulary, width=options.width, layers=1, heads=1
    )
    with tempfile.TemporaryDirectory() as folder:

        def config_of(steps: int) -> tl.TrainingConfig:
            log = {
                "every": 10,
                "progress": False,
                "jsonl": str(Path(folder) / "log.jsonl"),
            }
            data = {"dataset": options.dataset, "batch_size": options.batch_size}
            return load_training_config({"data": data, "log": log, "steps": steps})

        # 1. Measure the time that the trainer adds.
        config = config_of(options.steps)
        small_params = {"norm": params["norm"]}
        added_seconds: list[float] = []
        for pair in range(options.pairs):
            seconds: dict[str, float] = {}
            loops = {"trainer": trainer_seconds, "bare": bare_seconds}
            # In turns, so that neither always runs on a warmer machine.
            order = ("bare", "trainer") if pair % 2 else ("trainer", "bare")
            for loop_name in order:
                seconds[loop_name] = loops[loop_name](
                    config, minimal_objective, small_params
                )
            added_seconds.append(seconds["trainer"] - seconds["bare"])
            print(
                f"pair {pair + 1}: bare {1e3 * seconds['bare']:.2f} ms a step, trainer {1e3 * seconds['trainer']:.2f}"
            )

        # 2. Measure the step of the decoder.
        config = config_of(WARM + max(1, options.steps // 10))
        decoder_seconds = bare_seconds(config, language_model(decoder), params)
    median = statistics.median(added_seconds)
    print(
        f"the trainer adds {1e3 * median:.2f} ms to a step: {median / decoder_seconds:.2%} of the decoder's "
        f"{1e3 * decoder_seconds:.0f} ms"
    )


if __name__ == "__main__":
    main()
