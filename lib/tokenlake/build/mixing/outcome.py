"""What the manifest of a mixture says of it: the order as it was planned, and what was counted of each source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenlake.account import Account
from tokenlake.build.mixing.planning.forecast import SourceForecast
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.build.mixing.planning.plan import MixPlan
from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.manifest import MixedSource, MixtureOrder, MixtureRecord, UnitRecord
from tokenlake.manifest.mixture import share
from tokenlake.manifest.mixturelaw import drawn_ids


def accounts_of(records: Iterable[UnitRecord], names: Iterable[str] = ()) -> dict[str, Account]:
    """Return source -> account: those of `names` first, also where nothing came of them, then others of which did.

    A unit that was taken over from another version may name a source that had no weight there, and is not here.
    """
    found = {name: list[Account]() for name in names}
    for record in records:
        for source, account in record.by_source().items():
            if source in found or account.rows_read:
                found.setdefault(source, []).append(account)
    return {source: Account.total(accounts) for source, accounts in found.items()}


def mixture_record(
    plan: MixPlan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture; None where nothing is mixed.

    What was drawn is what was counted, what should have been is in the plan: the manifest's check compares the two.

    Args:
        accounts: of the sources, summed over all units.
        records: of all units.
    """
    if plan.spec is None or plan.forecast is None or plan.build.mixture is None:
        return None
    packed_here = plan.level == "documents" and plan.out.pack is not None
    ids = {name: drawn_ids(account, packed_here=packed_here) for name, account in accounts.items()}
    all_rows = sum(account.rows_read for account in accounts.values())
    sources = {
        parent.name: _source(
            parent,
            plan.forecast.sources[parent.name],
            rows=accounts[parent.name].rows_read,
            tokens=ids[parent.name],
            of_rows=all_rows,
            of_tokens=sum(ids.values()),
        )
        for parent in plan.parents
    }
    whole = Account.total(record.account for record in records)
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=_order(plan.spec),
        rows=Account(sequences=whole.sequences, slots=whole.slots, pad=whole.pad),
        sources=sources,
    )


def _source(
    parent: FoundParent, planned: SourceForecast, *, rows: int, tokens: int, of_rows: int, of_tokens: int
) -> MixedSource:
    return MixedSource(
        dataset=parent.manifest.dataset,
        version=parent.manifest.version,
        split=parent.split,
        window=parent.window,
        rows=parent.rows,
        tokens=parent.tokens,
        drawn_rows=rows,
        drawn_tokens=tokens,
        full_epochs=planned.full_epochs,
        unread_rows=planned.unread_rows,
        asked=planned.asked,
        asked_tokens=planned.asked_tokens,
        achieved_rows=share(rows, of_rows),
        achieved_tokens=share(tokens, of_tokens),
    )


def _order(spec: MixtureSpec) -> MixtureOrder:
    return MixtureOrder(
        lanes=spec.lanes,
        batch_size=spec.batch_size,
        block_size=spec.block_size,
        step_rows=spec.step_rows,
        seed=spec.seed,
        stop=spec.stop,
        rows=spec.rows or 0,
        points=spec.points,
        interpolation=spec.interpolation,
        version=spec.order,
    )
