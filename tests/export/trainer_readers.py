"""Independent readers of the formats of trainers: the published layouts, with numpy and
the standard library alone.

Each returns the rows of one split as :class:`Row`, in order. Nothing of the library is
used, so that a wrong constant in it cannot hide.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.lazily import lazily

array_record: Any = lazily("array_record.python.array_record_module")


@dataclass
class Row:
    """A row as a format holds it.

    Attributes:
        ids: Ids of the row, with padding if the format keeps it.
        segments: Lengths of its segments; a document is one.
        columns: Other columns of the row.
    """

    ids: list[int]
    segments: list[int] = field(default_factory=list[int])
    columns: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


def read_megatron(folder: Path, split: str) -> list[Row]:
    """Megatron-Core, ``megatron/core/datasets/indexed_dataset.py``: a document is a
    row, its sequences are segments.
    """
    rows: list[Row] = []
    for index_path in sorted(folder.glob(f"{split}*.idx")):
        index = index_path.read_bytes()
        assert index[:9] == b"MMIDIDX\x00\x00"
        version, code, sequences, borders = struct.unpack_from("<QBQQ", index, 9)
        assert version == 1
        dtype = {4: np.int32, 8: np.uint16}[code]
        lengths = np.frombuffer(index, np.int32, sequences, 34)
        pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
        documents = np.frombuffer(index, np.int64, borders, 34 + 12 * sequences)
        assert len(index) == 34 + 12 * sequences + 8 * borders
        data = index_path.with_suffix(".bin").read_bytes()
        for first, end in itertools.pairwise(documents):
            row = Row([])
            for sequence in range(first, end):
                ids = np.frombuffer(data, dtype, lengths[sequence], pointers[sequence])
                row.ids += ids.tolist()
                row.segments.append(len(ids))
            rows.append(row)
        assert sum(lengths) * np.dtype(dtype).itemsize == len(data)
    return rows


def read_flat(folder: Path, split: str, suffix: str) -> list[Row]:
    """nanoGPT and OLMo-core: a memory map of one type; each pair of borders is a row
    of its own.
    """
    metadata = json.loads((folder / "metadata.json").read_bytes())
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{split}*{suffix}")):
        if path.name.endswith(f".label_mask{suffix}"):
            continue
        ids = np.memmap(path, metadata["dtype"], "r")
        assert metadata["files"][path.name] == len(ids)
        mask_path = path.with_name(path.name.removesuffix(suffix) + ".label_mask.npy")
        end = 0
        with gzip.open(
            path.with_name(path.name.replace(suffix, ".csv.gz")), "rt"
        ) as lines:
            for line in csv.reader(lines):
                start = int(line[0])
                assert start == end
                end = int(line[1])
                row = Row(ids[start:end].tolist(), [end - start])
                if mask_path.exists():
                    mask = np.memmap(mask_path, np.bool_, "r")
                    row.columns["loss_mask"] = mask[start:end].astype(int).tolist()
                rows.append(row)
        assert end == len(ids)
    return rows


def read_mds(folder: Path, split: str) -> list[Row]:
    """MosaicML Streaming, ``streaming/base/format/mds``."""
    rows: list[Row] = []
    index = json.loads((folder / split / "index.json").read_bytes())
    assert index["version"] == 2
    for shard in index["shards"]:
        data = (folder / split / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        [samples] = struct.unpack_from("<I", data)
        assert samples == shard["samples"]
        offsets = struct.unpack_from(f"<{samples + 1}I", data, 4)
        for begin, end in itertools.pairwise(offsets):
            rows.append(_mds_sample(shard, data[begin:end]))
    return rows


def _mds_sample(shard: dict[str, Any], sample: bytes) -> Row:
    sizes: list[int] = []
    for size in shard["column_sizes"]:
        if size is None:
            sizes.append(struct.unpack_from("<I", sample)[0])
            sample = sample[4:]
        else:
            sizes.append(size)
    columns: dict[str, list[int]] = {}
    names = zip(shard["column_names"], shard["column_encodings"], sizes, strict=True)
    for name, encoding, size in names:
        value = sample[:size]
        sample = sample[size:]
        dtype, _, shape = encoding.removeprefix("ndarray:").partition(":")
        if not shape:
            shape_bytes = 1 << value[0] % 4
            assert value[0] // 4 == 1
            length = int.from_bytes(value[1 : 1 + shape_bytes], "little")
            value = value[1 + shape_bytes :]
            assert len(value) == length * np.dtype(dtype).itemsize
        columns[name] = np.frombuffer(value, dtype).tolist()
    assert sample == b""
    return Row(columns.pop("tokens"), columns=columns)


def read_litdata(folder: Path, split: str) -> list[Row]:
    """litdata, ``litdata/streaming/item_loader.py``: items of TokensLoader, or
    dictionaries of PyTreeLoader.
    """
    types = {15: np.int32, 11: np.uint8}
    index = json.loads((folder / split / "index.json").read_bytes())
    config = index["config"]
    spec = json.loads(config["data_spec"])[1]
    rows: list[Row] = []
    for chunk in index["chunks"]:
        data = (folder / split / chunk["filename"]).read_bytes()
        assert len(data) == chunk["chunk_bytes"]
        [items] = struct.unpack_from("<I", data)
        assert items == chunk["chunk_size"]
        offsets = struct.unpack_from(f"<{items + 1}I", data, 4)
        dtypes = [
            types[int(name.removeprefix("no_header_tensor:"))]
            for name in config["data_format"]
        ]
        if config["item_loader"] == "TokensLoader":
            assert chunk["dim"] == (len(data) - offsets[0]) // 4
        for begin, end in itertools.pairwise(offsets):
            item = data[begin:end]
            if config["item_loader"] == "TokensLoader":
                rows.append(Row(np.frombuffer(item, dtypes[0]).tolist()))
                continue
            names = json.loads(spec["context"])
            sizes = struct.unpack_from(f"<{len(names)}I", item)
            item = item[4 * len(names) :]
            columns: dict[str, list[int]] = {}
            for name, size, dtype in zip(names, sizes, dtypes, strict=True):
                columns[name] = np.frombuffer(item[:size], dtype).tolist()
                item = item[size:]
            rows.append(Row(columns.pop("input_ids"), columns=columns))
    return rows


def read_array_record(folder: Path, split: str) -> list[Row]:
    """ArrayRecord, by its own reader: a record is a matrix of int32, whose lines
    ``metadata.json`` names.
    """
    metadata = json.loads((folder / "metadata.json").read_bytes())
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{split}*.array_record")):
        reader = array_record.ArrayRecordReader(str(path))
        records = reader.read_all()
        reader.close()
        assert len(records) == metadata["files"][path.name]
        for record in records:
            matrix = np.frombuffer(record, "<i4").reshape(len(metadata["columns"]), -1)
            columns = dict(zip(metadata["columns"], matrix.tolist(), strict=True))
            rows.append(Row(columns.pop("input_ids"), columns=columns))
    return rows


def read_numpy(folder: Path, split: str) -> list[Row]:
    return read_flat(folder, split, ".bin")


def read_npy(folder: Path, split: str) -> list[Row]:
    return read_flat(folder, split, ".npy")


READERS = {
    "megatron": read_megatron,
    "numpy": read_numpy,
    "npy": read_npy,
    "mds": read_mds,
    "litdata": read_litdata,
    "array_record": read_array_record,
}
