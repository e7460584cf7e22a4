"""Decoder-only transformer in plain JAX, for packed rows.

::

    config = PRESETS["124M"]
    params = init(jax.random.key(0), config, vocabulary=50257)
    hidden, head = decoder(params, batch)
    hidden, head = decoder(params, batch, Options(attention="plain", remat="block"))

``tl.Trainer`` takes :func:`decoder` as it is: its loss computes the logits ``hidden @
head`` in chunks.

A packed row holds several documents, one after the other. Two columns of the loader
separate them:

- ``segment_ids``: an id attends to itself and to earlier ids of the same segment;
- ``positions``: rotary angles follow the position in the document, from 0.

Speed comes from these choices:

- **Attention** is fused: no array of (length, length) scores reaches the memory of the
  device. cuDNN computes it on GPUs, JAX's splash attention on TPUs, and plain JAX
  elsewhere. All compute the same function (:func:`attention_of`).
- **Arithmetic** is in the type of the parameters. With ``precision: bfloat16``,
  ``tl.Trainer`` passes bfloat16 parameters and keeps float32 parameters, moments and
  gradients. Norms, angles and the softmax are always float32.
- **Rotary angles** are computed once per batch and shared by all layers.
- **The vocabulary** is padded to a multiple of 128, the width of the tiles of matrix
  units. The additional ids are never targets, so training makes them as unlikely as any
  other id that does not occur.
- **Memory**: ``Options.remat`` selects the values that the forward pass keeps for the
  backward pass.

Dimensions, with their letters in ``einsum``:

============  ======  =================================================================
batch         b       rows of a batch
length        t, s    ids of a row; s where they are keys
width         d       features of an id
heads         h       query heads
key_heads     g       heads of keys and values, a divisor of heads
head_dim      k       features of a head, width / heads
hidden        f       hidden features of the feed-forward part
vocabulary            rows of the embedding, a multiple of 128
============  ======  =================================================================

The parameters of all layers are stacked: their first dimension is the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

Params: TypeAlias = dict[str, Any]
Batch: TypeAlias = Mapping[str, Array]
Attention: TypeAlias = Literal["auto", "cudnn", "splash", "plain"]
Remat: TypeAlias = Literal["none", "elementwise", "block"]

VOCABULARY_MULTIPLE: Final = 128
"""Divisor of the number of rows of the embedding."""

_ROTARY_BASE: Final = 10_000.0
"""Base of the rotary frequencies."""

_EPSILON: Final = 1e-6
"""Number that is added to a mean square, so that none is 0."""

TENSOR_RULES: Final = {
    "query": (None, None, "tensor", None),  # (layers, width, heads, head_dim)
    "key_value": (None, None, None, "tensor", None),  # (.., 2, key_heads, head_dim)
    "out": (None, "tensor", None, None),  # (layers, heads, head_dim, width)
    "up": (None, None, "tensor"),  # (layers, width, hidden)
    "down": (None, "tensor", None),  # (layers, hidden, width)
}
"""Rules for ``mesh.rules`` of ``tl.Trainer``.

They divide heads and hidden features over the axis ``tensor``. The axis ``fsdp`` needs
no rules.
"""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder.

    Attributes:
        width: Number of features of an id.
        layers: Number of layers.
        heads: Number of query heads.
        key_heads: Number of heads of keys and values, a divisor of `heads`; None:
            `heads`. Fewer make grouped-query attention (Ainslie et al. 2023).
        hidden: Number of hidden features of the feed-forward part; None: 4 * `width`.
        is_tied: True if the head is the transposed embedding (Press and Wolf 2017).

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
        are_positive = min(self.width, self.layers, self.heads, key_heads) > 0
        # Rotary angles pair the features of a head, so that their number is even.
        if not are_positive or self.width % (2 * self.heads) or self.heads % key_heads:
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
"""Number of parameters, with a vocabulary of GPT-2's size -> sizes of the decoder.

Widths and layers are those of GPT-2 and GPT-3 (Brown et al. 2020, table 2.1). Heads
have 128 features: fused attention takes half the time of twice as many heads of 64.
"""


@dataclass(frozen=True)
class Options:
    """Options of speed and memory. They change results by rounding only.

    Attributes:
        attention: Implementation of attention: ``cudnn`` (GPUs, 16-bit types),
            ``splash`` (TPUs), ``plain`` (any device); ``auto``: the fused one of the
            device.
        remat: Values that the forward pass keeps for the backward pass: ``none`` keeps
            all; ``elementwise`` keeps the results of matrix products and attention, and
            recomputes the others, which are cheap; ``block`` keeps the input of each
            layer, and computes each layer twice.
        unroll: Number of layers in the body of the compiled loop over layers; None: all
            layers, which is fastest. Fewer layers compile faster.
        mesh: Mesh of ``tl.Trainer``. ``splash`` needs it on several TPUs; everywhere
            else the compiler divides the work.
    """

    attention: Attention = "auto"
    remat: Remat = "none"
    unroll: int | None = None
    mesh: Mesh | None = None


# -- parameters


def padded_vocabulary(vocabulary: int) -> int:
    """Return the number of rows of the embedding for a number of ids."""
    multiples = -(-vocabulary // VOCABULARY_MULTIPLE)  # rounded up
    return multiples * VOCABULARY_MULTIPLE


@partial(jax.jit, static_argnames=("config", "vocabulary"))
def init(key: Array, config: DecoderConfig, vocabulary: int) -> Params:
    """Return the initial parameters, float32.

    Matrices are normal with variance ``1 / fan_in``, where ``fan_in`` is the number of
    features that a product sums. The two matrices that write to the residual stream
    have variance ``1 / (fan_in * layers)``, so that the stream does not grow with the
    depth.

    Args:
        key: Random key.
        config: Sizes of the decoder.
        vocabulary: Number of ids of the tokenizer.

    Returns:
        ``embedding`` (vocabulary, width), ``norm`` (width,), ``head`` (width,
        vocabulary) unless it is tied, and ``layers``, the stacked parameters of all
        layers.
    """
    layers = config.layers
    width = config.width
    heads = config.heads
    key_heads = config.key_heads or heads
    head_dim = width // heads
    hidden = config.hidden or 4 * width
    rows = padded_vocabulary(vocabulary)
    (
        embedding_key,
        query_key,
        key_value_key,
        out_key,
        up_key,
        down_key,
        head_key,
    ) = jax.random.split(key, 7)

    # Keys and values are one matrix, with the key at index 0 of its third dimension and
    # the value at index 1.
    key_value_shape = (layers, width, 2, key_heads, head_dim)
    layer_params: Params = {
        "norm_1": jnp.ones((layers, width)),
        "query": normal(query_key, (layers, width, heads, head_dim), fan_in=width),
        "key_value": normal(key_value_key, key_value_shape, fan_in=width),
        "out": normal(out_key, (layers, heads, head_dim, width), fan_in=width * layers),
        "norm_2": jnp.ones((layers, width)),
        "up": normal(up_key, (layers, width, hidden), fan_in=width),
        "down": normal(down_key, (layers, hidden, width), fan_in=hidden * layers),
    }
    params: Params = {
        "embedding": normal(embedding_key, (rows, width), fan_in=width),
        "layers": layer_params,
        "norm": jnp.ones(width),
    }
    if not config.is_tied:
        params["head"] = normal(head_key, (width, rows), fan_in=width)
    return params


def normal(key: Array, shape: tuple[int, ...], *, fan_in: int) -> Array:
    """Return normal random numbers with variance ``1 / fan_in``, float32.

    Args:
        key: Random key.
        shape: Shape of the result.
        fan_in: Number of features that a product with the result sums.
    """
    return jax.random.normal(key, shape, jnp.float32) / fan_in**0.5


# -- model


def decoder(
    params: Params, batch: Batch, options: Options | None = None
) -> tuple[Array, Array]:
    """Return the last hidden states and the head; their product is the logits.

    Each layer adds attention and a feed-forward part to the residual stream, both of
    the normalized stream (pre-norm)::

        stream = stream + attention(norm_1(stream))
        stream = stream + feed_forward(norm_2(stream))

    Args:
        params: Parameters in the shapes of :func:`init`. Their type is the type of the
            arithmetic.
        batch: Columns ``input_ids``, ``segment_ids`` and ``positions``, each int32
            (batch, length).
        options: Options of speed and memory; None: the default ones.

    Returns:
        Hidden states (batch, length, width) and head (width, vocabulary).
    """
    if options is None:
        options = Options()
    embedding = params["embedding"]  # (vocabulary, width)
    layers = params["layers"]
    layer_count, _, _, head_dim = layers["query"].shape
    # The mask of attention and the angles are the same in all layers.
    attend = attention_of(
        options.attention, batch["segment_ids"], embedding.dtype, options.mesh
    )
    angles = rotary_angles(batch["positions"], head_dim)

    def block(stream: Array, layer: Params) -> Array:
        """Return the residual stream after a layer, (batch, length, width)."""
        # Attention.
        normalized = rms_norm(stream, layer["norm_1"])
        # (batch, length, heads, head_dim)
        query = jnp.einsum("btd,dhk->bthk", normalized, layer["query"])
        # (batch, length, 2, key_heads, head_dim)
        key_value = jnp.einsum("btd,dcgk->btcgk", normalized, layer["key_value"])
        key = key_value[:, :, 0]
        value = key_value[:, :, 1]
        query = rotate(query, angles)
        key = rotate(key, angles)
        attended = attend(query, key, value)  # (batch, length, heads, head_dim)
        stream = stream + jnp.einsum("bthk,hkd->btd", attended, layer["out"])
        # Feed-forward part.
        normalized = rms_norm(stream, layer["norm_2"])
        hidden = jax.nn.gelu(normalized @ layer["up"])  # (batch, length, hidden)
        return stream + hidden @ layer["down"]

    block = _with_remat(block, options.remat)

    def scan_block(stream: Array, layer: Params) -> tuple[Array, None]:
        return block(stream, layer), None

    stream = embedding[batch["input_ids"]]  # (batch, length, width)
    unroll = options.unroll or layer_count
    stream, _ = jax.lax.scan(scan_block, stream, layers, unroll=unroll)
    hidden_states = rms_norm(stream, params["norm"])
    if "head" in params:
        return hidden_states, params["head"]
    return hidden_states, embedding.T


def rms_norm(values: Array, scale: Array) -> Array:
    """Return features divided by their root mean square, times a scale.

    ``x / sqrt(mean(x^2) + epsilon) * scale`` (Zhang and Sennrich 2019). The quotient is
    computed in float32.

    Args:
        values: Features, (..., width).
        scale: Scale of each feature, (width,).
    """
    wide = values.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normalized = wide * jax.lax.rsqrt(mean_square + _EPSILON)
    return normalized.astype(values.dtype) * scale


# -- positions


def rotary_angles(positions: Array, head_dim: int) -> tuple[Array, Array]:
    """Return the cosine and sine of the rotary angles of each id.

    Pair i of a head's features has the angle ``position * 10000^(-2 i / head_dim)`` (Su
    et al. 2021, section 3.2.2).

    Args:
        positions: Position of each id in its document, int32 (batch, length).
        head_dim: Number of features of a head, an even number.

    Returns:
        Cosine and sine, float32 (batch, length, 1, head_dim / 2) both. The 1 stands for
        the heads.
    """
    pairs = head_dim // 2
    exponents = -jnp.arange(pairs, dtype=jnp.float32) / pairs
    frequencies = _ROTARY_BASE**exponents  # (head_dim / 2,)
    angles = positions[:, :, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(values: Array, angles: tuple[Array, Array]) -> Array:
    """Rotate pairs of features by the angles of their id (Su et al. 2021).

    Feature i of a head is paired with feature ``i + head_dim / 2``.

    Args:
        values: Queries or keys, (batch, length, heads, head_dim).
        angles: Cosine and sine of :func:`rotary_angles`.

    Returns:
        Rotated queries or keys, in the shape and type of `values`.
    """
    cosine, sine = angles
    first, second = jnp.split(values.astype(jnp.float32), 2, axis=-1)
    rotated_first = first * cosine - second * sine
    rotated_second = first * sine + second * cosine
    rotated = jnp.concatenate([rotated_first, rotated_second], axis=-1)
    return rotated.astype(values.dtype)


# -- attention


AttentionFunction: TypeAlias = Callable[[Array, Array, Array], Array]
"""Function of queries, keys and values.

Queries and the result have the shape (batch, length, heads, head_dim), keys and values
(batch, length, key_heads, head_dim).
"""


def fused_attention(dtype: Any) -> Attention:
    """Return the name of the fused attention for the devices of this process.

    The result is ``plain`` if they have none.

    Args:
        dtype: Type of the arithmetic. Fused attention needs a 16-bit type.
    """
    if jnp.dtype(dtype).itemsize != 2:
        return "plain"
    if jax.default_backend() == "gpu":
        return "cudnn"
    if jax.default_backend() == "tpu":
        return "splash"
    return "plain"


def attention_of(
    name: Attention, segment_ids: Array, dtype: Any, mesh: Mesh | None = None
) -> AttentionFunction:
    """Return the attention function for the documents of a batch.

    Args:
        name: Implementation.
        segment_ids: Number of each id's document in its row, int32 (batch, length).
            Padding has the number 0 and attends to padding only; no target depends on
            it.
        dtype: Type of the arithmetic.
        mesh: Mesh of several TPUs; see :class:`Options`.

    Raises:
        ValueError: There is no such implementation.
    """
    if name == "auto":
        name = fused_attention(dtype)
    if name == "splash":
        return partial(splash_attention, segment_ids=segment_ids, mesh=mesh)
    # (batch, 1, length of queries, length of keys); the 1 stands for the heads.
    is_same_document = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    if name == "cudnn":
        # cuDNN skips keys after the query by itself, so the mask is of documents only.
        return partial(
            jax.nn.dot_product_attention,
            mask=is_same_document,
            is_causal=True,
            implementation="cudnn",
        )
    if name == "plain":
        length = segment_ids.shape[1]
        is_causal = jnp.tril(jnp.ones((length, length), bool))
        return partial(plain_attention, is_visible=is_same_document & is_causal)
    raise ValueError(f"attention: got {name!r}, must be auto, cudnn, splash or plain")


def plain_attention(
    query: Array, key: Array, value: Array, *, is_visible: Array
) -> Array:
    """Return attention with all scores in memory.

    ``softmax(query key^T / sqrt(head_dim)) value`` (Vaswani et al. 2017, section
    3.2.1). It is the definition with which the fused implementations are compared.

    Args:
        query: Queries, (batch, length, heads, head_dim).
        key: Keys, (batch, length, key_heads, head_dim). Query head h uses key head ``h
            // (heads / key_heads)``.
        value: Values, (batch, length, key_heads, head_dim).
        is_visible: True where a query (third axis) may attend to a key (fourth axis),
            bool (batch, 1, length, length).

    Returns:
        Mean values by the weights of attention, (batch, length, heads, head_dim).
    """
    rows, length, heads, head_dim = query.shape
    key_heads = key.shape[2]
    # Query heads that share a key head are a group (q):
    # (batch, length, key_heads, heads / key_heads, head_dim).
    grouped = query.reshape(rows, length, key_heads, heads // key_heads, head_dim)
    # (batch, key_heads, heads / key_heads, length of queries, length of keys)
    scores = jnp.einsum(
        "btgqk,bsgk->bgqts", grouped, key, preferred_element_type=jnp.float32
    )
    scores = scores / head_dim**0.5
    scores = jnp.where(is_visible[:, :, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    attended = jnp.einsum("bgqts,bsgk->btgqk", weights, value)
    return attended.reshape(query.shape)


def splash_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    segment_ids: Array,
    mesh: Mesh | None = None,
    is_interpreted: bool = False,
) -> Array:
    """Return attention by JAX's splash kernels for TPUs.

    The kernels skip tiles of the scores that are masked completely.

    Args:
        query: Queries, (batch, length, heads, head_dim); the length is a multiple of
            128.
        key: Keys, (batch, length, key_heads, head_dim).
        value: Values, (batch, length, key_heads, head_dim).
        segment_ids: Number of each id's document in its row, int32 (batch, length).
        mesh: Mesh of ``tl.Trainer``, whose devices each compute the attention of their
            rows and heads; it needs ``jax.shard_map``, which JAX 0.6.0 lacks. None: one
            device.
        is_interpreted: True to run the kernel as plain JAX on any device, slowly, for
            tests.

    Returns:
        Mean values by the weights of attention, (batch, length, heads, head_dim).
    """
    # Pallas is imported for TPUs only.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    def attend_rows(query: Array, key: Array, value: Array, segments: Array) -> Array:
        """Return the attention of the rows and heads of one device."""
        _, length, heads, head_dim = query.shape
        causal_mask = splash.CausalMask((length, length))
        kernel: Any = splash.make_splash_mha(
            mask=splash.MultiHeadMask([causal_mask] * heads),
            head_shards=1,
            q_seq_shards=1,
            interpret=is_interpreted,
        )

        def attend_row(
            query: Array, key: Array, value: Array, segments: Array
        ) -> Array:
            segment_ids = splash.SegmentIds(segments, segments)
            return kernel(query, key, value, segment_ids=segment_ids)

        # The kernel computes softmax(query key^T): the queries are scaled before it.
        query = (query / head_dim**0.5).astype(query.dtype)
        # It takes arrays of one row, (heads, length, head_dim).
        attended = jax.vmap(attend_row)(
            jnp.swapaxes(query, 1, 2),
            jnp.swapaxes(key, 1, 2),
            jnp.swapaxes(value, 1, 2),
            segments,
        )
        return jnp.swapaxes(attended, 1, 2)

    if mesh is None:
        return attend_rows(query, key, value, segment_ids)
    # The compiler cannot divide a Pallas kernel among devices, so the mesh is explicit.
    row_axes = ("data", "fsdp")
    by_rows = PartitionSpec(row_axes)
    by_rows_and_heads = PartitionSpec(row_axes, None, "tensor")
    attend_on_mesh = jax.shard_map(
        attend_rows,
        mesh=mesh,
        in_specs=(by_rows_and_heads, by_rows_and_heads, by_rows_and_heads, by_rows),
        out_specs=by_rows_and_heads,
        check_vma=False,
    )
    return attend_on_mesh(query, key, value, segment_ids)


# -- memory


def _with_remat(block: Any, remat: Remat) -> Any:
    """Return a layer that keeps some of its values for the backward pass.

    Args:
        block: Function of the residual stream and the parameters of a layer.
        remat: Values to keep; see :class:`Options`.

    Raises:
        ValueError: There is no such choice.
    """
    # The loop over layers separates the two computations of a layer, so the compiler
    # cannot merge them (prevent_cse).
    if remat == "none":
        return block
    if remat == "block":
        return jax.checkpoint(block, prevent_cse=False)
    if remat == "elementwise":
        return jax.checkpoint(block, policy=_is_expensive, prevent_cse=False)
    raise ValueError(f"remat: got {remat!r}, must be none, elementwise or block")


def _is_expensive(primitive: Any, *_shapes: Any, **_options: Any) -> bool:
    """Return True for operations whose result is kept.

    They are matrix products and fused attention.
    """
    is_matrix_product = primitive.name == "dot_general"
    is_splash = primitive.name == "pallas_call"
    is_cudnn = primitive.name.startswith("dot_product_attention")
    return is_matrix_product or is_splash or is_cudnn
