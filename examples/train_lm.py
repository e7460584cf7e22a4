"""Train the decoder of ``decoder.py`` with ``tl.Trainer``: metrics, held-out rows,
checkpoints, resuming.

::

    python -m tokenlake.demo
    python -m examples.train_lm --set steps=300

The same command again, after a kill at any moment, resumes from the newest checkpoint with exactly the numbers that the
run would have had. ``examples/train_lm.yaml`` is the configuration; ``--set`` changes a key of it. On an accelerator::

    python -m examples.train_lm --preset 124M --set data.dataset=artifacts/web --set data.batch_size=32 \\
        --set precision=bfloat16 --set loss.chunk=512 --set steps=20000

Several devices are divided by ``mesh``, such as ``--set mesh.fsdp=8``. The rules of a
tensor axis are set where the configuration has none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import jax

import tokenlake as tl
from examples.decoder import (
    PRESETS,
    TENSOR_RULES,
    Attention,
    DecoderConfig,
    Options,
    Params,
    Remat,
    decoder,
    init,
)
from tokenlake.errors import TokenlakeError
from tokenlake.trainer import make_mesh


def first_params(config: tl.TrainingConfig, sizes: DecoderConfig) -> Params:
    """Return the parameters of a model for the ids of the configuration's data,
    whose sources have one tokenizer.
    """
    assert config.data is not None
    first_source = next(iter(config.data.sources.values()))
    vocabulary = tl.open(first_source.dataset).vocab_size
    return init(jax.random.key(config.data.seed), sizes, vocabulary)


def with_tensor_rules(config: tl.TrainingConfig) -> tl.TrainingConfig:
    """Return the configuration with the decoder's rules for a tensor axis, if it has
    such an axis and no rules.
    """
    if config.mesh.tensor == 1 or config.mesh.rules:
        return config
    mesh = config.mesh.model_copy(update={"rules": TENSOR_RULES})
    return config.model_copy(update={"mesh": mesh})


def main(arguments: Sequence[str] | None = None) -> tl.TrainingMetrics | None:
    """Train with the options of the command line, and return the last measurements."""
    parser = argparse.ArgumentParser(
        description="Train a language model on a packed dataset."
    )
    parser.add_argument("--config", default=str(Path(__file__).with_suffix(".yaml")))
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE"
    )
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        help="sizes of the model, instead of the next four",
    )
    parser.add_argument("--width", type=int, default=64, help="features of an id")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument(
        "--key-heads", type=int, help="heads of keys and values; the default is HEADS"
    )
    parser.add_argument("--attention", choices=get_args(Attention), default="auto")
    parser.add_argument(
        "--remat",
        choices=get_args(Remat),
        default="none",
        help="values to compute twice",
    )
    parser.add_argument(
        "--unroll", type=int, help="layers in a compiled loop; the default is all"
    )
    options = parser.parse_args(arguments)

    config = with_tensor_rules(
        tl.load_training_config(options.config, options.overrides)
    )
    try:
        sizes = DecoderConfig(
            options.width, options.layers, options.heads, options.key_heads
        )
    except ValueError as error:
        parser.error(str(error))
    if options.preset is not None:
        sizes = PRESETS[options.preset]
    speed = Options(
        options.attention, options.remat, options.unroll, make_mesh(config.mesh)
    )
    apply = partial(decoder, options=speed)
    return tl.Trainer.from_config(config, apply, first_params(config, sizes)).train()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(
            "stopped; the same command resumes from the newest checkpoint"
        ) from None
    except TokenlakeError as error:
        raise SystemExit(str(error)) from None
