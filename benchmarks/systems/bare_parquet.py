"""The rows of a version written again by pyarrow alone: ``VERSION_FOLDER TARGET``, one
JSON line of figures.

Same schema, row groups and writer properties, nothing hashed. Reading them is not
counted.
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
    """Return the row groups of a file, decoded."""
    file = pq.ParquetFile(path, pre_buffer=False)
    tables = [
        file.read_row_group(index, use_threads=False)
        for index in range(file.num_row_groups)
    ]
    return [table.combine_chunks().to_batches()[0] for table in tables]


def write(path: Path, groups: list[pa.RecordBatch]) -> float:
    """Return the CPU seconds that writing them takes."""
    began = time.process_time()
    with open_writer(str(path), groups[0].schema) as writer:
        for group in groups:
            writer.write_batch(group, row_group_size=len(group))
    return time.process_time() - began


def main(folder: Path, target: Path) -> None:
    """Write shard after shard to the same file, so that memory is that of the
    largest.
    """
    seconds = sum(
        write(target, row_groups(shard))
        for shard in sorted(folder.glob("data/*.parquet"))
    )
    print(json.dumps({"cpu": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
