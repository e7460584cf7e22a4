"""What must hold of a mixture: what its order draws of each source, and the account that has to come to the same.

The order is a function, so that nobody needs to have seen the rows to know how many of them are of each source, and how
often each source was gone through. A version is committed, and found whole, only if what was counted is that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from tokenlake.account import Account
from tokenlake.errors import AccountError, ConfigError
from tokenlake.manifest.mixture import MixtureRecord, share
from tokenlake.mixing import Counts, Mixture, WeightScheduler
from tokenlake.order import lane_bounds

if TYPE_CHECKING:
    from tokenlake.manifest.manifest import Manifest


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


def mixture_of(record: MixtureRecord) -> Mixture:
    """Return the mixture of a record.

    Raises:
        ConfigError: there is no such mixture.
    """
    order, names = record.order, tuple(record.sources)
    points = [
        {"step": step, "weights": {name: weights[name] for name in names}} for step, weights in order.points
    ]
    return Mixture(
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


def outcomes(mixture: Mixture, lengths: Mapping[str, int], step_rows: int) -> dict[str, Outcome]:
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
