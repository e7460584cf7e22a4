"""Figures and tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.base import numbers
from tokenlake.etl.reports import Table, facts, label, number, to_markdown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (12_690_000, "12.1 MiB"),
        (524_288_000, "500 MiB"),
    ],
)
def test_sizes_have_three_digits(value: int, expected: str) -> None:
    assert numbers.size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (5_054_464, "5.05 M"),
        (999_999, "1.00 M"),
    ],
)
def test_short_figures(value: int, expected: str) -> None:
    assert numbers.short(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.44, "0.4 s"),
        (59.9, "59.9 s"),
        (60, "1 min 00 s"),
        (125, "2 min 05 s"),
        (11_220, "3 h 07 min"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert numbers.duration(seconds) == expected


@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_a_percentage_reaches_100_only_when_nothing_is_missing(
    part: int, whole: int
) -> None:
    part = min(part, whole)
    assert (numbers.percent(part, whole) == "100.00%") == (part == whole)


def test_percentages_and_rates_of_nothing() -> None:
    assert numbers.percent(0, 0) == "-"
    assert numbers.rate(10, 0) == "-"
    assert numbers.rate(43_100_000, 1) == "43.1 MB/s"
    assert [numbers.plural(1, "shard"), numbers.plural(2_000, "shard")] == [
        "1 shard",
        "2,000 shards",
    ]


def test_a_table_gives_people_words_and_programs_values() -> None:
    table = Table.of(
        [label("name"), number("rows")],
        [{"name": "a|b\n", "rows": 1234}, {"name": "c"}],
        "Splits",
    )
    assert table.records() == [
        {"name": "a|b\n", "rows": 1234},
        {"name": "c", "rows": None},
    ]
    assert table.cells() == [["a|b\n", "1,234"], ["c", ""]]
    assert to_markdown(table) == (
        "### Splits\n\n| name | rows |\n| --- | ---: |\n| a\\|b  | 1,234 |\n| c |  |\n"
    )


def test_facts_are_a_table_too() -> None:
    assert facts([("tokens", "5")]).records() == [{"name": "tokens", "value": "5"}]
