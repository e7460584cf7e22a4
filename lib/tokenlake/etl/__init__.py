"""Building a dataset version: plan, units, workers, session, commit.

Nothing is imported here: a worker process should not pay for what only its parent
needs.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
