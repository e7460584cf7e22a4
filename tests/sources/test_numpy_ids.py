"""One stream of ids in a file: its header, its documents, and damage."""

from __future__ import annotations

import gzip
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.test_token_sources import (
    ids_of,
    positions_of,
    read_in_units,
    source_of,
)
from tokenlake.errors import DamagedFileError, UnsuitableFileError
from tokenlake.etl.sources import list_inputs, read_rows, split_file

EOS = 0


def read(path: Path, unit_size: int = 1 << 30, **tokens: Any) -> list[list[int]]:
    """Return the documents of a file."""
    return ids_of(read_in_units(with_tokens(path, **tokens), unit_size))


def with_tokens(path: Path, **tokens: Any) -> Any:
    source = source_of(path, "numpy")
    return replace(source, tokens=replace(source.tokens, **tokens))


def split_at_eos(ids: list[int]) -> list[list[int]]:
    documents: list[list[int]] = []
    document: list[int] = []
    for token in ids:
        document.append(token)
        if token == EOS:
            documents.append(document)
            document = []
    if document:
        documents.append(document)
    return documents


@given(
    ids=st.lists(st.integers(0, 3), max_size=60),
    unit_size=st.integers(1, 50),
    block=st.integers(1, 40),
)
def test_documents_end_behind_each_eos_in_units_and_blocks_of_any_size(
    ids: list[int], unit_size: int, block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.bin"
        np.asarray(ids, "<u2").tofile(path)
        batches = read_in_units(with_tokens(path), unit_size, block_bytes=block)
        assert ids_of(batches) == split_at_eos(ids)
        starts = np.cumsum([0, *map(len, split_at_eos(ids))])[:-1]
        assert positions_of(batches) == starts.tolist()
        by_length = read_in_units(
            with_tokens(path, length=7), unit_size, block_bytes=block
        )
        assert ids_of(by_length) == [
            ids[begin : begin + 7] for begin in range(0, len(ids), 7)
        ]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_a_header_of_numpy_states_the_type(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "ids.npy", np.array([5, 6, 0, 7], dtype))
    assert read(tmp_path / "ids.npy", unit_size=5) == [[5, 6, 0], [7]]


@pytest.mark.parametrize(
    ("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")]
)
def test_the_header_of_llmc_states_the_type(
    tmp_path: Path, magic: int, version: int, dtype: str
) -> None:
    ids = np.array([5, 6, 0, 7], dtype)
    header = np.zeros(256, "<i4")
    header[:3] = [magic, version, len(ids)]
    path = tmp_path / "ids.bin"
    path.write_bytes(header.tobytes() + ids.tobytes())
    assert read(path, unit_size=300) == [[5, 6, 0], [7]]
    path.write_bytes(header.tobytes() + ids.tobytes()[:-2])
    with pytest.raises(DamagedFileError, match="expected 10"):
        read(path)


def test_borders_beside_the_ids_are_their_documents(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.array([5, 6, 7, 8, 9], "<u2").tofile(path)
    (tmp_path / "ids.csv.gz").write_bytes(gzip.compress(b"0,2\n2,2\n2,5\n"))
    for unit_size in (1, 3, 100):
        assert read(path, unit_size) == [[5, 6], [], [7, 8, 9]]


@pytest.mark.parametrize(
    "borders", [b"0,2\n3,5\n", b"0,2\n2,4\n", b"1,5\n", b"0,2\n2,6\n", b"0,x\n", b""]
)
def test_borders_of_other_ids_are_refused(tmp_path: Path, borders: bytes) -> None:
    path = tmp_path / "ids.npy"
    np.array([5, 6, 7, 8, 9], "<u2").tofile(path)
    (tmp_path / "ids.csv.gz").write_bytes(gzip.compress(borders))
    with pytest.raises(DamagedFileError, match="ids"):
        read(path)


def test_a_loss_mask_has_a_value_for_each_id(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.array([5, 6, 0, 7], "<u2").tofile(path)
    mask = tmp_path / "ids.label_mask.npy"
    mask.write_bytes(bytes([0, 1, 1, 0]))
    source = with_tokens(path, loss_field="loss_mask")
    [data_file] = [file for file in list_inputs(source) if not file.companion]
    [part] = split_file(data_file, 1 << 30)
    [batch] = read_rows(part, source)
    assert batch.rows.to_pydict() == {
        "input_ids": [[5, 6, 0], [7]],
        "loss_mask": [[0, 1, 1], [0]],
    }
    mask.write_bytes(bytes([0, 1, 1]))
    with pytest.raises(DamagedFileError, match="one for each of the 4 ids"):
        read(path, loss_field="loss_mask")


def test_an_array_that_is_no_stream_of_ids_is_refused(tmp_path: Path) -> None:
    for array in (np.ones((2, 3), np.uint16), np.ones(3, np.float32)):
        np.save(tmp_path / "ids.npy", array)
        with pytest.raises(
            UnsuitableFileError, match="expected integers of one dimension"
        ):
            read(tmp_path / "ids.npy")


def test_a_document_without_end_is_no_reason_to_read_all_of_a_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ids.bin"
    np.ones(1000, "<u2").tofile(path)
    source = replace(with_tokens(path), max_record_bytes=100)
    with pytest.raises(UnsuitableFileError, match=r"no EOS \(id 0\)"):
        read_in_units(source, 1 << 30, block_bytes=50)
