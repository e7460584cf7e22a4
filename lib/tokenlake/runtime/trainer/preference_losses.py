"""Losses of preferences (DPO, ORPO, KTO), as sums over the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import jax
import jax.numpy as jnp

from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer.losses import (
    IGNORED,
    Apply,
    DeviceBatch,
    Objective,
    Params,
    SharedSums,
    Sums,
    WholeBatchObjective,
    log_probs,
    over_logits,
    targets_of,
)

_MASKS: Final = ("attention_mask", "segment_ids")


def dpo_losses(chosen: jax.Array, rejected: jax.Array, *, beta: float, smoothing: float = 0.0) -> jax.Array:
    """Return -log sigmoid(beta * (chosen - rejected)) of each pair (Rafailov et al. 2023, equation 7), float32[B].

    Args:
        chosen: log-probability under the model less that under the reference, of the better answer, float32[B].
        rejected: the same of the worse one.
        beta: how strongly the model is held to the reference.
        smoothing: share of pairs that are the wrong way round (Mitchell 2023, "conservative DPO").
    """
    margin = beta * (chosen - rejected)
    return -(1 - smoothing) * jax.nn.log_sigmoid(margin) - smoothing * jax.nn.log_sigmoid(-margin)


def orpo_losses(chosen: jax.Array, rejected: jax.Array, *, beta: float) -> jax.Array:
    """Return NLL(chosen) - beta * log sigmoid(log odds ratio) of each pair (Hong et al. 2024, equations 6 and 7).

    Args:
        chosen: mean log-probability of a target of the better answer, float32[B], below 0.
        rejected: the same of the worse one.
        beta: weight of the odds ratio, lambda in the paper.
    """
    ratio = _log_odds(chosen) - _log_odds(rejected)
    return -chosen - beta * jax.nn.log_sigmoid(ratio)


def _log_odds(log_p: jax.Array) -> jax.Array:
    """log(p / (1 - p)); p = 1 is kept a little below itself."""
    log_p = jnp.minimum(log_p, -1e-6)
    return log_p - jnp.log(-jnp.expm1(log_p))


def kto_losses(
    rewards: jax.Array,
    good: jax.Array,
    kl: jax.Array,
    *,
    beta: float,
    desirable: float = 1.0,
    undesirable: float = 1.0,
) -> jax.Array:
    """Return lambda_y - v(x, y) of each completion (Ethayarajh et al. 2024, equation 8), float32[B].

    Args:
        rewards: log-probability under the model less that under the reference, float32[B].
        good: whether the completion is, bool[B].
        kl: z0, how far the model is from the reference, float32[], not below 0; no gradient goes through it.
        beta: how sharply a gain is valued.
        desirable: lambda of good completions.
        undesirable: lambda of bad ones.
    """
    gain = jnp.where(good, rewards - kl, kl - rewards)
    weight = jnp.where(good, desirable, undesirable)
    return weight * (1 - jax.nn.sigmoid(beta * gain))


def mismatched(batch: DeviceBatch) -> DeviceBatch:
    """Give each row's prompt the answer of the next row, as KTO's estimate of z0 needs (section 4.1 there).

    Args:
        batch: rows of a prompt, with padding before it or not, and one answer.

    Returns:
        The batch with other ``input_ids``, ``targets`` of the answers, and masks that cover them. What reaches beyond
        a row's end is cut off; ids behind the answer stay what they were, and no target is among them.
    """
    ids, targets = batch["input_ids"], targets_of(batch)
    bears, length = targets != IGNORED, ids.shape[1]
    # The first place with a target, and how many there are from it to the last, int32[B].
    first = jnp.argmax(bears, axis=1)
    last = length - 1 - jnp.argmax(bears[:, ::-1], axis=1)
    count = jnp.where(bears.any(axis=1), last - first + 1, 0)
    from_first = jnp.arange(length)[None] - first[:, None]
    there = jnp.clip(jnp.roll(first, -1)[:, None] + from_first, 0, length - 1)
    other_ids, other_targets = (
        jnp.take_along_axis(jnp.roll(values, -1, axis=0), there, axis=1) for values in (ids, targets)
    )
    other = jnp.where(count > 0, jnp.roll(count, -1), 0)[:, None]
    # An id of the answer stands one place behind the place that predicts it.
    swapped = (from_first >= 1) & (from_first <= other)
    predicts = (from_first >= 0) & (from_first < other)
    masks = {name: jnp.where(swapped, 1, batch[name]) for name in _MASKS if name in batch}
    return {
        **batch,
        **masks,
        "input_ids": jnp.where(swapped, other_ids, ids),
        "targets": jnp.where(predicts, other_targets, IGNORED),
    }


def _part(batch: DeviceBatch, prefix: str) -> dict[str, jax.Array]:
    """The columns of one answer, without their prefix."""
    found = {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)}
    if "input_ids" not in found:
        raise ConfigError(
            f"the batch has no column {prefix}input_ids; expected that of a preference dataset, got {', '.join(batch)}"
        )
    return found


def _row_sums(apply: Apply, params: Params, batch: DeviceBatch, chunk: int | None) -> jax.Array:
    """log p of the targets of each row, float32[B]."""

    def total(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.sum(log_probs(logits, targets)[0], axis=1)

    return over_logits(apply(params, batch), targets_of(batch), total, chunk)


def _against(
    apply: Apply, params: Params, reference: Params | None, batch: DeviceBatch, chunk: int | None
) -> jax.Array:
    """log p of each row under the model less that under the reference, float32[B]."""
    if reference is None:
        raise ConfigError(
            "the loss compares with a reference, got none; expected reference=params of the start"
        )
    held = _row_sums(apply, reference, batch, chunk)
    return _row_sums(apply, params, batch, chunk) - jax.lax.stop_gradient(held)


def _counted(batch: DeviceBatch) -> jax.Array:
    """How many targets each row has, float32[B]."""
    return jnp.sum(targets_of(batch) != IGNORED, axis=1, dtype=jnp.float32)


def _summed(losses: jax.Array, real: jax.Array, **parts: jax.Array) -> Sums:
    """Sum what rows have, without those that are padding."""
    real = real.astype(jnp.float32)
    return Sums(
        loss=jnp.sum(losses * real),
        weight=jnp.sum(real),
        parts={name: jnp.sum(value * real) for name, value in parts.items()},
    )


def dpo(apply: Apply, *, beta: float = 0.1, smoothing: float = 0.0, chunk: int | None = None) -> Objective:
    """Return the objective of :func:`dpo_losses`, the mean over pairs.

    Parts: ``accuracy``, pairs in which the better answer gained more; ``margin``, by how much, times beta.
    """

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        parts = _part(batch, "chosen_"), _part(batch, "rejected_")
        chosen, rejected = (_against(apply, params, reference, part, chunk) for part in parts)
        losses = dpo_losses(chosen, rejected, beta=beta, smoothing=smoothing)
        told = {"accuracy": chosen > rejected, "margin": beta * (chosen - rejected)}
        return _summed(losses, _counted(parts[0]) > 0, **told)

    return objective


def orpo(apply: Apply, *, beta: float = 0.1, chunk: int | None = None) -> Objective:
    """Return the objective of :func:`orpo_losses`, the mean over pairs; it needs no reference.

    Parts: ``nll``, of a target of the better answer; ``accuracy``, pairs in which that is the likelier one.
    """

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        parts = _part(batch, "chosen_"), _part(batch, "rejected_")
        counts = [_counted(part) for part in parts]
        chosen, rejected = (
            _row_sums(apply, params, part, chunk) / jnp.maximum(count, 1)
            for part, count in zip(parts, counts, strict=True)
        )
        losses = orpo_losses(chosen, rejected, beta=beta)
        return _summed(losses, counts[0] > 0, nll=-chosen, accuracy=chosen > rejected)

    return objective


def kto(
    apply: Apply,
    *,
    beta: float = 0.1,
    desirable: float = 1.0,
    undesirable: float = 1.0,
    chunk: int | None = None,
) -> Objective:
    """Return the objective of :func:`kto_losses`, the mean over completions.

    z0 is estimated in each batch from prompts with the answers of other rows, so that there must be two rows at least.
    It is the same for all parts of an accumulated batch. Parts: ``accuracy``, completions whose gain has the sign of
    their label; ``kl``.
    """
    return _Kto(apply, beta, desirable, undesirable, chunk)


_COMPLETION: Final = "completion_"
_MISMATCHED: Final = "mismatched_"
"""Prefix of the columns that hold each prompt with the answer of another row."""


@final
@dataclass(frozen=True, eq=False)  # JAX keeps what it compiles by the object
class _Kto(WholeBatchObjective):
    """See :func:`kto`, whose arguments these are."""

    apply: Apply
    beta: float
    desirable: float
    undesirable: float
    chunk: int | None

    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        part = _part(batch, _COMPLETION)
        if len(part["input_ids"]) < 2:
            raise ConfigError(
                "kto: got one row, expected two or more: z0 is estimated from answers of other rows"
            )
        other = {f"{_MISMATCHED}{name}": value for name, value in mismatched(part).items()}
        return {**batch, **other}

    def shared_sums(self, params: Params, part: DeviceBatch, reference: Params | None) -> SharedSums:
        """Return the sum of the gains of mismatched answers and the number of rows, float32[] each."""
        real = _counted(_part(part, _COMPLETION)) > 0
        gains = self._gains(params, reference, _part(part, _MISMATCHED))
        return jnp.sum(gains * real), jnp.sum(real, dtype=jnp.float32)

    def part_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None, shared: SharedSums
    ) -> Sums:
        total, rows = shared
        kl = jnp.maximum(total / jnp.maximum(rows, 1), 0)
        completion = _part(part, _COMPLETION)
        real = _counted(completion) > 0
        good = part["label"].astype(bool)
        rewards = self._gains(params, reference, completion)
        losses = kto_losses(
            rewards,
            good,
            kl,
            beta=self.beta,
            desirable=self.desirable,
            undesirable=self.undesirable,
        )
        return _summed(losses, real, accuracy=(rewards > 0) == good, kl=jnp.broadcast_to(kl, real.shape))

    def _gains(self, params: Params, reference: Params | None, batch: DeviceBatch) -> jax.Array:
        return _against(self.apply, params, reference, batch, self.chunk)
