"""Losses of a model's last hidden states and its head, without all logits in memory.

The gradient is computed at once with the loss.

The loss of a place is a function of two numbers, both in float32::

    log_p = logit of the target - log Z        log Z = log(sum over ids of exp(logit))

The loss is a sum over places. Its gradient is therefore the product of one number,
which the backward pass brings, and arrays that the forward pass can compute while the
logits exist. So each logit is computed once, where a forward pass that is computed
again needs it twice. For some places of each row at a time:

1. ``logits = hidden @ head``, in float32.
2. ``log_p`` and ``log Z`` of each place, the losses, and their derivatives ``a = d loss
   / d log_p`` and ``b = d loss / d log Z``, both arrays of one number for each place.
3. The gradient of the logits, of which each is one pass over them::

       d loss / d logit[id] = a * (1 if id is the target else 0) + (b - a) * exp(logit[id] - log Z)

4. ``d hidden = d logits @ head.T`` and ``d head += hidden.T @ d logits``, as products
   in the type of the model.

Example: two ids with logits (0, 0) and the cross-entropy -log_p of target 0. Then p =
1/2, a = -1 and b = 0, and the gradient is (-1 + 1/2, 1/2): p minus 1 at the target, p
elsewhere.

An evaluation, which needs no gradient, computes steps 1 and 2 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

IGNORED: Final = -100
"""Target of a place that does not count toward the loss."""
LossOfPlaces: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
"""(log p of the target, log Z), float32 of one shape -> loss of each place, of that
shape.
"""


class HeadSums(NamedTuple):
    """Sums over all places that have a target, float32 scalars.

    Attributes:
        loss: Sum of the losses. It alone has a gradient.
        weight: Number of targets.
        nll: Sum of -log p of the targets.
        accuracy: Number of targets that are the likeliest id; of equally likely ids the
            first counts.
    """

    loss: jax.Array
    weight: jax.Array
    nll: jax.Array
    accuracy: jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def head_sums(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    loss_of_places: LossOfPlaces,
    chunk: int,
) -> HeadSums:
    """Return the sums of a loss over all targets.

    Args:
        hidden: Hidden states (B, T, D).
        head: Matrix (D, V) that makes logits of them, of the same type.
        targets: Ids to predict, int32 (B, T), -100 where nothing is predicted.
        loss_of_places: Loss of each place. Places without a target do not count.
        chunk: Number of places of each row whose logits exist at once.
    """
    sums, _ = _scanned(hidden, head, targets, loss_of_places, chunk, has_gradient=False)
    return sums


def _forward(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    loss_of_places: LossOfPlaces,
    chunk: int,
) -> tuple[HeadSums, tuple[jax.Array, jax.Array]]:
    return _scanned(hidden, head, targets, loss_of_places, chunk, has_gradient=True)


def _backward(
    _loss_of_places: LossOfPlaces,
    _chunk: int,
    gradients: tuple[jax.Array, jax.Array],
    cotangent: HeadSums,
) -> tuple[jax.Array, jax.Array, None]:
    """Return the gradients of hidden states and head.

    The loss counts `cotangent.loss` times.
    """
    # Only the loss is differentiated: weight, nll and accuracy are measurements, and
    # targets are integers.
    d_hidden, d_head = gradients
    scale = cotangent.loss
    return (
        (d_hidden * scale).astype(d_hidden.dtype),
        (d_head * scale).astype(d_hidden.dtype),
        None,
    )


head_sums.defvjp(_forward, _backward)


def _scanned(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    loss_of_places: LossOfPlaces,
    chunk: int,
    *,
    has_gradient: bool,
) -> tuple[HeadSums, Any]:
    """Return the sums of a batch, and the gradients of hidden states and head.

    The gradients are those of hidden states (B, T, D) and of the head, float32 (D, V).
    Without `has_gradient` the gradients are None.
    """
    length = hidden.shape[1]
    if chunk >= length:
        return _of_chunk(
            hidden, head, targets, loss_of_places, has_gradient=has_gradient
        )
    parts = (cut_places(hidden, chunk, 0), cut_places(targets, chunk, IGNORED))

    def add(total: Any, part: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        sums, gradients = _of_chunk(
            part[0], head, part[1], loss_of_places, has_gradient=has_gradient
        )
        # The head's gradient adds up over the chunks; each chunk has hidden states of
        # its own.
        d_hidden = None
        if has_gradient:
            d_hidden, d_head = gradients
            sums = (sums, d_head)
        return jax.tree.map(jnp.add, total, sums), d_hidden

    total: Any = HeadSums(*[jnp.zeros((), jnp.float32) for _ in HeadSums._fields])
    if not has_gradient:
        total, _ = jax.lax.scan(add, total, parts)
        return total, None
    total = (total, jnp.zeros(head.shape, jnp.float32))
    (sums, d_head), d_parts = jax.lax.scan(add, total, parts)

    # (parts, B, chunk, D) -> (B, T, D), without the filled places after the last.
    d_hidden = jnp.moveaxis(d_parts, 0, 1).reshape(
        hidden.shape[0], -1, hidden.shape[2]
    )[:, :length]
    return sums, (d_hidden, d_head)


def _of_chunk(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    loss_of_places: LossOfPlaces,
    *,
    has_gradient: bool,
) -> tuple[HeadSums, Any]:
    """Return the sums of some places of each row, and their gradients.

    The steps are at the top of the module.
    """
    # 1. The logits.
    logits = jnp.einsum("btd,dv->btv", hidden, head, preferred_element_type=jnp.float32)

    # 2. One number of each place: log Z, log p, the loss and its two derivatives.
    is_target = targets != IGNORED
    vocabulary_ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    is_id_of_target = vocabulary_ids == targets[..., None]
    # The exponentials are those of logits minus the largest one: none overflows.
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_z = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
    target_logits = jnp.sum(jnp.where(is_id_of_target, logits, 0.0), axis=-1)
    log_p = jnp.where(is_target, target_logits - log_z, 0.0)
    log_z = jnp.where(is_target, log_z, 0.0)

    def loss_sum(log_p: jax.Array, log_z: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(is_target, loss_of_places(log_p, log_z), 0.0))

    # The target is the likeliest id if it has the largest logit and no id before it
    # has.
    is_before_target = vocabulary_ids < targets[..., None]
    is_earlier = jnp.any((logits == largest) & is_before_target, axis=-1)
    is_likeliest = is_target & (target_logits == largest[..., 0]) & ~is_earlier
    weight = jnp.sum(is_target, dtype=jnp.float32)
    accuracy = jnp.sum(is_likeliest, dtype=jnp.float32)
    nll = -jnp.sum(log_p)
    if not has_gradient:
        return HeadSums(loss_sum(log_p, log_z), weight, nll, accuracy), None
    loss, (d_log_p, d_log_z) = jax.value_and_grad(loss_sum, argnums=(0, 1))(
        log_p, log_z
    )

    # 3. The gradient of the logits; places without a target have derivatives of 0.
    probabilities = jnp.exp(
        logits - jnp.where(is_target, log_z, largest[..., 0])[..., None]
    )
    d_logits = jnp.where(is_id_of_target, d_log_p[..., None], 0.0)
    d_logits += (d_log_z - d_log_p)[..., None] * probabilities
    d_logits = d_logits.astype(hidden.dtype)

    # 4. The gradients of hidden states and head.
    d_hidden = jnp.einsum("btv,dv->btd", d_logits, head)
    d_head = jnp.einsum(
        "btd,btv->dv", hidden, d_logits, preferred_element_type=jnp.float32
    )
    return HeadSums(loss, weight, nll, accuracy), (d_hidden, d_head)


def cut_places(values: jax.Array, chunk: int, filler: int) -> jax.Array:
    """Cut (B, T, ...) along T into (parts, B, chunk, ...).

    The last part is padded with the filler.
    """
    rows, length = values.shape[:2]
    padding = [(0, 0), (0, -length % chunk)] + [(0, 0)] * (values.ndim - 2)
    values = jnp.pad(values, padding, constant_values=filler)
    return jnp.moveaxis(values.reshape(rows, -1, chunk, *values.shape[2:]), 1, 0)
