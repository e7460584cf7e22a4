"""Counting, cutting, sharing out and padding: nobody gets more than they have, and
every row comes back as it was.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tests.tokenizer_reference import needs_stages, open_backend
from tests.tokenizers import tokenizer_samples as samples
from tokenlake import LengthManager
from tokenlake.data_pipeline import ContentDistributionMode, LengthManagerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.text import SIDES, STRATEGIES, allocate
from tokenlake.etl.tokenizers import Encoder

STRATEGIES_OF_BUDGETS = ("equal", "proportional", "ratio", "priority", "adaptive")
IGNORED = -100
LENGTHS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), max_size=6)
TOTAL = st.integers(-3, 200)


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, int], int, Any, dict[str, Any]]:
    lengths = draw(LENGTHS)
    strategy = draw(st.sampled_from(STRATEGIES_OF_BUDGETS))
    extra: dict[str, Any] = {}
    if strategy == "ratio":
        ratio = st.floats(0, 10) | st.integers(0, 3)
        extra["ratios"] = {name: draw(ratio) for name in lengths}
        if lengths and not any(extra["ratios"].values()):
            extra["ratios"][next(iter(lengths))] = 1
    if strategy == "priority":
        names = draw(st.permutations(list(lengths)))
        extra["priority"] = names[: draw(st.integers(0, len(names)))]
    return lengths, draw(TOTAL), strategy, extra


@promise(310)
@given(questions())
def test_the_budget_is_given_out_to_the_last_token_and_nobody_gets_more_than_they_have(
    question: Any,
):
    lengths, total, strategy, extra = question
    given_out = allocate(lengths, total, strategy, **extra)
    assert list(given_out) == list(lengths)
    assert all(0 <= given_out[name] <= lengths[name] for name in lengths)
    assert sum(given_out.values()) == max(0, min(total, sum(lengths.values())))
    assert allocate(dict(lengths), total, strategy, **extra) == given_out


@given(LENGTHS, TOTAL)
def test_equal_shares_differ_by_one_at_most_among_those_that_are_cut(
    lengths: dict[str, int], total: int
):
    found = allocate(lengths, total, "equal")
    cut = [found[name] for name in lengths if found[name] < lengths[name]]
    assert not cut or max(cut) - min(cut) <= 1
    assert all(found[name] <= min(cut, default=found[name]) + 1 for name in lengths)


@given(LENGTHS, TOTAL)
def test_proportional_shares_are_off_by_less_than_a_token(
    lengths: dict[str, int], total: int
):
    found, whole = allocate(lengths, total, "proportional"), sum(lengths.values())
    total = max(0, min(total, whole))
    assert all(
        abs(found[name] - total * lengths[name] / whole) < 1
        for name in lengths
        if whole
    )


@given(LENGTHS, TOTAL)
def test_adaptive_keeps_columns_up_to_an_equal_share_whole(
    lengths: dict[str, int], total: int
):
    found = allocate(lengths, total, "adaptive")
    share = max(0, min(total, sum(lengths.values()))) // max(1, len(lengths))
    assert all(found[name] >= min(lengths[name], share) for name in lengths)


@given(LENGTHS, TOTAL, st.data())
def test_who_comes_later_gets_nothing_until_who_comes_first_has_all(
    lengths: dict[str, int], total: int, data: st.DataObject
):
    order = data.draw(st.permutations(list(lengths)))
    found = allocate(lengths, total, "priority", priority=order)
    for first, second in pairwise(order):
        assert found[first] == lengths[first] or not found[second]


@promise(310)
@pytest.mark.parametrize(
    ("strategy", "extra", "expected"),
    [
        ("equal", {}, {"a": 10, "b": 40, "c": 40}),
        ("proportional", {}, {"a": 6, "b": 56, "c": 28}),
        ("adaptive", {}, {"a": 10, "b": 46, "c": 34}),
        ("ratio", {"ratios": {"a": 1, "b": 1, "c": 2}}, {"a": 10, "b": 30, "c": 50}),
        ("ratio", {"ratios": {"a": 0, "b": 1, "c": 3}}, {"a": 0, "b": 40, "c": 50}),
        ("ratio", {"ratios": {"a": 0, "b": 0, "c": 3}}, {"a": 10, "b": 30, "c": 50}),
        ("priority", {"priority": ["c"]}, {"a": 10, "b": 30, "c": 50}),
        ("priority", {"priority": ["b", "a"]}, {"a": 0, "b": 90, "c": 0}),
    ],
)
def test_what_each_strategy_means(
    strategy: Any, extra: dict[str, Any], expected: dict[str, int]
):
    assert allocate({"a": 10, "b": 100, "c": 50}, 90, strategy, **extra) == expected


def test_a_remainder_goes_to_the_earlier_column():
    assert allocate({"x": 9, "y": 9, "z": 9}, 5, "equal") == {"x": 2, "y": 2, "z": 1}
    assert allocate({"z": 9, "y": 9, "x": 9}, 5, "equal") == {"z": 2, "y": 2, "x": 1}


@pytest.mark.parametrize(
    ("strategy", "extra", "message"),
    [
        ("fair", {}, "strategy is 'fair'"),
        ("equal", {"ratios": {"a": 1}}, "'equal' takes no ratios"),
        ("ratio", {}, "'ratio' needs ratios"),
        ("ratio", {"ratios": {"b": 1}}, "no column 'b'; there are 'a'"),
        ("ratio", {"ratios": {}}, "expected a number, at least 0, for every column"),
        (
            "ratio",
            {"ratios": {"a": -1}},
            "expected a number, at least 0, for every column",
        ),
        (
            "ratio",
            {"ratios": {"a": float("nan")}},
            "expected a number, at least 0, for every column",
        ),
        (
            "ratio",
            {"ratios": {"a": 0}},
            "expected a number, at least 0, for every column",
        ),
        ("priority", {"priority": ["a", "a"]}, "at most once"),
        ("priority", {"priority": ["q"]}, "no column 'q'"),
    ],
)
def test_a_question_that_makes_no_sense_is_an_error(
    strategy: Any, extra: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        allocate({"a": 3}, 2, strategy, **extra)


def test_a_negative_length_is_an_error():
    with pytest.raises(ConfigError, match="expected at least 0 tokens"):
        allocate({"a": -1}, 2, "equal")


# ---- padding: rows come back as they were, and everything else is padding
# --------------------------------

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12)
HOW = st.sampled_from(
    [
        {"strategy": "none"},
        {"strategy": "longest"},
        {"strategy": "max_length", "max_length": 12},
        {"strategy": "buckets", "boundaries": [1, 4, 5, 12]},
    ]
)


FILES = samples.sentencepiece()


def padded(
    rows: Any,
    loss: Any = None,
    *,
    strategy: str = "longest",
    pad_id: int = 0,
    **options: Any,
) -> Any:
    """Pad rows of ids as a manager does that has these options."""
    shared = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
    }
    return padding_manager(
        padding=strategy, pad_id=pad_id, **{"max_length": 12, **shared}
    ).pad(rows, loss)


@functools.cache
def padding_manager(**options: Any) -> LengthManager:
    return LengthManager(FILES, **options)


@given(
    ROWS,
    HOW,
    st.sampled_from(SIDES),
    st.integers(0, 9),
    st.randoms(use_true_random=False),
)
def test_every_row_comes_back_once(
    rows: list[list[int]], how: Any, side: str, pad_id: int, random: Any
):
    learned = [[random.random() < 0.5 for _ in row] for row in rows]
    made = padded(rows, learned, pad_id=pad_id, padding_side=side, **how)
    seen: list[int] = []
    for rectangle in made:
        assert (
            rectangle.input_ids.shape
            == rectangle.attention_mask.shape
            == rectangle.labels.shape
        )
        assert {rectangle.input_ids.dtype, rectangle.labels.dtype} == {
            np.dtype(np.int32)
        }
        seen += rectangle.rows.tolist()
        for at, row in enumerate(rectangle.rows.tolist()):
            size = len(rows[row])
            inside = (
                slice(0, size)
                if side == "right"
                else slice(rectangle.width - size, None)
            )
            mask = np.zeros(rectangle.width, np.int32)
            mask[inside] = 1
            assert rectangle.attention_mask[at].tolist() == mask.tolist()
            assert rectangle.input_ids[at][mask == 1].tolist() == rows[row]
            assert set(rectangle.input_ids[at][mask == 0].tolist()) <= {pad_id}
            labels = np.where(learned[row], rows[row], IGNORED)
            assert rectangle.labels[at][mask == 1].tolist() == labels.tolist()
            assert set(rectangle.labels[at][mask == 0].tolist()) <= {IGNORED}
    assert sorted(seen) == list(range(len(rows)))
    assert [each.rows.tolist() for each in made] == [
        sorted(each.rows.tolist()) for each in made
    ]


@pytest.mark.parametrize("strategy", ["none", "longest", "max_length", "buckets"])
def test_no_rows_make_no_rectangle(strategy: str):
    assert padded([], [], strategy=strategy) == padded([], strategy=strategy) == []


@given(ROWS.filter(bool))
def test_widths(rows: list[list[int]]):
    longest = max(map(len, rows))

    def widths(**how: Any) -> list[int]:
        return [each.width for each in padded(rows, **how)]

    assert widths(strategy="longest") == [longest]
    assert widths(strategy="max_length", max_length=20) == [20]
    assert widths(strategy="none") == sorted(set(map(len, rows)))
    boundaries = [4, 9, 12]
    assert widths(strategy="buckets", boundaries=boundaries) == sorted(
        {next(edge for edge in boundaries if len(row) <= edge) for row in rows}
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"strategy": "max_length", "max_length": 2},
            "row 1 has 3 tokens, the widest rectangle holds 2",
        ),
        (
            {"strategy": "buckets", "boundaries": [1, 2]},
            "row 1 has 3 tokens, the widest rectangle holds 2",
        ),
        ({"strategy": "buckets", "boundaries": [4, 3]}, "expected ascending numbers"),
        ({"strategy": "buckets", "boundaries": []}, "expected ascending numbers"),
        ({"strategy": "most"}, "padding is 'most'"),
        ({"padding_side": "top"}, "padding_side is 'top'"),
    ],
)
def test_what_cannot_be_padded_is_an_error(how: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        padded([[1], [2, 3, 4]], **how)


# ---- all of it with a tokenizer
# --------------------------------------------------------------------------

TEXTS = st.lists(
    st.text(max_size=60) | st.sampled_from(samples.hard_texts()), max_size=4
)


def ids_of(text: str) -> list[int]:
    return samples.reference_ids(FILES, [text], literal=True)[0]


@promise(121, 310)
@given(
    TEXTS, st.integers(1, 40), st.sampled_from(STRATEGIES[1:]), st.sampled_from(SIDES)
)
@settings(max_examples=25, deadline=None)
def test_what_is_kept_is_an_end_of_the_text_and_of_its_ids(
    texts: list[str], budget: int, strategy: Any, side: Any
):
    manager = LengthManager(FILES, truncation=strategy, truncation_side=side)
    assert manager.count(texts).tolist() == [len(ids_of(text)) for text in texts]
    for text, found in zip(texts, manager.truncate(texts, budget), strict=True):
        whole = ids_of(text)
        kept = found.ids.tolist()
        assert len(found) == len(kept) <= budget
        assert kept == (
            whole[: len(kept)] if side == "right" else whole[len(whole) - len(kept) :]
        )
        assert (
            text.startswith(found.text)
            if side == "right"
            else text.endswith(found.text)
        )
        assert (found.cut.by == "none") == (len(whole) <= budget)


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=60), min_size=1),
    st.integers(1, 60),
)
@settings(max_examples=25, deadline=None)
def test_columns_fit_into_their_budget_together(columns: dict[str, str], total: int):
    manager = LengthManager(FILES, truncation="simple", budget="equal")
    found = manager.fit(columns, total)
    assert list(found) == list(columns)
    assert sum(map(len, found.values())) <= total
    if sum(len(ids_of(text)) for text in columns.values()) <= total:
        assert {name: each.text for name, each in found.items()} == columns


def test_rows_come_with_their_special_tokens_and_masks(tmp_path: Path):
    folder = samples.save(FILES, tmp_path)
    manager = LengthManager(
        str(folder), max_length=8, padding="max_length", padding_side="left"
    )
    assert manager.room == 7  # BOS
    (rows,) = manager.process(["A text that is too long for it", "short"])
    assert rows.input_ids.shape == (2, 8)
    assert rows.input_ids[1][rows.attention_mask[1] == 1].tolist() == [
        1,
        *ids_of("short"),
    ]
    assert rows.input_ids[1][0] == manager.pad_id == FILES.eos_id
    assert rows.labels[1][0] == -100
    long = rows.input_ids[0][rows.attention_mask[0] == 1].tolist()
    assert long == [1, *ids_of("A text that is too long for it")[: len(long) - 1]]
    learned = manager.pad([[5, 6], [7]], [[False, True], [True]])
    assert learned[0].labels[:, -2:].tolist() == [[-100, 6], [-100, 7]]


@promise(311)
def test_rows_of_like_length_share_a_bucket():
    manager = LengthManager(
        FILES, max_length=200, padding="buckets", boundaries=[4, 64, 200]
    )
    texts = ["a", "word " * 30, "b", "word " * 10]
    assert [(each.rows.tolist(), each.width) for each in manager.process(texts)] == [
        ([0, 2], 4),
        ([1, 3], 64),
    ]
    automatic = LengthManager(FILES, max_length=200, padding="buckets")
    assert {each.width for each in automatic.process(texts)} <= {32, 64, 128, 256}


@needs_stages
def test_an_object_will_do_as_the_tokenizer():
    backend = open_backend(FILES.json_bytes)
    expected = (
        Encoder(FILES, engine="tokenizers").encode(samples.large(["Some text"])).ids
    )
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
    (rows,) = LengthManager(files, padding="longest", pad_id=0).process(
        ["a", "b c d e f"]
    )
    assert 0 in rows.input_ids[0]


@promise(312)
def test_a_configuration_makes_the_manager_that_its_options_make():
    mode = ContentDistributionMode.EQUAL
    config = LengthManagerConfig(
        max_length=20, budget=mode, truncation="simple", add_special_tokens=False
    )
    made = LengthManager.from_config(config, FILES).unwrap()
    plain = LengthManager(
        FILES,
        max_length=20,
        budget="equal",
        truncation="simple",
        add_special_tokens=False,
    )
    columns = {"a": "word " * 30, "b": "one two " * 30}
    assert made.fit(columns).keys() == columns.keys()
    assert [each.text for each in made.fit(columns).values()] == [
        each.text for each in plain.fit(columns).values()
    ]
    assert tuple(ContentDistributionMode) == STRATEGIES_OF_BUDGETS
    wrong = LengthManager.from_config(
        LengthManagerConfig(max_length=0), FILES
    ).unwrap_err()
    assert "max_length is 0" in str(wrong)
