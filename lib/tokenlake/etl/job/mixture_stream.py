"""Rows of a mixture in their order, from the description in a plan and its jobs."""

from __future__ import annotations

from collections.abc import Mapping

from tokenlake.base.arrays import Int64
from tokenlake.errors import IntegrityError
from tokenlake.runtime.mixing.caps import shortened
from tokenlake.runtime.mixing.order_form import ShuffledOrder
from tokenlake.runtime.mixing.streams import MixtureStream, source_order
from tokenlake.runtime.store.draws import open_mixture
from tokenlake.runtime.store.mixture import MixtureSpec


def open_stream(spec: MixtureSpec, group_rows: Mapping[str, Int64]) -> MixtureStream:
    """Return the stream of a mixture.

    Args:
        spec: Order of the mixture, and the number of rows of each source.
        group_rows: Rows of each row group of a source, int64[groups], by source name.

    Raises:
        IntegrityError: A source has another number of rows than the mixture was planned
            with.
    """
    # 1. The order is a function of the numbers of rows, so they must be the planned
    #    ones.
    for source_name, planned_rows in spec.lengths.items():
        row_count = int(group_rows[source_name].sum())
        if row_count != planned_rows:
            raise IntegrityError(
                f"source {source_name!r} has {row_count} rows; expected {planned_rows}, as planned"
            )

    # 2. The order of each source.
    mixture = open_mixture(spec)
    order = spec.order
    source_orders: list[ShuffledOrder] = []
    for source_name in mixture.names:
        # A source whose repetitions are limited may give only the first part of its
        # rows.
        usable_rows = shortened(
            source_name,
            group_rows[source_name],
            order.kept.get(source_name),
            seed=order.seed,
        )
        source_orders.append(
            source_order(source_name, usable_rows, lanes=order.lanes, seed=order.seed)
        )
    return MixtureStream(mixture, source_orders)
