"""From wanted columns to the columns there are: the steps, their order, and the laws
that hold for any names.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tokenlake import ColumnMapper
from tokenlake.data_pipeline import fuzzy_match_columns
from tokenlake.errors import ConfigError
from tokenlake.etl.introspection import (
    SYNONYMS,
    Shape,
    role_of,
    shape_of_value,
    similarity,
    words_of,
)

CHAT = shape_of_value([{"role": "user", "content": "hello"}])
SHARED = shape_of_value([{"from": "human", "value": "hello"}])
STRING, NUMBER = Shape("string"), Shape("int64")


def normalized(name: str) -> str:
    return "".join(words_of(name))


# -- names


def test_words_end_where_people_see_them_end() -> None:
    assert words_of("HTMLBody2Texts") == ("html", "body", "2", "text")
    assert words_of("categories") == ("category",)
    assert words_of("class_status_analysis") == ("class", "status", "analysis")
    assert words_of("Größe") == ("grösse",)
    assert words_of("__") == ()


def test_similarity_by_letters_and_by_whole_words() -> None:
    assert similarity("text", "Texts") == 1.0
    assert similarity("txt", "text") == pytest.approx(2 * 3 / 7)
    assert similarity("text", "page_text") == pytest.approx(0.7 + 0.3 * 4 / 8)
    assert similarity("text", "context") < 0.75  # a part of a word is no word
    assert similarity("", "text") == similarity("_", "_") == 0.0
    assert similarity("data_source", "data") == pytest.approx(
        2 * 4 / 14
    )  # a part of a wanted name is not that name


@given(st.text(max_size=20), st.text(max_size=20))
def test_similarity_is_within_bounds_and_1_for_equal_names_alone(
    wanted: str, name: str
) -> None:
    found = similarity(wanted, name)
    assert 0.0 <= found <= 1.0
    assert (found == 1.0) == (normalized(wanted) == normalized(name) != "")


def test_a_name_belongs_to_one_role() -> None:
    names = [
        normalized(name)
        for role, others in SYNONYMS.items()
        for name in (role, *others)
    ]
    assert len(set(names)) == len(names)
    for role, others in SYNONYMS.items():
        assert {role_of(name) for name in (role, *others)} == {role}


# -- the steps


@promise(113)
def test_the_steps_in_their_order() -> None:
    found = ColumnMapper().map(
        ["text", "instruction", "output", "messages", "lang"],
        ["body", "Prompt", "outputs", "mesages", "zz"],
        explicit={"lang": "zz"},
    )
    assert {entry.role: (entry.column, entry.how) for entry in found.mapped} == {
        "text": ("body", "synonym"),
        "instruction": ("Prompt", "synonym"),
        "output": ("outputs", "exact"),
        "messages": ("mesages", "fuzzy"),
        "lang": ("zz", "explicit"),
    }
    assert [entry.score for entry in found.mapped if entry.how != "fuzzy"] == [1.0] * 4
    assert found.get("messages").score == pytest.approx(2 * 7 / 15, abs=0.05)
    assert found.unmapped == ()


@pytest.mark.parametrize(
    ("wanted", "columns", "found"),
    [
        (
            ["output", "answer"],
            ["answer"],
            {"answer": "answer"},
        ),  # an exact name before a synonym of an earlier role
        (
            ["text"],
            ["article", "content"],
            {"text": "content"},
        ),  # the likelier synonym, not the first by alphabet
        (["question"], ["query"], {"question": "query"}),  # a synonym of its role
        (["weight"], ["weights"], {"weight": "weights"}),
        (["text"], ["context"], {}),  # alike, but plainly something else
    ],
)
def test_what_goes_first(
    wanted: list[str], columns: list[str], found: dict[str, str]
) -> None:
    assert ColumnMapper().map(wanted, columns).columns == found


def test_what_is_not_found_comes_with_the_nearest_columns() -> None:
    found = ColumnMapper().map(
        ["text", "rejected"], ["tixxt", "id", "reason", "aa", "bb"]
    )
    assert found.columns == {}
    (text, rejected) = found.unmapped
    assert text.candidates[0].column == "tixxt"
    assert rejected.candidates[0].column == "reason"
    assert all(0.0 <= candidate.score < 0.7 for candidate in text.candidates)
    assert len(text.candidates) == 3


def test_explicit_mappings_are_checked() -> None:
    mapper, columns = ColumnMapper(), ["title", "body"]
    with pytest.raises(
        ConfigError, match=r"no column 'bodi'; did you mean 'body'\?.*body, title"
    ):
        mapper.map(["text"], columns, explicit={"text": "bodi"})
    with pytest.raises(ConfigError, match="'lang' is not one of the names to map"):
        mapper.map(["text"], columns, explicit={"lang": "title"})
    with pytest.raises(ConfigError, match="'body' is mapped to two names"):
        mapper.map(
            ["text", "output"], columns, explicit={"text": "body", "output": "body"}
        )


# -- types


def test_the_long_string_column_is_the_text() -> None:
    columns = {"a": STRING, "b": STRING, "n": NUMBER}
    mapper = ColumnMapper()
    assert (
        mapper.map(["text"], columns, lengths={"a": 20.0, "b": 900.0}).get("text").how
        == "type"
    )
    assert mapper.map(["text"], columns, lengths={"a": 800.0, "b": 900.0}).columns == {}
    assert mapper.map(["text"], columns, lengths={"a": 2.0, "b": 50.0}).columns == {}
    assert mapper.map(["text"], {"zz": STRING}).columns == {"text": "zz"}


# -- the laws

_LIKELY = "text raw content prompt answer lang id tset q page chosen output x1"
_WORDS = st.sampled_from(_LIKELY.split())
_NAMES = st.one_of(
    st.lists(_WORDS, min_size=1, max_size=3).map("_".join),
    st.text(max_size=8),
    st.sampled_from([*SYNONYMS]),
)
_COLUMNS = st.lists(_NAMES, max_size=10, unique=True)
_WANTED = st.lists(_NAMES, max_size=8, unique=True)
_SHAPES = st.sampled_from([STRING, NUMBER, CHAT, Shape("null", nullable=True)])


@settings(max_examples=60)
@given(
    _WANTED,
    st.dictionaries(_NAMES, _SHAPES, max_size=10),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_columns_never_counts(
    wanted: list[str], columns: dict[str, Shape], randomness: random.Random
) -> None:
    lengths = {name: 10.0 * len(name) ** 2 for name in columns}
    found = ColumnMapper(0.5).map(wanted, columns, lengths=lengths)
    shuffled = list(columns.items())
    randomness.shuffle(shuffled)
    assert ColumnMapper(0.5).map(wanted, dict(shuffled), lengths=lengths) == found
    names = list(columns)
    randomness.shuffle(names)
    assert ColumnMapper(0.5).map(wanted, names) == ColumnMapper(0.5).map(
        wanted, list(columns)
    )


@settings(max_examples=60)
@given(_WANTED, st.dictionaries(_NAMES, _SHAPES, max_size=10))
def test_a_column_is_used_once_and_every_wanted_name_is_answered(
    wanted: list[str], columns: dict[str, Shape]
) -> None:
    found = ColumnMapper(0.4).map(wanted, columns)
    used = [entry.column for entry in found.mapped]
    assert len(set(used)) == len(used)
    assert set(used) <= set(columns)
    answered = [entry.role for entry in found.mapped] + [
        entry.role for entry in found.unmapped
    ]
    assert sorted(answered) == sorted(wanted)
    for entry in found.unmapped:
        assert not {candidate.column for candidate in entry.candidates} & set(used)


@settings(max_examples=60)
@given(_WANTED, _COLUMNS, st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_a_higher_threshold_only_takes_mappings_away(
    wanted: list[str], columns: list[str], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    loose, strict = (ColumnMapper(least).map(wanted, columns) for least in (low, high))
    assert strict.columns.items() <= loose.columns.items()
    assert all(entry.score >= high for entry in strict.mapped)


@promise(113, 308)
def test_a_schema_gets_a_column_each_or_says_which_has_none() -> None:
    made = ColumnMapper().map_columns(
        ["Context", "Question", "Answer"], ["instruction", "input", "output"]
    )
    assert made.unwrap() == {
        "instruction": "Question",
        "input": "Context",
        "output": "Answer",
    }
    assert ColumnMapper().map_columns(
        ["Answer", "Question"], {"output": str}
    ).unwrap() == {"output": "Answer"}
    error = (
        ColumnMapper().map_columns(["Answer", "zzz"], ["output", "input"]).unwrap_err()
    )
    assert (
        "no column for 'input' among 'Answer', 'zzz'; the nearest unused one: 'zzz'"
        in str(error)
    )
    assert (error.field_path, error.got) == ("input", "'Answer', 'zzz'")


@promise(309)
def test_columns_are_matched_by_likeness_above_a_threshold() -> None:
    columns = ["page_texts", "lables", "zzz"]
    assert fuzzy_match_columns(columns, ["page_text", "labels"]) == {
        "page_text": "page_texts",
        "labels": "lables",
    }
    assert fuzzy_match_columns(columns, ["page_text", "labels"], 0.99) == {
        "page_text": "page_texts"
    }
    with pytest.raises(ConfigError, match="min_fuzzy_score"):
        fuzzy_match_columns(columns, ["a"], 0)


def test_types_go_before_names() -> None:
    for shape in (CHAT, SHARED):
        found = ColumnMapper().map(
            ["messages", "text"], {"data": shape, "note": STRING}
        )
        assert (found.get("messages").column, found.get("messages").how) == (
            "data",
            "type",
        )
    # Which one?.
    assert ColumnMapper().map(["messages"], {"a": CHAT, "b": CHAT}).columns == {}
    found = ColumnMapper().map(
        ["messages", "text", "id"], {"messages": STRING, "text": NUMBER, "id": NUMBER}
    )
    assert found.columns == {"id": "id"}


@pytest.mark.parametrize("least", [0.0, 1.5, -1.0])
def test_a_threshold_that_means_nothing_is_refused(least: float) -> None:
    with pytest.raises(
        ConfigError, match=r"min_fuzzy_score: got .*above 0 and at most 1"
    ):
        ColumnMapper(least)


def test_a_column_of_another_type_is_not_taken_by_its_name() -> None:
    found = ColumnMapper().map(
        ["messages", "text", "id"], {"messages": STRING, "text": NUMBER, "id": NUMBER}
    )
    assert found.columns == {"id": "id"}
