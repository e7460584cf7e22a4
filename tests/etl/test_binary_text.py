"""Text that Parquet holds as bytes, on every road to documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.etl.outputs_support import build_here, settings
from tokenlake.etl.sources import Rows
from tokenlake.etl.unit import with_text
from tokenlake.rowwise import ParquetShardedSource, TokenizedShardedSource

ROADS: dict[str, dict[str, Any]] = {
    "text": {},
    "renamed": {"format_fields": {"text": "words"}, "content_field": "words"},
    "prompt": {"prompt": {"template": "{text}"}},
    "chosen": {"where": "length(n::varchar) = 1"},
    "kept": {"additional_fields": ["text", "n"]},
}


def write(path: Path, texts: list[Any]) -> Path:
    table = pa.table(
        {"text": pa.array(texts, pa.binary()), "n": pa.array(range(len(texts)))}
    )
    pq.write_table(table, path, store_schema=False)
    return path


@pytest.mark.parametrize("road", ROADS)
def test_bytes_make_the_documents_that_text_makes(
    tmp_path: Path, tokenizer_dir: Path, road: str
):
    path = write(tmp_path / "a.parquet", [b"hello lake", "Zürich".encode()])
    pq.write_table(
        pa.table({"text": ["hello lake", "Zürich"], "n": [0, 1]}),
        tmp_path / "b.parquet",
    )
    as_bytes = build_here(settings(tmp_path / "1", tokenizer_dir, path, **ROADS[road]))
    as_text = build_here(
        settings(tmp_path / "2", tokenizer_dir, tmp_path / "b.parquet", **ROADS[road])
    )
    ids = [row["input_ids"] for row in as_text.rows()]
    assert [row["input_ids"] for row in as_bytes.rows()] == ids
    if road == "kept":
        assert [row["text"] for row in as_bytes.rows()] == [
            b"hello lake",
            "Zürich".encode(),
        ]


@pytest.mark.parametrize("road", ["text", "renamed", "prompt"])
def test_bytes_that_are_no_text_make_a_bad_record_of_their_row_alone(
    tmp_path: Path, tokenizer_dir: Path, road: str
):
    path = write(tmp_path / "a.parquet", [b"one", b"\xff\xfe", b"two", None])
    config = settings(tmp_path, tokenizer_dir, path, **ROADS[road])
    config["source"] = {"on_bad_record": "quarantine", "max_bad_fraction": 1.0}
    built = build_here(config)
    assert [row["position"] for row in built.rows()] == [0, 2]
    assert sum(built.manifest.account.quarantined.values()) == 2


def test_rows_of_files_are_tokenized_too(tmp_path: Path, tokenizer_dir: Path):
    path = write(tmp_path / "a.parquet", [b"hello lake", b"water"])
    ids = []
    texts = tmp_path / "b.parquet"
    pq.write_table(pa.table({"text": ["hello lake", "water"]}), texts)
    for file in (path, texts):
        tokens = TokenizedShardedSource(
            ParquetShardedSource([str(file)]), str(tokenizer_dir)
        )
        ids.append([list(row["input_ids"]) for row in tokens])
    assert ids[0] == ids[1]


TURNS = pa.list_(
    pa.struct([("role", pa.binary()), ("content", pa.binary()), ("weight", pa.int64())])
)
TURN = {"role": b"user", "content": "é".encode(), "weight": 1}


def test_nested_bytes_are_decoded_and_other_fields_stay():
    batch = pa.record_batch(
        {"turns": pa.array([[TURN], None], TURNS), "raw": [b"a", b"\xff"]}
    )
    for rows in (Rows(batch), Rows(objects=batch.to_pylist())):
        assert with_text(rows, ("turns",)).objects == [
            {"turns": [{"role": "user", "content": "é", "weight": 1}], "raw": b"a"},
            {"turns": None, "raw": b"\xff"},
        ]
        assert [row["raw"] for row in with_text(rows, None).objects] == ["a", b"\xff"]
