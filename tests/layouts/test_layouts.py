"""Layouts of other trainers: golden bytes, laws of reading and writing, and damaged
files.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts import (
    array_record,
    joined_rows,
    litdata,
    mds,
    megatron,
    numpy_flat,
    record_offsets,
)

LENGTHS = st.lists(st.integers(0, 700), min_size=1, max_size=12)


def offsets(lengths: list[int]) -> Any:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def megatron_index(
    lengths: list[int], sizes: list[int], dtype: str = "uint16"
) -> bytes:
    file = io.BytesIO()
    megatron.write_index(
        file, np.dtype(dtype), np.array(lengths, np.int32), np.array(sizes, np.int32)
    )
    return file.getvalue()


def borders_file(lengths: list[int]) -> bytes:
    file = io.BytesIO()
    writer = numpy_flat.BordersWriter(file)
    borders = offsets(lengths)
    writer.write(borders[:-1], borders[1:])
    writer.close()
    return file.getvalue()


def mds_shard(lengths: list[int]) -> bytes:
    columns = mds.MdsColumns.of([mds.MdsColumn("tokens", "int32")])
    samples = columns.encode(
        {"tokens": np.arange(sum(lengths), dtype="<i4")}, offsets(lengths)
    )
    head = mds.shard_head(columns.config(None), joined_rows.record_sizes(samples))
    return head + bytes(joined_rows.record_bytes(samples))


def litdata_chunk(lengths: list[int]) -> bytes:
    items = litdata.Items({"input_ids": "int32"}, is_stream=True)
    records = items.encode(
        {"input_ids": np.arange(sum(lengths), dtype="<i4")}, offsets(lengths)
    )
    return litdata.chunk_head(joined_rows.record_sizes(records)) + bytes(
        joined_rows.record_bytes(records)
    )


def test_golden_bytes_of_megatron():
    assert megatron_index([3, 1, 2], [1, 2]).hex(" ", 1) == " ".join(
        (
            "4d 4d 49 44 49 44 58 00 00",  # magic
            "01 00 00 00 00 00 00 00 08",  # version, and uint16
            "03 00 00 00 00 00 00 00",  # sequences
            "03 00 00 00 00 00 00 00",  # document borders
            "03 00 00 00 01 00 00 00 02 00 00 00",  # lengths
            # Offsets.
            "00 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00",
            # Borders.
            "00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00",
        )
    )


def test_golden_bytes_of_mds():
    columns = mds.MdsColumns.of([mds.MdsColumn("tokens", "int32")])
    samples = columns.encode({"tokens": np.array([7, 8], "<i4")}, offsets([2]))
    assert (
        bytes(joined_rows.record_bytes(samples)).hex(" ", 1)
        == "0a 00 00 00 04 02 07 00 00 00 08 00 00 00"
    )
    config = columns.config(1 << 26)
    assert json.dumps(config, sort_keys=True) == (
        '{"column_encodings": ["ndarray:int32"], "column_names": ["tokens"], "column_sizes": [null], '
        '"compression": null, "format": "mds", "hashes": [], "size_limit": 67108864, "version": 2}'
    )
    head = mds.shard_head(config, np.array([14]))
    assert (
        head[:4].hex() == "01000000"
        and head[12:] == json.dumps(config, sort_keys=True).encode()
    )
    assert np.frombuffer(head, "<u4", 2, 4).tolist() == [len(head), len(head) + 14]


def test_golden_bytes_of_litdata():
    assert (
        litdata_chunk([2, 1]).hex(" ", 4)
        == "02000000 10000000 18000000 1c000000 00000000 01000000 02000000"
    )
    items = litdata.Items({"input_ids": "int32", "loss_mask": "uint8"}, is_stream=False)
    index = json.loads(
        items.index_bytes([litdata.Chunk("chunk-0-0.bin", 99, 2, None)], None)
    )
    assert index["chunks"] == [
        {"filename": "chunk-0-0.bin", "chunk_bytes": 99, "chunk_size": 2, "dim": None}
    ]
    assert index["config"]["data_format"] == [
        "no_header_tensor:15",
        "no_header_tensor:11",
    ]
    leaf = '{"type": null, "context": null, "children_spec": []}'
    assert index["config"]["data_spec"] == (
        '[1, {"type": "builtins.dict", "context": "[\\"input_ids\\", \\"loss_mask\\"]", "children_spec": '
        f"[{leaf}, {leaf}]}}]"
    )


def test_golden_borders():
    assert gzip.decompress(borders_file([3, 2])) == b"0,3\n3,5\n"


@given(LENGTHS, st.integers(1, 4), st.sampled_from(["uint16", "int32"]))
def test_an_index_of_megatron_reads_back(lengths: list[int], size: int, dtype: str):
    sizes = [min(size, len(lengths) - first) for first in range(0, len(lengths), size)]
    index = megatron.read_index(megatron_index(lengths, sizes, dtype), "x.idx")
    assert index.sequence_lengths.tolist() == lengths
    assert index.document_borders.tolist() == offsets(sizes).tolist()
    assert (index.dtype.name, index.data_bytes) == (
        dtype,
        sum(lengths) * np.dtype(dtype).itemsize,
    )


def test_a_large_index_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch):
    lengths = list(range(50))
    whole = megatron_index(lengths, [2] * 25)
    monkeypatch.setattr(megatron, "_PIECE", 7)
    assert megatron_index(lengths, [2] * 25) == whole


@given(LENGTHS)
def test_borders_read_back(lengths: list[int]):
    borders = offsets(lengths)
    read = numpy_flat.read_borders(borders_file(lengths), "x.csv.gz")
    assert read.tolist() == np.column_stack([borders[:-1], borders[1:]]).tolist()


def test_further_fields_of_borders_are_ignored():
    lines = gzip.compress(b"0,3,id-1,src\n3,5,id-2,src\n")
    assert numpy_flat.read_borders(lines, "x.csv.gz").tolist() == [[0, 3], [3, 5]]
    assert numpy_flat.read_borders(gzip.compress(b""), "x.csv.gz").tolist() == []


@given(LENGTHS, st.sampled_from([0, 66_000]))
def test_samples_of_mds_read_back(lengths: list[int], longest: int):
    lengths = [*lengths, longest]
    columns = mds.MdsColumns.of(
        [mds.MdsColumn("tokens", "int32"), mds.MdsColumn("loss_mask", "uint8")]
    )
    row_offsets = offsets(lengths)
    ids = np.arange(sum(lengths), dtype="<i4")
    samples = columns.encode(
        {"tokens": ids, "loss_mask": (ids % 2).astype("u1")}, row_offsets
    )
    records: list[Any] = samples.to_pylist()
    for row, sample in enumerate(records):
        mask_bytes, id_bytes = np.frombuffer(sample, "<u4", 2).tolist()
        assert len(sample) == 8 + mask_bytes + id_bytes
        expected = ids[row_offsets[row] : row_offsets[row + 1]]
        assert (
            mds.array_of("ndarray:uint8", sample[8 : 8 + mask_bytes]).tolist()
            == (expected % 2).tolist()
        )
        assert (
            mds.array_of("ndarray:int32", sample[8 + mask_bytes :]).tolist()
            == expected.tolist()
        )


@given(LENGTHS)
def test_shards_and_chunks_say_where_their_rows_are(lengths: list[int]):
    for data in (mds_shard(lengths), litdata_chunk(lengths)):
        places = record_offsets.read_offsets(data, "x")
        assert len(places) == len(lengths) + 1 and places[-1] == len(data)


def test_indexes_read_back():
    items = litdata.Items({"input_ids": "int32", "loss_mask": "uint8"}, is_stream=False)
    chunks = [litdata.Chunk("chunk-0-0.bin", 99, 2, None)]
    index = litdata.LitdataIndex.of(items.index_bytes(chunks, 1 << 20), "index.json")
    assert index == litdata.LitdataIndex(tuple(chunks), items, None)
    config = mds.MdsColumns.of([mds.MdsColumn("tokens", "int32", 64)]).config(None)
    [shard] = mds.read_index(
        mds.index_bytes(config, [("shard.00000.mds", 7, 3)]), "index.json"
    )
    assert (shard["column_sizes"], shard["samples"], shard["raw_data"]["bytes"]) == (
        [256],
        3,
        7,
    )


def test_metadata_reads_back():
    flat = numpy_flat.FlatMetadata(
        dtype="uint16",
        vocab_size=9,
        bos_id=None,
        eos_id=0,
        pad_id=0,
        files={"train.npy": 4},
    )
    assert numpy_flat.FlatMetadata.of(flat.to_bytes(), "metadata.json") == flat
    records = array_record.RecordMetadata(
        columns=("input_ids",),
        dtype="int32",
        vocab_size=9,
        bos_id=None,
        eos_id=0,
        pad_id=0,
        files={},
    )
    assert (
        array_record.RecordMetadata.of(records.to_bytes(), "metadata.json") == records
    )


INDEX = megatron_index([3, 1, 2], [1, 2])
DAMAGED: dict[str, tuple[Callable[[bytes, str], object], bytes, str]] = {
    "header of Megatron, cut": (megatron.read_index, INDEX[:20], "it has 20 bytes"),
    "magic": (megatron.read_index, b"x" + INDEX[1:], "it begins with"),
    "version": (
        megatron.read_index,
        INDEX[:9] + b"\x02" + INDEX[10:],
        "version 2, expected 1",
    ),
    "type": (megatron.read_index, INDEX[:17] + b"\x09" + INDEX[18:], "type code 9"),
    "index, cut": (megatron.read_index, INDEX[:-1], "it has 93 bytes, expected 94"),
    "negative length": (
        megatron.read_index,
        INDEX[:37] + b"\xff" + INDEX[38:],
        "sequence 0 has a negative length",
    ),
    "lengths": (
        megatron.read_index,
        INDEX[:34] + b"\x04" + INDEX[35:],
        "sequence 1 does not begin where",
    ),
    "documents": (
        megatron.read_index,
        INDEX[:-8] + b"\x02" + INDEX[-7:],
        "do not rise from 0 to 3",
    ),
    "no gzip": (numpy_flat.read_borders, b"0,3\n", "expected gzip"),
    "no numbers": (
        numpy_flat.read_borders,
        gzip.compress(b"a,b\n"),
        "expected gzip of lines start,end",
    ),
    "descending": (
        numpy_flat.read_borders,
        gzip.compress(b"0,3\n2,1\n"),
        r"x:2: borders \[2, 1\] do not ascend",
    ),
    "no metadata": (numpy_flat.FlatMetadata.of, b"{}", "expected the fields dtype"),
    "dtype": (
        numpy_flat.FlatMetadata.of,
        b'{"dtype":"int8","vocab_size":1,"bos_id":0,"eos_id":0,"pad_id":0,"files":{}}',
        "dtype is 'int8'",
    ),
    "no record metadata": (
        array_record.RecordMetadata.of,
        b"[]",
        "expected the fields columns",
    ),
    "MDS, cut": (
        record_offsets.read_offsets,
        mds_shard([3, 4])[:-1],
        "do not end at its size",
    ),
    "no MDS": (record_offsets.read_offsets, b"", "do not end at its size"),
    "MDS index": (
        mds.read_index,
        b'{"shards": [{"version": 1, "format": "mds"}]}',
        "of version 1",
    ),
    "litdata, cut": (
        record_offsets.read_offsets,
        litdata_chunk([3, 4])[:-1],
        "do not end at its size",
    ),
    "litdata index": (
        litdata.LitdataIndex.of,
        b'{"chunks": []}',
        "expected an index of litdata",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused_with_their_place(damage: str):
    read, data, message = DAMAGED[damage]
    with pytest.raises(DamagedFileError, match=message) as error:
        read(data, "x")
    assert error.value.details["path"] == "x" and str(error.value).startswith("x:")
