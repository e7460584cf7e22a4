"""What a build from stored datasets consumes: which versions, how they are mixed, how they are packed.

Plain values like those of :mod:`tokenlake.config.resolved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenlake.config.resolved import ResolvedPack, no_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedParent:
    """A stored dataset that rows are taken from.

    Attributes:
        name: of the source: what weights refer to.
        dataset: in the same store.
        version: None for the newest committed one.
        split: the split that is mixed; without a mixture all splits are taken.
    """

    name: str
    dataset: str
    version: int | None
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedMixture:
    """How several sources become one stream.

    Attributes:
        points: (step, source -> weight), steps ascending; a single point at step 0 is a constant weight.
        interpolation: how weights move between points.
        weights_by: what weights are shares of.
        block_size: rows of a block of a lane.
        stop: what happens when a source ends.
        seed: of the order.
        lanes: None: the plan chooses.
        batch_size: rows of a global batch.
        step_rows: rows of the mixture to a step of the schedule.
        order: version of the order.
        unit_rows: rows of a unit of work; None: the plan chooses.
        total_rows, total_tokens, epochs: where the stream ends; at most one is set.
    """

    points: tuple[tuple[int, Mapping[str, float]], ...]
    interpolation: Literal["step", "linear", "cosine"]
    weights_by: Literal["rows", "tokens"]
    block_size: int
    stop: Literal["restart", "first_exhausted", "all_exhausted"]
    seed: int
    lanes: int | None
    batch_size: int
    step_rows: int
    order: int
    unit_rows: int | None
    total_rows: int | None
    total_tokens: int | None
    epochs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedMix:
    """A whole build from stored datasets.

    Attributes:
        name: the dataset's name in the store.
        store: URL or path of the store, which holds the parents too.
        store_options: of its file system; references stay references.
        parents: in configuration order.
        mixture: how they are mixed; None: one after the other, every row where it is.
        pack: how to pack documents into rows; None: rows stay what they are.
        max_shard_size: bytes past which an output file ends.
    """

    name: str
    store: str
    parents: tuple[ResolvedParent, ...]
    mixture: ResolvedMixture | None
    pack: ResolvedPack | None
    max_shard_size: int
    compression: Literal["zstd"]
    store_options: Mapping[str, Any] = field(default_factory=no_options, repr=False)
