"""What nobody can beat by much: rows of the packed shards in the order they are stored,
nothing shuffled.

``memmap`` alone is shuffled: rows of a memory map of 16-bit ids, nothing compressed and
nothing checked. ``parquet``: pyarrow, row group by row group, `input_ids` alone,
checksums verified, batches copied together as a trainer would need them. ``pages``: the
pages of `input_ids` alone, read, checked, decompressed and copied to a batch. ``zstd``:
pages of 32-bit ids of the same size, decompressed and copied to a batch. ``copy``:
batches copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, arguments
from tokenlake.runtime.parquet.page_headers import chunk_start
from tokenlake.runtime.reading.pages import pages_of


def parquet(folder: Path) -> Iterator[Any]:
    """Yield int32[n, 2048] of each row group."""
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(
            path, page_checksum_verification=True, pre_buffer=False
        ) as file:
            for group in range(file.num_row_groups):
                table: Any = file.read_row_group(
                    group, columns=["input_ids"], use_threads=False
                )
                for chunk in table.column(0).chunks:
                    yield chunk.flatten().to_numpy().reshape(-1, LENGTH)


def pages(folder: Path) -> Iterator[Any]:
    """Yield uint16[n, 2048], or int32 where ids are stored so, of each page."""
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        with path.open("rb", buffering=0) as file:
            for group in range(metadata.num_row_groups):
                column = metadata.row_group(group).column(0)
                data = os.pread(
                    file.fileno(), column.total_compressed_size, chunk_start(column)
                )
                for page in pages_of(memoryview(data), column.num_values, 32):
                    yield page.numbers.reshape(-1, LENGTH)


def zstd(folder: Path) -> Iterator[Any]:
    """Yield int32[n, 2048] of each compressed block: what lies in one page."""
    codec: Any = pa.Codec("zstd")
    for path in sorted(folder.glob("*.zstd")):
        sizes = np.load(path.with_suffix(".npy"))
        data = path.read_bytes()
        view, place = memoryview(data), 0
        for packed, size in sizes.tolist():
            plain = codec.decompress(view[place : place + packed], size)
            place += packed
            yield np.frombuffer(plain, np.int32).reshape(-1, LENGTH)


def copied(folder: Path) -> Iterator[Any]:
    """Yield the rows of each uncompressed file, mapped into memory."""
    for path in sorted(folder.glob("*.ids")):
        yield np.memmap(path, np.int32, "r").reshape(-1, LENGTH)


SOURCES: Final[dict[str, Callable[[Path], Iterator[Any]]]] = {
    "parquet": parquet,
    "pages": pages,
    "zstd": zstd,
    "copy": copied,
}


def mapped(folder: Path, epoch: int) -> Iterator[Any]:
    """Yield int32[256, 2048] of random rows of the one file of 16-bit ids, fewer
    rows at the end.
    """
    rows = np.memmap(folder / "rows.u16", np.uint16, "r").reshape(-1, LENGTH)
    order = np.random.default_rng(epoch).permutation(len(rows))
    for begin in range(0, len(order), BATCH):
        yield rows[order[begin : begin + BATCH]].astype(np.int32)


def batches(parts: Iterator[Any]) -> Iterator[Any]:
    """Yield fresh int32[256, 2048], fewer rows at the end."""
    batch, filled = np.empty((BATCH, LENGTH), np.int32), 0
    for part in parts:
        while len(part):
            count = min(BATCH - filled, len(part))
            batch[filled : filled + count] = part[:count]
            part, filled = part[count:], filled + count
            if filled == BATCH:
                yield batch
                batch, filled = np.empty((BATCH, LENGTH), np.int32), 0
    if filled:
        yield batch[:filled]


def main() -> None:
    """Deliver the epochs."""
    given = arguments()
    sink = Sink(given.order)
    folder = Path(given.data)
    for epoch in range(given.passes):
        shuffled = given.variant == "memmap"
        for batch in (
            mapped(folder, epoch)
            if shuffled
            else batches(SOURCES[given.variant](folder))
        ):
            sink.take(batch)
    sink.finish()


if __name__ == "__main__":
    main()
