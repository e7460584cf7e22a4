"""Train the small decoder of ``train_jax.py`` with ``tl.Trainer``: metrics, held-out rows, checkpoints, resuming.

::

    python -m tokenlake.demo
    python -m examples.train_lm --set steps=300

The same command again, after a kill at any moment, goes on from the newest checkpoint with exactly the numbers that the
run would have had. ``examples/train_lm.yaml`` is the configuration; ``--set`` changes a key of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax

import tokenlake as tl
from examples.train_jax import Params, decoder, init


def first_params(config: tl.TrainingConfig, *, width: int, layers: int, heads: int) -> Params:
    """Return the parameters of a model for the ids of the configuration's dataset."""
    assert config.data is not None
    vocabulary = tl.open(config.data.dataset).vocab_size
    key = jax.random.key(config.data.seed)
    return init(key, vocabulary=vocabulary, width=width, layers=layers, heads=heads)


def main(arguments: Sequence[str] | None = None) -> tl.TrainingMetrics | None:
    parser = argparse.ArgumentParser(description="Train a small language model on a packed dataset.")
    parser.add_argument("--config", default=str(Path(__file__).with_suffix(".yaml")))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--width", type=int, default=64, help="features of an id")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    options = parser.parse_args(arguments)
    config = tl.load_training_config(options.config, options.overrides)
    params = first_params(config, width=options.width, layers=options.layers, heads=options.heads)
    return tl.Trainer.from_config(config, decoder, params).train()


if __name__ == "__main__":
    main()
