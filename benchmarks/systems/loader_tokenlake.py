"""Tokenlake's loader: from the zstd shards of a version, globally shuffled, numpy on
the host or JAX arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

import tokenlake as tl
from benchmarks.loader_sources import SOURCES, WEIGHTS
from benchmarks.systems.loader_sink import BATCH, Sink, arguments

COLUMNS: Final = {
    "ids": ("input_ids",),
    "decoded": ("input_ids",),
    "segments": ("input_ids", "segment_ids", "positions"),
    "all": ("input_ids", "segment_ids", "positions", "loss_mask"),
    "mixture": ("input_ids",),
    "mixture-all": ("input_ids", "segment_ids", "positions", "loss_mask"),
    "jax": ("input_ids",),
}


def opened(store: Path, variant: str, passes: int = 1) -> Any:
    """Return the dataset, or a mixture of as many rows as so many epochs of the
    dataset have.
    """
    if not variant.startswith("mixture"):
        return tl.open(store, "large" if variant == "large" else "corpus")
    sources = {name: tl.open(store, name) for name in SOURCES}
    return tl.Mixture(sources, WEIGHTS, rows=passes * len(tl.open(store, "corpus")))


def main() -> None:
    """Deliver the epochs; on JAX a batch is read back, which copies nothing on the
    CPU.
    """
    given = arguments()
    sink = Sink(given.order)
    more: dict[str, Any] = {}
    if given.variant == "jax":
        jax = __import__("jax")
        more["sharding"] = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    if given.variant == "decoded":
        # As with a large dataset: no epoch finds what another has decoded.
        more["cache_bytes"] = 64 << 20
    data = opened(Path(given.data), given.variant, given.passes)
    left = (
        data.rows if given.variant.startswith("mixture") else len(data) * given.passes
    )
    loader = tl.DataLoader(
        data,
        BATCH,
        seed=0,
        epochs=1 if given.variant.startswith("mixture") else given.passes,
        columns=COLUMNS[given.variant],
        **more,
    )
    for batch in loader:
        # On devices the last batch is filled up with padding.
        ids = np.asarray(batch["input_ids"])[:left]
        sink.take(ids)
        left -= len(ids)
    sink.finish(groups=loader.decoded.groups)


if __name__ == "__main__":
    main()
