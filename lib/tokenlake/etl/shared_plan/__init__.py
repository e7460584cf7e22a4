"""The plan of a build in its store, for workers that no scheduler starts.

::

    runs/units/plan.json                   the newest plan: its pieces, and the requirements of a worker
    runs/units/00002-00000-1f2e....json    jobs of some hundred units; another plan has other names
    runs/units/lease-00017.json            a worker builds this unit, see :class:`Leases`
    runs/units/worker-node7-....json       this worker is present
    runs/units/failed-00017.json           the error with which the unit failed

Jobs give everything by value except the address of the store: each worker opens the
store by its own address. Nothing here proves anything, and nothing of it is part of a
version. A finished unit has a ledger record, and without a plan the run that publishes
it makes the same one again.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
