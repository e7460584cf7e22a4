"""What the order of a mixture draws of each source, and the account that has to come to the same.

A version is committed, and found whole, only if what was counted is what its order draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.counts import counts_of
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.store.account import Account, require_equal
from tokenlake.runtime.store.mixture import MixtureRecord, MixtureSpec


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


def schedule_of(spec: MixtureSpec) -> WeightScheduler:
    """Return how the weights of a mixture move, in the order of its sources."""
    points = [
        {"step": point.step, "weights": {name: point.weights[name] for name in spec.lengths}}
        for point in spec.order.points
    ]
    return WeightScheduler(points, spec.order.interpolation)


def open_mixture(spec: MixtureSpec, *, to_end: bool = False) -> SourceMixture:
    """Return a mixture.

    Args:
        to_end: as far as its sources go, and not to the rows of its order.

    Raises:
        ConfigError: there is no such mixture.
    """
    order = spec.order
    return SourceMixture(
        {**spec.lengths, **order.kept},
        schedule_of(spec),
        lanes=order.lanes,
        batch_size=order.batch_size,
        block_size=order.block_size,
        step_rows=order.step_rows,
        seed=order.seed,
        stop=order.stop,
        rows=None if to_end else order.rows,
        order=order.version,
    )


def outcomes(mixture: SourceMixture, spec: MixtureSpec) -> dict[str, SourceDraw]:
    """Return what a mixture that ends draws of each source."""
    lengths, kept, step_rows = spec.lengths, spec.order.kept, spec.order.step_rows
    rows, lanes = mixture.rows or 0, mixture.layout.lanes
    places = mixture.layout.places_before(rows)
    drawn = np.stack([mixture.drawn(lane, int(place)) for lane, place in enumerate(places)])
    shares = counts_of(mixture.scheduler, step_rows=step_rows).shares(rows)
    found: dict[str, SourceDraw] = {}
    for at, name in enumerate(mixture.names):
        used: list[int] = np.diff(lane_bounds(kept.get(name, lengths[name]), lanes)).tolist()
        # Rows drawn and rows used, lane by lane.
        of_lanes = [(count, each) for count, each in zip(drawn[:, at].tolist(), used, strict=True) if each]
        left_out = lengths[name] - sum(used)
        found[name] = SourceDraw(
            rows=int(drawn[:, at].sum()),
            full_epochs=0 if left_out else min((count // each for count, each in of_lanes), default=0),
            epochs=max((-(-count // each) for count, each in of_lanes), default=0),
            unread=left_out + sum(max(0, each - count) for count, each in of_lanes),
            asked=float(shares[at] / rows) if rows else 0.0,
        )
    return found


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
    require_equal("the mixture", whole, where)
    lengths = {name: one.rows for name, one in sources.items()}
    try:
        draws = outcomes(open_mixture(record.spec), record.spec)
    except ConfigError as error:
        require_equal("the mixture", [("an order that can be", str(error), "none")], where)
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
        require_equal(f"source {name!r} of the mixture", equations, where)
    for name, one in sources.items():
        shares = (
            ("asked_tokens = asked, by tokens", one.asked_tokens, asked_tokens[name]),
            ("achieved_rows = share of rows", one.achieved_rows, share(one.drawn_rows, rows)),
            ("achieved_tokens = share of tokens", one.achieved_tokens, share(one.drawn_tokens, tokens)),
        )
        require_equal(f"source {name!r} of the mixture", shares, where)


def share(part: int, whole: int) -> float:
    """Return a share, rounded the same everywhere; 0 of nothing."""
    return float(Fraction(part, whole)) if whole else 0.0


def settings_of(record: MixtureRecord) -> dict[str, Any]:
    """Return what the key ``mix`` of the version's configuration says of the same mixture."""
    return {
        "level": record.level,
        "weights_by": record.weights_by,
        "splits": {name: source.split for name, source in record.sources.items()},
        **record.order.identity(record.sources),
        "rows": record.order.rows,
    }


def drawn_ids(account: Account, *, packed_here: bool) -> int:
    """Return how many ids of the parent a source's account covers.

    Args:
        packed_here: whether documents were packed after they were drawn: each that did not end in EOS got one then.
    """
    added = account.documents - account.eos_existing if packed_here else 0
    return account.tokens + account.bos + account.eos - added
