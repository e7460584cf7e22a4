"""Losses of language models and of preferences, as sums.

A mean over several parts of a batch is the sum of sums by the sum of weights.

A loss takes logits of shape (B, T, V) and targets int32 (B, T): the id to predict at each place, -100 where there is
none, as the loader's column ``targets`` says (:func:`targets_of` makes them of its other columns). A model may return
``(hidden, head)`` instead, of shapes (B, T, D) and (D, V); then logits exist for a few places at a time
(:func:`over_logits`).

Losses of preferences say which of two answers is better (DPO, ORPO), or whether one is good (KTO). Their batches have
the columns that the loader gives under a prefix: ``chosen_input_ids``, ``chosen_labels``, ... and ``rejected_...``; for
KTO ``completion_...`` and ``label``, True for good. Labels are -100 over the prompt. An answer's log-probability is the
sum over its targets. A row without a target is padding and counts nothing.

All arithmetic here is float32, whatever the model's is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, final

import jax
import jax.numpy as jnp

from tokenlake.errors import ConfigError

IGNORED: Final = -100
"""The target of a place that bears no loss."""
Params: TypeAlias = Any
"""A pytree of arrays."""
DeviceBatch: TypeAlias = Mapping[str, jax.Array]
"""Column -> array of shape (B, ...)."""
Output: TypeAlias = "jax.Array | tuple[jax.Array, jax.Array]"
"""Logits (B, T, V), or hidden states (B, T, D) and the head (D, V)."""
Apply: TypeAlias = Callable[[Params, DeviceBatch], Output]
"""A model: a pure function of parameters and a batch."""
_Tree = TypeVar("_Tree")


class Sums(NamedTuple):
    """A loss before it is divided; all scalars are float32.

    Attributes:
        loss: the sum that is minimized.
        weight: over how many places, or rows, it is the mean.
        parts: name -> another sum over the same weight, such as ``nll`` and ``accuracy``.
    """

    loss: jax.Array
    weight: jax.Array
    parts: dict[str, jax.Array]


class Objective(Protocol):
    """What is minimized."""

    def __call__(self, params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        """Return the sums of a batch; `reference` are parameters that stay, where the objective needs some."""
        ...


SharedSums: TypeAlias = Any
"""A pytree of sums over rows, which add up over the parts of a batch."""


class WholeBatchObjective(ABC):
    """An objective with a term over the whole batch, which must not depend on how the batch is cut into parts.

    A training step calls :meth:`widen` on the whole batch and cuts it into parts, adds up :meth:`shared_sums` over the
    parts, and then :meth:`part_sums` with the total. No gradient goes through what is shared.
    """

    @abstractmethod
    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch with columns that are made of other rows."""

    @abstractmethod
    def shared_sums(self, params: Params, part: DeviceBatch, reference: Params | None) -> SharedSums:
        """Return what a part adds to the term over the whole batch."""

    @abstractmethod
    def part_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None, shared: SharedSums
    ) -> Sums:
        """Return the sums of a part, given the shared sums of the whole batch."""

    def __call__(self, params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        """Return the sums of a batch that is not cut."""
        whole = self.widen(batch)
        shared = jax.lax.stop_gradient(self.shared_sums(params, whole, reference))
        return self.part_sums(params, whole, reference, shared)


def targets_of(batch: DeviceBatch) -> jax.Array:
    """Return the id that each place predicts, int32[B, T], -100 where there is none.

    ``targets`` if the batch has them; else ``labels``, one place to the left; else the next ``input_ids``, where
    ``loss_mask`` says so, ``segment_ids`` do not change and ``attention_mask`` covers both, as far as there are such.
    """
    if "targets" in batch:
        return batch["targets"]
    if "labels" in batch:
        return _ended(batch["labels"][:, 1:])
    bears = jnp.ones_like(batch["input_ids"][:, 1:], dtype=bool)
    if "loss_mask" in batch:
        bears &= batch["loss_mask"][:, 1:].astype(bool)
    if "segment_ids" in batch:
        segments = batch["segment_ids"]
        bears &= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    if "attention_mask" in batch:
        present = batch["attention_mask"].astype(bool)
        bears &= present[:, 1:] & present[:, :-1]
    return _ended(jnp.where(bears, batch["input_ids"][:, 1:], IGNORED))


def _ended(following: jax.Array) -> jax.Array:
    """Add the last place, which predicts nothing."""
    return jnp.pad(following, ((0, 0), (0, 1)), constant_values=IGNORED)


def log_probs(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log p(target) and log Z of each place, float32[B, T]; both 0 where there is no target."""
    logits = logits.astype(jnp.float32)
    bears = targets != IGNORED
    log_z = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, jnp.where(bears, targets, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(bears, chosen - log_z, 0.0), jnp.where(bears, log_z, 0.0)


def cross_entropy(logits: jax.Array, targets: jax.Array, *, z_loss: float = 0.0) -> Sums:
    """Return the sums of -log p(target) + z_loss * log(Z)**2 over the targets.

    The second term keeps logits from drifting (PaLM, Chowdhery et al. 2022, section 5). Parts: ``nll``, the first term
    alone, of which perplexity is the exponential; ``accuracy``, targets that are the likeliest id.
    """
    return focal(logits, targets, gamma=0.0, z_loss=z_loss)


def focal(logits: jax.Array, targets: jax.Array, *, gamma: float = 2.0, z_loss: float = 0.0) -> Sums:
    """Return the sums of -(1 - p)**gamma * log p over the targets (Lin et al. 2017, equation 4); else as cross-entropy.

    With gamma 0 it is the cross-entropy.
    """
    log_p, log_z = log_probs(logits, targets)
    bears = targets != IGNORED
    # Of p = 1 the power has no derivative for gamma < 1; such places bear no loss either way.
    rest = jnp.where(bears, -jnp.expm1(jnp.minimum(log_p, -1e-7)), 1.0)
    hard = -log_p * rest**gamma if gamma else -log_p
    right = jnp.where(bears, jnp.argmax(logits, axis=-1) == targets, False)
    return Sums(
        loss=jnp.sum(hard + z_loss * log_z**2 if z_loss else hard),
        weight=jnp.sum(bears, dtype=jnp.float32),
        parts={"nll": -jnp.sum(log_p), "accuracy": jnp.sum(right, dtype=jnp.float32)},
    )


def over_logits(
    output: Output,
    targets: jax.Array,
    sums: Callable[[jax.Array, jax.Array], _Tree],
    chunk: int | None = None,
) -> _Tree:
    """Return ``sums(logits, targets)``; of hidden states and a head without ever making all logits.

    Args:
        output: logits (B, T, V), or hidden states (B, T, D) and the head (D, V).
        targets: int32[B, T].
        sums: what is wanted of logits; of several parts of the places, the sum of what it gives of each.
        chunk: places of a row whose logits exist at once; forward and backward make them anew.

    Raises:
        ConfigError: `chunk` is given, and `output` are logits.
    """
    if not isinstance(output, tuple):
        if chunk is not None:
            raise ConfigError(
                f"loss.chunk: got {chunk}, and the model returns logits of shape {output.shape}, which exist by then; "
                "expected a model that returns (hidden, head): hidden states (B, T, D) and a matrix (D, V)"
            )
        return sums(output.astype(jnp.float32), targets)
    hidden, head = output
    if chunk is None or chunk >= hidden.shape[1]:
        return sums(_logits(hidden, head), targets)
    parts = _cut(hidden, chunk, 0), _cut(targets, chunk, IGNORED)

    # What is not kept is made again in the backward pass: that is what saves the memory.
    @partial(jax.checkpoint, prevent_cse=False)
    def of_part(part: tuple[jax.Array, jax.Array]) -> _Tree:
        return sums(_logits(part[0], head), part[1])

    def add(total: _Tree, part: tuple[jax.Array, jax.Array]) -> tuple[_Tree, None]:
        return jax.tree.map(jnp.add, total, of_part(part)), None

    shapes = jax.eval_shape(of_part, jax.tree.map(lambda part: part[0], parts))
    nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, nothing, parts)[0]


def _logits(hidden: jax.Array, head: jax.Array) -> jax.Array:
    return jnp.einsum("btd,dv->btv", hidden, head, preferred_element_type=jnp.float32)


def _cut(values: jax.Array, chunk: int, filler: int) -> jax.Array:
    """Turn (B, T, ...) into (parts, B, chunk, ...), the last part filled up."""
    rows, length = values.shape[:2]
    padding = [(0, 0), (0, -length % chunk)] + [(0, 0)] * (values.ndim - 2)
    values = jnp.pad(values, padding, constant_values=filler)
    return jnp.moveaxis(values.reshape(rows, -1, chunk, *values.shape[2:]), 1, 0)


def language_model(
    apply: Apply, *, gamma: float = 0.0, z_loss: float = 0.0, chunk: int | None = None
) -> Objective:
    """Return the objective that predicts each next id of a document: cross-entropy, or focal for a `gamma`."""

    sums = partial(focal, gamma=gamma, z_loss=z_loss)

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        return over_logits(apply(params, batch), targets_of(batch), sums, chunk)

    return objective


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
