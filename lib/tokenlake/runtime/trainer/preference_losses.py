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

# Columns that tell ids of a document from padding.
_MASKS: Final = ("attention_mask", "segment_ids")


def dpo_losses(
    chosen: jax.Array, rejected: jax.Array, *, beta: float, smoothing: float = 0.0
) -> jax.Array:
    """Return -log sigmoid(beta * (chosen - rejected)) of each pair, float32[B].

    It is equation 7 of Rafailov et al. 2023.

    Args:
        chosen: Log-probability under the model minus that under the reference, of the
            better answer, float32[B].
        rejected: The same of the worse answer, float32[B].
        beta: Strength of the pull to the reference.
        smoothing: Share of pairs that are the wrong way round (Mitchell 2023,
            "conservative DPO").
    """
    # A pair is the right way round with probability 1 - smoothing.
    margin = beta * (chosen - rejected)
    log_p_right = jax.nn.log_sigmoid(margin)
    log_p_wrong = jax.nn.log_sigmoid(-margin)
    return -(1 - smoothing) * log_p_right - smoothing * log_p_wrong


def orpo_losses(chosen: jax.Array, rejected: jax.Array, *, beta: float) -> jax.Array:
    """Return NLL(chosen) - beta * log sigmoid(log odds ratio) of each pair.

    The result is float32[B], by equations 6 and 7 of Hong et al. 2024.

    Args:
        chosen: Mean log-probability of a target of the better answer, float32[B], below
            0.
        rejected: The same of the worse answer, float32[B].
        beta: Weight of the odds ratio, lambda in the paper.
    """
    ratio = _log_odds(chosen) - _log_odds(rejected)
    return -chosen - beta * jax.nn.log_sigmoid(ratio)


def _log_odds(log_p: jax.Array) -> jax.Array:
    """Return log(p / (1 - p)) of log p."""
    # p = 1 has infinite odds; it is lowered a little.
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
    """Return lambda_y - v(x, y) of each completion, float32[B].

    It is equation 8 of Ethayarajh et al. 2024.

    Args:
        rewards: Log-probability under the model minus that under the reference,
            float32[B].
        good: True for good completions, bool[B].
        kl: Distance z0 of the model from the reference, float32[], not below 0; no
            gradient goes through it.
        beta: Steepness of the value of a gain.
        desirable: Weight lambda of good completions.
        undesirable: Weight lambda of bad completions.
    """
    # A good completion gains when it becomes likelier than z0, a bad one when it
    # becomes less likely.
    gain = jnp.where(good, rewards - kl, kl - rewards)
    weight = jnp.where(good, desirable, undesirable)
    return weight * (1 - jax.nn.sigmoid(beta * gain))


def mismatched(batch: DeviceBatch) -> DeviceBatch:
    """Return the batch with each row's prompt followed by the answer of the next row.

    KTO needs it for its estimate of z0 (section 4.1 of its paper). For example, rows of
    ids ``P p A`` and ``Q B b``, in which P, p and Q are prompts, become ``P p B`` and
    ``Q A b``: the first answer is cut off at the end of the row, and the second leaves
    an id behind it that is no target.

    1. Find the first place with a target, and the number of places from there to the
       last one with a target.
    2. For each place of a row, compute its distance from the first one, and read the id
       and the target at the same distance in the next row.
    3. Take these within the length of the next row's answer.

    Args:
        batch: Rows of one prompt and one answer; there may be padding before the
            prompt.

    Returns:
        The batch with other ``input_ids``, the ``targets`` of the answers, and masks
        that cover them. The part of an answer beyond the row's end is cut off. Ids
        behind the answer are unchanged, and are no targets.
    """
    ids = batch["input_ids"]
    targets = targets_of(batch)
    length = ids.shape[1]

    # Step 1. All are int32[B]; a row without a target has a count of 0.
    is_target = targets != IGNORED
    first_place = jnp.argmax(is_target, axis=1)
    last_place = length - 1 - jnp.argmax(is_target[:, ::-1], axis=1)
    target_count = jnp.where(is_target.any(axis=1), last_place - first_place + 1, 0)

    # Step 2. All are int32[B, T].
    distance = jnp.arange(length)[None] - first_place[:, None]
    next_first_place = jnp.roll(first_place, -1)[:, None]
    place_in_next = jnp.clip(next_first_place + distance, 0, length - 1)
    next_ids = jnp.take_along_axis(jnp.roll(ids, -1, axis=0), place_in_next, axis=1)
    next_targets = jnp.take_along_axis(
        jnp.roll(targets, -1, axis=0), place_in_next, axis=1
    )

    # Step 3. An id of the answer stands one place after the place that predicts it.
    next_count = jnp.where(target_count > 0, jnp.roll(target_count, -1), 0)[:, None]
    is_answer_id = (distance >= 1) & (distance <= next_count)
    predicts_answer = (distance >= 0) & (distance < next_count)
    columns = {
        **batch,
        "input_ids": jnp.where(is_answer_id, next_ids, ids),
        "targets": jnp.where(predicts_answer, next_targets, IGNORED),
    }
    for column_name in _MASKS:
        if column_name in batch:
            columns[column_name] = jnp.where(is_answer_id, 1, batch[column_name])
    return columns


def _part(batch: DeviceBatch, prefix: str) -> dict[str, jax.Array]:
    """Return the columns of one answer, without their prefix."""
    # `chosen_input_ids` becomes `input_ids`, the name that a model knows.
    columns: dict[str, jax.Array] = {}
    for column_name, column in batch.items():
        if column_name.startswith(prefix):
            columns[column_name.removeprefix(prefix)] = column
    if "input_ids" not in columns:
        raise ConfigError(
            f"the batch has no column {prefix}input_ids; expected that of a preference dataset, got {', '.join(batch)}"
        )
    return columns


def _row_sums(
    apply: Apply, params: Params, batch: DeviceBatch, chunk: int | None
) -> jax.Array:
    """Return the sum of log p over the targets of each row, float32[B]."""

    def total(logits: jax.Array, targets: jax.Array) -> jax.Array:
        log_p, _log_z = log_probs(logits, targets)
        return jnp.sum(log_p, axis=1)

    return over_logits(apply(params, batch), targets_of(batch), total, chunk)


def _row_means(
    apply: Apply, params: Params, batch: DeviceBatch, chunk: int | None
) -> jax.Array:
    """Return the mean of log p over the targets of each row, float32[B].

    A row without targets has 0.
    """
    target_counts = jnp.maximum(_target_counts(batch), 1)
    return _row_sums(apply, params, batch, chunk) / target_counts


def _gains_over(
    apply: Apply,
    params: Params,
    reference: Params | None,
    batch: DeviceBatch,
    chunk: int | None,
) -> jax.Array:
    """Return the gain of each row over the reference, float32[B].

    It is log p under the model minus that under the reference.
    """
    # Parameters that the step donates cannot serve as reference later.
    if reference is None:
        raise ConfigError(
            "the loss compares with a reference, got none; expected reference=params of the start"
        )
    reference_log_p = jax.lax.stop_gradient(_row_sums(apply, reference, batch, chunk))
    return _row_sums(apply, params, batch, chunk) - reference_log_p


def _target_counts(batch: DeviceBatch) -> jax.Array:
    """Return the number of targets of each row, float32[B]."""
    return jnp.sum(targets_of(batch) != IGNORED, axis=1, dtype=jnp.float32)


def _summed(losses: jax.Array, is_real: jax.Array, **parts: jax.Array) -> Sums:
    """Return the sums over the rows that are real, not padding.

    Args:
        losses: Loss of each row, float32[B].
        is_real: True for rows that are no padding, bool[B].
        parts: Other values of each row, which are summed too.
    """
    # Rows of padding have losses of arbitrary size, but weight 0.
    weights = is_real.astype(jnp.float32)
    return Sums(
        loss=jnp.sum(losses * weights),
        weight=jnp.sum(weights),
        parts={name: jnp.sum(values * weights) for name, values in parts.items()},
    )


def dpo(
    apply: Apply, *, beta: float = 0.1, smoothing: float = 0.0, chunk: int | None = None
) -> Objective:
    """Return the objective of :func:`dpo_losses`, the mean over pairs.

    Parts: ``accuracy``, pairs in which the better answer gained more; ``margin``, beta
    times the difference of gains.

    Args:
        apply: Model.
        beta: Strength of the pull to the reference.
        smoothing: Share of pairs that are the wrong way round.
        chunk: Places of a row whose logits exist at once, of a model that returns
            (hidden, head); None: all.

    Example:
        >>> from tokenlake.trainer import dpo
        >>> def apply(params, batch):
        ...     return params["embed"][batch["input_ids"]] @ params["embed"].T
        >>> objective = dpo(apply, beta=0.1)  # tl.Trainer(..., objective=objective)
    """

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        # Two forward passes of the model and two of the reference, of the rows of
        # either answer.
        better = _part(batch, "chosen_")
        worse = _part(batch, "rejected_")
        chosen = _gains_over(apply, params, reference, better, chunk)
        rejected = _gains_over(apply, params, reference, worse, chunk)
        losses = dpo_losses(chosen, rejected, beta=beta, smoothing=smoothing)
        is_real = _target_counts(better) > 0
        return _summed(
            losses,
            is_real,
            accuracy=chosen > rejected,
            margin=beta * (chosen - rejected),
        )

    return objective


def orpo(apply: Apply, *, beta: float = 0.1, chunk: int | None = None) -> Objective:
    """Return the objective of :func:`orpo_losses`, the mean over pairs.

    It needs no reference.

    Parts: ``nll``, of a target of the better answer; ``accuracy``, pairs in which that
    is the likelier one.

    Args:
        apply: Model.
        beta: Weight of the odds ratio.
        chunk: Places of a row whose logits exist at once, of a model that returns
            (hidden, head); None: all.

    Example:
        >>> from tokenlake.trainer import orpo
        >>> def apply(params, batch):
        ...     return params["embed"][batch["input_ids"]] @ params["embed"].T
        >>> objective = orpo(apply, beta=0.1)  # tl.Trainer(..., objective=objective)
    """

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        # Means instead of sums: the odds of a long answer would always be small.
        better = _part(batch, "chosen_")
        worse = _part(batch, "rejected_")
        chosen = _row_means(apply, params, better, chunk)
        rejected = _row_means(apply, params, worse, chunk)
        losses = orpo_losses(chosen, rejected, beta=beta)
        is_real = _target_counts(better) > 0
        return _summed(losses, is_real, nll=-chosen, accuracy=chosen > rejected)

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

    z0 is estimated in each batch from prompts with the answers of other rows, so a
    batch needs at least two rows. It is the same for all parts of an accumulated batch.
    Parts: ``accuracy``, completions whose gain has the sign of their label; ``kl``, the
    estimate.

    Args:
        apply: Model.
        beta: Steepness of the value of a gain.
        desirable: Weight of good completions.
        undesirable: Weight of bad completions.
        chunk: Places of a row whose logits exist at once, of a model that returns
            (hidden, head); None: all.

    Example:
        >>> from tokenlake.trainer import kto
        >>> def apply(params, batch):
        ...     return params["embed"][batch["input_ids"]] @ params["embed"].T
        >>> objective = kto(apply, beta=0.1)  # tl.Trainer(..., objective=objective)
    """
    return _Kto(apply, beta, desirable, undesirable, chunk)


_COMPLETION: Final = "completion_"
_MISMATCHED: Final = "mismatched_"
"""Prefix of the columns that hold each prompt with the answer of another row."""


@final
@dataclass(frozen=True, eq=False)  # JAX keys compiled functions by the object
class _Kto(WholeBatchObjective):
    """Objective of :func:`kto`; its fields are the arguments of that function."""

    apply: Apply
    beta: float
    desirable: float
    undesirable: float
    chunk: int | None

    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        # The columns of mismatched answers are made before the batch is cut: the next
        # row may be in another part.
        completion = _part(batch, _COMPLETION)
        if len(completion["input_ids"]) < 2:
            raise ConfigError(
                "kto: got one row, expected two or more: z0 is estimated from answers of other rows"
            )
        columns = dict(batch)
        for column_name, column in mismatched(completion).items():
            columns[f"{_MISMATCHED}{column_name}"] = column
        return columns

    def shared_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None
    ) -> SharedSums:
        """Return the sum of the gains of mismatched answers, and the row count.

        Both are float32[].
        """
        is_real = _target_counts(_part(part, _COMPLETION)) > 0
        gains = self._gains(params, reference, _part(part, _MISMATCHED))
        return jnp.sum(gains * is_real), jnp.sum(is_real, dtype=jnp.float32)

    def part_sums(
        self,
        params: Params,
        part: DeviceBatch,
        reference: Params | None,
        shared: SharedSums,
    ) -> Sums:
        # z0 is a divergence, and its estimate is cut off at 0.
        total, rows = shared
        divergence = jnp.maximum(total / jnp.maximum(rows, 1), 0)
        completion = _part(part, _COMPLETION)
        is_real = _target_counts(completion) > 0
        good = part["label"].astype(bool)
        rewards = self._gains(params, reference, completion)
        losses = kto_losses(
            rewards,
            good,
            divergence,
            beta=self.beta,
            desirable=self.desirable,
            undesirable=self.undesirable,
        )
        return _summed(
            losses,
            is_real,
            accuracy=(rewards > 0) == good,
            kl=jnp.broadcast_to(divergence, is_real.shape),
        )

    def _gains(
        self, params: Params, reference: Params | None, batch: DeviceBatch
    ) -> jax.Array:
        return _gains_over(self.apply, params, reference, batch, self.chunk)
