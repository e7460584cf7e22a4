"""From stored versions to batches: open a dataset, mix several, and read them in an order that is a function.

::

    step -> (start row, batch size) -> (source, epoch, row group, row) -> decoded row groups -> a batch

``steps`` and ``plan`` are functions and open no file; ``read_ahead`` decodes ahead of need; ``batch`` copies rows to
their places; ``loader`` hands batches out and keeps the state, a few integers. ``options`` says what all of them are
asked for, here and by ``jax``, ``torch``, ``grain``, ``hf`` and ``orbax``.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
