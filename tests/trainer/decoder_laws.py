"""The decoder of the examples against the plain one of ``train_jax.py``, on packed
rows and four devices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from examples import train_jax, train_lm
from examples.decoder import (
    PRESETS,
    TENSOR_RULES,
    DecoderConfig,
    Options,
    attention_of,
    decoder,
    init,
    padded_vocabulary,
    splash_attention,
)
from tokenlake.runtime.trainer import (
    batch_sharding,
    language_model,
    load_training_config,
    make_mesh,
    param_shardings,
)

ROWS = 4
LENGTH = 128
VOCABULARY = 200
SMALL = DecoderConfig(width=32, layers=2, heads=4)
PLAIN = Options(attention="plain", unroll=1)


def main(facts: dict[str, Any]) -> None:
    check_it_is_the_plain_decoder()
    check_options_change_speed_alone()
    check_lower_precision()
    check_meshes()
    check_splash()
    check_sizes()
    if hasattr(jax, "shard_map"):
        # With JAX 0.6.0, programs of four devices of one CPU can wait for each other
        # for ever.
        check_training(facts["store"], Path(facts["folder"]))


def packed_batch() -> dict[str, jax.Array]:
    """Rows of several documents each, the last row with padding."""
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    segments = np.zeros((ROWS, LENGTH), np.int32)
    positions = np.zeros((ROWS, LENGTH), np.int32)
    for row in range(ROWS):
        begin = 0
        for number, length in enumerate((30, 1, 50, LENGTH - 81), 1):
            segments[row, begin : begin + length] = number
            positions[row, begin : begin + length] = np.arange(length)
            begin += length
    segments[-1, 100:] = 0
    targets = np.full((ROWS, LENGTH), -100)
    is_followed = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    targets[:, :-1][is_followed] = ids[:, 1:][is_followed]
    columns = {
        "input_ids": ids,
        "segment_ids": segments,
        "positions": positions,
        "targets": targets,
    }
    return {name: jnp.asarray(values, jnp.int32) for name, values in columns.items()}


def gradient_of(
    config: DecoderConfig,
    options: Options,
    *,
    chunk: int | None = None,
    precision: Any = jnp.float32,
) -> tuple[jax.Array, Any]:
    """Return the loss of a decoder and its gradient."""
    objective = language_model(partial(decoder, options=options), chunk=chunk)
    batch = packed_batch()

    def mean_loss(params: Any) -> jax.Array:
        lowered = jax.tree.map(lambda leaf: leaf.astype(precision), params)
        sums = objective(lowered, batch, None)
        return sums.loss / sums.weight

    return jax.jit(jax.value_and_grad(mean_loss))(
        init(jax.random.key(0), config, VOCABULARY)
    )


def check_same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def check_it_is_the_plain_decoder() -> None:
    """Loss and gradients are those of the example that computes everything in the
    open.
    """
    params = init(jax.random.key(0), SMALL, VOCABULARY)
    layers = dict(params["layers"])
    query = layers.pop("query")
    key_value = layers.pop("key_value")
    layers["qkv"] = jnp.concatenate([query[:, :, None], key_value], axis=2)
    plain = {"embedding": params["embedding"], "norm": params["norm"], "layers": layers}
    loss, gradient = jax.jit(jax.value_and_grad(train_jax.loss_of))(
        plain, packed_batch()
    )
    qkv = gradient["layers"].pop("qkv")
    gradient["layers"]["query"] = qkv[:, :, 0]
    gradient["layers"]["key_value"] = qkv[:, :, 1:]
    check_same(gradient_of(SMALL, PLAIN), (loss, gradient))


def check_options_change_speed_alone() -> None:
    grouped = replace(SMALL, key_heads=2, is_tied=False)
    expected = gradient_of(grouped, PLAIN)
    for options in (
        Options(),
        replace(PLAIN, remat="elementwise"),
        replace(PLAIN, remat="block"),
    ):
        check_same(gradient_of(grouped, options), expected)
    for chunk in (48, 64):
        check_same(gradient_of(grouped, PLAIN, chunk=chunk), expected)
    # Grouped heads of keys and values are full ones, each used by several heads of
    # queries.
    repeated = init(jax.random.key(0), grouped, VOCABULARY)
    repeated["layers"]["key_value"] = jnp.repeat(
        repeated["layers"]["key_value"], 2, axis=3
    )
    hidden, _ = decoder(repeated, packed_batch(), PLAIN)
    grouped_hidden, _ = decoder(
        init(jax.random.key(0), grouped, VOCABULARY), packed_batch(), PLAIN
    )
    check_same(hidden, grouped_hidden)


def check_lower_precision() -> None:
    """Arithmetic in bfloat16 with float32 parameters gives about the same loss and
    direction.
    """
    loss, gradient = gradient_of(SMALL, PLAIN)
    lower_loss, lower_gradient = gradient_of(
        SMALL, PLAIN, chunk=64, precision=jnp.bfloat16
    )
    np.testing.assert_allclose(lower_loss, loss, rtol=1e-3)
    for one, other in zip(
        jax.tree.leaves(lower_gradient), jax.tree.leaves(gradient), strict=True
    ):
        assert one.dtype == jnp.float32
        difference = jnp.linalg.norm(one - other) / jnp.linalg.norm(other)
        assert float(difference) < 0.05


def check_meshes() -> None:
    """Parameters and rows that are divided over devices give the same loss."""
    batch = packed_batch()
    params = init(jax.random.key(0), SMALL, VOCABULARY)
    objective = jax.jit(language_model(partial(decoder, options=PLAIN), chunk=64))
    expected = objective(params, batch, None)
    for axes in ({"fsdp": 4}, {"fsdp": 2, "tensor": 2, "rules": TENSOR_RULES}):
        config = load_training_config({"mesh": axes}).mesh
        mesh = make_mesh(config)
        placed = jax.device_put(params, param_shardings(params, mesh, config.rules))
        assert not placed["layers"]["up"].is_fully_replicated
        rows = jax.device_put(batch, batch_sharding(mesh))
        check_same(objective(placed, rows, None), expected)


def check_splash() -> None:
    """The kernels for TPUs, run as plain JAX, on one device and on a mesh."""
    batch = packed_batch()
    segment_ids = batch["segment_ids"]
    # Kernels of JAX before 0.7 take heads of 128 features only, those of the presets.
    query, key, value = (
        jax.random.normal(jax.random.key(seed), (ROWS, LENGTH, heads, 128))
        for seed, heads in enumerate((4, 2, 2))
    )
    expected = attention_of("plain", segment_ids, jnp.float32)(query, key, value)
    config = load_training_config(
        {"mesh": {"fsdp": 2, "tensor": 2, "rules": TENSOR_RULES}}
    ).mesh
    meshes: list[Mesh | None] = [None]
    if hasattr(jax, "shard_map"):  # JAX 0.6.0 has none
        meshes.append(make_mesh(config))
    for mesh in meshes:
        attend = partial(
            splash_attention, segment_ids=segment_ids, mesh=mesh, is_interpreted=True
        )
        check_same(jax.jit(attend)(query, key, value), expected)


def check_sizes() -> None:
    for name, config in PRESETS.items():
        shapes = jax.eval_shape(
            partial(init, config=config, vocabulary=50_257), jax.random.key(0)
        )
        count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        unit = {"M": 1e6, "B": 1e9}[name[-1]]
        assert count == pytest.approx(float(name[:-1]) * unit, rel=0.02)
        assert shapes["embedding"].shape[0] == padded_vocabulary(50_257) == 50_304
    for wrong in ({"key_heads": 3}, {"heads": 5}, {"heads": 32}, {"layers": 0}):
        with pytest.raises(
            ValueError, match="expected positive numbers, heads that divide the width"
        ):
            replace(SMALL, **wrong)
    with pytest.raises(ValueError, match="attention: got 'flash', must be"):
        attention_of("flash", packed_batch()["segment_ids"], jnp.float32)  # pyright: ignore[reportArgumentType]


def check_training(store: str, folder: Path) -> None:
    """The command trains, on devices that divide heads without being told how, and
    resumes.
    """
    config = folder / "train.yaml"
    config.write_text(
        f"""
data: {{dataset: {store}/small, batch_size: 4}}
loss: {{chunk: 16}}
precision: bfloat16
mesh: {{fsdp: 2, tensor: 2}}
schedule: {{name: constant, peak: 0.01}}
checkpoint: {{folder: {folder}/run, every: 2}}
log: {{every: 1, progress: false}}
"""
    )
    sizes = [
        "--width",
        "32",
        "--layers",
        "1",
        "--heads",
        "2",
        "--key-heads",
        "2",
        "--remat",
        "block",
    ]
    losses: dict[int, float] = {}
    for steps in (4, 8):
        metrics = train_lm.main(
            ["--config", str(config), "--set", f"steps={steps}", *sizes]
        )
        assert metrics is not None and metrics.step == steps
        losses[steps] = metrics.loss
    assert losses[8] < losses[4]
