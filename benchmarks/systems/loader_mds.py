"""Loader of MosaicML streaming: uncompressed MDS shards, shuffled by its default
algorithm, through PyTorch's DataLoader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.systems.loader_sink import BATCH, Sink, parse_arguments


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    # A run that was killed leaves shared memory, on which the next one would fail.
    clean_stale_shared_memory()
    sink = Sink(options.order)
    dataset = StreamingDataset(
        local=options.data, shuffle=True, batch_size=BATCH, shuffle_seed=0
    )
    # Without workers, all work is in this process.
    loader: Any = DataLoader(dataset, batch_size=BATCH, num_workers=0)
    for _ in range(options.passes):
        for batch in loader:
            sink.take(np.ascontiguousarray(batch["input_ids"].numpy(), np.int32))
    sink.finish()


if __name__ == "__main__":
    main()
