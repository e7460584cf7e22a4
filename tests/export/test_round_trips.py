"""Exports to every format of trainers, imported and compared: ids, borders, loss
masks.
"""

from __future__ import annotations

import shutil
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.tokenizers.tokenizer_samples import byte_level, save
from tokenlake.errors import TokenlakeError
from tokenlake.etl import build_dataset
from tokenlake.runtime.loader import open as open_dataset

FORMATS: Final = (
    "megatron",
    "numpy",
    "npy",
    "mds",
    "litdata",
    "array_record",
    "parquet",
    "arrow",
    "jsonl",
)
IDS_ALONE: Final = ("megatron", "numpy")
"""Formats that hold no loss mask."""
STREAMS: Final = ("numpy", "npy")
"""Formats of one stream of ids, in which rows have no borders of their own."""
WIDTH: Final = 64

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, and a store with documents, with and without a loss
    mask, and packed rows of them.
    """
    folder = tmp_path_factory.mktemp("lake")
    save(byte_level(), folder / "tokenizer")
    draws = np.random.default_rng(0)
    documents = [
        [*draws.integers(1, 1200, draws.integers(1, 60)).tolist(), 0] for _ in range(60)
    ]
    masks = [
        [index % 3 > 0 for index in range(len(document))] for document in documents
    ]
    pq.write_table(
        pa.table({"input_ids": documents}), folder / "plain.parquet", row_group_size=20
    )
    table = pa.table({"input_ids": documents, "loss_mask": masks})
    pq.write_table(table, folder / "masked.parquet", row_group_size=20)
    for name in ("plain", "masked"):
        imported(folder, folder / f"{name}.parquet", "parquet", name)
        config = {
            "name": f"{name}-packed",
            "datasets": [{"dataset": name}],
            "pack": {"enabled": True, "seq_length": WIDTH},
            "save": {"output_dir": str(folder / "store")},
        }
        build_dataset(config, workers=1)
    return folder


def imported(
    folder: Path, data: Path, format_name: str, name: str, packed: int | None = None
) -> Rows:
    """Import files into the store of a folder, and return the rows."""
    result = tl.import_tokens(
        data,
        tokenizer=folder / "tokenizer",
        format="numpy" if format_name == "npy" else format_name,  # type: ignore[arg-type]
        name=name,
        store=folder / "store",
        packed=packed,
        workers=1,
    )
    return rows_of(Path(result.path))


def rows_of(version: Path) -> Rows:
    """Return the ids, masks and pieces of all rows of a version, without their
    origin.
    """
    with open_dataset(version) as stored:
        rows = stored.read(0, len(stored)).to_pylist()
    columns = ("input_ids", "loss_mask", "segment_lengths")
    return [{name: row[name] for name in columns if name in row} for row in rows]


def exported(folder: Path, name: str, format_name: str, target: Path) -> Path:
    tl.export_version(folder / "store", target, format_name, name=name)
    return target


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", ["plain", "masked"])
def test_documents_come_back_as_they_were(
    lake: Path, tmp_path: Path, name: str, format_name: str
) -> None:
    if name == "masked" and format_name in IDS_ALONE:
        pytest.skip("the format holds no loss mask, and the export says so")
    target = exported(lake, name, format_name, tmp_path / "out")
    again = imported(
        lake, target, format_name, f"{name}-{format_name}".replace("_", "-")
    )
    assert again == rows_of(lake / "store" / name / "v1")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", ["plain-packed", "masked-packed"])
def test_packed_rows_come_back_as_they_were(
    lake: Path, tmp_path: Path, name: str, format_name: str
) -> None:
    """In a stream of ids a row has no border, so that its documents come back alone."""
    if name == "masked-packed" and format_name in IDS_ALONE:
        pytest.skip("the format holds no loss mask, and the export says so")
    rows = rows_of(lake / "store" / name / "v1")
    target = exported(lake, name, format_name, tmp_path / "out")
    new_name = f"{name}-{format_name}".replace("_", "-")
    if format_name not in STREAMS:
        assert imported(lake, target, format_name, new_name, WIDTH) == rows
        return
    again = imported(lake, target, format_name, new_name)
    pieces: list[list[int]] = []
    for row in rows:
        edges = np.cumsum([0, *row["segment_lengths"]]).tolist()
        pieces += [row["input_ids"][begin:end] for begin, end in pairwise(edges)]
    assert [row["input_ids"] for row in again] == pieces


@pytest.mark.parametrize("name", ["plain", "masked"])
def test_compressed_chunks_of_litdata_come_back(
    lake: Path, tmp_path: Path, name: str
) -> None:
    target = tmp_path / "out"
    tl.export_version(
        lake / "store", target, "litdata", "zstd", max_shard_size=2000, name=name
    )
    assert len(list(target.glob("train/chunk-0-*.zstd.bin"))) > 2
    plain = exported(lake, name, "litdata", tmp_path / "plain")
    sizes = [
        sum(path.stat().st_size for path in folder.rglob("*.bin"))
        for folder in (target, plain)
    ]
    assert sizes[0] < sizes[1]
    again = imported(lake, target, "litdata", f"{name}-zstd")
    assert again == rows_of(lake / "store" / name / "v1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"chunk_bytes": ', b'"chunk_bytes": 9', "its index states 9"),
        (b'"chunk_bytes": ', b'"chunk_bytes": 0.', "as an integer"),
        (b'"zstd"', b'"lz4"', "lz4"),
        (
            b'"compression": "zstd"',
            b'"compression": "zstd", "compression_level": "batch"',
            "units of a batch",
        ),
    ],
)
def test_a_wrong_index_of_compressed_chunks_is_an_error(
    lake: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    target = tmp_path / "out"
    tl.export_version(lake / "store", target, "litdata", "zstd", name="plain")
    # Chunks of other tools have no manifest of ours beside them.
    shutil.rmtree(target / "_tokenlake")
    index = target / "train" / "index.json"
    index.write_bytes(index.read_bytes().replace(old, new))
    with pytest.raises(TokenlakeError, match=message):
        imported(lake, target, "litdata", "wrong")


def test_a_damaged_compressed_chunk_is_an_error(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    tl.export_version(lake / "store", target, "litdata", "zstd", name="plain")
    [chunk] = target.glob("train/*.zstd.bin")
    content = chunk.read_bytes()
    for damaged in (content[: len(content) // 2], b"no zstd" + content):
        chunk.write_bytes(damaged)
        with pytest.raises(TokenlakeError, match=r"chunk-0-0\.zstd\.bin"):
            imported(lake, target, "litdata", "damaged")


PAIRS: Final = [pair for pair in product(FORMATS[:6], repeat=2) if pair[0] != pair[1]]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: name)
def test_a_format_becomes_another_by_two_exports(
    lake: Path, tmp_path: Path, first: str, second: str
) -> None:
    name = f"via-{first}".replace("_", "-")
    original = rows_of(lake / "store" / "plain" / "v1")
    target = exported(lake, "plain", first, tmp_path / "first")
    assert imported(lake, target, first, name) == original
    target = exported(lake, name, second, tmp_path / "second")
    assert (
        imported(lake, target, second, f"{name}-{second}".replace("_", "-")) == original
    )
