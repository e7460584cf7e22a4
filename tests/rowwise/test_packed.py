"""PackedShardedSource: rows of tokens in rows of one length, nothing lost."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rowwise.pipeline_support import Endless, gpt, tokens
from tests.rowwise.sharded_support import Plain
from tests.seeds import promise
from tokenlake.config import PackStageConfig
from tokenlake.easydel import PackedShardedSource
from tokenlake.errors import BadRecordError, ConfigError

EOS, PAD = 7, 3


def packed(source: Any, length: int, **options: Any) -> list[dict[str, Any]]:
    given = {"seq_length": length, "eos_token_id": EOS, "pad_token_id": PAD, **options}
    return list(PackedShardedSource(source, given))


@promise(6, 60)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 17))
def test_no_token_is_lost_and_all_rows_are_alike(lengths: list[int], length: int):
    rows = packed(tokens(lengths), length)
    expected = [
        id
        for d, n in enumerate(lengths, start=1)
        for id in (*(100 * d + i for i in range(n)), EOS)
    ]
    flat = np.concatenate(
        [row["input_ids"][row["segment_ids"] > 0] for row in rows] or [[]]
    )
    assert flat.tolist() == expected
    assert all(
        len(row["input_ids"]) == len(row["segment_ids"]) == length for row in rows
    )
    assert len(rows) == -(-len(expected) // length)


@pytest.mark.parametrize("field", ["loss_mask", "labels"])
def test_what_bears_loss_goes_along(field: str):
    values = [[0, 1, 1], [1, 0]]
    rows = [
        {
            "input_ids": [5, 6, 8],
            field: [[-100, 6, 8], values[0]][field == "loss_mask"],
        },
        {"input_ids": [9, 4], field: [[9, -100], values[1]][field == "loss_mask"]},
    ]
    (row,) = packed(Plain({"a": rows}), 9)
    assert row["input_ids"].tolist() == [5, 6, 8, EOS, 9, 4, EOS, PAD, PAD]
    assert row["loss_mask"].tolist() == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert row["loss_mask"].dtype == np.bool_


def test_rows_without_tokens_are_an_error_that_names_the_fields():
    with pytest.raises(BadRecordError, match="row 0 has no input_ids; it has 'text'"):
        packed(Plain({"a": [{"text": "a"}]}), 4)


@promise(61)
def test_eos_and_padding_are_the_tokenizers_where_nobody_says_more():
    (row,) = PackedShardedSource(tokens([1]), {"seq_length": 3}, tokenizer=gpt())
    eos = gpt().files.eos_id
    assert row["input_ids"].tolist() == [100, eos, gpt().pad_id]
    (row,) = PackedShardedSource(
        tokens([1]), {"seq_length": 3, "eos_token_id": 0}, tokenizer=gpt()
    )
    assert row["input_ids"].tolist() == [100, 0, gpt().pad_id]


def test_an_eos_that_nobody_names_is_an_error():
    with pytest.raises(
        ConfigError, match=r"pack\.eos_token_id: missing, and no tokenizer is named"
    ):
        PackedShardedSource(tokens([1]), {"seq_length": 4})


def test_wrong_options_are_an_error():
    with pytest.raises(ConfigError, match="seq_len"):
        PackedShardedSource(tokens([1]), {"seq_len": 4})
    with pytest.raises(ConfigError, match="source: got a list"):
        PackedShardedSource([{"input_ids": [1]}], {"eos_token_id": 1})  # pyright: ignore[reportArgumentType]


def test_an_endless_source_is_a_stream_and_is_not_read_far_ahead():
    source = Endless(lambda i: {"input_ids": [i % 90 + 8] * 10})
    stream = PackedShardedSource(
        source, PackStageConfig(seq_length=22, eos_token_id=EOS)
    )
    assert stream.endless
    rows = list(islice(stream, 3))
    assert [row["input_ids"][:3].tolist() for row in rows] == [
        [8] * 3,
        [10] * 3,
        [12] * 3,
    ]
    assert source.drawn < 10_000


def test_a_row_has_a_number_and_reading_can_begin_there():
    source = PackedShardedSource(
        tokens([5] * 9), {"seq_length": 4, "eos_token_id": EOS}
    )
    whole = [row["input_ids"].tolist() for row in source]
    for first in range(len(whole) + 1):
        rest = source.open_shard_at_row("packed", first)
        assert [row["input_ids"].tolist() for row in rest] == whole[first:]
    with pytest.raises(ConfigError, match="beyond its end"):
        list(source.open_shard_at_row("packed", len(whole) + 1))
    with pytest.raises(ConfigError, match="no shard is named"):
        source.open_shard("a")


@promise(67, 68)
def test_packed_rows_are_shuffled_by_a_buffer_where_asked():
    options = {
        "seq_length": 4,
        "eos_token_id": EOS,
        "num_packers": 2,
        "shuffle_buffer_factor": 5,
    }
    plain = [
        row["input_ids"].tolist()
        for row in PackedShardedSource(tokens([3] * 60), options)
    ]
    mixed = PackedShardedSource(
        tokens([3] * 60), {**options, "shuffle_packed": True}, seed=1
    )
    order = [row["input_ids"].tolist() for row in mixed]
    assert order != plain
    assert sorted(order) == sorted(plain)
    assert order == [row["input_ids"].tolist() for row in mixed]
    assert all(plain.index(row) <= place + 10 for place, row in enumerate(order))


@promise(282)
def test_options_by_name_are_those_of_a_configuration_and_count_before_it():
    rows = tokens([5, 9, 3])
    named = PackedShardedSource(
        rows,
        seq_length=6,
        eos_token_id=EOS,
        pad_token_id=PAD,
        strategy="pool",
        num_packers=2,
        shuffle=False,
    )
    given = {
        "seq_length": 6,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "strategy": "pool",
        "num_packers": 2,
    }
    config = PackStageConfig(**{**given, "seq_length": 99, "shuffle_packed": True})
    over = PackedShardedSource(rows, config, seq_length=6, shuffle=False)
    alike = [[row["input_ids"].tolist() for row in source] for source in (named, over)]
    assert (
        alike[0]
        == alike[1]
        == [
            row["input_ids"].tolist()
            for row in PackedShardedSource(rows, {**given, "shuffle_packed": False})
        ]
    )
    (row,) = PackedShardedSource(rows, 99, EOS, include_segment_ids=False)
    assert list(row) == ["input_ids", "attention_mask"]


@promise(282)
def test_ids_may_stand_in_another_field_and_rows_are_shuffled_where_that_is_asked_for():
    source = Plain({"a": [{"tokens": [n, n, n]} for n in range(10, 40)]})
    plain = PackedShardedSource(source, 4, EOS, input_field="tokens")
    mixed = PackedShardedSource(
        source,
        4,
        EOS,
        input_field="tokens",
        shuffle=True,
        shuffle_buffer_factor=2,
        seed=5,
    )
    rows, other = (
        [row["input_ids"].tolist() for row in each] for each in (plain, mixed)
    )
    assert rows != other and sorted(rows) == sorted(other)
    assert sorted(rows[:8]) == sorted(other[:8])  # 2 * num_packers rows at a time
    with pytest.raises(ConfigError, match="num_packers"):
        PackedShardedSource(source, 4, EOS, num_packers=0)


def test_an_id_that_the_tokenizer_does_not_have_is_an_error():
    with pytest.raises(
        ConfigError, match=r"pack\.eos_token_id is 99999, but tokenizer .* has ids 0 to"
    ):
        PackedShardedSource(tokens([1]), {"eos_token_id": 99_999}, tokenizer=gpt())


def test_little_is_held_however_many_rows_have_come():
    source = Endless(lambda i: {"input_ids": np.full(500, i % 90 + 8, np.int32)})
    stream = iter(PackedShardedSource(source, {"seq_length": 500, "eos_token_id": EOS}))
    next(stream)
    gc.collect()
    tracemalloc.start()
    for _ in islice(stream, 1500):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.drawn >= 1500
    assert peak < 2 << 20  # 1,500 rows of ids and segments are 6 MB
