"""Loader of litdata: uncompressed chunks of tokens, shuffled, through its own
DataLoader in this process.
"""

from __future__ import annotations

from typing import Any

import litdata
import numpy as np

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, parse_arguments


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    sink = Sink(options.order)
    dataset = litdata.StreamingDataset(
        options.data,
        item_loader=litdata.TokensLoader(LENGTH),
        shuffle=True,
        seed=0,
        drop_last=False,
    )
    # Without workers, all work is in this process.
    loader: Any = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0)
    for _ in range(options.passes):
        for batch in loader:
            sink.take(np.ascontiguousarray(batch.numpy(), np.int32))
    sink.finish()


if __name__ == "__main__":
    main()
