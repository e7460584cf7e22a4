"""Training over the loader: a loop, its losses, metrics and callbacks; ``pip install 'tokenlake[train]'``.

A model is a pure function ``apply(params, batch)``. A loss gives sums, so that parts of a batch add up; a step makes
parameters of them; the trainer takes steps, and tells callbacks. Model, optimizer, loader and callbacks are saved
together: a run that was killed goes on as if it had not been.

Names load on first use: a configuration can be checked where JAX is not installed.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "train")  # pyright: ignore[reportUnsupportedDunderAll]
