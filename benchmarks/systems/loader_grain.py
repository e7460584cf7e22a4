"""Grain: the Parquet pipeline and ArrayRecord, each as its documentation has a shuffled
epoch.

Parquet can only be read in order, so its users shuffle files, interleave them and
shuffle a window; ArrayRecord has random access and a global shuffle. One process:
Grain's workers would be billed alike, and copy each batch once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grain
import grain.experimental as ge
import numpy as np

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, arguments

CYCLE: Final = 16  # files open at a time: what ParquetIterDataset takes by itself
WINDOW: Final = 10_000  # rows


def parquet(folder: Path, epoch: int) -> Iterable[Any]:
    """Yield batches of `input_ids`."""
    files = sorted(map(str, folder.glob("*.parquet")))
    shards = grain.MapDataset.source(files).seed(epoch).shuffle().map(_file)
    rows = ge.InterleaveIterDataset(shards, cycle_length=CYCLE)
    mixed = ge.WindowShuffleIterDataset(rows, window_size=WINDOW, seed=epoch)
    return mixed.batch(BATCH, drop_remainder=False)


def stored(folder: Path, epoch: int) -> Iterable[Any]:
    """Yield the same batches unshuffled: files interleaved as ParquetIterDataset
    does by itself.
    """
    files = sorted(map(str, folder.glob("*.parquet")))
    return ge.ParquetIterDataset(files).batch(BATCH, drop_remainder=False)


def _file(path: str) -> Any:
    return ge.ParquetIterDataset(path)


def arrayrecord(folder: Path, epoch: int) -> Iterable[Any]:
    """Yield batches of ids."""
    source = grain.sources.ArrayRecordDataSource(
        sorted(map(str, folder.glob("*.arrayrecord")))
    )
    rows = grain.MapDataset.source(source).seed(epoch).shuffle().map(_ids)
    return rows.batch(BATCH, drop_remainder=False).to_iter_dataset()


def _ids(record: bytes) -> Any:
    return {"input_ids": np.frombuffer(record, np.int32)}


PIPELINES: Final[dict[str, Callable[[Path, int], Iterable[Any]]]] = {
    "parquet": parquet,
    "stored": stored,
    "arrayrecord": arrayrecord,
}


def main() -> None:
    """Deliver the epochs."""
    given = arguments()
    sink = Sink(given.order)
    for epoch in range(given.passes):
        for batch in PIPELINES[given.variant](Path(given.data), epoch):
            sink.take(batch["input_ids"].reshape(-1, LENGTH))
    sink.finish()


if __name__ == "__main__":
    main()
