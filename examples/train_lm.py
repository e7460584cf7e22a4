"""Train the decoder of ``decoder.py`` with ``tl.Trainer``.

The trainer adds metrics, held-out rows, checkpoints and resuming.

::

    python -m tokenlake.demo
    python -m examples.train_lm --set steps=300

After a kill at any moment, the same command resumes from the newest checkpoint, with
exactly the numbers of an uninterrupted run. The configuration is
``examples/train_lm.yaml``; ``--set`` changes one of its keys. On an accelerator::

    python -m examples.train_lm --preset 124M --set data.dataset=artifacts/web --set data.batch_size=32 \\
        --set precision=bfloat16 --set loss.chunk=512 --set steps=20000

``mesh`` divides the work among several devices, for example ``--set mesh.fsdp=8``. A
configuration with a tensor axis and without rules gets those of the decoder.
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


def initial_params(config: tl.TrainingConfig, sizes: DecoderConfig) -> Params:
    """Return the initial parameters of a model for the data of a configuration.

    The number of ids is that of the first source. All sources have the same tokenizer.

    Args:
        config: Configuration of the trainer.
        sizes: Sizes of the decoder.
    """
    assert config.data is not None
    first_source = next(iter(config.data.sources.values()))
    dataset = tl.open(first_source.dataset)
    key = jax.random.key(config.data.seed)
    return init(key, sizes, dataset.vocab_size)


def with_tensor_rules(config: tl.TrainingConfig) -> tl.TrainingConfig:
    """Return a configuration with the decoder's rules for a tensor axis.

    A configuration without such an axis, or with rules, is returned unchanged.
    """
    if config.mesh.tensor == 1 or config.mesh.rules:
        return config
    mesh = config.mesh.model_copy(update={"rules": TENSOR_RULES})
    return config.model_copy(update={"mesh": mesh})


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Train a language model on a packed dataset."
    )
    # Configuration of the trainer.
    parser.add_argument(
        "--config",
        default=str(Path(__file__).with_suffix(".yaml")),
        help="configuration of the trainer; the default is train_lm.yaml",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="key of the configuration to change",
    )
    # Sizes of the model.
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        help="sizes of the model, instead of the next four",
    )
    parser.add_argument("--width", type=int, default=64, help="features of an id")
    parser.add_argument("--layers", type=int, default=2, help="number of layers")
    parser.add_argument("--heads", type=int, default=2, help="query heads")
    parser.add_argument(
        "--key-heads", type=int, help="heads of keys and values; the default is HEADS"
    )
    # Speed and memory.
    parser.add_argument(
        "--attention",
        choices=get_args(Attention),
        default="auto",
        help="implementation of attention",
    )
    parser.add_argument(
        "--remat",
        choices=get_args(Remat),
        default="none",
        help="values to compute twice",
    )
    parser.add_argument(
        "--unroll", type=int, help="layers in a compiled loop; the default is all"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> tl.TrainingMetrics | None:
    """Train with the options of the command line, and return the last metrics."""
    parser = make_parser()
    options = parser.parse_args(arguments)

    # 1. The configuration of the trainer.
    config = tl.load_training_config(options.config, options.overrides)
    config = with_tensor_rules(config)

    # 2. The model.
    try:
        sizes = DecoderConfig(
            width=options.width,
            layers=options.layers,
            heads=options.heads,
            key_heads=options.key_heads,
        )
    except ValueError as error:
        parser.error(str(error))
    if options.preset is not None:
        sizes = PRESETS[options.preset]
    decoder_options = Options(
        attention=options.attention,
        remat=options.remat,
        unroll=options.unroll,
        mesh=make_mesh(config.mesh),
    )
    apply = partial(decoder, options=decoder_options)

    # 3. Training, from the newest checkpoint if there is one.
    params = initial_params(config, sizes)
    trainer = tl.Trainer.from_config(config, apply, params)
    return trainer.train()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(
            "stopped; the same command resumes from the newest checkpoint"
        ) from None
    except TokenlakeError as error:
        raise SystemExit(str(error)) from None
