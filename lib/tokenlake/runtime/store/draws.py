"""Rows that the order of a mixture draws of each source, and their audit.

The audit compares the rows with the counts of the version.

A mixed version is committed, and found whole, only if its counts are those that its
order draws.

How much of a source is drawn follows from the number of rows that each lane delivered.
Example: a source of 7 rows is dealt to two lanes, 3 rows to the first and 4 to the
second. If the lanes delivered 15 and 14 of its rows, each row of the first lane came 5
times, and each row of the second 3 times or 4 times. So the source has 3 full epochs,
and no row was delivered more than 5 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
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
from tokenlake.runtime.store.mixture import MixedSource, MixtureRecord, MixtureSpec


@final
@dataclass(frozen=True, slots=True)
class SourceDraw:
    """The rows that an order draws of one source.

    Each lane goes through its own rows of the source, and begins anew when they end. If
    lanes have unequal numbers of rows, one may be an epoch ahead of another.

    Attributes:
        rows: Rows drawn; a row counts once for each time.
        full_epochs: Lowest number of times that any row of the source is drawn.
        epochs: Highest number of times that any row of the source is drawn.
        unread: Rows that are never drawn.
        asked: Share of all rows that the weights request, from 0 to 1.
    """

    rows: int
    full_epochs: int
    epochs: int
    unread: int
    asked: float


def schedule_of(spec: MixtureSpec) -> WeightScheduler:
    """Return the weights of a mixture over its steps, in the order of its sources."""
    points: list[dict[str, Any]] = []
    for point in spec.order.points:
        weights = {
            source_name: point.weights[source_name] for source_name in spec.lengths
        }
        points.append({"step": point.step, "weights": weights})
    return WeightScheduler(points, spec.order.interpolation)


def open_mixture(spec: MixtureSpec, *, to_end: bool = False) -> SourceMixture:
    """Return the mixture that a record describes.

    Args:
        spec: Lengths of the sources, and the order.
        to_end: Use all rows of the sources, instead of the number of rows in the order.

    Raises:
        ConfigError: The values do not describe a mixture.
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
    """Return the rows that a mixture of known length draws of each source, by name.

    Args:
        mixture: The mixture of `spec`, from :func:`open_mixture`.
        spec: Lengths of the sources, and the order.
    """
    order = spec.order
    total_rows = mixture.rows or 0
    lanes = mixture.layout.lanes
    # Rows drawn by each lane of each source, int64[lanes, sources].
    # The order is a closed form: the rows before a position are known without the rows.
    places = mixture.layout.places_before(total_rows)
    drawn_by_lane = np.stack(
        [
            mixture.drawn(lane_number, int(place_in_lane))
            for lane_number, place_in_lane in enumerate(places)
        ]
    )
    # Rows that the weights request of each source, over the whole stream.
    counts = counts_of(mixture.scheduler, step_rows=order.step_rows)
    asked_rows = counts.shares(total_rows)

    draws: dict[str, SourceDraw] = {}
    # A source may use fewer rows than it has; each lane uses its part of them.
    for source_number, source_name in enumerate(mixture.names):
        stored_rows = spec.lengths[source_name]
        used_rows = np.diff(
            lane_bounds(order.kept.get(source_name, stored_rows), lanes)
        )
        drawn_rows = drawn_by_lane[:, source_number]
        row_share = float(asked_rows[source_number] / total_rows) if total_rows else 0.0
        draws[source_name] = _source_draw(
            stored_rows, used_rows.tolist(), drawn_rows.tolist(), row_share
        )
    return draws


def _source_draw(
    stored_rows: int,
    used_rows: list[int],
    drawn_rows: list[int],
    requested_share: float,
) -> SourceDraw:
    """Return the rows drawn of one source.

    Args:
        stored_rows: Rows that the source has.
        used_rows: Rows of the source that each lane uses.
        drawn_rows: Rows of the source that each lane delivered.
        requested_share: Share of all rows that the weights request.
    """
    # Each lane on its own: its full epochs, the epochs that it has begun, and the rows
    # that its first epoch has not reached.
    full_epochs: list[int] = []
    begun_epochs: list[int] = []
    left_out = stored_rows - sum(used_rows)
    unread = left_out
    for used_in_lane, drawn_in_lane in zip(used_rows, drawn_rows, strict=True):
        if used_in_lane:
            full_epochs.append(drawn_in_lane // used_in_lane)
            begun_epochs.append(-(-drawn_in_lane // used_in_lane))
            unread += max(0, used_in_lane - drawn_in_lane)
    # Rows that no lane uses are never drawn.
    if left_out:
        full_epochs.append(0)
    return SourceDraw(
        rows=sum(drawn_rows),
        full_epochs=min(full_epochs, default=0),
        epochs=max(begun_epochs, default=0),
        unread=unread,
        asked=requested_share,
    )


def token_shares(
    row_shares: Mapping[str, float], rows: Mapping[str, int], tokens: Mapping[str, int]
) -> dict[str, float]:
    """Convert shares of rows to shares of tokens.

    The shares are weighted by the mean tokens per row of each source.

    Args:
        row_shares: Share of the rows by source.
        rows: Rows of each source.
        tokens: Tokens of each source.
    """
    # Fractions are exact, so that every machine gets the same shares.
    weights: dict[str, Fraction] = {}
    for source_name, row_share in row_shares.items():
        weights[source_name] = Fraction(0)
        if rows[source_name]:
            weights[source_name] = (
                Fraction(row_share) * tokens[source_name] / rows[source_name]
            )
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0.0)
    return {
        source_name: float(weight / total) for source_name, weight in weights.items()
    }


def check_mixture(
    record: MixtureRecord,
    *,
    packed: bool,
    settings: object,
    accounts: Mapping[str, Account],
    parents: Set[tuple[str, int]],
    where: str,
) -> None:
    """Check that the counts of a mixture are those that its order draws.

    Args:
        record: Mixture of a manifest.
        packed: Kind of the version is ``packed``.
        settings: Value of the key ``mix`` in its configuration.
        accounts: Audits of its sources, by name.
        parents: Dataset and version of each parent in its lineage.
        where: Name of the manifest, for messages.

    Raises:
        AccountError: An equation does not hold; the message names the source, the
            equation and both sides.
    """
    _check_whole(
        record,
        packed=packed,
        settings=settings,
        source_names=accounts,
        parents=parents,
        manifest_key=where,
    )

    # Each source against the order. The values of the record are those of the file:
    # they may describe no mixture at all.
    try:
        draws = outcomes(open_mixture(record.spec), record.spec)
    except ConfigError as error:
        require_equal("the mixture", [("a valid order", str(error), "none")], where)
        raise
    # Documents that were packed after they were drawn got EOS, which the parent lacks.
    packed_here = record.level == "documents" and packed
    for source_name, source in record.sources.items():
        equations = _source_equations(
            source, draws[source_name], accounts[source_name], packed_here=packed_here
        )
        require_equal(f"source {source_name!r} of the mixture", equations, where)
    _check_shares(record, draws, where)


def _check_whole(
    record: MixtureRecord,
    *,
    packed: bool,
    settings: object,
    source_names: Iterable[str],
    parents: Set[tuple[str, int]],
    manifest_key: str,
) -> None:
    """Check the equations that hold for a mixture as a whole.

    Arguments and errors are those of :func:`check_mixture`. `source_names` are those of
    its audits, and `manifest_key` is its `where`.
    """
    # Each equation in words, and its two sides.
    sources = record.sources
    source_versions = {(source.dataset, source.version) for source in sources.values()}
    is_packed_by_level = record.level == "sequences" or packed
    drawn_rows = sum(source.drawn_rows for source in sources.values())
    equations = (
        (
            "kind packed = level sequences, or packed documents",
            packed,
            is_packed_by_level,
        ),
        (
            "sources of the mixture = sources of the audit",
            sorted(sources),
            sorted(source_names),
        ),
        ("order and splits = those of config.mix", settings_of(record), settings),
        ("sum of drawn_rows = rows of the order", drawn_rows, record.order.rows),
        (
            "versions of the sources = parents in the lineage",
            sorted(source_versions),
            sorted(parents),
        ),
    )
    require_equal("the mixture", equations, manifest_key)


def _check_shares(
    record: MixtureRecord, draws: Mapping[str, SourceDraw], manifest_key: str
) -> None:
    """Check the shares of the sources, which follow from the sums over all of them."""
    # The sums over all sources, then the equations of each source.
    sources = record.sources
    total_rows = sum(source.drawn_rows for source in sources.values())
    total_tokens = sum(source.drawn_tokens for source in sources.values())
    asked_tokens = _asked_tokens(record, draws)
    for source_name, source in sources.items():
        achieved_rows = share(source.drawn_rows, total_rows)
        achieved_tokens = share(source.drawn_tokens, total_tokens)
        equations = (
            (
                "asked_tokens = asked, by tokens",
                source.asked_tokens,
                asked_tokens[source_name],
            ),
            ("achieved_rows = share of rows", source.achieved_rows, achieved_rows),
            (
                "achieved_tokens = share of tokens",
                source.achieved_tokens,
                achieved_tokens,
            ),
        )
        require_equal(f"source {source_name!r} of the mixture", equations, manifest_key)


def _source_equations(
    source: MixedSource, draw: SourceDraw, account: Account, *, packed_here: bool
) -> tuple[tuple[str, object, object], ...]:
    """Return the equations between one source, its order and its audit.

    Each equation has its name and both sides.
    """
    ids = drawn_ids(account, packed_here=packed_here)
    # Rows differ in length: whole epochs bound the tokens from both sides.
    fewest_tokens = draw.full_epochs * source.tokens
    most_tokens = draw.epochs * source.tokens
    possible_tokens = min(max(source.drawn_tokens, fewest_tokens), most_tokens)
    bounds = f"{fewest_tokens} <= drawn_tokens <= {most_tokens}, by epochs of {source.tokens} tokens"
    return (
        ("drawn_rows = the order's closed form", source.drawn_rows, draw.rows),
        ("full_epochs = the order's", source.full_epochs, draw.full_epochs),
        ("unread_rows = the order's", source.unread_rows, draw.unread),
        ("asked = the integral of the weight", source.asked, draw.asked),
        ("rows_read = drawn_rows", account.rows_read, source.drawn_rows),
        ("ids of the audit = drawn_tokens", ids, source.drawn_tokens),
        (bounds, source.drawn_tokens, possible_tokens),
    )


def _asked_tokens(
    record: MixtureRecord, draws: Mapping[str, SourceDraw]
) -> Mapping[str, float | None]:
    """Return the share of tokens that the weights request of each source.

    It is None where weights are per row.
    """
    if record.weights_by != "tokens":
        return dict.fromkeys(record.sources)
    return token_shares(
        {source_name: draw.asked for source_name, draw in draws.items()},
        {source_name: source.rows for source_name, source in record.sources.items()},
        {source_name: source.tokens for source_name, source in record.sources.items()},
    )


def share(part: int, total: int) -> float:
    """Return part / total, rounded once, so that every machine gets the same.

    It is 0 if `total` is 0.
    """
    if not total:
        return 0.0
    return float(Fraction(part, total))


def settings_of(record: MixtureRecord) -> dict[str, Any]:
    """Return the value of the key ``mix`` in the configuration of a mixed version."""
    return {
        "level": record.level,
        "weights_by": record.weights_by,
        "splits": {
            source_name: source.split for source_name, source in record.sources.items()
        },
        **record.order.identity(record.sources),
        "rows": record.order.rows,
    }


def drawn_ids(account: Account, *, packed_here: bool) -> int:
    """Return the number of ids of the parent that the audit of a source covers.

    Args:
        account: Audit of the source.
        packed_here: Documents were packed after they were drawn. Each one that did not
            end in EOS got an EOS then, which the parent does not have.
    """
    # The audit counts the EOS that packing added. The parent has them only where a
    # document ended in EOS already.
    added_eos = 0
    if packed_here:
        added_eos = account.documents - account.eos_existing
    return account.tokens + account.bos + account.eos - added_eos
