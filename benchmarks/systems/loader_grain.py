"""Loader of Grain: its Parquet pipeline and ArrayRecord, each with the shuffle of its
documentation.

Parquet can only be read in order. Its users shuffle files, interleave them and shuffle
a window. ArrayRecord has random access and a global shuffle. All runs in one process:
the CPU time of Grain's workers would count as well, and they copy each batch once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grain
import grain.experimental as ge
import numpy as np

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, parse_arguments

CYCLE: Final = 16
"""Number of files that are open at a time, the default of ParquetIterDataset."""

WINDOW: Final = 10_000
"""Number of rows of the shuffle window."""


def parquet(folder: Path, epoch: int) -> Iterable[Any]:
    """Return shuffled batches of `input_ids` from Parquet files."""
    paths = [str(path) for path in sorted(folder.glob("*.parquet"))]
    # Files are shuffled, some are read in turns, and their rows go through the window.
    files = grain.MapDataset.source(paths).seed(epoch).shuffle().map(_open_file)
    rows = ge.InterleaveIterDataset(files, cycle_length=CYCLE)
    shuffled = ge.WindowShuffleIterDataset(rows, window_size=WINDOW, seed=epoch)
    return shuffled.batch(BATCH, drop_remainder=False)


def stored(folder: Path, epoch: int) -> Iterable[Any]:
    """Return batches of `input_ids` in the order of ParquetIterDataset.

    It interleaves files and does not shuffle.
    """
    paths = [str(path) for path in sorted(folder.glob("*.parquet"))]
    return ge.ParquetIterDataset(paths).batch(BATCH, drop_remainder=False)


def _open_file(path: str) -> Any:
    """Return the rows of a Parquet file."""
    return ge.ParquetIterDataset(path)


def arrayrecord(folder: Path, epoch: int) -> Iterable[Any]:
    """Return shuffled batches of `input_ids` from ArrayRecord files."""
    paths = [str(path) for path in sorted(folder.glob("*.arrayrecord"))]
    source = grain.sources.ArrayRecordDataSource(paths)
    rows = grain.MapDataset.source(source).seed(epoch).shuffle().map(_parse_record)
    return rows.batch(BATCH, drop_remainder=False).to_iter_dataset()


def _parse_record(record: bytes) -> Any:
    """Return the row of a record."""
    return {"input_ids": np.frombuffer(record, np.int32)}


PIPELINES: Final[dict[str, Callable[[Path, int], Iterable[Any]]]] = {
    "parquet": parquet,
    "stored": stored,
    "arrayrecord": arrayrecord,
}
"""Variant -> function of a folder and an epoch that returns batches."""


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    sink = Sink(options.order)
    for epoch in range(options.passes):
        for batch in PIPELINES[options.variant](Path(options.data), epoch):
            sink.take(batch["input_ids"].reshape(-1, LENGTH))
    sink.finish()


if __name__ == "__main__":
    main()
