"""Files of token ids in the formats of trainers, written by hand from their
published layouts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Documents = Sequence[Sequence[int]]
"""Ids of each document."""


def megatron(
    folder: Path, documents: Documents, dtype: str = "uint16", sequences: int = 1
) -> Path:
    """Write ``ids.bin`` and ``ids.idx``; each document is cut into so many
    sequences.
    """
    codes = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}
    lengths: list[int] = []
    borders = [0]
    for document in documents:
        pieces = np.array_split(np.asarray(document), sequences)
        lengths += [len(piece) for piece in pieces]
        borders.append(len(lengths))
    ids = np.concatenate(
        [np.zeros(0, dtype), *(np.asarray(document, dtype) for document in documents)]
    )
    ids.tofile(folder / "ids.bin")
    offsets = np.concatenate([[0], np.cumsum(lengths)])[: len(lengths)] * ids.itemsize
    head = struct.pack(
        "<9sQBQQ", b"MMIDIDX\x00\x00", 1, codes[dtype], len(lengths), len(borders)
    )
    arrays = [
        np.asarray(lengths, "<i4"),
        np.asarray(offsets, "<i8"),
        np.asarray(borders, "<i8"),
    ]
    (folder / "ids.idx").write_bytes(
        head + b"".join(array.tobytes() for array in arrays)
    )
    return folder / "ids.bin"


def numpy_ids(folder: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """Write ``ids.bin``, one stream of ids; the documents end with EOS."""
    ids = np.concatenate(
        [np.zeros(0, dtype), *(np.asarray(document, dtype) for document in documents)]
    )
    ids.tofile(folder / "ids.bin")
    return folder / "ids.bin"


def headed(records: Sequence[bytes], config: bytes = b"") -> bytes:
    """Return records behind a head of their number and their places, as MDS and
    litdata have it.
    """
    begin = 4 + 4 * (len(records) + 1) + len(config)
    places = begin + np.concatenate(
        [[0], np.cumsum([len(record) for record in records])]
    )
    return (
        struct.pack("<I", len(records))
        + places.astype("<u4").tobytes()
        + config
        + b"".join(records)
    )


def mds(
    folder: Path,
    documents: Documents,
    encoding: str = "ndarray:int32",
    column: str = "tokens",
    other: bool = False,
) -> Path:
    """Write ``shard.00000.mds`` with a column of ids, and with another column of
    text before it.
    """
    records: list[bytes] = []
    for document in documents:
        values = [mds_value(document, encoding)]
        if other:
            values.insert(0, f"text of {len(document)} ids".encode())
        sizes = struct.pack(f"<{len(values)}I", *map(len, values))
        records.append(sizes + b"".join(values))
    names = ["a_text", column] if other else [column]
    config = {
        "column_encodings": ["str", encoding] if other else [encoding],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    path = folder / "shard.00000.mds"
    path.write_bytes(headed(records, json.dumps(config).encode()))
    return path


def mds_value(document: Sequence[int], encoding: str) -> bytes:
    """Return the bytes of a list of ids: ``bytes`` as int64, ``ndarray``, or
    ``ndarray:TYPE``.
    """
    if encoding == "bytes":
        return np.asarray(document, "<i8").tobytes()
    dtype = encoding.partition(":")[2]
    head = b""
    if not dtype:
        dtype = "uint32"
        head = bytes([32])
    code = 0 if len(document) < 256 else 1
    shape = np.asarray([len(document)], f"<u{1 << code}").tobytes()
    return (
        head + bytes([(1 << 2) | code]) + shape + np.asarray(document, dtype).tobytes()
    )


def litdata(
    folder: Path, documents: Documents, dtype: str = "uint16", stream: bool = True
) -> Path:
    """Write ``chunk-0-0.bin`` and ``index.json``; items are ids alone, or
    dictionaries with a mask of the loss.
    """
    codes = {"int32": 15, "int64": 17, "uint16": 20}
    records: list[bytes] = []
    for document in documents:
        ids = np.asarray(document, dtype).tobytes()
        mask = np.ones(len(document), np.uint8).tobytes()
        record = ids
        if not stream:
            record = struct.pack("<2I", len(ids), len(mask)) + ids + mask
        records.append(record)
    path = folder / "chunk-0-0.bin"
    path.write_bytes(headed(records))
    leaf = {"type": None, "context": None, "children_spec": []}
    spec: dict[str, Any] = leaf
    formats = [f"no_header_tensor:{codes[dtype]}"]
    if not stream:
        context = json.dumps(["input_ids", "loss_mask"])
        spec = {
            "type": "builtins.dict",
            "context": context,
            "children_spec": [leaf, leaf],
        }
        formats.append("no_header_tensor:11")
    chunk = {
        "filename": path.name,
        "chunk_bytes": path.stat().st_size,
        "chunk_size": len(documents),
        "dim": sum(map(len, documents)) if stream else None,
    }
    config = {
        "compression": None,
        "data_format": formats,
        "data_spec": json.dumps([1, spec]),
    }
    (folder / "index.json").write_text(
        json.dumps({"chunks": [chunk], "config": config})
    )
    return path


def array_record(folder: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """Write ``ids.array_record``, whose records are ids alone."""
    module = pytest.importorskip("array_record.python.array_record_module")
    path = folder / "ids.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for document in documents:
        writer.write(np.asarray(document, dtype).tobytes())
    writer.close()
    return path


def parquet(folder: Path, documents: Documents, **columns: Any) -> Path:
    """Write ``ids.parquet`` with a column ``input_ids``, and other columns."""
    path = folder / "ids.parquet"
    table = pa.table(
        {"input_ids": pa.array(documents, pa.list_(pa.int32())), **columns}
    )
    pq.write_table(table, path, row_group_size=20)
    return path


def jsonl(folder: Path, documents: Documents, **columns: Sequence[Any]) -> Path:
    """Write ``ids.jsonl`` with a field ``input_ids``, and other fields."""
    lines: list[str] = []
    for index, document in enumerate(documents):
        row = {
            "input_ids": list(document),
            **{name: values[index] for name, values in columns.items()},
        }
        lines.append(json.dumps(row) + "\n")
    path = folder / "ids.jsonl"
    path.write_text("".join(lines))
    return path


WRITERS: Mapping[str, Callable[[Path, Documents], Path]] = {
    "megatron": megatron,
    "numpy": numpy_ids,
    "mds": mds,
    "litdata": litdata,
    "array_record": array_record,
}
"""Format of trainers -> function that writes documents, and returns the file that is
read.
"""
