"""Rows in, rows out: the packing of the row-wise API and of older callers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake
from tests.seeds import promise
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing import STRATEGIES, PackedRows

EOS, PAD = 1, 0

Row = dict[str, Any]


def packing(**settings_: Any) -> PackedRows:
    return PackedRows(
        **{"seq_length": 8, "eos_token_id": EOS, "pad_token_id": PAD, **settings_}
    )


def documents(lengths: list[int]) -> list[Row]:
    return [
        {"input_ids": list(range(10, 10 + length)), "file": 5, "position": number}
        for number, length in enumerate(lengths)
    ]


def unpacked(rows: list[Row]) -> dict[int, list[int]]:
    """Ids of each document, put together from its pieces."""
    pieces: dict[int, list[tuple[int, list[int]]]] = {}
    for row in rows:
        at = 0
        for length, piece in zip(row["segment_lengths"], row["documents"], strict=True):
            found = piece["start"], row["input_ids"][at : at + length].tolist()
            pieces.setdefault(piece["position"], []).append(found)
            at += length
        assert (row["input_ids"][at:] == PAD).all()
    return {
        number: [token for _, ids in sorted(found) for token in ids]
        for number, found in pieces.items()
    }


@promise(62, 63, 64, 65)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=30),
    limit=st.sampled_from([None, 2]),
    shuffle=st.booleans(),
    window=st.sampled_from([8, 40, 1000]),
)
@settings(max_examples=20)
def test_rows_hold_every_document_and_its_eos(
    strategy: str, lengths: list[int], limit: int | None, shuffle: bool, window: int
) -> None:
    made = packing(
        strategy=strategy,
        max_segments=limit,
        shuffle_packed=shuffle,
        window_tokens=window,
    )
    rows = list(made.pack(documents(lengths)))
    assert unpacked(rows) == {
        number: [*range(10, 10 + length), EOS]
        for number, length in enumerate(lengths)
        if length
    }
    for row in rows:
        assert set(row) == {
            "input_ids",
            "attention_mask",
            "segment_ids",
            "segment_lengths",
            "documents",
        }
        assert (row["attention_mask"] == (row["segment_ids"] > 0)).all()
        assert row["input_ids"].dtype == row["segment_ids"].dtype == np.int32
        assert row["input_ids"].shape == row["segment_ids"].shape == (8,)
        sizes = row["segment_lengths"]
        expected = np.repeat(np.arange(len(sizes)) + 1, sizes)
        assert row["segment_ids"].tolist() == [*expected, *[0] * (8 - len(expected))]
        assert limit is None or len(sizes) <= limit


def test_an_eos_that_is_there_is_not_put_there_again() -> None:
    rows = list(packing().pack([{"input_ids": [5, EOS]}, {"input_ids": [6]}]))
    assert rows[0]["input_ids"].tolist() == [5, EOS, 6, EOS, PAD, PAD, PAD, PAD]


@promise(65)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_loss_mask_goes_with_the_ids_and_padding_bears_none(strategy: str) -> None:
    given_rows = [
        {
            "input_ids": [token] * 5,
            "loss_mask": [True, False, True, False, token % 2 == 0],
        }
        for token in range(20, 30)
    ]
    rows = list(packing(strategy=strategy, include_segment_ids=False).pack(given_rows))
    assert all(set(row) == {"input_ids", "attention_mask", "loss_mask"} for row in rows)
    ids = np.concatenate([row["input_ids"] for row in rows])
    mask = np.concatenate([row["loss_mask"] for row in rows])
    assert mask.dtype == np.bool_
    assert mask[ids == EOS].all()
    assert not mask[ids == PAD].any()
    for row in given_rows:
        assert sorted(mask[ids == row["input_ids"][0]]) == sorted(row["loss_mask"])


def test_shuffled_rows_are_pinned_and_stay_in_their_buffer() -> None:
    given_rows = [{"input_ids": [number] * 7} for number in range(10, 30)]
    made = packing(shuffle_packed=True, shuffle_buffer_factor=4, num_packers=2, seed=3)
    order = [int(row["input_ids"][0]) - 10 for row in made.pack(given_rows)]
    assert order == [
        5,
        3,
        0,
        2,
        6,
        1,
        7,
        4,
        11,
        12,
        10,
        8,
        14,
        13,
        15,
        9,
        18,
        16,
        19,
        17,
    ]
    assert [sorted(order[:8]), sorted(order[8:16])] == [
        list(range(8)),
        list(range(8, 16)),
    ]
    assert [int(row["input_ids"][0]) - 10 for row in made.pack(given_rows)] == order


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "x"}], "document 0: has no 'input_ids', only 'text'"),
        ([{"input_ids": ["x"]}], "document 0: 'input_ids' has the shape"),
        ([{"input_ids": [1.5]}], "type float64, expected one dimension of integers"),
        ([{"input_ids": [[1], [2]]}], "document 0: 'input_ids' has the shape (2, 1)"),
        ([{"input_ids": [2**31]}], "integers from 0 to 1073741823"),
        ([{"input_ids": [-1]}], "integers from 0 to 1073741823"),
        (
            [{"input_ids": [1, 2], "loss_mask": [True]}],
            "document 0: loss_mask has the shape (1,)",
        ),
        (
            [{"input_ids": [4]}, {"input_ids": [4], "loss_mask": [True]}],
            "document 1: got the columns loss_mask beside 'input_ids', expected none",
        ),
    ],
)
def test_a_document_that_cannot_be_packed_is_named(
    rows: list[Row], message: str
) -> None:
    with pytest.raises(BadRecordError) as error:
        list(packing().pack(rows))
    assert message in str(error.value)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(
        ConfigError, match="strategy is 'worst', expected one of 'greedy', 'pool'"
    ):
        packing(strategy="worst")
    with pytest.raises(ConfigError, match="seq_length: got 0, expected at least 1"):
        packing(seq_length=0)
    with pytest.raises(ConfigError, match="max_segments: got 0"):
        packing(max_segments=0)


def test_older_callers_pack_ids_or_mappings_into_rows_of_one_length() -> None:
    stream = [[5, 6, 7], {"tokens": [8, 9]}, {"input_ids": np.array([3], np.int64)}]
    rows = list(tokenlake.pack_pre_tokenized(stream, 4, EOS, pad_token_id=PAD))
    assert [row["input_ids"].tolist() for row in rows] == [
        [5, 6, 7, EOS],
        [8, 9, EOS, 3],
        [EOS, 0, 0, 0],
    ]
    assert [row["segment_ids"].tolist() for row in rows] == [
        [1] * 4,
        [1, 1, 1, 2],
        [1, 0, 0, 0],
    ]
    assert [row["attention_mask"].tolist() for row in rows] == [
        [1] * 4,
        [1] * 4,
        [1, 0, 0, 0],
    ]
    assert all(
        set(row) == {"input_ids", "segment_ids", "attention_mask"} for row in rows
    )


def test_older_callers_may_give_the_tokenizer_too() -> None:
    rows = list(
        tokenlake.pack_constant_length(
            ["ab", "c"], lambda text: [ord(char) for char in text], 3, EOS
        )
    )
    assert [row["input_ids"].tolist() for row in rows] == [
        [97, 98, EOS],
        [99, EOS, EOS],
    ]
    assert [row["segment_ids"].tolist() for row in rows] == [[1, 1, 1], [1, 1, 0]]
