"""Losses of language models and of preferences, as sums.

The mean over several parts of a batch is the total of their sums divided by the total
of their weights.

A loss takes logits of shape (B, T, V) and targets int32 (B, T): the id to predict at
each place, or -100 where nothing is predicted, as in the loader's column ``targets``
(:func:`targets_of` computes them from its other columns). A model may return ``(hidden,
head)`` instead, of shapes (B, T, D) and (D, V); then logits exist for a few places at a
time (:mod:`tokenlake.runtime.trainer.head_loss`, and :func:`over_logits` for losses of
preferences).

Losses of preferences compare two answers (DPO, ORPO), or judge one (KTO). Their batches
have the columns that the loader gives under a prefix: ``chosen_input_ids``,
``chosen_labels``, ... and ``rejected_...``; for KTO ``completion_...`` and ``label``,
which is True for good completions. Labels are -100 over the prompt. The log-probability
of an answer is the sum over its targets. A row without a target is padding and counts
nothing.

Arrays of flat batches (``layout: {flat: true, max_segments: N}``) have no axis B;
losses of language models take them as one row.

The arithmetic in this file is float32, regardless of the model's precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer.head_loss import IGNORED, HeadSums, cut_places, head_sums

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
    """Sums of a loss, before they are divided by its weight; all are float32 scalars.

    Attributes:
        loss: Sum that is minimized.
        weight: Number of places, or rows, of which the loss is the mean.
        parts: Name -> another sum over the same places, such as ``nll`` and
            ``accuracy``.

    Example:
        >>> import jax.numpy as jnp
        >>> from tokenlake.trainer import Sums
        >>> sums = Sums(loss=jnp.float32(6.0), weight=jnp.float32(3.0), parts={})
        >>> float(sums.loss / sums.weight)
        2.0
    """

    loss: jax.Array
    weight: jax.Array
    parts: dict[str, jax.Array]


class Objective(Protocol):
    """Function of parameters and a batch that training minimizes."""

    def __call__(
        self, params: Params, batch: DeviceBatch, reference: Params | None
    ) -> Sums:
        """Return the sums of a batch.

        `reference` are fixed parameters, for objectives that compare with some.
        """
        ...


SharedSums: TypeAlias = Any
"""A pytree of sums over rows, which add up over the parts of a batch."""


class WholeBatchObjective(ABC):
    """Objective with a term over the whole batch.

    The term must not depend on how the batch is cut into parts. A training step calls
    :meth:`widen` on the whole batch and cuts it into parts. It adds up
    :meth:`shared_sums` over the parts, and then :meth:`part_sums` with that total. No
    gradient goes through the total.
    """

    @abstractmethod
    def widen(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch with additional columns that are made of other rows."""

    @abstractmethod
    def shared_sums(
        self, params: Params, part: DeviceBatch, reference: Params | None
    ) -> SharedSums:
        """Return the sums that a part adds to the term over the whole batch."""

    @abstractmethod
    def part_sums(
        self,
        params: Params,
        part: DeviceBatch,
        reference: Params | None,
        shared: SharedSums,
    ) -> Sums:
        """Return the sums of a part, given the shared sums of the whole batch."""

    def __call__(
        self, params: Params, batch: DeviceBatch, reference: Params | None
    ) -> Sums:
        """Return the sums of a batch that is not cut."""
        # The same three steps as for a batch in parts, with a single part.
        widened = self.widen(batch)
        shared = jax.lax.stop_gradient(self.shared_sums(params, widened, reference))
        return self.part_sums(params, widened, reference, shared)


def targets_of(batch: DeviceBatch) -> jax.Array:
    """Return the id that each place predicts, int32[B, T].

    It is -100 where nothing is predicted.

    Args:
        batch: Columns of a batch. The targets are ``targets``; without it ``labels``,
            moved one place to the left; without both the next ``input_ids``, at places
            where ``loss_mask`` is set for the next id, ``segment_ids`` do not change,
            and ``attention_mask`` covers both. Of the last three, those that the batch
            has are used.

    Example:
        >>> import jax.numpy as jnp
        >>> from tokenlake.trainer import targets_of
        >>> labels = jnp.asarray([[-100, 5, 6, -100]])
        >>> targets_of({"input_ids": jnp.asarray([[4, 5, 6, 0]]), "labels": labels}).tolist()
        [[5, 6, -100, -100]]
    """
    # The loader's own column needs no computation.
    if "targets" in batch:
        return batch["targets"]
    # Labels stand at the place of the id itself, targets at the place that predicts it.
    if "labels" in batch:
        return _with_last_place(batch["labels"][:, 1:])

    # Ids of the next places, without those that are not learned.
    next_ids = batch["input_ids"][:, 1:]
    is_target = jnp.ones_like(next_ids, dtype=bool)
    if "loss_mask" in batch:
        is_target &= batch["loss_mask"][:, 1:].astype(bool)
    # The first id of a document is not predicted from the one before it. Segment 0 is
    # padding.
    if "segment_ids" in batch:
        segments = batch["segment_ids"]
        is_target &= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    if "attention_mask" in batch:
        present = batch["attention_mask"].astype(bool)
        is_target &= present[:, 1:] & present[:, :-1]
    return _with_last_place(jnp.where(is_target, next_ids, IGNORED))


def _with_last_place(targets: jax.Array) -> jax.Array:
    """Return targets with the last place of each row added, which predicts nothing."""
    return jnp.pad(targets, ((0, 0), (0, 1)), constant_values=IGNORED)


def log_probs(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log p(target) and log Z of each place, float32[B, T].

    Both are 0 where there is no target.
    """
    # The sum of many exponentials in bfloat16 would lose most of its digits.
    logits = logits.astype(jnp.float32)
    is_target = targets != IGNORED
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # -100 is no index: places without a target look id 0 up, which is not used.
    target_ids = jnp.where(is_target, targets, 0)
    target_logits = jnp.take_along_axis(logits, target_ids[..., None], axis=-1)[..., 0]
    log_p = jnp.where(is_target, target_logits - log_z, 0.0)
    return log_p, jnp.where(is_target, log_z, 0.0)


def cross_entropy(
    logits: jax.Array, targets: jax.Array, *, z_loss: float = 0.0
) -> Sums:
    """Return the sums of -log p(target) + z_loss * log(Z)**2 over the targets.

    The second term keeps logits from drifting (PaLM, Chowdhery et al. 2022, section 5).
    Parts: ``nll``, the first term, of which perplexity is the exponential;
    ``accuracy``, targets that are the likeliest id.

    Args:
        logits: Logits (B, T, V).
        targets: Ids to predict, int32 (B, T), -100 where nothing is predicted.
        z_loss: Weight of log(Z)**2.

    Example:
        >>> import jax.numpy as jnp
        >>> from tokenlake.trainer import cross_entropy
        >>> sums = cross_entropy(jnp.zeros((1, 4, 16)), jnp.asarray([[3, 1, -100, -100]]))
        >>> float(sums.weight), round(float(sums.loss / sums.weight), 4)  # two targets, log(16)
        (2.0, 2.7726)
    """
    return focal(logits, targets, gamma=0.0, z_loss=z_loss)


def focal(
    logits: jax.Array, targets: jax.Array, *, gamma: float = 2.0, z_loss: float = 0.0
) -> Sums:
    """Return the sums of -(1 - p)**gamma * log p + z_loss * log(Z)**2 over the targets.

    This is the focal loss (Lin et al. 2017, equation 4); with gamma 0 it is the
    cross-entropy. Parts as of :func:`cross_entropy`.

    Args:
        logits: Logits (B, T, V).
        targets: Ids to predict, int32 (B, T), -100 where nothing is predicted.
        gamma: Exponent; the larger, the less a target counts that is likely already.
        z_loss: Weight of log(Z)**2.

    Example:
        >>> import jax.numpy as jnp
        >>> from tokenlake.trainer import focal
        >>> sums = focal(jnp.zeros((1, 4, 16)), jnp.asarray([[3, 1, -100, -100]]), gamma=2.0)
        >>> round(float(sums.loss / sums.weight), 4)  # (15 / 16)**2 * log(16)
        2.4368
    """
    # Both are 0 where there is no target, and so are the losses.
    log_p, log_z = log_probs(logits, targets)
    is_target = targets != IGNORED
    losses = jnp.where(
        is_target, _focal_losses(log_p, log_z, gamma=gamma, z_loss=z_loss), 0.0
    )
    is_likeliest = jnp.where(is_target, jnp.argmax(logits, axis=-1) == targets, False)
    return Sums(
        loss=jnp.sum(losses),
        weight=jnp.sum(is_target, dtype=jnp.float32),
        parts={
            "nll": -jnp.sum(log_p),
            "accuracy": jnp.sum(is_likeliest, dtype=jnp.float32),
        },
    )


def _focal_losses(
    log_p: jax.Array, log_z: jax.Array, *, gamma: float, z_loss: float
) -> jax.Array:
    """Return the loss of each place, as of :func:`focal`.

    It is computed from log p of the place's target and log Z.
    """
    losses = -log_p
    if gamma:
        # The power has no derivative at p = 1 for gamma < 1, so p is kept below 1.
        losses = losses * (-jnp.expm1(jnp.minimum(log_p, -1e-7))) ** gamma
    if z_loss:
        losses = losses + z_loss * log_z**2
    return losses


def over_logits(
    output: Output,
    targets: jax.Array,
    sums: Callable[[jax.Array, jax.Array], _Tree],
    chunk: int | None = None,
) -> _Tree:
    """Return ``sums(logits, targets)`` of an output.

    For hidden states and a head, it is computed without all logits at once.

    Args:
        output: Logits (B, T, V), or hidden states (B, T, D) and the head (D, V).
        targets: Ids to predict, int32 (B, T).
        sums: Function of logits and targets whose results for parts of the places add
            up to that of all places.
        chunk: Places of a row whose logits exist at once; the backward pass computes
            them again. None: all.

    Raises:
        ConfigError: `chunk` is given, and `output` are logits.

    Example:
        >>> import jax.numpy as jnp
        >>> from tokenlake.trainer import cross_entropy, over_logits
        >>> hidden, head = jnp.ones((1, 4, 2)), jnp.ones((2, 16))
        >>> targets = jnp.asarray([[3, 1, 5, -100]])
        >>> sums = over_logits((hidden, head), targets, cross_entropy, chunk=2)
        >>> float(sums.weight)
        3.0
    """
    if not isinstance(output, tuple):
        if chunk is not None:
            raise ConfigError(
                f"loss.chunk: got {chunk}, and the model returns logits of shape {output.shape}, which exist by then; "
                "expected a model that returns (hidden, head): hidden states (B, T, D) and a matrix (D, V)"
            )
        return sums(output.astype(jnp.float32), targets)
    # Logits are the largest array of a step: 16 rows of 2,048 ids and a vocabulary of
    # 128,000 take 16 GiB.
    hidden, head = output
    if chunk is None or chunk >= hidden.shape[1]:
        return sums(_logits(hidden, head), targets)
    parts = (cut_places(hidden, chunk, 0), cut_places(targets, chunk, IGNORED))

    # Values that the forward pass does not keep are computed again in the backward
    # pass: this saves the memory.
    @partial(jax.checkpoint, prevent_cse=False)
    def sums_of_part(part: tuple[jax.Array, jax.Array]) -> _Tree:
        hidden_part, targets_part = part
        return sums(_logits(hidden_part, head), targets_part)

    def add(total: _Tree, part: tuple[jax.Array, jax.Array]) -> tuple[_Tree, None]:
        return jax.tree.map(jnp.add, total, sums_of_part(part)), None

    # The sums begin at zeros of their shapes, which are known without computing a part.
    first_part = jax.tree.map(lambda part: part[0], parts)
    shapes = jax.eval_shape(sums_of_part, first_part)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, parts)
    return total


def _logits(hidden: jax.Array, head: jax.Array) -> jax.Array:
    """Return the logits of hidden states, float32 (B, T, V)."""
    return jnp.einsum("btd,dv->btv", hidden, head, preferred_element_type=jnp.float32)


def language_model(
    apply: Apply, *, gamma: float = 0.0, z_loss: float = 0.0, chunk: int | None = None
) -> Objective:
    """Return the objective of predicting each next id of a document.

    Args:
        apply: Model.
        gamma: Exponent of the focal loss; 0: cross-entropy.
        z_loss: Weight of log(Z)**2.
        chunk: Places of a row whose logits exist at once, of a model that returns
            (hidden, head); None: all.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.trainer import language_model
        >>> def apply(params, batch):
        ...     return params["embed"][batch["input_ids"]] @ params["embed"].T
        >>> objective = language_model(apply, z_loss=1e-4)  # tl.Trainer(..., objective=objective)
    """
    sums_of_logits = partial(focal, gamma=gamma, z_loss=z_loss)
    loss_of_places = partial(_focal_losses, gamma=gamma, z_loss=z_loss)

    def objective(params: Params, batch: DeviceBatch, reference: Params | None) -> Sums:
        output = apply(params, batch)
        targets = targets_of(batch)
        if not isinstance(output, tuple):
            return over_logits(output, targets, sums_of_logits, chunk)
        hidden, head = output
        if targets.ndim == 1:
            # A flat batch is one row.
            hidden = hidden[None]
            targets = targets[None]
        # Hidden states may be bfloat16 where the head is float32.
        common_type = jnp.promote_types(hidden.dtype, head.dtype)
        sums: HeadSums = head_sums(
            hidden.astype(common_type),
            head.astype(common_type),
            targets,
            loss_of_places,
            chunk or hidden.shape[1],
        )
        return Sums(
            sums.loss, sums.weight, {"nll": sums.nll, "accuracy": sums.accuracy}
        )

    return objective
