"""A decoder-only transformer in plain JAX that trains at the speed of the accelerator,
on packed rows.

::

    config = PRESETS["124M"]
    params = init(jax.random.key(0), config, vocabulary=50257)
    hidden, head = decoder(params, batch)                 # for tl.Trainer: its loss makes the logits, in chunks
    hidden, head = decoder(params, batch, Options(attention="plain", remat="block"))

A row holds several documents, one after the other. An id attends to the ids before it
that have the same number in ``segment_ids``; rotary angles follow ``positions``, which
begin at 0 in each document. Both are columns of the loader.

The speed comes from these choices:

- **Attention** is fused: no array of T x T scores reaches the memory of the device.
  cuDNN computes it on GPUs, splash attention of JAX on TPUs, and plain JAX elsewhere.
  All compute the same function (:func:`attention_of`).
- **Arithmetic** is in the type of the parameters, bfloat16 under ``precision:
  bfloat16`` of ``tl.Trainer``, which keeps float32 parameters, moments and gradients.
  Norms, angles and the softmax are float32 in all cases.
- **Rotary angles** are computed once per batch and shared by all layers.
- **The vocabulary** is padded to a multiple of 128, the width of the tiles of matrix
  units. The additional ids are never targets, so training makes them as unlikely as any
  other id that does not occur.
- **Memory**: ``remat`` chooses what the forward pass keeps for the backward pass.

Arrays of all layers are stacked; their first dimension is the layer. B rows, T ids of a
row, D features, H heads of K features, G heads of keys and values (H is a multiple of
G), F hidden features of the feed-forward part, V ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

Params: TypeAlias = dict[str, Any]
Batch: TypeAlias = Mapping[str, jax.Array]
Attention: TypeAlias = Literal["auto", "cudnn", "splash", "plain"]
Remat: TypeAlias = Literal["none", "elementwise", "block"]

VOCABULARY_MULTIPLE: Final = 128
"""The number of rows of the embedding is a multiple of this."""
_LONGEST_PERIOD: Final = 10_000.0
"""Base of the rotary angles' periods."""
_EPSILON: Final = 1e-6
"""Least mean square of a norm."""

TENSOR_RULES: Final = {
    "query": (None, None, "tensor", None),
    "key_value": (None, None, None, "tensor", None),
    "out": (None, "tensor", None, None),
    "up": (None, None, "tensor"),
    "down": (None, "tensor", None),
}
"""``mesh.rules`` of ``tl.Trainer`` that divide heads and hidden features over the axis
``tensor``. The axis ``fsdp`` needs no rules.
"""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder.

    Attributes:
        width: Number of features of an id, D.
        layers: Number of layers.
        heads: Number of query heads, H.
        key_heads: Number of heads of keys and values, G, a divisor of H; None: H. Fewer
            than H make grouped-query attention (Ainslie et al. 2023).
        hidden: Number of hidden features of the feed-forward part, F; None: 4 D.
        is_tied: Whether the head is the transposed embedding (Press and Wolf 2017).

    Raises:
        ValueError: The heads do not divide the width, or the key heads do not divide
            the heads.
    """

    width: int
    layers: int
    heads: int
    key_heads: int | None = None
    hidden: int | None = None
    is_tied: bool = True

    def __post_init__(self) -> None:
        key_heads = self.key_heads or self.heads
        has_sizes = min(self.width, self.layers, self.heads, key_heads) > 0
        if not has_sizes or self.width % (2 * self.heads) or self.heads % key_heads:
            raise ValueError(
                f"got width {self.width}, layers {self.layers}, heads {self.heads} and key_heads {key_heads}; expected "
                "positive numbers, heads that divide the width into even numbers of features, and key_heads that "
                "divide heads"
            )


PRESETS: Final = {
    "124M": DecoderConfig(width=768, layers=12, heads=6),
    "350M": DecoderConfig(width=1024, layers=24, heads=8),
    "1.3B": DecoderConfig(width=2048, layers=24, heads=16),
}
"""Number of parameters, with a vocabulary of GPT-2's size -> sizes of the decoder:
those of GPT-2 and GPT-3 (Brown et al. 2020, table 2.1), with heads of 128 features.
Fused attention takes half the time of twice as many heads of 64.
"""


@dataclass(frozen=True)
class Options:
    """Options that change the speed and memory of a decoder, and its numbers by
    rounding only.

    Attributes:
        attention: Implementation of attention: ``cudnn`` (GPUs, 16-bit types),
            ``splash`` (TPUs), ``plain`` (anywhere); ``auto``: the fused one of the
            device.
        remat: Values that the forward pass keeps: ``none`` recomputes nothing;
            ``elementwise`` keeps results of matrix products and attention, and
            recomputes the cheap rest; ``block`` keeps the input of each layer alone,
            and computes each layer twice.
        unroll: Number of layers in the body of the compiled loop over layers; None: all
            of them, which is fastest. The fewer, the shorter the compilation.
        mesh: Mesh of ``tl.Trainer``, needed by ``splash`` on several TPUs. Elsewhere
            the compiler divides all work.
    """

    attention: Attention = "auto"
    remat: Remat = "none"
    unroll: int | None = None
    mesh: Mesh | None = None


def padded_vocabulary(vocabulary: int) -> int:
    """Return the number of rows of the embedding for a number of ids."""
    return -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


@partial(jax.jit, static_argnames=("config", "vocabulary"))
def init(key: jax.Array, config: DecoderConfig, vocabulary: int) -> Params:
    """Return the initial parameters, float32.

    Each matrix is normal with variance 1 / (features that it sums); the two that write
    to the residual stream have the variance divided by the number of layers, too, so
    that the stream does not grow with the depth.

    Args:
        key: Random key.
        config: Sizes of the decoder.
        vocabulary: Number of ids of the tokenizer.
    """
    keys = iter(jax.random.split(key, 7))
    layers = config.layers
    width = config.width
    heads = config.heads
    key_heads = config.key_heads or heads
    hidden = config.hidden or 4 * width
    rows = padded_vocabulary(vocabulary)
    head_width = width // heads

    def normal(*shape: int, summed: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.float32) / summed**0.5

    params: Params = {
        "embedding": normal(rows, width, summed=width),
        "layers": {
            "norm_1": jnp.ones((layers, width)),
            "query": normal(layers, width, heads, head_width, summed=width),
            "key_value": normal(layers, width, 2, key_heads, head_width, summed=width),
            "out": normal(layers, heads, head_width, width, summed=width * layers),
            "norm_2": jnp.ones((layers, width)),
            "up": normal(layers, width, hidden, summed=width),
            "down": normal(layers, hidden, width, summed=hidden * layers),
        },
        "norm": jnp.ones(width),
    }
    if not config.is_tied:
        params["head"] = normal(width, rows, summed=width)
    return params


def decoder(
    params: Params, batch: Batch, options: Options | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the last hidden states (B, T, D) and the head (D, V) that makes logits of
    them.

    Args:
        params: Parameters of :func:`init`, or of their shapes. Their type is the type
            of the arithmetic.
        batch: Columns ``input_ids``, ``segment_ids`` and ``positions``, each int32 (B,
            T).
        options: Options of speed and memory; None: the default ones.
    """
    options = options or Options()
    segment_ids = batch["segment_ids"]
    layers = params["layers"]
    attend = attention_of(
        options.attention, segment_ids, params["embedding"].dtype, options.mesh
    )
    angles = rotary_angles(batch["positions"], layers["query"].shape[-1])

    def block(stream: jax.Array, layer: Params) -> jax.Array:
        normalized = normed(stream, layer["norm_1"])
        query = jnp.einsum("btd,dhk->bthk", normalized, layer["query"])
        key_value = jnp.einsum("btd,dcgk->btcgk", normalized, layer["key_value"])
        query = rotated(query, angles)
        key = rotated(key_value[:, :, 0], angles)
        attended = attend(query, key, key_value[:, :, 1])
        stream = stream + jnp.einsum("bthk,hkd->btd", attended, layer["out"])
        hidden = jax.nn.gelu(normed(stream, layer["norm_2"]) @ layer["up"])
        return stream + hidden @ layer["down"]

    block = _with_remat(block, options.remat)

    def scanned_block(stream: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        return block(stream, layer), None

    stream = params["embedding"][batch["input_ids"]]
    unroll = options.unroll or len(layers["norm_1"])
    stream, _ = jax.lax.scan(scanned_block, stream, layers, unroll=unroll)
    head = params["embedding"].T
    if "head" in params:
        head = params["head"]
    return normed(stream, params["norm"]), head


def normed(values: jax.Array, scale: jax.Array) -> jax.Array:
    """Return features divided by their root mean square, times a scale (Zhang and
    Sennrich 2019).

    Args:
        values: Features (..., D).
        scale: Scale of each feature (D,).
    """
    wide = values.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + _EPSILON)).astype(values.dtype) * scale


# -- positions


def rotary_angles(positions: jax.Array, head_width: int) -> tuple[jax.Array, jax.Array]:
    """Return cosine and sine of the angles of each place, float32 (B, T, 1, K / 2)
    each.

    Args:
        positions: Positions of ids in their documents, int32 (B, T).
        head_width: Number of features of a head, K, an even number.
    """
    half = head_width // 2
    frequencies = _LONGEST_PERIOD ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotated(values: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turn pairs of features by the angles of their place (Su et al. 2021).

    Args:
        values: Queries or keys (B, T, heads, K). Feature i is paired with feature i + K
            / 2.
        angles: Cosine and sine of :func:`rotary_angles`.
    """
    cosine, sine = angles
    first, second = jnp.split(values.astype(jnp.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, first * sine + second * cosine]
    return jnp.concatenate(turned, axis=-1).astype(values.dtype)


# -- attention


def fused_attention(dtype: Any) -> Attention:
    """Return the name of the fused attention of this process's devices, or ``plain``
    where they have none.

    Args:
        dtype: Type of the arithmetic. Fused attention is for 16-bit types.
    """
    is_16_bit = jnp.dtype(dtype).itemsize == 2
    if jax.default_backend() == "gpu" and is_16_bit:
        return "cudnn"
    if jax.default_backend() == "tpu" and is_16_bit:
        return "splash"
    return "plain"


def attention_of(
    name: Attention, segment_ids: jax.Array, dtype: Any, mesh: Mesh | None = None
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Return the function from queries (B, T, H, K), keys and values (B, T, G, K) to
    (B, T, H, K).

    Args:
        name: Implementation.
        segment_ids: Number of each id's document in its row, int32 (B, T). Padding has
            the number 0 and attends to padding alone, which no target depends on.
        dtype: Type of the arithmetic.
        mesh: Mesh of several TPUs; see :class:`Options`.
    """
    if name == "auto":
        name = fused_attention(dtype)
    if name == "splash":
        return partial(splash_attention, segment_ids=segment_ids, mesh=mesh)
    # The mask is made once and used by all layers.
    is_same_document = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    if name == "cudnn":
        # cuDNN skips keys after the query. So the mask is of documents alone.
        return partial(
            jax.nn.dot_product_attention,
            mask=is_same_document,
            is_causal=True,
            implementation="cudnn",
        )
    if name == "plain":
        length = segment_ids.shape[1]
        is_before = jnp.tril(jnp.ones((length, length), bool))
        return partial(plain_attention, is_visible=is_same_document & is_before)
    raise ValueError(f"attention: got {name!r}, must be auto, cudnn, splash or plain")


def plain_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, is_visible: jax.Array
) -> jax.Array:
    """Return attention with all scores in memory: the definition that the fused ones
    are compared with.

    Args:
        query: Queries (B, T, H, K).
        key: Keys (B, T, G, K); query head h uses key head h // (H / G).
        value: Values (B, T, G, K).
        is_visible: Whether a query (third axis) may attend to a key (fourth axis), bool
            (B, 1, T, T).
    """
    rows, length, heads, head_width = query.shape
    key_heads = key.shape[2]
    grouped = query.reshape(rows, length, key_heads, heads // key_heads, head_width)
    scores = jnp.einsum(
        "btgqk,bsgk->bgqts", grouped, key, preferred_element_type=jnp.float32
    )
    scores = jnp.where(is_visible[:, :, None], scores / head_width**0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bgqts,bsgk->btgqk", weights, value).reshape(query.shape)


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    segment_ids: jax.Array,
    mesh: Mesh | None = None,
    is_interpreted: bool = False,
) -> jax.Array:
    """Return attention by the splash kernels of JAX for TPUs, which skip tiles that are
    all masked.

    Args:
        query: Queries (B, T, H, K), where T is a multiple of 128.
        key: Keys (B, T, G, K).
        value: Values (B, T, G, K).
        segment_ids: Number of each id's document in its row, int32 (B, T).
        mesh: Mesh of ``tl.Trainer``, whose devices each attend in their own rows and
            heads; it needs ``jax.shard_map``, which JAX 0.6.0 lacks. None: one device.
        is_interpreted: Whether the kernel runs as plain JAX, on any device; slow, for
            tests.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    def of_rows(
        query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array
    ) -> jax.Array:
        length = query.shape[1]
        causal = splash.MultiHeadMask(
            [splash.CausalMask((length, length))] * query.shape[2]
        )
        kernel: Any = splash.make_splash_mha(
            mask=causal, head_shards=1, q_seq_shards=1, interpret=is_interpreted
        )

        def of_row(
            query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array
        ) -> jax.Array:
            return kernel(
                query, key, value, segment_ids=splash.SegmentIds(segments, segments)
            )

        # The kernel takes (heads, T, K), and queries that are divided by the root of K
        # already.
        query = (query / query.shape[-1] ** 0.5).astype(query.dtype)
        attended = jax.vmap(of_row)(
            jnp.swapaxes(query, 1, 2),
            jnp.swapaxes(key, 1, 2),
            jnp.swapaxes(value, 1, 2),
            segments,
        )
        return jnp.swapaxes(attended, 1, 2)

    if mesh is None:
        return of_rows(query, key, value, segment_ids)
    # The compiler cannot divide a kernel of Pallas among devices.
    rows = PartitionSpec(("data", "fsdp"))
    rows_and_heads = PartitionSpec(("data", "fsdp"), None, "tensor")
    divided = jax.shard_map(
        of_rows,
        mesh=mesh,
        in_specs=(rows_and_heads, rows_and_heads, rows_and_heads, rows),
        out_specs=rows_and_heads,
        check_vma=False,
    )
    return divided(query, key, value, segment_ids)


# -- memory


def _with_remat(block: Any, remat: Remat) -> Any:
    """Return a layer that keeps only some of its values for the backward pass."""
    if remat == "none":
        return block
    if remat == "block":
        return jax.checkpoint(block, prevent_cse=False)
    if remat == "elementwise":
        return jax.checkpoint(block, policy=_is_expensive, prevent_cse=False)
    raise ValueError(f"remat: got {remat!r}, must be none, elementwise or block")


def _is_expensive(primitive: Any, *_shapes: Any, **_options: Any) -> bool:
    """Return whether an operation's result is kept: matrix products, and fused
    attention.
    """
    name = primitive.name
    return (
        name == "dot_general"
        or name == "pallas_call"
        or name.startswith("dot_product_attention")
    )
