"""Files of ids that the trainers' own libraries wrote. Each test needs its library,
and is left out without it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.tokenizers.tokenizer_samples import byte_level, save
from tokenlake.runtime.loader import open as open_dataset

DOCUMENTS = [[*range(1 + number, 1 + number + number % 23), 0] for number in range(60)]


@pytest.fixture
def imports(tmp_path: Path) -> Any:
    """A function that imports a folder, and returns the ids of all documents."""
    tokenizer = save(byte_level(), tmp_path / "tokenizer")

    def run(data: Path, format_name: str, **options: Any) -> list[Any]:
        options = {
            "tokenizer": tokenizer,
            "store": tmp_path / "store",
            "workers": 1,
            **options,
        }
        result = tl.import_tokens(data, format=format_name, name="ids", **options)  # type: ignore[arg-type]
        with open_dataset(result.path) as rows:
            return rows.read(0, len(rows)).column("input_ids").to_pylist()

    return run


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [("bytes", "int64"), ("ndarray", "uint16"), ("ndarray:int32", "int32")],
)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_shards_of_mosaicml_streaming(
    tmp_path: Path, imports: Any, encoding: str, dtype: str, compression: str | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        streaming = pytest.importorskip("streaming")
        out = str(tmp_path / "mds")
        with streaming.MDSWriter(
            out=out,
            columns={"tokens": encoding, "name": "str"},
            size_limit=2000,
            compression=compression,
        ) as writer:
            for number, document in enumerate(DOCUMENTS):
                ids: Any = np.asarray(document, dtype)
                if encoding == "bytes":
                    ids = ids.tobytes()
                writer.write({"tokens": ids, "name": str(number)})
    options = {"dtype": "int64"} if encoding == "bytes" else {}
    assert imports(tmp_path / "mds", "mds", **options) == DOCUMENTS


@pytest.mark.parametrize(
    "kind", ["stream", "dictionary of tensors", "dictionary of arrays"]
)
def test_chunks_of_litdata(tmp_path: Path, imports: Any, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer_module = pytest.importorskip("litdata.streaming.writer")
        torch = pytest.importorskip("torch")
        loaders = pytest.importorskip("litdata.streaming.item_loader")
        loader = None
        if kind == "stream":
            loader = loaders.TokensLoader()
        writer = writer_module.BinaryWriter(
            str(tmp_path / "lit"), chunk_bytes=2000, item_loader=loader
        )
        for number, document in enumerate(DOCUMENTS):
            ids: Any = np.asarray(document, np.int32)
            if "array" not in kind:
                ids = torch.as_tensor(ids)
            item = ids if kind == "stream" else {"input_ids": ids}
            writer[number] = item
        writer.done()
        writer.merge()
    assert imports(tmp_path / "lit", "litdata") == DOCUMENTS


def test_records_of_array_record(tmp_path: Path, imports: Any) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    (tmp_path / "data").mkdir()
    writer = module.ArrayRecordWriter(
        str(tmp_path / "data" / "train.array_record"), "group_size:7"
    )
    for document in DOCUMENTS:
        writer.write(np.asarray(document, "<i4").tobytes())
    writer.close()
    assert imports(tmp_path / "data", "array_record") == DOCUMENTS


def test_folders_of_datasets(tmp_path: Path, imports: Any) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {
        "input_ids": DOCUMENTS,
        "attention_mask": [[1] * len(document) for document in DOCUMENTS],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(
        str(tmp_path / "data"), num_shards=3
    )
    assert imports(tmp_path / "data", "datasets") == DOCUMENTS
