"""Reading one text column, all of it: python -m benchmarks.systems.readers READER
FORMAT PATH.

Prints rows and bytes of text, which must agree. One thread each, and each peer by the
cheapest way that was found; none of them checks anything that Tokenlake's reader does
not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Polars starts its threads at its first use, ours included.
os.environ["POLARS_MAX_THREADS"] = "1"

Counts = tuple[int, int]


def tokenlake(kind: str, path: str) -> Counts:
    """All checks, batches of text with positions."""
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.resolve import resolve_source
    from tokenlake.etl.sources.listing import list_inputs
    from tokenlake.etl.sources.records import read_range
    from tokenlake.etl.sources.splits import split_file

    dataset = DatasetConfig(name="rows", data_files=path)
    source = resolve_source(PipelineConfig(datasets=(dataset,)), dataset)
    rows = size = 0
    for file in list_inputs(source, hashed=False):
        for part in split_file(file, 1 << 27):
            for batch in read_range(part, source):
                rows += len(batch.text)
                size += sum_of_lengths(batch.text)
    return rows, size


def sum_of_lengths(text: object) -> int:
    """Bytes of a string array."""
    import pyarrow.compute as pc

    return pc.sum(pc.binary_length(text)).as_py() or 0


def polars(kind: str, path: str) -> Counts:
    """`scan_*`, the text column alone."""
    import polars as pl

    schema = {"text": pl.String}
    scans: dict[str, Callable[[], pl.LazyFrame]] = {
        "jsonl": lambda: pl.scan_ndjson(path, schema=schema),
        "parquet": lambda: pl.scan_parquet(path),
        "csv": lambda: pl.scan_csv(path, infer_schema=False),
    }
    column = pl.col("text")
    frame = (
        scans[kind]()
        .select(rows=column.len(), size=column.str.len_bytes().sum())
        .collect(engine="streaming")
    )
    return frame["rows"][0], frame["size"][0]


def duckdb(kind: str, path: str) -> Counts:
    """`read_*` with an explicit schema."""
    import duckdb as engine

    tables = {
        "jsonl": f"read_json('{path}', format='newline_delimited', columns={{text: 'VARCHAR'}}, "
        "maximum_object_size=268435456)",
        "parquet": f"read_parquet('{path}')",
        "csv": f"read_csv('{path}', all_varchar=true, header=true, max_line_size=67108864, parallel=false)",
    }
    connection = engine.connect(config={"threads": 1})
    row = connection.execute(
        f"select count(text), sum(strlen(text)) from {tables[kind]}"
    ).fetchone()
    assert row is not None
    return row[0], int(row[1])


def pyarrow(kind: str, path: str) -> Counts:
    """Arrow's own readers, streaming where they can."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    schema = pa.schema([("text", pa.large_string())])
    if kind == "jsonl":
        parse = pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        )
        read = pj.ReadOptions(use_threads=False, block_size=16 << 20)
        batches = pj.open_json(path, read_options=read, parse_options=parse)
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
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += sum_of_lengths(batch.column("text"))
    return rows, size


READERS: Final[dict[str, Callable[[str, str], Counts]]] = {
    "tokenlake": tokenlake,
    "polars": polars,
    "duckdb": duckdb,
    "pyarrow": pyarrow,
}


if __name__ == "__main__":
    reader, kind, path, answer = sys.argv[1:]
    found = READERS[reader](kind, path)
    Path(answer).write_text(f"{found[0]} {found[1]}")
