"""Loader of Hugging Face datasets: Arrow files mapped into memory, shuffled by an
index, in NumPy format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_from_disk

from benchmarks.systems.loader_sink import BATCH, Sink, parse_arguments


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    sink = Sink(options.order)
    dataset: Any = load_from_disk(str(Path(options.data)))
    for epoch in range(options.passes):
        # A cache file of the index would be read by the next run, which then has
        # nothing to shuffle.
        shuffled = dataset.shuffle(seed=epoch, keep_in_memory=True)
        numpy_rows = shuffled.with_format("numpy", dtype=np.int32)
        for batch in numpy_rows.iter(BATCH):
            sink.take(batch["input_ids"])
    sink.finish()


if __name__ == "__main__":
    main()
