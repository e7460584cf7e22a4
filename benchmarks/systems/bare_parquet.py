"""Bare write of the rows of a version by pyarrow: ``VERSION_FOLDER TARGET``.

Schema, row groups and writer properties are those of the version. Nothing is hashed.
The CPU seconds of writing, without reading, are printed as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.runtime.schema import open_writer


def row_groups(path: Path) -> list[pa.RecordBatch]:
    """Return the decoded row groups of a file."""
    file = pq.ParquetFile(path, pre_buffer=False)
    batches: list[pa.RecordBatch] = []
    for group_index in range(file.num_row_groups):
        # Decode before the clock starts, in one batch per row group.
        table = file.read_row_group(group_index, use_threads=False)
        batches.append(table.combine_chunks().to_batches()[0])
    return batches


def write(path: Path, batches: list[pa.RecordBatch]) -> float:
    """Write row groups to a file, and return the CPU seconds.

    Args:
        path: File to write.
        batches: Row groups, at least one.
    """
    start_time = time.process_time()
    with open_writer(str(path), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=len(batch))
    return time.process_time() - start_time


def main(folder: Path, target: Path) -> None:
    """Write all shards of a version, one after the other, to the same file.

    The memory is therefore that of the largest shard.
    """
    seconds = 0.0
    for shard in sorted(folder.glob("data/*.parquet")):
        seconds += write(target, row_groups(shard))
    print(json.dumps({"cpu": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
