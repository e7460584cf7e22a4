"""Readers of a text column: ``READER FORMAT PATH COUNTS``.

The number of rows and the bytes of text, which must agree for all readers, are written
to the file COUNTS. Each reader has one thread and uses the cheapest measured calls of
its package. Tokenlake's reader makes more checks than the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Polars starts its threads at its first use, which may be in Tokenlake.
os.environ["POLARS_MAX_THREADS"] = "1"

Counts = tuple[int, int]
"""(number of rows, bytes of text)."""

# Each reader imports its packages itself: imports are part of the costs of a run.


def tokenlake(kind: str, path: str) -> Counts:
    """Read with Tokenlake: all checks, batches of text with positions."""
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.resolve import resolve_source
    from tokenlake.etl.sources.listing import list_inputs
    from tokenlake.etl.sources.records import read_range
    from tokenlake.etl.sources.splits import split_file

    # A dataset of one file, with default options.
    dataset = DatasetConfig(name="rows", data_files=path)
    source = resolve_source(PipelineConfig(datasets=(dataset,)), dataset)
    row_count = 0
    text_bytes = 0
    # Files are split into ranges of 128 MiB.
    for file in list_inputs(source, hashed=False):
        for part in split_file(file, 1 << 27):
            for batch in read_range(part, source):
                row_count += len(batch.text)
                text_bytes += bytes_of(batch.text)
    return row_count, text_bytes


def bytes_of(text: object) -> int:
    """Return the bytes of all strings of an array."""
    import pyarrow.compute as pc

    return pc.sum(pc.binary_length(text)).as_py() or 0  # None for an empty array


def polars(kind: str, path: str) -> Counts:
    """Read with Polars: `scan_*`, only the text column."""
    import polars as pl

    schema = {"text": pl.String}
    scans: dict[str, Callable[[], pl.LazyFrame]] = {
        "jsonl": lambda: pl.scan_ndjson(path, schema=schema),
        "parquet": lambda: pl.scan_parquet(path),
        "csv": lambda: pl.scan_csv(path, infer_schema=False),
    }
    # Count on the stream, so that the texts are not collected.
    column = pl.col("text")
    query = scans[kind]().select(rows=column.len(), size=column.str.len_bytes().sum())
    frame = query.collect(engine="streaming")
    return frame["rows"][0], frame["size"][0]


def duckdb(kind: str, path: str) -> Counts:
    """Read with DuckDB: `read_*` with an explicit schema."""
    import duckdb as package

    # The limits of objects and lines are raised above the longest texts.
    tables = {
        "jsonl": f"read_json('{path}', format='newline_delimited', columns={{text: 'VARCHAR'}}, "
        "maximum_object_size=268435456)",
        "parquet": f"read_parquet('{path}')",
        "csv": f"read_csv('{path}', all_varchar=true, header=true, max_line_size=67108864, parallel=false)",
    }
    # One thread, as in all readers.
    connection = package.connect(config={"threads": 1})
    query = f"select count(text), sum(strlen(text)) from {tables[kind]}"
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0], int(row[1])


def pyarrow(kind: str, path: str) -> Counts:
    """Read with pyarrow, as a stream of batches."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    schema = pa.schema([("text", pa.large_string())])
    # Blocks of 16 MiB hold the longest texts of the benchmark.
    if kind == "jsonl":
        batches = pj.open_json(
            path,
            read_options=pj.ReadOptions(use_threads=False, block_size=16 << 20),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    elif kind == "csv":
        batches = pc.open_csv(
            path,
            read_options=pc.ReadOptions(use_threads=False, block_size=16 << 20),
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=pc.ConvertOptions(
                include_columns=["text"], column_types=schema
            ),
        )
    else:
        batches = pq.ParquetFile(path).iter_batches(columns=["text"], use_threads=False)
    row_count = 0
    text_bytes = 0
    for batch in batches:
        row_count += batch.num_rows
        text_bytes += bytes_of(batch.column("text"))
    return row_count, text_bytes


READERS: Final[dict[str, Callable[[str, str], Counts]]] = {
    "tokenlake": tokenlake,
    "polars": polars,
    "duckdb": duckdb,
    "pyarrow": pyarrow,
}
"""Name -> function that reads a file: (format, path) -> counts."""


if __name__ == "__main__":
    reader, kind, path, counts_path = sys.argv[1:]
    rows, size = READERS[reader](kind, path)
    Path(counts_path).write_text(f"{rows} {size}")
