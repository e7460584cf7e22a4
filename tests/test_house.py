"""The library's own code: what `python -m benchmarks.house` counts must not slide back."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokenlake
from benchmarks.house import House, cycles, measure


@pytest.fixture(scope="module")
def house() -> House:
    return measure(Path(tokenlake.__file__).parent)


def test_no_modules_import_each_other(house: House) -> None:
    assert cycles(house.edges) == []


def test_a_class_name_means_one_thing(house: House) -> None:
    assert {name: where for name, where in house.names.items() if len(where) > 1} == {}


def test_every_function_is_annotated(house: House) -> None:
    assert house.annotated == len(house.functions)
