"""Counting, cutting, sharing out and padding with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tokenizers import tokenizer_samples as samples
from tokenlake import LengthManager
from tokenlake.errors import ConfigError
from tokenlake.text.truncation import SIDES, STRATEGIES
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TOKENIZER_JSON

FILES = samples.sentencepiece()
TEXTS = st.lists(st.text(max_size=60) | st.sampled_from(samples.hard_texts()), max_size=4)


def ids_of(text: str) -> list[int]:
    return samples.reference_ids(FILES, [text], literal=True)[0]


@given(TEXTS, st.integers(1, 40), st.sampled_from(STRATEGIES[1:]), st.sampled_from(SIDES))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_is_an_end_of_the_text_and_of_its_ids(
    texts: list[str], budget: int, strategy: Any, side: Any
):
    manager = LengthManager(FILES, truncation=strategy, truncation_side=side)
    assert manager.count(texts).tolist() == [len(ids_of(text)) for text in texts]
    for text, found in zip(texts, manager.truncate(texts, budget), strict=True):
        whole = ids_of(text)
        kept = found.ids.tolist()
        assert len(found) == len(kept) <= budget
        assert kept == (whole[: len(kept)] if side == "right" else whole[len(whole) - len(kept) :])
        assert text.startswith(found.text) if side == "right" else text.endswith(found.text)
        assert (found.cut.by == "none") == (len(whole) <= budget)


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=60), min_size=1), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_columns_fit_into_their_budget_together(columns: dict[str, str], total: int):
    manager = LengthManager(FILES, truncation="simple", budget="equal")
    found = manager.fit(columns, total)
    assert list(found) == list(columns)
    assert sum(map(len, found.values())) <= total
    if sum(len(ids_of(text)) for text in columns.values()) <= total:
        assert {name: each.text for name, each in found.items()} == columns


def test_rows_come_with_their_special_tokens_and_masks(tmp_path: Path):
    folder = samples.save(FILES, tmp_path)
    manager = LengthManager(str(folder), max_length=8, padding="max_length", padding_side="left")
    assert manager.room == 7  # BOS
    (rows,) = manager.process(["A text that is too long for it", "short"])
    assert rows.input_ids.shape == (2, 8)
    assert rows.input_ids[1][rows.attention_mask[1] == 1].tolist() == [1, *ids_of("short")]
    assert rows.input_ids[1][0] == manager.pad_id == FILES.eos_id
    assert rows.labels[1][0] == -100
    long = rows.input_ids[0][rows.attention_mask[0] == 1].tolist()
    assert long == [1, *ids_of("A text that is too long for it")[: len(long) - 1]]
    learned = manager.pad([[5, 6], [7]], [[False, True], [True]])
    assert learned[0].labels[:, -2:].tolist() == [[-100, 6], [-100, 7]]


def test_rows_of_like_length_share_a_bucket():
    manager = LengthManager(FILES, max_length=200, padding="buckets", boundaries=[4, 64, 200])
    texts = ["a", "word " * 30, "b", "word " * 10]
    assert [(each.rows.tolist(), each.width) for each in manager.process(texts)] == [
        ([0, 2], 4),
        ([1, 3], 64),
    ]
    automatic = LengthManager(FILES, max_length=200, padding="buckets")
    assert {each.width for each in automatic.process(texts)} <= {32, 64, 128, 256}


def test_an_object_will_do_as_the_tokenizer():
    backend = Tokenizer.from_str(FILES.files[TOKENIZER_JSON].decode())
    expected = Encoder(FILES, engine="tokenizers").encode(samples.large(["Some text"])).ids
    (found,) = LengthManager(backend).truncate(["Some text"])
    assert np.array_equal(found.ids, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncation": "wrod"}, "truncation is 'wrod'"),
        ({"padding": "most"}, "padding is 'most'"),
        ({"padding_side": "top"}, "padding_side is 'top'"),
        ({"budget": "fair"}, "budget is 'fair'"),
        ({"max_length": 1}, "puts 1 special tokens around a row; expected at least 2"),
    ],
)
def test_wrong_options_are_named(options: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        LengthManager(FILES, **options)


def test_a_tokenizer_without_padding_needs_a_pad_id():
    files = samples.from_spec(FILES.spec)
    with pytest.raises(ConfigError, match="give pad_id"):
        LengthManager(files, padding="longest").process(["a", "b c"])
    (rows,) = LengthManager(files, padding="longest", pad_id=0).process(["a", "b c d e f"])
    assert 0 in rows.input_ids[0]
