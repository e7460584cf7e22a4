"""What a mixed version is a mixture of: the order of its rows, and what became of each source, as it is recorded.

The order is a function, so that nobody needs to have seen the rows to know how many of them are of each source, and how
often each source was gone through: ``store/draws.py``.
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
"""What was mixed: documents, which may be packed after they are mixed, or packed rows."""

Interpolation = Literal["step", "linear", "cosine"]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]
WeightsBy = Literal["rows", "tokens"]

#: More would cost a reader memory for nothing; a manifest that says so is damaged or hostile.
MOST_LANES: Final = 1 << 16
MOST_BLOCK: Final = 1 << 24

FIRST_ORDER: Final = 2


@final
@dataclass(frozen=True, slots=True)
class WeightPoint:
    """The weight per row of each source from a step on."""

    step: Count
    weights: Mapping[str, Share]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOrder:
    """The arguments of :class:`tokenlake.runtime.mixing.mixture.SourceMixture`, but for the lengths of the sources.

    Attributes:
        lanes, batch_size, block_size, step_rows, seed, stop: of the order.
        rows: of the whole stream.
        points: of the weights, steps ascending.
        interpolation: between points.
        version: of the order; manifests of the first ones, which are of version 2, do not name it.
        kept: how many rows are used of the sources of which not all are; named only where there are any.
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
        data = msgspec.to_builtins(self)
        usual = (("version", FIRST_ORDER), ("kept", {}))
        return {key: value for key, value in data.items() if (key, value) not in usual}

    def identity(self, names: Iterable[str]) -> dict[str, Any]:
        """Return JSON of all but where it ends, for sources of these names: their order counts, and canonical JSON
        sorts keys."""
        listed = list(names)
        points = [[point.step, [point.weights[name] for name in listed]] for point in self.points]
        found = self.to_json() | {"names": listed, "points": points}
        return {key: value for key, value in found.items() if key != "rows"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSpec:
    """A mixture in plain values.

    Attributes:
        lengths: source -> rows, in the order of the mixture.
        order: of its rows; its `rows` are 0 as long as nobody knows how many are asked for.
    """

    lengths: Mapping[str, int]
    order: MixtureOrder


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """One source of a mixture: the split of a parent, and what was drawn of it.

    Rows of a source are dealt to lanes, whose epochs begin and end each for itself: where lanes have unequal numbers of
    rows, one may be an epoch ahead of another.

    Attributes:
        dataset, version, split: of the parent; its hash is in the manifest's lineage.
        window: rows inside which the order of an epoch shuffles, in the mean.
        rows, tokens: of the split, whatever share of it is used; tokens are ids that are not padding.
        drawn_rows: rows of the mixture that are of this source.
        drawn_tokens: ids of the parent that these rows hold, padding apart.
        full_epochs: how often each of its rows was drawn at least.
        unread_rows: rows that were never drawn.
        asked: share of the mixture's rows that the weights ask for, over the whole run.
        asked_tokens: the same of its tokens, where weights are per token; else None.
        achieved_rows, achieved_tokens: shares of the rows and of the ids that were drawn.
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
        partial = {"partial_rows": self.partial_rows, "partial_tokens": self.partial_tokens}
        return asdict(self) | partial


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRecord:
    """The key ``mixture`` of a mixed version's manifest.

    Attributes:
        level: what was mixed.
        weights_by: what the weights of the configuration are shares of; those of `order` are per row.
        order: of the rows.
        rows: of the account, what belongs to no source: `sequences`, `slots` and `pad`.
        sources: by name, in the order of the mixture.
    """

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    sources: dict[str, MixedSource]

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "weights_by": self.weights_by,
            "order": self.order.to_json(),
            "rows": {"sequences": self.rows.sequences, "slots": self.rows.slots, "pad": self.rows.pad},
            # Names apart: their order counts, and canonical JSON sorts keys.
            "names": list(self.sources),
            "sources": {name: source.to_json() for name, source in self.sources.items()},
        }

    @property
    def spec(self) -> MixtureSpec:
        """The mixture."""
        return MixtureSpec(
            lengths={name: source.rows for name, source in self.sources.items()}, order=self.order
        )

    @classmethod
    def read(cls, document: SealedDocument, key: str) -> Self:
        """Read a member of a manifest; IntegrityError for what no writer of ours would write."""
        stored: _Stored = document.get(key, _Stored)
        order, names, sources = stored.order, stored.names, stored.sources
        if sorted(names) != sorted(sources):
            document.fail(f"{key}.names", f"each of {sorted(sources)} once", list(names))
        steps = [point.step for point in order.points]
        if not steps or any(after <= before for before, after in pairwise(steps)):
            document.fail(f"{key}.order.points", "at least one, steps ascending", steps)
        for point in order.points:
            if set(point.weights) != set(names):
                document.fail(f"{key}.order.points", f"weights of {sorted(names)}", dict(point.weights))
        for name, rows in order.kept.items():
            if name not in sources or rows >= sources[name].rows:
                document.fail(f"{key}.order.kept", "fewer rows of a source than it has", {name: rows})
        ordered = {name: sources[name] for name in names}
        return cls(
            level=stored.level, weights_by=stored.weights_by, order=order, rows=stored.rows, sources=ordered
        )


class _Stored(msgspec.Struct):
    """A record as it is stored: names apart, since their order counts and canonical JSON sorts keys."""

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    names: tuple[str, ...]
    sources: dict[str, MixedSource]
