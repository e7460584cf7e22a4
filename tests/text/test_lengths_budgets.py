"""Sharing out a budget: nobody gets more than they have, and nothing is left over that somebody needs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.text.lengths import BUDGET_STRATEGIES, BudgetStrategy, allocate

LENGTHS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), max_size=6)
TOTAL = st.integers(-3, 200)


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, int], int, BudgetStrategy, dict[str, Any]]:
    lengths = draw(LENGTHS)
    strategy = draw(st.sampled_from(BUDGET_STRATEGIES))
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


@given(questions())
def test_the_budget_is_given_out_to_the_last_token_and_nobody_gets_more_than_they_have(question: Any):
    lengths, total, strategy, extra = question
    given_out = allocate(lengths, total, strategy, **extra)
    assert list(given_out) == list(lengths)
    assert all(0 <= given_out[name] <= lengths[name] for name in lengths)
    assert sum(given_out.values()) == max(0, min(total, sum(lengths.values())))
    assert allocate(dict(lengths), total, strategy, **extra) == given_out


@given(LENGTHS, TOTAL)
def test_equal_shares_differ_by_one_at_most_among_those_that_are_cut(lengths: dict[str, int], total: int):
    found = allocate(lengths, total, "equal")
    cut = [found[name] for name in lengths if found[name] < lengths[name]]
    assert not cut or max(cut) - min(cut) <= 1
    assert all(found[name] <= min(cut, default=found[name]) + 1 for name in lengths)


@given(LENGTHS, TOTAL)
def test_proportional_shares_are_off_by_less_than_a_token(lengths: dict[str, int], total: int):
    found, whole = allocate(lengths, total, "proportional"), sum(lengths.values())
    total = max(0, min(total, whole))
    assert all(abs(found[name] - total * lengths[name] / whole) < 1 for name in lengths if whole)


@given(LENGTHS, TOTAL)
def test_adaptive_keeps_columns_up_to_an_equal_share_whole(lengths: dict[str, int], total: int):
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
def test_what_each_strategy_means(strategy: BudgetStrategy, extra: dict[str, Any], expected: dict[str, int]):
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
        ("ratio", {"ratios": {}}, "expected a number of at least 0 for every column"),
        ("ratio", {"ratios": {"a": -1}}, "expected a number of at least 0 for every column"),
        ("ratio", {"ratios": {"a": float("nan")}}, "expected a number of at least 0 for every column"),
        ("ratio", {"ratios": {"a": 0}}, "expected a number of at least 0 for every column"),
        ("priority", {"priority": ["a", "a"]}, "at most once"),
        ("priority", {"priority": ["q"]}, "no column 'q'"),
    ],
)
def test_a_question_that_makes_no_sense_is_an_error(strategy: Any, extra: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        allocate({"a": 3}, 2, strategy, **extra)


def test_a_negative_length_is_an_error():
    with pytest.raises(ConfigError, match="expected at least 0 tokens"):
        allocate({"a": -1}, 2, "equal")
