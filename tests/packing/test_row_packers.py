"""Packers that are fed one document at a time: the rows of PackedRows, as soon as
they are full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.seeds import promise
from tokenlake import (
    FirstFitPacker,
    GreedyPacker,
    PackedRows,
    PackedSequence,
    PoolPacker,
)
from tokenlake.errors import BadRecordError, ConfigError

EOS, PAD, L = 7, 3, 8
DOCUMENTS = st.lists(st.lists(st.integers(10, 99), max_size=20), max_size=12)


def flat(rows: list[PackedSequence]) -> list[int]:
    return sorted(
        int(id) for row in rows for id in row.input_ids[row.attention_mask > 0]
    )


def fed(packer: Any, documents: list[list[int]]) -> list[PackedSequence]:
    rows = [
        row
        for number, tokens in enumerate(documents)
        for row in packer.add(tokens, f"d{number}")
    ]
    return rows + packer.flush_all()


def alike(made: list[PackedSequence], rows: Any) -> bool:
    rows = list(rows)
    return [row.input_ids.tolist() for row in made] == [
        row["input_ids"].tolist() for row in rows
    ] and [row.segment_ids.tolist() for row in made] == [
        row["segment_ids"].tolist() for row in rows
    ]


@promise(281, 283)
@given(DOCUMENTS)
def test_rows_are_those_of_packed_rows_and_no_token_is_lost(documents: list[list[int]]):
    whole = sorted(id for tokens in documents if tokens for id in (*tokens, EOS))
    for packer, strategy in (
        (PoolPacker(L, EOS, PAD, 2), "pool"),
        (FirstFitPacker(L, EOS, PAD), "first_fit"),
    ):
        rows = fed(packer, documents)
        how = PackedRows(
            seq_length=L,
            eos_token_id=EOS,
            pad_token_id=PAD,
            strategy=strategy,
            num_packers=2,
        )
        assert flat(rows) == whole
        assert alike(rows, how.pack({"input_ids": tokens} for tokens in documents))
        assert not packer.flush_all()


@promise(281)
@given(st.lists(st.lists(st.integers(10, 99), max_size=L - 1), max_size=12))
def test_the_greedy_packer_gives_a_row_as_soon_as_it_is_full(
    documents: list[list[int]],
):
    packer, rows, tokens = GreedyPacker(L, EOS, PAD), [], 0
    for document in documents:
        tokens += len(document) + bool(document)
        rows += [row] if (row := packer.add(document)) is not None else []
        assert len(rows) == tokens // L
    rows += [row] if (row := packer.flush_final()) is not None else []
    how = PackedRows(seq_length=L, eos_token_id=EOS, pad_token_id=PAD)
    assert alike(rows, how.pack({"input_ids": document} for document in documents))
    assert packer.flush_final() is None


@promise(281)
def test_a_sequence_says_where_its_pieces_come_from():
    packer = GreedyPacker(4, EOS, PAD)
    assert packer.add([1, 2], "a") is None
    first = packer.add([4, 5], "b")
    last = packer.flush_final()
    assert first is not None and last is not None
    assert (first.source_ids, first.num_segments) == (["a", "b"], 2)
    assert {name: array.tolist() for name, array in last.to_dict().items()} == {
        "input_ids": [5, EOS, PAD, PAD],
        "attention_mask": [1, 1, 0, 0],
        "segment_ids": [1, 1, 0, 0],
    }
    assert (last.source_ids, last.num_segments, last.input_ids.dtype) == (
        ["b"],
        1,
        np.int32,
    )
    packer.add([1])
    assert packer.flush_final().source_ids is None


@promise(281)
def test_first_fit_places_a_buffer_of_documents_together():
    packer = FirstFitPacker(4, EOS, buffer_size=2)
    assert packer.add([1]) == []
    (row,) = packer.add([2])
    assert row.input_ids.tolist() == [1, EOS, 2, EOS]


def test_a_pool_gives_rows_when_its_window_is_full():
    packer = PoolPacker(4, EOS, window_tokens=8)
    assert packer.add([1, 2, 3]) == []
    assert [row.input_ids.tolist() for row in packer.add([4, 5, 6])] == [
        [1, 2, 3, EOS],
        [4, 5, 6, EOS],
    ]


def test_what_cannot_be_is_told():
    with pytest.raises(
        BadRecordError,
        match=r"9 tokens \(with EOS\) fills several rows of 8.*PoolPacker",
    ):
        GreedyPacker(L, EOS).add([1] * 8)
    with pytest.raises(ConfigError, match="seq_length: got 0"):
        GreedyPacker(0, EOS)
    with pytest.raises(ConfigError, match="buffer_size: got 0, expected at least 1"):
        FirstFitPacker(L, EOS, buffer_size=0)
