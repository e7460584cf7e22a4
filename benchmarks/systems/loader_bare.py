"""Bare reads of the rows, as bounds for loaders.

===========  ========================================================================
variant      work for a batch
===========  ========================================================================
``parquet``  `input_ids` alone by pyarrow, row group by row group, checksums verified
``pages``    pages of `input_ids` alone, read, checked and decompressed
``zstd``     blocks of 32-bit ids of the size of a page, decompressed
``copy``     uncompressed ids, mapped into memory
``memmap``   shuffled rows of a memory map of 16-bit ids, nothing checked
===========  ========================================================================

All but ``memmap`` deliver rows in the order in which they are stored. Their rows are
copied to batches, as a trainer would need them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink, parse_arguments
from tokenlake.runtime.parquet.page_headers import chunk_start
from tokenlake.runtime.reading.pages import pages_of


def parquet(folder: Path) -> Iterator[Any]:
    """Yield int32[n, 2048] of each row group."""
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(
            path, page_checksum_verification=True, pre_buffer=False
        ) as file:
            for group_index in range(file.num_row_groups):
                table: Any = file.read_row_group(
                    group_index, columns=["input_ids"], use_threads=False
                )
                for chunk in table.column(0).chunks:
                    yield chunk.flatten().to_numpy().reshape(-1, LENGTH)


def pages(folder: Path) -> Iterator[Any]:
    """Yield uint16[n, 2048] or int32[n, 2048], as ids are stored, of each page."""
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        with path.open("rb", buffering=0) as file:
            for group_index in range(metadata.num_row_groups):
                column = metadata.row_group(group_index).column(0)
                # One read for all pages of the column.
                data = os.pread(
                    file.fileno(), column.total_compressed_size, chunk_start(column)
                )
                for page in pages_of(memoryview(data), column.num_values, 32):
                    yield page.numbers.reshape(-1, LENGTH)


def zstd(folder: Path) -> Iterator[Any]:
    """Yield int32[n, 2048] of each compressed block, which has the rows of a page."""
    codec: Any = pa.Codec("zstd")
    for path in sorted(folder.glob("*.zstd")):
        sizes = np.load(path.with_suffix(".npy"))
        data = memoryview(path.read_bytes())
        offset = 0
        for compressed_size, size in sizes.tolist():
            block = data[offset : offset + compressed_size]
            offset += compressed_size
            id_bytes = codec.decompress(block, size)
            yield np.frombuffer(id_bytes, np.int32).reshape(-1, LENGTH)


def uncompressed(folder: Path) -> Iterator[Any]:
    """Yield the rows of each uncompressed file, mapped into memory, int32[n, 2048]."""
    for path in sorted(folder.glob("*.ids")):
        yield np.memmap(path, np.int32, "r").reshape(-1, LENGTH)


SOURCES: Final[dict[str, Callable[[Path], Iterator[Any]]]] = {
    "parquet": parquet,
    "pages": pages,
    "zstd": zstd,
    "copy": uncompressed,
}
"""Variant -> function that yields stored rows of a folder."""


def shuffled_batches(folder: Path, epoch: int) -> Iterator[Any]:
    """Yield int32[256, 2048] of random rows of a file of 16-bit ids.

    The last batch may have fewer rows.

    Args:
        folder: Folder of the file.
        epoch: Seed of the order.
    """
    rows = np.memmap(folder / "rows.u16", np.uint16, "r").reshape(-1, LENGTH)
    order = np.random.default_rng(epoch).permutation(len(rows))
    for begin in range(0, len(order), BATCH):
        yield rows[order[begin : begin + BATCH]].astype(np.int32)


def batches(parts: Iterator[Any]) -> Iterator[Any]:
    """Yield new arrays int32[256, 2048]. The last batch may have fewer rows.

    Args:
        parts: Parts of the rows, of any number of rows.
    """
    # Every batch has memory of its own, as a trainer may keep it.
    batch = np.empty((BATCH, LENGTH), np.int32)
    filled = 0  # rows of the batch so far
    for part in parts:
        begin = 0
        while begin < len(part):
            count = min(BATCH - filled, len(part) - begin)
            batch[filled : filled + count] = part[begin : begin + count]
            begin += count
            filled += count
            if filled == BATCH:
                yield batch
                batch = np.empty((BATCH, LENGTH), np.int32)
                filled = 0
    if filled:
        yield batch[:filled]


def main() -> None:
    """Deliver the epochs."""
    options = parse_arguments()
    sink = Sink(options.order)
    folder = Path(options.data)
    for epoch in range(options.passes):
        if options.variant == "memmap":
            batches_of_epoch = shuffled_batches(folder, epoch)
        else:
            batches_of_epoch = batches(SOURCES[options.variant](folder))
        for batch in batches_of_epoch:
            sink.take(batch)
    sink.finish()


if __name__ == "__main__":
    main()
