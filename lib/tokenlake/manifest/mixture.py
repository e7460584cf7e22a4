"""What a mixed version is a mixture of: the order of its rows, and what became of each source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, Literal, Self, cast, final

from tokenlake.account import Account
from tokenlake.sealed import Fields
from tokenlake.storage.keys import DATASET_NAME, SPLIT_NAME

Level = Literal["documents", "sequences"]
"""What was mixed: documents, which may be packed after they are mixed, or packed rows."""

Interpolation = Literal["step", "linear", "cosine"]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]

_LEVEL: Final = re.compile("documents|sequences")
_INTERPOLATION: Final = re.compile("step|linear|cosine")
_STOP: Final = re.compile("restart|first_exhausted|all_exhausted")
_WEIGHTS_BY: Final = re.compile("rows|tokens")

#: More would cost a reader memory for nothing; a manifest that says so is damaged or hostile.
MOST_LANES: Final = 1 << 16
MOST_BLOCK: Final = 1 << 24

FIRST_ORDER: Final = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOrder:
    """The arguments of :class:`tokenlake.mixing.Mixture`, but for the lengths of the sources.

    Attributes:
        lanes, batch_size, block_size, step_rows, seed, stop: of the order.
        rows: of the whole stream.
        points: (step, source -> weight per row), steps ascending.
        interpolation: between points.
        version: of the order; manifests of the first ones, which are of version 2, do not name it.
    """

    lanes: int
    batch_size: int
    block_size: int
    step_rows: int
    seed: int
    stop: Stop
    rows: int
    points: tuple[tuple[int, Mapping[str, float]], ...]
    interpolation: Interpolation
    version: int = FIRST_ORDER

    def to_json(self) -> dict[str, Any]:
        points = [{"step": step, "weights": dict(weights)} for step, weights in self.points]
        return self.versioned({**asdict(self), "points": points})

    def versioned(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return JSON of an order with its version, if it is not the first."""
        others = {key: value for key, value in data.items() if key != "version"}
        return others if self.version == FIRST_ORDER else {**others, "version": self.version}

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(
            lanes=source.count("lanes", low=1, high=MOST_LANES),
            batch_size=source.count("batch_size", low=1),
            block_size=source.count("block_size", low=1, high=MOST_BLOCK),
            step_rows=source.count("step_rows", low=1),
            seed=source.signed("seed"),
            stop=cast("Stop", source.text("stop", _STOP)),
            rows=source.count("rows"),
            points=_read_points(source),
            interpolation=cast("Interpolation", source.text("interpolation", _INTERPOLATION)),
            version=source.count("version", low=FIRST_ORDER) if "version" in source.value else FIRST_ORDER,
        )
        source.end()
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """One source of a mixture: the split of a parent, and what was drawn of it.

    Rows of a source are dealt to lanes, whose epochs begin and end each for itself: where lanes have unequal numbers of
    rows, one may be an epoch ahead of another.

    Attributes:
        dataset, version, split: of the parent; its hash is in the manifest's lineage.
        window: rows inside which the order of an epoch shuffles, in the mean.
        rows, tokens: of the split; tokens are ids that are not padding.
        drawn_rows: rows of the mixture that are of this source.
        drawn_tokens: ids of the parent that these rows hold, padding apart.
        full_epochs: how often each of its rows was drawn at least.
        unread_rows: rows that were never drawn.
        asked: share of the mixture's rows that the weights ask for, over the whole run.
        asked_tokens: the same of its tokens, where weights are per token; else None.
        achieved_rows, achieved_tokens: shares of the rows and of the ids that were drawn.
    """

    dataset: str
    version: int
    split: str
    window: int
    rows: int
    tokens: int
    drawn_rows: int
    drawn_tokens: int
    full_epochs: int
    unread_rows: int
    asked: float
    asked_tokens: float | None
    achieved_rows: float
    achieved_tokens: float

    @property
    def partial_rows(self) -> int:
        """Rows drawn beyond the full epochs."""
        return self.drawn_rows - self.full_epochs * self.rows

    @property
    def partial_tokens(self) -> int:
        """Ids drawn beyond the full epochs."""
        return self.drawn_tokens - self.full_epochs * self.tokens

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "partial_rows": self.partial_rows,
            "partial_tokens": self.partial_tokens,
        }

    @classmethod
    def read(cls, source: Fields) -> Self:
        found = cls(
            dataset=source.text("dataset", DATASET_NAME),
            version=source.count("version", low=1),
            split=source.text("split", SPLIT_NAME),
            window=source.count("window", low=1),
            rows=source.count("rows"),
            tokens=source.count("tokens"),
            drawn_rows=source.count("drawn_rows"),
            drawn_tokens=source.count("drawn_tokens"),
            full_epochs=source.count("full_epochs"),
            unread_rows=source.count("unread_rows"),
            asked=source.share("asked"),
            asked_tokens=source.optional_share("asked_tokens"),
            achieved_rows=source.share("achieved_rows"),
            achieved_tokens=source.share("achieved_tokens"),
        )
        for key in ("partial_rows", "partial_tokens"):
            if (stated := source.count(key)) != getattr(found, key):
                source.fail(key, f"{getattr(found, key)}, by what was drawn and the full epochs", stated)
        source.end()
        return found


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
    weights_by: Literal["rows", "tokens"]
    order: MixtureOrder
    rows: Account
    sources: dict[str, MixedSource]

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "weights_by": self.weights_by,
            "order": self.order.to_json(),
            "rows": rows_to_json(self.rows),
            # Names apart: their order counts, and canonical JSON sorts keys.
            "names": list(self.sources),
            "sources": {name: source.to_json() for name, source in self.sources.items()},
        }

    @classmethod
    def read(cls, source: Fields) -> Self:
        """Read the key; IntegrityError for anything that no writer of ours would write."""
        order, sources = MixtureOrder.read(source.child("order")), source.named_children("sources")
        names = source.text_list("names")
        if sorted(names) != sorted(sources):
            source.fail("names", f"each of {sorted(sources)} once", list(names))
        if any(set(weights) != set(names) for _, weights in order.points):
            source.fail("order.points", f"weights of {sorted(names)}", order.to_json()["points"])
        found = cls(
            level=cast("Level", source.text("level", _LEVEL)),
            weights_by=cast("Literal['rows', 'tokens']", source.text("weights_by", _WEIGHTS_BY)),
            order=order,
            rows=_read_rows(source.child("rows")),
            sources={name: MixedSource.read(sources[name]) for name in names},
        )
        source.end()
        return found


def rows_to_json(rows: Account) -> dict[str, int]:
    """Return the counts of an account that belong to rows and to no source."""
    return {"sequences": rows.sequences, "slots": rows.slots, "pad": rows.pad}


def share(part: int, whole: int) -> float:
    """Return a share, rounded the same everywhere; 0 of nothing."""
    return float(Fraction(part, whole)) if whole else 0.0


def _read_rows(source: Fields) -> Account:
    found = Account(sequences=source.count("sequences"), slots=source.count("slots"), pad=source.count("pad"))
    source.end()
    return found


def _read_points(source: Fields) -> tuple[tuple[int, Mapping[str, float]], ...]:
    points: list[tuple[int, Mapping[str, float]]] = []
    for point in source.children("points"):
        step = point.count("step", low=points[-1][0] + 1 if points else 0)
        points.append((step, point.shares("weights")))
        point.end()
    if not points:
        source.fail("points", "at least one", [])
    return tuple(points)
