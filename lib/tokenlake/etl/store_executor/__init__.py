"""Store executor: workers find the plan of a build in its store and build its units.

The run that plans and commits publishes the plan (:mod:`tokenlake.etl.shared_plan`) and
waits: it has no workers for units. A worker that joins takes the units of its share
first, then any unit that nobody builds. It needs no other process, neither the run that
published the plan nor another worker. Each may end at any moment. A finished unit has a
ledger record. An unfinished one gets another worker when its lease expires. The next
run makes the commit.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
