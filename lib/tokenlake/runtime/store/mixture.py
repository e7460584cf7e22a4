"""Record of a mixture in a manifest: the order of its rows, and the rows drawn.

The rows are counted for each source.

The order is a function. So the number of rows of each source, and its number of epochs,
can be computed without the rows: ``store/draws.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, final

import msgspec
from msgspec import Meta

from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.sealed import (
    Count,
    DatasetName,
    Positive,
    SealedDocument,
    Share,
    Signed,
    SplitName,
)

Level = Literal["documents", "sequences"]
"""Unit of mixing.

Documents may be packed after they are mixed; sequences are packed rows.
"""

Interpolation = Literal["step", "linear", "cosine"]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]
WeightsBy = Literal["rows", "tokens"]

# More would cost a reader memory for nothing; a manifest with more is damaged or
# hostile.
MOST_LANES: Final = 1 << 16
MOST_BLOCK: Final = 1 << 24

FIRST_ORDER: Final = 2
"""Version of the first order; manifests do not write it."""


@final
@dataclass(frozen=True, slots=True)
class WeightPoint:
    """The weights from a step on.

    Attributes:
        step: First step of these weights.
        weights: Weight per row of each source.
    """

    step: Count
    weights: Mapping[str, Share]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOrder:
    """Arguments of :class:`tokenlake.runtime.mixing.mixture.SourceMixture`.

    The lengths of the sources are not among them.

    Attributes:
        lanes: Number of lanes.
        batch_size: Rows of a batch.
        block_size: Rows after which the weights hold exactly.
        step_rows: Rows of a step, by which weights move.
        seed: Random seed of the order.
        stop: End of the stream: ``restart``, ``first_exhausted`` or ``all_exhausted``.
        rows: Rows of the whole stream.
        points: Weights, steps ascending.
        interpolation: Interpolation of the weights between points.
        version: Version of the order; 2 is not written.
        kept: Number of rows used, for the sources of which not all rows are used; empty
            is not written.
    """

    lanes: Annotated[int, Meta(ge=1, le=MOST_LANES)]
    batch_size: Positive
    block_size: Annotated[int, Meta(ge=1, le=MOST_BLOCK)]
    step_rows: Positive
    seed: Signed
    stop: Stop
    rows: Count
    points: tuple[WeightPoint, ...]
    interpolation: Interpolation
    version: Annotated[int, Meta(ge=FIRST_ORDER)] = FIRST_ORDER
    kept: Mapping[str, Positive] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; a default `version` and `kept` are left out."""
        members = msgspec.to_builtins(self)
        # Manifests of the first order were written without the two members, and keep
        # their bytes.
        if self.version == FIRST_ORDER:
            del members["version"]
        if not self.kept:
            del members["kept"]
        return members

    def identity(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the part of a fingerprint for this order: all but the number of rows.

        The order of sources matters, and canonical JSON sorts keys. So names and
        weights are lists.

        Args:
            names: Names of the sources, in the order of the mixture.
        """
        source_names = list(names)
        # Lists keep the order of the sources, which decides the order of the rows.
        points = [_listed_point(point, source_names) for point in self.points]
        members = self.to_json() | {"names": source_names, "points": points}
        del members["rows"]
        return members


def _listed_point(point: WeightPoint, names: Iterable[str]) -> list[Any]:
    """Return the step of a point and its weights, in the order of the names."""
    return [point.step, [point.weights[source_name] for source_name in names]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSpec:
    """A mixture in plain values.

    Attributes:
        lengths: Rows of each source, in the order of the mixture.
        order: Order of the rows; its `rows` are 0 until their number is known.
    """

    lengths: Mapping[str, int]
    order: MixtureOrder


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """One source of a mixture: the split of a parent, and the rows drawn of it.

    Rows of a source are dealt to lanes, whose epochs are independent: if lanes have
    unequal numbers of rows, one may be an epoch ahead of another.

    Attributes:
        dataset: Dataset of the parent; its hash is in the manifest's lineage.
        version: Version of the parent.
        split: Split of the parent.
        window: Mean number of rows inside which an epoch is shuffled.
        rows: Rows of the whole split.
        tokens: Ids of the whole split that are not padding.
        drawn_rows: Rows of the mixture that are of this source.
        drawn_tokens: Ids of the parent in these rows, without padding.
        full_epochs: Lowest number of times that any of its rows was drawn.
        unread_rows: Rows that were never drawn.
        asked: Share of the mixture's rows that the weights request, over the whole run.
        asked_tokens: Requested share of its tokens, if weights are per token; else
            None.
        achieved_rows: Share of the drawn rows.
        achieved_tokens: Share of the drawn ids.
    """

    dataset: DatasetName
    version: Positive
    split: SplitName
    window: Positive
    rows: Count
    tokens: Count
    drawn_rows: Count
    drawn_tokens: Count
    full_epochs: Count
    unread_rows: Count
    asked: Share
    asked_tokens: Share | None
    achieved_rows: Share
    achieved_tokens: Share

    @property
    def partial_rows(self) -> int:
        """Rows drawn beyond the full epochs."""
        return self.drawn_rows - self.full_epochs * self.rows

    @property
    def partial_tokens(self) -> int:
        """Ids drawn beyond the full epochs."""
        return self.drawn_tokens - self.full_epochs * self.tokens

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, partial epochs included."""
        partial = {
            "partial_rows": self.partial_rows,
            "partial_tokens": self.partial_tokens,
        }
        return asdict(self) | partial


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRecord:
    """The key ``mixture`` of a mixed version's manifest.

    Attributes:
        level: Unit of mixing.
        weights_by: Unit of the weights in the configuration; those of `order` are per
            row.
        order: Order of the rows.
        rows: Counts of the audit that belong to no one source: `sequences`, `slots` and
            `pad`.
        sources: Sources by name, in the order of the mixture.
    """

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    sources: dict[str, MixedSource]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return {
            # The keys are sorted when they are written, so that the order of the
            # sources is a list of its own.
            "level": self.level,
            "weights_by": self.weights_by,
            "order": self.order.to_json(),
            "rows": {
                "sequences": self.rows.sequences,
                "slots": self.rows.slots,
                "pad": self.rows.pad,
            },
            # Names are a list: their order matters, and canonical JSON sorts keys.
            "names": list(self.sources),
            "sources": {
                source_name: source.to_json()
                for source_name, source in self.sources.items()
            },
        }

    @property
    def spec(self) -> MixtureSpec:
        """The mixture in plain values."""
        lengths = {
            source_name: source.rows for source_name, source in self.sources.items()
        }
        return MixtureSpec(lengths=lengths, order=self.order)

    @classmethod
    def read(cls, document: SealedDocument, key: str) -> Self:
        """Read a member of a manifest.

        Args:
            document: The manifest.
            key: Key of the member.

        Raises:
            IntegrityError: A value is one that no writer of ours would write.
        """
        # Names and sources are two members of the file: they must be the same.
        stored: _Stored = document.get(key, _Stored)
        names = stored.names
        if sorted(names) != sorted(stored.sources):
            document.fail(
                f"{key}.names", f"each of {sorted(stored.sources)} once", list(names)
            )
        _check_order(document, f"{key}.order", stored)
        return cls(
            level=stored.level,
            weights_by=stored.weights_by,
            order=stored.order,
            rows=stored.rows,
            sources={source_name: stored.sources[source_name] for source_name in names},
        )


class _Stored(msgspec.Struct):
    """Record as it is stored: with a list of names.

    The order of the names matters, and canonical JSON sorts keys.
    """

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    names: tuple[str, ...]
    sources: dict[str, MixedSource]


def _check_order(document: SealedDocument, key: str, stored: _Stored) -> None:
    """Check the order of a stored mixture against its sources."""
    # Weights hold from a step on, so that the steps must ascend.
    order = stored.order
    steps = [point.step for point in order.points]
    if not steps or any(step >= next_step for step, next_step in pairwise(steps)):
        document.fail(f"{key}.points", "at least one, with ascending steps", steps)
    # Each point gives the weight of every source.
    for point in order.points:
        if set(point.weights) != set(stored.names):
            document.fail(
                f"{key}.points",
                f"weights of {sorted(stored.names)}",
                dict(point.weights),
            )
    # A source of which all rows are used is not listed.
    for source_name, rows in order.kept.items():
        if (
            source_name not in stored.sources
            or rows >= stored.sources[source_name].rows
        ):
            document.fail(
                f"{key}.kept", "fewer rows of a source than it has", {source_name: rows}
            )
