"""State of a build, as listings of its store show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tokenlake.etl.shared_plan.notes import WORK
from tokenlake.runtime.store.base import ObjectInfo, Store
from tokenlake.runtime.store.layout import LEDGER, Layout, ledger_unit


@final
@dataclass(frozen=True, slots=True)
class StoreListing:
    """Result of two listings.

    Attributes:
        done: Units that have a ledger record.
        notes: Objects beside the plan: leases, present workers, failures.
    """

    done: set[int]
    notes: list[ObjectInfo]

    @classmethod
    def of(cls, store: Store, layout: Layout) -> StoreListing:
        """List the ledger of a version and the folder of its plan."""
        # The ledger comes first: a unit that is finished in between has neither a
        # record nor a lease here, and a worker that takes it looks for the record
        # again.
        done: set[int] = set()
        for info in store.list(layout.key(LEDGER)):
            unit = ledger_unit(layout.path(info.key))
            if unit is not None:
                done.add(unit)
        return cls(done, list(store.list(layout.key(WORK))))
