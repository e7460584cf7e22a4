"""From stored versions to batches: open a dataset, mix several, and read them in an order that is a function.

::

    step -> (start row, batch size) -> (source, epoch, row group, row) -> decoded row groups -> a batch

``steps``, ``stream`` and ``batchplan`` are functions and open no file; ``groups`` decodes ahead of need; ``assemble``
copies rows to their places; ``loader`` hands batches out and keeps the state, a few integers.
"""
