"""What a mixed version is a mixture of: the order of its rows, and what became of each source.

What must hold of a mixture: what its order draws of each source, and the account that has to come to the same.

The order is a function, so that nobody needs to have seen the rows to know how many of them are of each source, and how
often each source was gone through. A version is committed, and found whole, only if what was counted is that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, cast, final

import numpy as np

from tokenlake.errors import AccountError, ConfigError
from tokenlake.mixing.counts import Counts
from tokenlake.mixing.lanes import lane_bounds
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.store.account import Account
from tokenlake.store.layout import DATASET_NAME, SPLIT_NAME
from tokenlake.store.sealed import Fields

if TYPE_CHECKING:
    from tokenlake.store.manifest import Manifest

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
    """The arguments of :class:`tokenlake.mixing.mixture.SourceMixture`, but for the lengths of the sources.

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


@final
@dataclass(frozen=True, slots=True)
class Outcome:
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
    order, names = record.order, list(record.sources)
    settings = {
        "level": record.level,
        "weights_by": record.weights_by,
        "splits": {name: source.split for name, source in record.sources.items()},
        "names": names,
        "lanes": order.lanes,
        "batch_size": order.batch_size,
        "block_size": order.block_size,
        "step_rows": order.step_rows,
        "seed": order.seed,
        "stop": order.stop,
        "points": [[step, [weights[name] for name in names]] for step, weights in order.points],
        "interpolation": order.interpolation,
        "rows": order.rows,
    }
    return order.versioned(settings)


def mixture_of(record: MixtureRecord) -> SourceMixture:
    """Return the mixture of a record.

    Raises:
        ConfigError: there is no such mixture.
    """
    order, names = record.order, tuple(record.sources)
    points = [
        {"step": step, "weights": {name: weights[name] for name in names}} for step, weights in order.points
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


def outcomes(mixture: SourceMixture, lengths: Mapping[str, int], step_rows: int) -> dict[str, Outcome]:
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


def _outcome(drawn: list[int], there: list[int], asked: float) -> Outcome:
    """From rows drawn and rows there, lane by lane."""
    lanes = [(count, rows) for count, rows in zip(drawn, there, strict=True) if rows]
    return Outcome(
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


def check_mixture(manifest: Manifest, record: MixtureRecord, where: str) -> None:
    """Check that a mixture's account is what its order draws.

    Raises:
        AccountError: names the source, the equation and both sides.
    """
    _Check(manifest, record, where).run()


@final
@dataclass(frozen=True, slots=True)
class _Check:
    manifest: Manifest
    record: MixtureRecord
    where: str

    def run(self) -> None:
        self._whole()
        try:
            lengths = {name: one.rows for name, one in self.record.sources.items()}
            found = outcomes(mixture_of(self.record), lengths, self.record.order.step_rows)
        except ConfigError as error:
            self._fail("", "an order that can be", str(error), "none")
        for name, outcome in found.items():
            self._drawn(name, outcome)
            self._tokens(name, outcome)
        self._shares(found)

    def _whole(self) -> None:
        record, manifest = self.record, self.manifest
        packed = record.level == "sequences" or manifest.kind == "packed"
        self._same(
            "", "kind packed = level sequences, or packed documents", manifest.kind == "packed", packed
        )
        self._same(
            "",
            "sources of the mixture = sources of the accounts",
            sorted(record.sources),
            sorted(manifest.accounts),
        )
        self._same(
            "", "order and splits = those of config.mix", settings_of(record), manifest.config.get("mix")
        )
        drawn = sum(one.drawn_rows for one in record.sources.values())
        self._same("", "sum of drawn_rows = rows of the order", drawn, record.order.rows)
        parents = {(parent.dataset, parent.version) for parent in manifest.parents}
        named = {(one.dataset, one.version) for one in record.sources.values()}
        self._same("", "versions of the sources = parents in the lineage", sorted(named), sorted(parents))

    def _drawn(self, name: str, outcome: Outcome) -> None:
        one = self.record.sources[name]
        self._same(name, "drawn_rows = the order's closed form", one.drawn_rows, outcome.rows)
        self._same(name, "full_epochs = the order's", one.full_epochs, outcome.full_epochs)
        self._same(name, "unread_rows = the order's", one.unread_rows, outcome.unread)
        self._same(name, "asked = the integral of the weight", one.asked, outcome.asked)

    def _tokens(self, name: str, outcome: Outcome) -> None:
        one, account = self.record.sources[name], self.manifest.accounts[name]
        self._same(name, "rows_read = drawn_rows", account.rows_read, one.drawn_rows)
        ids = drawn_ids(account, packed_here=self._packed_here)
        self._same(name, "ids of the account = drawn_tokens", ids, one.drawn_tokens)
        low, high = outcome.full_epochs * one.tokens, outcome.epochs * one.tokens
        if not low <= one.drawn_tokens <= high:
            equation = f"{low} <= drawn_tokens <= {high}, by epochs of {one.tokens} tokens"
            self._fail(name, equation, one.drawn_tokens, low if one.drawn_tokens < low else high)

    @property
    def _packed_here(self) -> bool:
        return self.record.level == "documents" and self.manifest.kind == "packed"

    def _shares(self, found: Mapping[str, Outcome]) -> None:
        sources = self.record.sources
        rows, tokens = (
            sum(getattr(one, key) for one in sources.values()) for key in ("drawn_rows", "drawn_tokens")
        )
        by_tokens = token_shares(
            {name: outcome.asked for name, outcome in found.items()},
            {name: one.rows for name, one in sources.items()},
            {name: one.tokens for name, one in sources.items()},
        )
        for name, one in sources.items():
            asked = by_tokens[name] if self.record.weights_by == "tokens" else None
            self._same(name, "asked_tokens = asked, by tokens", one.asked_tokens, asked)
            self._same(name, "achieved_rows = share of rows", one.achieved_rows, share(one.drawn_rows, rows))
            self._same(
                name,
                "achieved_tokens = share of tokens",
                one.achieved_tokens,
                share(one.drawn_tokens, tokens),
            )

    def _same(self, source: str, equation: str, left: object, right: object) -> None:
        if left != right:
            self._fail(source, equation, left, right)

    def _fail(self, source: str, equation: str, left: object, right: object) -> NoReturn:
        whose = f"source {source!r} of the mixture" if source else "the mixture"
        raise AccountError(
            f"{self.where}: {whose} does not close: expected {equation}, got {left} and {right}. "
            "Something was lost, counted twice or taken from elsewhere; rebuild the version.",
            equation=equation,
            left=left,
            right=right,
            where=self.where,
        )


def drawn_ids(account: Account, *, packed_here: bool) -> int:
    """Return how many ids of the parent a source's account covers.

    Args:
        packed_here: whether documents were packed after they were drawn: each that did not end in EOS got one then.
    """
    added = account.documents - account.eos_existing if packed_here else 0
    return account.tokens + account.bos + account.eos - added
