"""Hugging Face datasets: Arrow files mapped into memory, shuffled by an index, in
numpy format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_from_disk

from benchmarks.systems.loader_sink import BATCH, Sink, arguments


def main() -> None:
    """Deliver the epochs; `shuffle` without its cache file, which would be read back
    instead.
    """
    given = arguments()
    sink = Sink(given.order)
    stored: Any = load_from_disk(str(Path(given.data)))
    for epoch in range(given.passes):
        rows = stored.shuffle(seed=epoch, keep_in_memory=True).with_format(
            "numpy", dtype=np.int32
        )
        for batch in rows.iter(BATCH):
            sink.take(batch["input_ids"])
    sink.finish()


if __name__ == "__main__":
    main()
