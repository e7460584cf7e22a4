"""Sizes: every spelling of the specification, and what is no size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenlake.config.values import parse_size
from tokenlake.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 524288000),
        ("1.5 GB", 1610612736),
        ("100kb", 102400),
        ("5M", 5242880),
        ("1GiB", 1073741824),
        ("2 TiB", 2 << 40),
        ("1pb", 1 << 50),
        ("17", 17),
        ("17B", 17),
        (" 1 KiB ", 1024),
        ("0.3KB", 307),
        (123, 123),
    ],
)
def test_every_spelling_of_the_specification(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "bad",
    ["", "MB", "5 zb", "-1MB", "1,5GB", "5MBB", "1e6", "1.MB", "٣MB", 0, -5, "0", "0.0001KB", "9999999PB"],
)
def test_bad_sizes_are_errors_that_quote_the_value(bad: int | str) -> None:
    with pytest.raises(ConfigError, match="size must be") as error:
        parse_size(bad)
    assert repr(bad) in str(error.value)


@pytest.mark.parametrize("bad", [None, True, 1.5, ["5MB"], b"5MB"])
def test_other_types_are_errors(bad: Any) -> None:
    with pytest.raises(ConfigError, match="size must be"):
        parse_size(bad)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    number=st.integers(1, 1 << 20),
    power=st.integers(0, 4),
    infix=st.sampled_from(["", "i"]),
    suffix=st.sampled_from(["", "b", "B"]),
    gap=st.sampled_from(["", " "]),
    upper=st.booleans(),
)
def test_units_are_powers_of_1024_however_they_are_spelled(
    number: int, power: int, infix: str, suffix: str, gap: str, upper: bool
) -> None:
    unit = "" if power == 0 else "kmgt"[power - 1] + infix
    text = f"{number}{gap}{unit.upper() if upper else unit}{suffix}"
    assert parse_size(text) == number * 1024**power
    assert parse_size(parse_size(text)) == parse_size(str(parse_size(text)))
