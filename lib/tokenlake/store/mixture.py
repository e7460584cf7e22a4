"""What a mixed version is a mixture of: the order of its rows, and what became of each source.

What must hold of a mixture: what its order draws of each source, and the account that has to come to the same.

The order is a function, so that nobody needs to have seen the rows to know how many of them are of each source, and how
often each source was gone through. A version is committed, and found whole, only if what was counted is that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, final

import msgspec
import numpy as np
from msgspec import Meta

from tokenlake.errors import AccountError, ConfigError
from tokenlake.mixing.counts import Counts
from tokenlake.mixing.lanes import lane_bounds
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.store.account import Account
from tokenlake.store.sealed import Count, DatasetName, Positive, SealedDocument, Share, Signed, SplitName

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
    """The arguments of :class:`tokenlake.mixing.mixture.SourceMixture`, but for the lengths of the sources.

    Attributes:
        lanes, batch_size, block_size, step_rows, seed, stop: of the order.
        rows: of the whole stream.
        points: of the weights, steps ascending.
        interpolation: between points.
        version: of the order; manifests of the first ones, which are of version 2, do not name it.
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

    def to_json(self) -> dict[str, Any]:
        data = msgspec.to_builtins(self)
        return {key: value for key, value in data.items() if (key, value) != ("version", FIRST_ORDER)}

    def identity(self, names: Iterable[str]) -> dict[str, Any]:
        """Return JSON of all but where it ends, for sources of these names: their order counts, and canonical JSON
        sorts keys."""
        listed = list(names)
        points = [[point.step, [point.weights[name] for name in listed]] for point in self.points]
        found = self.to_json() | {"names": listed, "points": points}
        return {key: value for key, value in found.items() if key != "rows"}


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
        return {
            **asdict(self),
            "partial_rows": self.partial_rows,
            "partial_tokens": self.partial_tokens,
        }


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
            "rows": rows_to_json(self.rows),
            # Names apart: their order counts, and canonical JSON sorts keys.
            "names": list(self.sources),
            "sources": {name: source.to_json() for name, source in self.sources.items()},
        }

    @classmethod
    def read(cls, document: SealedDocument, key: str) -> Self:
        """Read a member of a manifest; IntegrityError for what no writer of ours would write."""
        stored: _Stored = document.get(key, _Stored)
        if sorted(stored.names) != sorted(stored.sources):
            document.fail(f"{key}.names", f"each of {sorted(stored.sources)} once", list(stored.names))
        _check_points(document, f"{key}.order.points", stored)
        return cls(
            level=stored.level,
            weights_by=stored.weights_by,
            order=stored.order,
            rows=stored.rows,
            sources={name: stored.sources[name] for name in stored.names},
        )


class _Stored(msgspec.Struct):
    """A record as it is stored: names apart, since their order counts and canonical JSON sorts keys."""

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    names: tuple[str, ...]
    sources: dict[str, MixedSource]


def _check_points(document: SealedDocument, key: str, stored: _Stored) -> None:
    steps = [point.step for point in stored.order.points]
    if not steps or any(after <= before for before, after in pairwise(steps)):
        document.fail(key, "at least one, steps ascending", steps)
    for point in stored.order.points:
        if set(point.weights) != set(stored.names):
            document.fail(key, f"weights of {sorted(stored.names)}", dict(point.weights))


def rows_to_json(rows: Account) -> dict[str, int]:
    """Return the counts of an account that belong to rows and to no source."""
    return {"sequences": rows.sequences, "slots": rows.slots, "pad": rows.pad}


def share(part: int, whole: int) -> float:
    """Return a share, rounded the same everywhere; 0 of nothing."""
    return float(Fraction(part, whole)) if whole else 0.0


@final
@dataclass(frozen=True, slots=True)
class SourceDraw:
    """What an order draws of one source.

    Each lane goes through its own rows of the source, and begins anew when they end; where lanes have unequal numbers
    of rows, one may be an epoch ahead.

    Attributes:
        rows: drawn.
        full_epochs: how often each row of the source is drawn at least.
        epochs: how often one of its rows is drawn at most.
        unread: rows that are never drawn.
        asked: share of all rows that the weights ask for.
    """

    rows: int
    full_epochs: int
    epochs: int
    unread: int
    asked: float


def settings_of(record: MixtureRecord) -> dict[str, Any]:
    """Return what the key ``mix`` of the version's configuration says of the same mixture."""
    return {
        "level": record.level,
        "weights_by": record.weights_by,
        "splits": {name: source.split for name, source in record.sources.items()},
        **record.order.identity(record.sources),
        "rows": record.order.rows,
    }


def mixture_of(record: MixtureRecord) -> SourceMixture:
    """Return the mixture of a record.

    Raises:
        ConfigError: there is no such mixture.
    """
    order, names = record.order, tuple(record.sources)
    points = [
        {"step": point.step, "weights": {name: point.weights[name] for name in names}}
        for point in order.points
    ]
    return SourceMixture(
        {name: source.rows for name, source in record.sources.items()},
        WeightScheduler(points, order.interpolation),
        lanes=order.lanes,
        batch_size=order.batch_size,
        block_size=order.block_size,
        step_rows=order.step_rows,
        seed=order.seed,
        stop=order.stop,
        rows=order.rows,
        order=order.version,
    )


def outcomes(mixture: SourceMixture, lengths: Mapping[str, int], step_rows: int) -> dict[str, SourceDraw]:
    """Return what a mixture that ends draws of each source.

    Args:
        lengths: rows of each source.
        step_rows: rows of the mixture to a step of its schedule.
    """
    rows, lanes = mixture.rows or 0, mixture.layout.lanes
    places = mixture.layout.places_before(rows)
    drawn = np.stack([mixture.drawn(lane, int(place)) for lane, place in enumerate(places)])
    shares = Counts(mixture.scheduler, step_rows=step_rows).shares(rows)
    return {
        name: _outcome(
            [int(count) for count in drawn[:, at]],
            [int(count) for count in np.diff(lane_bounds(lengths[name], lanes))],
            float(shares[at] / rows) if rows else 0.0,
        )
        for at, name in enumerate(mixture.names)
    }


def _outcome(drawn: list[int], there: list[int], asked: float) -> SourceDraw:
    """From rows drawn and rows there, lane by lane."""
    lanes = [(count, rows) for count, rows in zip(drawn, there, strict=True) if rows]
    return SourceDraw(
        rows=sum(drawn),
        full_epochs=min((count // rows for count, rows in lanes), default=0),
        epochs=max((-(-count // rows) for count, rows in lanes), default=0),
        unread=sum(max(0, rows - count) for count, rows in lanes),
        asked=asked,
    )


def token_shares(
    asked: Mapping[str, float], rows: Mapping[str, int], tokens: Mapping[str, int]
) -> dict[str, float]:
    """Return the shares of tokens that shares of rows come to, by the mean tokens of a row of each source."""
    each = {
        name: Fraction(part) * tokens[name] / rows[name] if rows[name] else Fraction(0)
        for name, part in asked.items()
    }
    total = sum(each.values())
    return {name: float(part / total) if total else 0.0 for name, part in each.items()}


def check_mixture(
    record: MixtureRecord,
    *,
    packed: bool,
    settings: object,
    accounts: Mapping[str, Account],
    parents: Set[tuple[str, int]],
    where: str,
) -> None:
    """Check that a mixture's account is what its order draws.

    Args:
        packed: whether the version is of kind packed.
        settings: the key ``mix`` of its configuration.
        accounts: of its sources.
        parents: dataset and version of each, by its lineage.
        where: the manifest's name, for messages.

    Raises:
        AccountError: names the source, the equation and both sides.
    """
    sources = record.sources
    named = {(one.dataset, one.version) for one in sources.values()}
    as_packed = record.level == "sequences" or packed
    rows, tokens = (
        sum(getattr(one, key) for one in sources.values()) for key in ("drawn_rows", "drawn_tokens")
    )
    whole = (
        ("kind packed = level sequences, or packed documents", packed, as_packed),
        ("sources of the mixture = sources of the accounts", sorted(sources), sorted(accounts)),
        ("order and splits = those of config.mix", settings_of(record), settings),
        ("sum of drawn_rows = rows of the order", rows, record.order.rows),
        ("versions of the sources = parents in the lineage", sorted(named), sorted(parents)),
    )
    _require("the mixture", whole, where)
    lengths = {name: one.rows for name, one in sources.items()}
    try:
        draws = outcomes(mixture_of(record), lengths, record.order.step_rows)
    except ConfigError as error:
        _require("the mixture", [("an order that can be", str(error), "none")], where)
        raise
    asked_tokens: Mapping[str, float | None] = dict.fromkeys(sources)
    if record.weights_by == "tokens":
        asked = {name: draw.asked for name, draw in draws.items()}
        asked_tokens = token_shares(asked, lengths, {name: one.tokens for name, one in sources.items()})
    for name, one in sources.items():
        draw, account = draws[name], accounts[name]
        low, high = draw.full_epochs * one.tokens, draw.epochs * one.tokens
        ids = drawn_ids(account, packed_here=record.level == "documents" and packed)
        equations = (
            ("drawn_rows = the order's closed form", one.drawn_rows, draw.rows),
            ("full_epochs = the order's", one.full_epochs, draw.full_epochs),
            ("unread_rows = the order's", one.unread_rows, draw.unread),
            ("asked = the integral of the weight", one.asked, draw.asked),
            ("rows_read = drawn_rows", account.rows_read, one.drawn_rows),
            ("ids of the account = drawn_tokens", ids, one.drawn_tokens),
            (
                f"{low} <= drawn_tokens <= {high}, by epochs of {one.tokens} tokens",
                one.drawn_tokens,
                min(max(one.drawn_tokens, low), high),
            ),
        )
        _require(f"source {name!r} of the mixture", equations, where)
    for name, one in sources.items():
        shares = (
            ("asked_tokens = asked, by tokens", one.asked_tokens, asked_tokens[name]),
            ("achieved_rows = share of rows", one.achieved_rows, share(one.drawn_rows, rows)),
            ("achieved_tokens = share of tokens", one.achieved_tokens, share(one.drawn_tokens, tokens)),
        )
        _require(f"source {name!r} of the mixture", shares, where)


def _require(whose: str, equations: Iterable[tuple[str, object, object]], where: str) -> None:
    for equation, left, right in equations:
        if left != right:
            raise AccountError(
                f"{where}: {whose} does not close: expected {equation}, got {left} and {right}. "
                "Something was lost, counted twice or taken from elsewhere; rebuild the version.",
                equation=equation,
                left=left,
                right=right,
                where=where,
            )


def drawn_ids(account: Account, *, packed_here: bool) -> int:
    """Return how many ids of the parent a source's account covers.

    Args:
        packed_here: whether documents were packed after they were drawn: each that did not end in EOS got one then.
    """
    added = account.documents - account.eos_existing if packed_here else 0
    return account.tokens + account.bos + account.eos - added
