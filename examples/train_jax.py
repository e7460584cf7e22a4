"""Train a small decoder-only transformer on a packed dataset, in plain JAX.

::

    python -m tokenlake.demo
    python examples/train_jax.py .demo/artifacts/demo --steps 200 --checkpoint .demo/run
    python examples/train_jax.py .demo/artifacts/demo --steps 400 --checkpoint .demo/run --resume

A row of a packed dataset holds several documents, one after the other. Three columns
keep them apart, so that the model learns of each as if it were alone:

- ``segment_ids``: an id attends only to ids of its own document;
- ``positions``: rotary angles begin anew with each document;
- ``targets``: the id to predict at each place, -100 where there is none: at a
  document's end, and in padding.

A checkpoint is a folder of the model's arrays and the loader's state, a few integers as
JSON, under one name: both or neither. A run that was stopped at any moment goes on from
it with exactly the numbers that it would have had. ``tokenlake explain --state
.demo/run/step-00000200/loader.json`` lists the documents of the batch that comes next.

It runs on all devices of one process, each with its part of the batch. The optimizer is
Adam (Kingma and Ba 2015).
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenlake as tl

COLUMNS = ("input_ids", "segment_ids", "positions", "targets")
NO_TARGET = -100
WARM_UP = 20  # steps until the learning rate is whole

Params = dict[str, Any]
Batch = dict[str, jax.Array]


# -- the model: B rows of T ids, D features, H heads of K features, F hidden features, V
# ids in the vocabulary


@partial(jax.jit, static_argnames=("vocabulary", "width", "layers", "heads"))
def init(
    key: jax.Array, *, vocabulary: int, width: int, layers: int, heads: int
) -> Params:
    """Return the parameters; those of all layers are stacked, for
    :func:`jax.lax.scan`.
    """
    keys = iter(jax.random.split(key, 5))

    def normal(*shape: int, fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.float32) / fan_in**0.5

    head, hidden = width // heads, 4 * width
    return {
        "embedding": normal(vocabulary, width, fan_in=width),
        "layers": {
            "norm_1": jnp.ones((layers, width)),
            "qkv": normal(layers, width, 3, heads, head, fan_in=width),
            "out": normal(layers, heads, head, width, fan_in=width * layers),
            "norm_2": jnp.ones((layers, width)),
            "up": normal(layers, width, hidden, fan_in=width),
            "down": normal(layers, hidden, width, fan_in=hidden * layers),
        },
        "norm": jnp.ones(width),
    }


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return x by its root mean square (Zhang and Sennrich 2019)."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turn pairs of features of [B, T, H, K] by angles that grow with the position
    (Su et al. 2021).
    """
    half = x.shape[-1] // 2
    angle = positions[:, :, None, None] / 10_000 ** (jnp.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.concatenate(
        [first * cos - second * sin, first * sin + second * cos], axis=-1
    )
    return turned.astype(x.dtype)


def attention(
    x: jax.Array, layer: Params, positions: jax.Array, visible: jax.Array
) -> jax.Array:
    """Attend from each id of [B, T, D] to those that `visible`, bool[B, T, T], lets
    it see.
    """
    query, key, value = jnp.moveaxis(
        jnp.einsum("btd,dchk->btchk", x, layer["qkv"]), 2, 0
    )
    query, key = rotated(query, positions), rotated(key, positions)
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf))
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, value, layer["out"])


def decoder(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return the last hidden states [B, T, D] and the matrix [D, V] that makes
    logits of them.
    """
    segments, positions = batch["segment_ids"], batch["positions"]
    causal = jnp.tril(jnp.ones((segments.shape[1],) * 2, bool))
    visible = (segments[:, :, None] == segments[:, None, :]) & causal

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + attention(normed(x, layer["norm_1"]), layer, positions, visible)
        hidden = jax.nn.gelu(normed(x, layer["norm_2"]) @ layer["up"])
        return x + hidden @ layer["down"], None

    x, _ = jax.lax.scan(
        block, params["embedding"][batch["input_ids"]], params["layers"]
    )
    return normed(x, params["norm"]), params["embedding"].T


def losses_of(params: Params, batch: Batch) -> jax.Array:
    """Return the loss at each place, float32[B, T]; 0 where there is no target."""
    hidden, head = decoder(params, batch)
    logits = hidden @ head
    targets = jnp.maximum(batch["targets"], 0)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.where(
        batch["targets"] == NO_TARGET, 0, jax.nn.logsumexp(logits, axis=-1) - right
    )


def loss_of(params: Params, batch: Batch) -> jax.Array:
    """Return the mean loss of the targets of a batch."""
    targets = jnp.sum(batch["targets"] != NO_TARGET)
    return jnp.sum(losses_of(params, batch)) / jnp.maximum(targets, 1)


# -- the optimizer


class State(NamedTuple):
    """What training changes; `mean` and `square` are Adam's running moments of the
    gradients.
    """

    step: jax.Array
    params: Params
    mean: Params
    square: Params


def start(params: Params) -> State:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(jnp.zeros((), jnp.int32), params, zeros, zeros)


@partial(jax.jit, static_argnames="rate")
def update(state: State, batch: Batch, rate: float) -> tuple[State, jax.Array]:
    """Take one step; returns the new state and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(state.params, batch)
    step = state.step + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, state.square, gradients)
    size = (
        rate
        * jnp.minimum(1, step / WARM_UP)
        * jnp.sqrt(1 - 0.95**step)
        / (1 - 0.9**step)
    )
    params = jax.tree.map(
        lambda p, m, s: p - size * m / (jnp.sqrt(s) + 1e-8), state.params, mean, square
    )
    return State(step, params, mean, square), loss


# -- checkpoints


def save(folder: Path, state: State, loader_state: dict[str, Any]) -> None:
    """Write both under their final name in one move; then older ones are not needed
    any more.
    """
    older = checkpoints(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    np.savez(
        unfinished / "arrays.npz",
        **{jax.tree_util.keystr(path): leaf for path, leaf in leaves},
    )
    (unfinished / "loader.json").write_text(json.dumps(loader_state, indent=2))
    unfinished.rename(folder / f"step-{int(state.step):08d}")
    for path in older:
        shutil.rmtree(path)


def restore(checkpoint: Path, like: State) -> tuple[State, dict[str, Any]]:
    """Return what :func:`save` was given, its arrays on the devices of those of
    `like`.
    """
    with np.load(checkpoint / "arrays.npz") as arrays:
        state = jax.tree_util.tree_map_with_path(
            lambda path, leaf: jax.device_put(
                arrays[jax.tree_util.keystr(path)], leaf.sharding
            ),
            like,
        )
    return state, json.loads((checkpoint / "loader.json").read_text())


def checkpoints(folder: Path) -> list[Path]:
    """Return those that are complete, the newest last."""
    return sorted(folder.glob("step-*"))


# -- training


def train(options: argparse.Namespace) -> list[float]:
    """Return the loss of each step that was taken."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    dataset = tl.open(options.dataset)
    loader = tl.DataLoader(
        dataset,
        options.batch_size,
        seed=options.seed,
        epochs=None,
        columns=COLUMNS,
        sharding=NamedSharding(mesh, PartitionSpec("data")),
    )
    sizes = {"width": options.width, "layers": options.layers, "heads": options.heads}
    params = init(jax.random.key(options.seed), vocabulary=dataset.vocab_size, **sizes)
    state = jax.device_put(start(params), NamedSharding(mesh, PartitionSpec()))
    if options.checkpoint and (found := checkpoints(options.checkpoint)):
        if not options.resume:
            raise SystemExit(
                f"{options.checkpoint} holds checkpoints; --resume goes on from the newest one"
            )
        state, loader_state = restore(found[-1], state)
        loader.set_state(loader_state)
    losses: list[jax.Array] = []
    first, tokens, begun = int(state.step), 0, time.perf_counter()
    with loader:
        for step, batch in enumerate(
            itertools.islice(loader, max(0, options.steps - first)), first + 1
        ):
            state, loss = update(state, batch, options.rate)
            losses.append(loss)
            tokens += batch["input_ids"].size
            if step % options.log == 0 or step == options.steps:
                # Waits for the devices.
                mean = np.mean([float(loss) for loss in losses[-options.log :]])
                speed = tokens / (time.perf_counter() - begun)
                print(
                    f"step {step}  loss {mean:.4f}  {speed:,.0f} tokens/s", flush=True
                )
                tokens, begun = 0, time.perf_counter()
            if options.checkpoint and (
                step % options.every == 0 or step == options.steps
            ):
                save(options.checkpoint, state, loader.get_state())
    return [float(loss) for loss in losses]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(
        description="Train a small transformer on a packed dataset."
    )
    parser.add_argument("dataset", help="STORE/NAME, or STORE/NAME@v3")
    parser.add_argument("--steps", type=int, default=200, help="of the whole run")
    parser.add_argument("--batch-size", type=int, default=4, help="rows")
    parser.add_argument(
        "--checkpoint", type=Path, help="folder to write checkpoints into"
    )
    parser.add_argument(
        "--every", type=int, default=50, help="steps between checkpoints"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint, if there is one",
    )
    parser.add_argument(
        "--log", type=int, default=10, help="steps between lines printed"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the parameters and of the order"
    )
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--width", type=int, default=64, help="features of an id")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(
            "stopped; with --checkpoint, --resume goes on from the newest one"
        ) from None
