"""Results: values and errors, and what is made of them."""

from __future__ import annotations

import pytest

from tests.seeds import promise
from tokenlake import data_pipeline as result
from tokenlake.base import attempt
from tokenlake.data_pipeline import Err, Ok, Result
from tokenlake.errors import ConfigError, TokenlakeError

BAD = Err(ConfigError("no"))


def half(number: int) -> Result[int, str]:
    return Ok(number // 2) if number % 2 == 0 else Err(f"{number} is odd")


@promise(109, 305)
def test_functions_and_methods_say_the_same() -> None:
    assert [result.is_ok(each) for each in (Ok(1), BAD)] == [True, False]
    assert [result.is_err(each) for each in (Ok(1), BAD)] == [False, True]
    assert result.unwrap(Ok(1)) == Ok(1).unwrap() == 1
    assert (result.unwrap_or(Ok(1), 2), result.unwrap_or(BAD, 2)) == (1, 2)
    with pytest.raises(ConfigError, match="no"):
        result.unwrap(BAD)
    with pytest.raises(TokenlakeError, match="check is_err"):
        Ok(1).unwrap_err()


@promise(305)
def test_what_is_made_of_a_value_leaves_an_error_and_the_other_way_round() -> None:
    assert result.map_result(Ok(1), str) == Ok("1")
    assert result.map_result(BAD, str) is BAD
    assert result.map_err(BAD, str) == Err("no")
    assert result.map_err(Ok(1), str) == Ok(1)
    assert Ok(8).and_then(half).flat_map(half) == Ok(2)
    assert result.flat_map(Ok(3), half) == Err("3 is odd")
    assert result.flat_map(BAD, half) is BAD
    assert (BAD.or_else(lambda _: Ok(0)), Ok(1).or_else(lambda _: Ok(0))) == (
        Ok(0),
        Ok(1),
    )
    assert (BAD.unwrap_or_else(str), Ok(1).unwrap_or_else(str)) == ("no", 1)


def test_only_errors_of_the_library_become_results() -> None:
    def fails(error: Exception) -> None:
        raise error

    assert attempt(lambda: fails(BAD.error)) == BAD
    with pytest.raises(ZeroDivisionError):
        attempt(lambda: 1 // 0)
