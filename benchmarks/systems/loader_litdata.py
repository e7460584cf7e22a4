"""litdata: chunks of tokens, uncompressed, shuffled, through its own DataLoader in
this process.
"""

from __future__ import annotations

from typing import Any

import litdata
import numpy as np

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, arguments


def main() -> None:
    """Deliver the epochs."""
    given = arguments()
    sink = Sink(given.order)
    rows = litdata.StreamingDataset(
        given.data,
        item_loader=litdata.TokensLoader(LENGTH),
        shuffle=True,
        seed=0,
        drop_last=False,
    )
    loader: Any = litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=0)
    for _ in range(given.passes):
        for batch in loader:
            sink.take(np.ascontiguousarray(batch.numpy(), np.int32))
    sink.finish()


if __name__ == "__main__":
    main()
