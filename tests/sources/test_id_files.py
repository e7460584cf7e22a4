"""Files of ids with an index or a head: their variants, and what is refused in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests import token_files
from tests.contracts.test_token_sources import ids_of, read_in_units, source_of
from tokenlake.errors import (
    ConfigError,
    DamagedFileError,
    SourceNotFoundError,
    UnsuitableFileError,
)

DOCUMENTS = [[5, 6, 0], [], [7], list(range(1, 400))]
FULL = [document for document in DOCUMENTS if document]


def read(path: Path, format_name: str, unit_size: int = 1 << 30) -> list[list[int]]:
    return ids_of(read_in_units(source_of(path, format_name), unit_size))


# Megatron


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_a_document_has_the_ids_of_all_its_sequences(
    tmp_path: Path, dtype: str, sequences: int
) -> None:
    documents = [[token % 200 for token in document] for document in DOCUMENTS]
    path = token_files.megatron(tmp_path, documents, dtype, sequences)
    for unit_size in (1, 50, 1 << 30):
        assert read(path, "megatron", unit_size) == documents


def change(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


# Places in an index of 4 sequences and 5 borders: a head of 34 bytes, lengths, places,
# borders.
LENGTHS = 34
PLACES = LENGTHS + 4 * 4
BORDERS = PLACES + 8 * 4


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"X", "expected b'MMIDIDX"),
        (9, struct.pack("<Q", 2), "version 2"),
        (17, bytes([6]), "float64"),
        (17, bytes([99]), "code 99"),
        (18, struct.pack("<Q", 3), "sequences"),
        (LENGTHS, struct.pack("<i", 4), "sequence 0 does not end"),
        (LENGTHS + 12, struct.pack("<i", 5), "ends at"),
        (PLACES + 16, struct.pack("<q", 2), "does not end where"),
        (BORDERS, struct.pack("<q", 1), "borders"),
        (BORDERS + 8, struct.pack("<q", 9), "borders of documents"),
        (BORDERS + 32, struct.pack("<q", 3), "borders"),
    ],
)
def test_a_wrong_index_is_refused(
    tmp_path: Path, offset: int, data: bytes, message: str
) -> None:
    path = token_files.megatron(tmp_path, DOCUMENTS)
    change(path.with_suffix(".idx"), offset, data)
    with pytest.raises((DamagedFileError, UnsuitableFileError), match=message):
        read(path, "megatron")


def test_ids_without_their_index_are_refused(tmp_path: Path) -> None:
    path = token_files.megatron(tmp_path, DOCUMENTS)
    path.with_suffix(".idx").unlink()
    with pytest.raises(SourceNotFoundError, match=r"its index 'ids\.idx'"):
        read(path, "megatron")


# MDS


@pytest.mark.parametrize(
    "encoding", ["bytes", "ndarray", "ndarray:uint16", "ndarray:int64"]
)
def test_every_encoding_of_ids_is_read(tmp_path: Path, encoding: str) -> None:
    path = token_files.mds(tmp_path, FULL, encoding, other=True)
    source = source_of(path, "mds")
    wide = _with_dtype(source, "int64")
    assert ids_of(read_in_units(wide, 50)) == FULL


def _with_dtype(source: Any, dtype: str) -> Any:
    return replace(source, tokens=replace(source.tokens, dtype=dtype))


def test_a_shard_may_be_compressed_as_a_whole(tmp_path: Path) -> None:
    path = token_files.mds(tmp_path, FULL)
    compressed = tmp_path / "shard.00000.mds.zstd"
    compressed.write_bytes(pa.Codec("zstd").compress(path.read_bytes(), asbytes=True))
    assert read(compressed, "mds", 50) == FULL
    other = tmp_path / "shard.00001.mds.gz"
    other.write_bytes(b"")
    with pytest.raises(ConfigError, match="compressed as a whole"):
        read(other, "mds")


def test_a_column_of_matrices_or_fractions_holds_no_ids(tmp_path: Path) -> None:
    path = token_files.mds(tmp_path, FULL, "ndarray:float32")
    with pytest.raises(UnsuitableFileError, match="arrays of float32"):
        read(path, "mds")
    path = token_files.mds(tmp_path, [[5]], "ndarray:int32")
    # The byte of one dimension, whose size is a byte: 4 is 1 << 2.
    shape = path.read_bytes().index(bytes([4, 1]) + np.asarray([5], "<i4").tobytes())
    change(path, shape, bytes([8]))
    with pytest.raises((UnsuitableFileError, DamagedFileError)):
        read(path, "mds")


@pytest.mark.parametrize("format_name", ["mds", "litdata"])
@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, struct.pack("<I", 9999)),
        (4, struct.pack("<I", 1)),
        (8, struct.pack("<I", 1 << 30)),
    ],
    ids=["number", "first place", "second place"],
)
def test_a_wrong_head_is_refused(
    tmp_path: Path, format_name: str, offset: int, data: bytes
) -> None:
    writers: dict[str, Callable[..., Path]] = {
        "mds": token_files.mds,
        "litdata": token_files.litdata,
    }
    path = writers[format_name](tmp_path, FULL)
    change(path, offset, data)
    with pytest.raises(DamagedFileError, match=path.name):
        read(path, format_name)


def test_the_size_of_a_value_must_fill_its_sample(tmp_path: Path) -> None:
    path = token_files.mds(tmp_path, FULL)
    begin = struct.unpack_from("<I", path.read_bytes(), 4)[0]
    change(path, begin, struct.pack("<I", 3))
    with pytest.raises(DamagedFileError, match="values of record 0"):
        read(path, "mds")


# litdata


@pytest.mark.parametrize("stream", [True, False])
def test_items_are_ids_or_dictionaries(tmp_path: Path, stream: bool) -> None:
    path = token_files.litdata(tmp_path, DOCUMENTS, "int32", stream)
    for unit_size in (1, 50, 1 << 30):
        assert read(path, "litdata", unit_size) == DOCUMENTS


def test_a_chunk_must_be_that_of_its_index(tmp_path: Path) -> None:
    path = token_files.litdata(tmp_path, DOCUMENTS)
    index = tmp_path / "index.json"
    content = json.loads(index.read_text())
    for entry, message in (
        ({"chunk_size": 3}, "states 3"),
        ({"filename": "other.bin"}, "does not name it"),
    ):
        changed = {**content, "chunks": [{**content["chunks"][0], **entry}]}
        index.write_text(json.dumps(changed))
        with pytest.raises(DamagedFileError, match=message):
            read(path, "litdata")
    config = {**content["config"], "compression": "zstd"}
    index.write_text(json.dumps({**content, "config": config}))
    with pytest.raises(DamagedFileError, match="cannot be decompressed"):
        read(path, "litdata")
    config = {**content["config"], "compression": "lz4"}
    index.write_text(json.dumps({**content, "config": config}))
    with pytest.raises(UnsuitableFileError, match=r"compressed \(lz4\)"):
        read(path, "litdata")
    index.write_text("{}")
    with pytest.raises(DamagedFileError, match="index of litdata"):
        read(path, "litdata")


# ArrayRecord


def test_a_record_that_is_a_file_of_numpy_is_refused(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    path = tmp_path / "ids.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    writer.write(b"\x93NUMPY\x01\x00")
    writer.close()
    with pytest.raises(UnsuitableFileError, match="record 0 is a file of NumPy"):
        read(path, "array_record")
