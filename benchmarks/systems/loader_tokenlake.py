"""Loader of Tokenlake: zstd shards of a version, globally shuffled, NumPy arrays on
the host or JAX arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

import tokenlake as tl
from benchmarks.loader_sources import SOURCES, WEIGHTS
from benchmarks.systems.loader_sink import BATCH, Sink, parse_arguments

COLUMNS: Final = {
    "ids": ("input_ids",),
    "decoded": ("input_ids",),
    "segments": ("input_ids", "segment_ids", "positions"),
    "all": ("input_ids", "segment_ids", "positions", "loss_mask"),
    "mixture": ("input_ids",),
    "mixture-all": ("input_ids", "segment_ids", "positions", "loss_mask"),
    "jax": ("input_ids",),
}
"""Variant -> columns of its batches."""

_SMALL_CACHE: Final = 64 << 20
"""Memory in which no epoch finds row groups that another one decoded, as with a large
dataset.
"""


def _is_mixture(variant: str) -> bool:
    """Return whether a variant reads a mixture."""
    return variant.startswith("mixture")


def open_data(store: Path, variant: str, passes: int = 1) -> Any:
    """Return the dataset or the mixture of a variant.

    Args:
        store: Folder of the datasets.
        variant: Variant of the loader, or "large".
        passes: Number of epochs of the dataset, for the rows of a mixture.
    """
    if _is_mixture(variant):
        sources = {source_name: tl.open(store, source_name) for source_name in SOURCES}
        # As many rows as the dataset delivers in these epochs.
        rows = passes * len(tl.open(store, "corpus"))
        return tl.Mixture(sources, WEIGHTS, rows=rows)
    if variant == "large":
        return tl.open(store, "large")
    return tl.open(store, "corpus")


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    sink = Sink(options.order)

    # 1. Open the data. A mixture has the rows of all epochs.
    data = open_data(Path(options.data), options.variant, options.passes)
    if _is_mixture(options.variant):
        epochs = 1
        left_rows = data.rows
    else:
        epochs = options.passes
        left_rows = len(data) * epochs

    # 2. Open the loader.
    loader_options: dict[str, Any] = {}
    if options.variant == "jax":
        # The import takes time, which the other variants must not spend.
        jax = __import__("jax")
        device = jax.devices("cpu")[0]
        loader_options["sharding"] = jax.sharding.SingleDeviceSharding(device)
    if options.variant == "decoded":
        loader_options["cache_bytes"] = _SMALL_CACHE
    loader = tl.DataLoader(
        data,
        BATCH,
        seed=0,
        epochs=epochs,
        columns=COLUMNS[options.variant],
        **loader_options,
    )

    # 3. Deliver.
    for batch in loader:
        # Arrays of JAX on the CPU are read without a copy. On devices, the last batch
        # is filled with padding.
        ids = np.asarray(batch["input_ids"])[:left_rows]
        sink.take(ids)
        left_rows -= len(ids)
    sink.finish(groups=loader.decoded.groups)


if __name__ == "__main__":
    main()
