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
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

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
