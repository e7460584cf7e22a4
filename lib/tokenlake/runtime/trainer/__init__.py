"""Training over the loader: a loop, its losses, metrics and callbacks.

It needs ``pip install 'tokenlake[train]'``.

A model is a pure function ``apply(params, batch)``. A loss returns sums, so that the
parts of a batch add up. A step updates the parameters with their gradients. The trainer
takes steps and calls callbacks. Model, optimizer, loader and callbacks are saved
together: an interrupted run resumes with the same steps as an uninterrupted one.

Names are imported on first use: a configuration can be validated where JAX is not
installed.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "train")  # pyright: ignore[reportUnsupportedDunderAll]
