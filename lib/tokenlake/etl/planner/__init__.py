"""From a configuration to the plan of its build.

Of texts the planner lists and hashes the input files, cuts them into units, computes
the identities of the units, and writes notes for the user. Of stored versions see
:mod:`tokenlake.etl.plan.stored`. Planning reads inputs (their hashes, their footers)
and tokenizers; it writes nothing.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
