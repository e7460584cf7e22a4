"""Train a small decoder-only transformer on a packed dataset, in plain JAX.

::

    python -m tokenlake.demo
    python examples/train_jax.py .demo/artifacts/demo --steps 200 --checkpoint .demo/run
    python examples/train_jax.py .demo/artifacts/demo --steps 400 --checkpoint .demo/run --resume

A packed row holds several documents, one after the other. Three columns of the loader
separate them, so that the model learns each document as if it were alone in its row:

- ``segment_ids``: an id attends only to ids of its own document;
- ``positions``: rotary angles begin at 0 in each document;
- ``targets``: the id to predict at each place, or -100 where there is none: at the end
  of a document, and in padding.

A checkpoint is a folder with the arrays of the model and the state of the loader, which
is a small JSON file. It appears under its name only when it is complete. A run that was
stopped at any moment resumes from it with exactly the numbers that an uninterrupted run
has. ``tokenlake explain --state .demo/run/step-00000200/loader.json`` lists the
documents of the next batch.

The script uses all devices of one process, each for its part of the batch. The
optimizer is Adam (Kingma and Ba 2015).

Dimensions, with their letters in ``einsum``:

============  ======  ===================================================
batch         b       rows of a batch
length        t       ids of a row; q of queries, s of keys
width         d       features of an id
heads         h       heads
head_dim      k       features of a head, width / heads
hidden                hidden features of the feed-forward part, 4 * width
vocabulary            ids of the tokenizer
============  ======  ===================================================
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
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenlake as tl

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")
"""Columns of a batch, each int32 (batch, length)."""

NO_TARGET: Final = -100
"""Target of places that do not count toward the loss."""

WARM_UP_STEPS: Final = 20
"""Steps in which the learning rate rises to its full value."""

ROTARY_BASE: Final = 10_000
NORM_EPSILON: Final = 1e-6

# Constants of Adam: decay rates of the moments, and the number that is added to a
# divisor.
BETA_1: Final = 0.9
BETA_2: Final = 0.95
ADAM_EPSILON: Final = 1e-8

Params = dict[str, Any]
Batch = dict[str, Array]


# -- model


@partial(jax.jit, static_argnames=("vocabulary", "width", "layers", "heads"))
def init(key: Array, *, vocabulary: int, width: int, layers: int, heads: int) -> Params:
    """Return the initial parameters, float32.

    Matrices are normal with variance ``1 / fan_in``, where ``fan_in`` is the number of
    features that a product sums. The two matrices that write to the residual stream
    have variance ``1 / (fan_in * layers)``. The parameters of all layers are stacked
    for :func:`jax.lax.scan`: their first dimension is the layer.

    Args:
        key: Random key.
        vocabulary: Number of ids of the tokenizer.
        width: Number of features of an id.
        layers: Number of layers.
        heads: Number of heads, a divisor of the width.
    """
    head_dim = width // heads
    hidden = 4 * width
    embedding_key, qkv_key, out_key, up_key, down_key = jax.random.split(key, 5)
    # Queries, keys and values are one matrix: its third dimension is 0, 1 and 2.
    qkv_shape = (layers, width, 3, heads, head_dim)
    out_shape = (layers, heads, head_dim, width)
    layer_params = {
        "norm_1": jnp.ones((layers, width)),
        "qkv": normal(qkv_key, qkv_shape, fan_in=width),
        "out": normal(out_key, out_shape, fan_in=width * layers),
        "norm_2": jnp.ones((layers, width)),
        "up": normal(up_key, (layers, width, hidden), fan_in=width),
        "down": normal(down_key, (layers, hidden, width), fan_in=hidden * layers),
    }
    return {
        "embedding": normal(embedding_key, (vocabulary, width), fan_in=width),
        "layers": layer_params,
        "norm": jnp.ones(width),
    }


def normal(key: Array, shape: tuple[int, ...], *, fan_in: int) -> Array:
    """Return normal random numbers with variance ``1 / fan_in``, float32.

    Args:
        key: Random key.
        shape: Shape of the result.
        fan_in: Number of features that a product with the result sums.
    """
    return jax.random.normal(key, shape, jnp.float32) / fan_in**0.5


def rms_norm(values: Array, scale: Array) -> Array:
    """Return features divided by their root mean square, times a scale.

    ``x / sqrt(mean(x^2) + epsilon) * scale`` (Zhang and Sennrich 2019).

    Args:
        values: Features, (batch, length, width).
        scale: Scale of each feature, (width,).
    """
    mean_square = jnp.mean(values * values, axis=-1, keepdims=True)
    return values * jax.lax.rsqrt(mean_square + NORM_EPSILON) * scale


def rotate(values: Array, positions: Array) -> Array:
    """Rotate pairs of features by angles that grow with the position.

    Pair i of a head's features, which consists of the features i and ``i + head_dim /
    2``, has the angle ``position * 10000^(-2 i / head_dim)`` (Su et al. 2021).

    Args:
        values: Queries or keys, (batch, length, heads, head_dim).
        positions: Position of each id in its document, int32 (batch, length).
    """
    pairs = values.shape[-1] // 2
    periods = ROTARY_BASE ** (jnp.arange(pairs) / pairs)
    # (batch, length, 1, head_dim / 2); the 1 stands for the heads.
    angles = positions[:, :, None, None] / periods
    cosine = jnp.cos(angles)
    sine = jnp.sin(angles)
    first = values[..., :pairs]
    second = values[..., pairs:]
    rotated_first = first * cosine - second * sine
    rotated_second = first * sine + second * cosine
    rotated = jnp.concatenate([rotated_first, rotated_second], axis=-1)
    return rotated.astype(values.dtype)


def attention(
    features: Array, layer: Params, positions: Array, is_visible: Array
) -> Array:
    """Return the attention of each id to the ids that are visible to it.

    ``softmax(query key^T / sqrt(head_dim)) value`` in each head (Vaswani et al. 2017,
    section 3.2).

    Args:
        features: Features of ids, (batch, length, width).
        layer: Parameters of a layer.
        positions: Position of each id in its document, int32 (batch, length).
        is_visible: True where an id (second axis) may attend to an id (third axis),
            bool (batch, length, length).

    Returns:
        Features to add to the residual stream, (batch, length, width).
    """
    # (batch, length, 3, heads, head_dim)
    qkv = jnp.einsum("btd,dchk->btchk", features, layer["qkv"])
    query = rotate(qkv[:, :, 0], positions)
    key = rotate(qkv[:, :, 1], positions)
    value = qkv[:, :, 2]
    # (batch, heads, length of queries, length of keys)
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key)
    scores = scores / query.shape[-1] ** 0.5
    scores = jnp.where(is_visible[:, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, value, layer["out"])


def feed_forward(features: Array, layer: Params) -> Array:
    """Return the feed-forward part of a layer, (batch, length, width).

    Args:
        features: Features of ids, (batch, length, width).
        layer: Parameters of a layer.
    """
    hidden = jax.nn.gelu(features @ layer["up"])  # (batch, length, hidden)
    return hidden @ layer["down"]


def decoder(params: Params, batch: Batch) -> tuple[Array, Array]:
    """Return the last hidden states and the head; their product is the logits.

    The head is the transposed embedding (Press and Wolf 2017).

    Args:
        params: Parameters of :func:`init`.
        batch: Columns of the loader, each int32 (batch, length).

    Returns:
        Hidden states (batch, length, width) and head (width, vocabulary).
    """
    positions = batch["positions"]
    segment_ids = batch["segment_ids"]
    # An id attends to itself and to earlier ids of its document.
    length = segment_ids.shape[1]
    is_causal = jnp.tril(jnp.ones((length, length), bool))
    is_same_document = segment_ids[:, :, None] == segment_ids[:, None, :]
    is_visible = is_same_document & is_causal  # (batch, length, length)

    def block(stream: Array, layer: Params) -> tuple[Array, None]:
        """Return the residual stream after a layer, and no further output."""
        normalized = rms_norm(stream, layer["norm_1"])
        stream = stream + attention(normalized, layer, positions, is_visible)
        normalized = rms_norm(stream, layer["norm_2"])
        return stream + feed_forward(normalized, layer), None

    stream = params["embedding"][batch["input_ids"]]  # (batch, length, width)
    stream, _ = jax.lax.scan(block, stream, params["layers"])
    return rms_norm(stream, params["norm"]), params["embedding"].T


def losses_of(params: Params, batch: Batch) -> Array:
    """Return the cross-entropy at each place, float32 (batch, length).

    ``logsumexp(logits) - logits[target]``, in nats; 0 where there is no target.

    Args:
        params: Parameters of :func:`init`.
        batch: Columns of the loader, each int32 (batch, length).
    """
    hidden, head = decoder(params, batch)
    logits = hidden @ head  # (batch, length, vocabulary)
    # Places without a target look up id 0, and their loss is replaced by 0 below.
    targets = jnp.maximum(batch["targets"], 0)
    # (batch, length, 1)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - target_logits[..., 0]
    return jnp.where(batch["targets"] == NO_TARGET, 0, losses)


def loss_of(params: Params, batch: Batch) -> Array:
    """Return the mean cross-entropy of the targets of a batch, float32."""
    losses = losses_of(params, batch)
    target_count = jnp.sum(batch["targets"] != NO_TARGET)
    # A batch without any target has the loss 0.
    return jnp.sum(losses) / jnp.maximum(target_count, 1)


# -- optimizer


class State(NamedTuple):
    """State of training, which a checkpoint contains.

    Attributes:
        step: Number of steps that were taken, int32.
        params: Parameters of the model.
        mean: Running mean of the gradients, Adam's first moment.
        square: Running mean of the squared gradients, Adam's second moment.
    """

    step: Array
    params: Params
    mean: Params
    square: Params


def initial_state(params: Params) -> State:
    """Return the state before the first step."""
    step = jnp.zeros((), jnp.int32)
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(step, params, mean=zeros, square=zeros)


@partial(jax.jit, static_argnames="learning_rate")
def update(state: State, batch: Batch, learning_rate: float) -> tuple[State, Array]:
    """Return the state after a step, and the loss before it.

    Adam (Kingma and Ba 2015, section 2) with a linear warm-up, for the gradient g at
    step t::

        mean   = beta_1 * mean + (1 - beta_1) * g
        square = beta_2 * square + (1 - beta_2) * g^2
        rate   = learning_rate * min(1, t / warm_up_steps)
        size   = rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
        params = params - size * mean / (sqrt(square) + epsilon)

    Args:
        state: State before the step.
        batch: Columns of the loader, each int32 (batch, length).
        learning_rate: Learning rate after the warm-up.
    """
    loss, gradients = jax.value_and_grad(loss_of)(state.params, batch)
    step = state.step + 1

    def next_mean(mean: Array, gradient: Array) -> Array:
        return BETA_1 * mean + (1 - BETA_1) * gradient

    def next_square(square: Array, gradient: Array) -> Array:
        return BETA_2 * square + (1 - BETA_2) * gradient * gradient

    mean = jax.tree.map(next_mean, state.mean, gradients)
    square = jax.tree.map(next_square, state.square, gradients)

    # The moments begin at 0; dividing by 1 - beta^t corrects their bias.
    rate = learning_rate * jnp.minimum(1, step / WARM_UP_STEPS)
    mean_correction = 1 - BETA_1**step
    square_correction = 1 - BETA_2**step
    size = rate * jnp.sqrt(square_correction) / mean_correction

    def next_params(params: Array, mean: Array, square: Array) -> Array:
        return params - size * mean / (jnp.sqrt(square) + ADAM_EPSILON)

    params = jax.tree.map(next_params, state.params, mean, square)
    return State(step, params, mean, square), loss


# -- checkpoints


def save(folder: Path, state: State, loader_state: dict[str, Any]) -> None:
    """Write a checkpoint, and remove the older ones.

    The checkpoint is written under a temporary name and renamed when it is complete, so
    that a killed run leaves no partial checkpoint.

    Args:
        folder: Folder of all checkpoints of the run.
        state: State of training.
        loader_state: State of the loader at the same step.
    """
    older_checkpoints = checkpoints(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    arrays: dict[str, Array] = {}
    for path, array in jax.tree_util.tree_leaves_with_path(state):
        arrays[jax.tree_util.keystr(path)] = array
    np.savez(unfinished / "arrays.npz", **arrays)
    (unfinished / "loader.json").write_text(json.dumps(loader_state, indent=2))
    unfinished.rename(folder / f"step-{int(state.step):08d}")
    for checkpoint in older_checkpoints:
        shutil.rmtree(checkpoint)


def restore(checkpoint: Path, like: State) -> tuple[State, dict[str, Any]]:
    """Return the state of training and the state of the loader of a checkpoint.

    Args:
        checkpoint: Folder that :func:`save` wrote.
        like: State with the same structure; the restored arrays are placed on the
            devices of its arrays.
    """
    with np.load(checkpoint / "arrays.npz") as arrays:

        def restore_array(path: Any, array: Array) -> Array:
            stored_array = arrays[jax.tree_util.keystr(path)]
            return jax.device_put(stored_array, array.sharding)

        state = jax.tree_util.tree_map_with_path(restore_array, like)
    loader_state = json.loads((checkpoint / "loader.json").read_text())
    return state, loader_state


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, the newest last."""
    return sorted(folder.glob("step-*"))


# -- training


def train(options: argparse.Namespace) -> list[float]:
    """Train with the options of :func:`main`, and return the loss of each step."""
    # 1. The batches, divided over the devices by rows.
    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    dataset = tl.open(options.dataset)
    loader = tl.DataLoader(
        dataset,
        options.batch_size,
        seed=options.seed,
        epochs=None,
        columns=COLUMNS,
        sharding=by_rows,
    )

    # 2. The model, a copy on each device.
    params = init(
        jax.random.key(options.seed),
        vocabulary=dataset.vocab_size,
        width=options.width,
        layers=options.layers,
        heads=options.heads,
    )
    state = jax.device_put(initial_state(params), replicated)

    # 3. The newest checkpoint, of the model and of the loader.
    if options.checkpoint and checkpoints(options.checkpoint):
        if not options.resume:
            raise SystemExit(
                f"{options.checkpoint} holds checkpoints; --resume resumes from the newest one"
            )
        newest_checkpoint = checkpoints(options.checkpoint)[-1]
        state, loader_state = restore(newest_checkpoint, state)
        loader.set_state(loader_state)

    # 4. The remaining steps.
    losses: list[Array] = []
    first_step = int(state.step)
    remaining_steps = max(0, options.steps - first_step)
    tokens = 0
    start_time = time.perf_counter()
    with loader:
        batches = itertools.islice(loader, remaining_steps)
        for step, batch in enumerate(batches, first_step + 1):
            state, loss = update(state, batch, options.rate)
            losses.append(loss)
            tokens += batch["input_ids"].size
            is_last = step == options.steps
            if is_last or step % options.log == 0:
                # Converting losses to numbers waits for the devices.
                recent_losses = [float(loss) for loss in losses[-options.log :]]
                speed = tokens / (time.perf_counter() - start_time)
                print(
                    f"step {step}  loss {np.mean(recent_losses):.4f}  {speed:,.0f} tokens/s",
                    flush=True,
                )
                tokens = 0
                start_time = time.perf_counter()
            if options.checkpoint and (is_last or step % options.every == 0):
                save(options.checkpoint, state, loader.get_state())
    return [float(loss) for loss in losses]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train with the options of the command line, and return the loss of each step."""
    parser = argparse.ArgumentParser(
        description="Train a small transformer on a packed dataset."
    )
    parser.add_argument("dataset", help="STORE/NAME, or STORE/NAME@v3")
    parser.add_argument(
        "--steps", type=int, default=200, help="number of steps of the whole run"
    )
    parser.add_argument(
        "--batch-size", type=int, default=4, help="number of rows of a batch"
    )
    parser.add_argument("--checkpoint", type=Path, help="folder for checkpoints")
    parser.add_argument(
        "--every", type=int, default=50, help="steps between checkpoints"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume from the newest checkpoint, if there is one",
    )
    parser.add_argument("--log", type=int, default=10, help="steps between log lines")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the parameters and of the order"
    )
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--width", type=int, default=64, help="features of an id")
    parser.add_argument("--layers", type=int, default=2, help="number of layers")
    parser.add_argument("--heads", type=int, default=2, help="heads of a layer")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(
            "stopped; with --checkpoint, --resume resumes from the newest one"
        ) from None
