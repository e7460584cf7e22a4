"""The contract of an input format: every record once, in order, at one position,
however the file is divided.

Each entry of :data:`tokenlake.config.formats.FORMATS` runs it, plain and compressed as
a whole where it may be. A new format needs a way to write a table here, and nothing
else.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contracts.formats import formats
from tokenlake import load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, DamagedFileError
from tokenlake.etl.sources import (
    InputFile,
    RowBatch,
    list_inputs,
    read_range,
    read_rows,
    split_file,
)

RECORDS = 300
TEXTS = [f"record {number} " + "é x" * (number % 17) for number in range(RECORDS)]
UNIT_SIZES = (64, 700, 5_000, 1 << 30)

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def bytes_of(format_name: str, texts: list[str]) -> bytes:
    """Return a file of a format with a record for each text."""
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
    sink = io.BytesIO()
    if format_name == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    if format_name == "json":
        return json.dumps(table.to_pylist()).encode()
    if format_name == "text":
        return "".join(f"{text}\n" for text in texts).encode()
    if format_name in {"csv", "tsv"}:
        lines = io.StringIO()
        writer = csv.writer(
            lines, delimiter="\t" if format_name == "tsv" else ",", lineterminator="\n"
        )
        writer.writerow(table.column_names)
        writer.writerows(zip(range(len(texts)), texts, strict=True))
        return lines.getvalue().encode()
    if format_name == "parquet":
        pq.write_table(table, sink, row_group_size=7)
        return sink.getvalue()
    assert format_name == "arrow", f"write {format_name} here"
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def source_of(path: Path, **options: Any) -> Any:
    """Return the source of a configuration that reads one file."""
    dataset = {
        "name": "web",
        "data_files": str(path),
        "text_mode": "lines",
        "tokenizer": "gpt2",
        **options,
    }
    config = {
        "name": "web",
        "datasets": [dataset],
        "source": {"on_bad_record": "fail"},
        "save": {"output_dir": str(path.parent)},
    }
    [source] = resolve(load_config(config)).sources
    return source


def file_of(source: Any) -> InputFile:
    [file] = list_inputs(source)
    return file


def texts_of(batches: list[Any]) -> list[str]:
    return [text for batch in batches for text in batch.text.to_pylist()]


def positions_of(batches: list[Any]) -> list[int]:
    return [position for batch in batches for position in batch.positions.tolist()]


Case = tuple[str, str]
"""A format, and the suffix of the compression of the whole file."""

CASES: list[Case] = [
    (name, suffix)
    for name, facts in formats().items()
    for suffix in (COMPRESS if facts.textual else [""])
]


@pytest.fixture(params=CASES, ids="".join)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def path(case: Case, tmp_path: Path) -> Path:
    """A file with one record for each of :data:`TEXTS`."""
    name, suffix = case
    file = tmp_path / f"records{formats()[name].extensions[0]}{suffix}"
    file.write_bytes(COMPRESS[suffix](bytes_of(name, TEXTS)))
    return file


def read_in_units(source: Any, unit_size: int) -> list[Any]:
    """Return the batches of texts of a file that is divided into units of a size."""
    return [
        batch
        for part in split_file(file_of(source), unit_size)
        for batch in read_range(part, source)
    ]


def test_every_division_gives_the_same_records_at_the_same_positions(
    path: Path,
) -> None:
    source = source_of(path)
    whole = read_in_units(source, 1 << 30)
    assert texts_of(whole) == TEXTS
    positions = positions_of(whole)
    assert positions == sorted(set(positions))
    for unit_size in UNIT_SIZES:
        divided = read_in_units(source, unit_size)
        assert texts_of(divided) == TEXTS
        assert positions_of(divided) == positions


def test_the_bytes_read_of_all_units_are_those_of_the_file(path: Path) -> None:
    source = source_of(path)
    file = file_of(source)
    for unit_size in UNIT_SIZES:
        parts = split_file(file, unit_size)
        batches = [batch for part in parts for batch in read_range(part, source)]
        assert sum(batch.bytes_read for batch in batches) == sum(
            part.weight for part in parts
        )
        assert sum(batch.rows_read for batch in batches) == RECORDS


def test_whole_rows_are_those_of_the_texts(path: Path) -> None:
    source = source_of(path)
    parts = split_file(file_of(source), 700)
    rows: list[RowBatch] = [
        batch for part in parts for batch in read_rows(part, source)
    ]
    values = [row for batch in rows for row in batch.objects or batch.rows.to_pylist()]
    assert [row["text"] for row in values] == TEXTS
    assert positions_of(rows) == positions_of(read_in_units(source, 1 << 30))


def test_small_blocks_change_nothing(path: Path) -> None:
    source = source_of(path)
    whole = read_in_units(source, 1 << 30)
    parts = split_file(file_of(source), 5_000)
    blocks = [
        batch for part in parts for batch in read_range(part, source, block_bytes=100)
    ]
    assert texts_of(blocks) == TEXTS
    assert positions_of(blocks) == positions_of(whole)


def test_a_file_that_was_cut_loses_nothing_in_silence(path: Path) -> None:
    """A cut is an error, or one bad record at the end of what is left; text may end
    anywhere.
    """
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    source = source_of(path)
    is_compressed = path.suffix in COMPRESS
    try:
        texts = texts_of(read_in_units(source, 1 << 30))
    except (DamagedFileError, BadRecordError) as error:
        assert path.name in str(error)
        return
    assert not is_compressed
    assert path.suffix in {".txt", ".csv", ".tsv"}, (
        "only a format without an end can be cut unseen"
    )
    assert texts[:-1] == TEXTS[: len(texts) - 1]
    assert TEXTS[len(texts) - 1].startswith(texts[-1])


def test_an_empty_table_has_no_records(case: Case, tmp_path: Path) -> None:
    name, suffix = case
    path = tmp_path / f"records{formats()[name].extensions[0]}{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes_of(name, [])))
    assert texts_of(read_in_units(source_of(path), 700)) == []
