"""Loader: batches of datasets and mixtures, read in a reproducible order.

::

    step -> (start row, batch size) -> (source, epoch, row group, row) -> decoded row groups -> a batch

``steps`` and ``plan`` compute the rows of each step without opening a file.
``read_ahead`` decodes row groups ahead of need, ``batch`` copies rows into arrays, and
``loader`` delivers batches and keeps the state, a few integers. ``jax``, ``torch``,
``grain``, ``hf`` and ``orbax`` connect other libraries; ``options`` has the options of
all of them.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
