"""A value or an error that is returned instead of raised.

The classes of :mod:`tokenlake.data_pipeline` return it.

An analogy: a parcel with a label that says whether the thing or an apology is inside.
Whoever opens it without reading the label, by :meth:`Result.unwrap`, gets the apology
thrown at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, cast, final

from tokenlake.errors import TokenlakeError

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
U = TypeVar("U")
T = TypeVar("T")
E = TypeVar("E")


class Result(Generic[T_co, E_co]):
    """Either an :class:`Ok` with a value or an :class:`Err` with an error.

    It is returned where other code raises.

    Example:
        >>> from tokenlake.data_pipeline import Result, TokenizerWrapper
        >>> result: Result = TokenizerWrapper.from_pretrained("openai-community/gpt2")
        >>> result.is_ok(), result.map(lambda tokenizer: tokenizer.vocab_size).unwrap_or(0)
        (True, 600)
    """

    __slots__ = ()

    def is_ok(self) -> bool:
        """Return True if there is a value."""
        return isinstance(self, Ok)

    def is_err(self) -> bool:
        """Return True if there is an error."""
        return not self.is_ok()

    def unwrap(self) -> T_co:
        """Return the value.

        Raises:
            BaseException: The error itself.
            TokenlakeError: The error is no exception.
        """
        # An error may be any value; only an exception can be raised.
        match self:
            case Ok(value):
                return value
            case Err(BaseException() as error):
                raise error
            case _:
                raise TokenlakeError(str(self.unwrap_err()))

    def unwrap_err(self) -> E_co:
        """Return the error.

        Raises:
            TokenlakeError: The result is a value.
        """
        if isinstance(self, Err):
            return cast("Err[E_co]", self).error
        value_text = repr(self.unwrap())
        if len(value_text) > 80:
            value_text = f"{value_text[:80]}..."
        raise TokenlakeError(
            f"unwrap_err was called on Ok({value_text}); check is_err() first"
        )

    def unwrap_or(self, default: Any) -> Any:
        """Return the value, or `default` for an error."""
        if self.is_err():
            return default
        return self.unwrap()

    def map(self, function: Callable[[Any], U]) -> Result[U, E_co]:
        """Return the result with `function` applied to the value.

        An error stays as it is.
        """
        if self.is_err():
            return cast("Result[U, E_co]", self)
        return Ok(function(self.unwrap()))

    def map_err(self, function: Callable[[Any], U]) -> Result[T_co, U]:
        """Return the result with `function` applied to the error.

        A value stays as it is.
        """
        if self.is_ok():
            return cast("Result[T_co, U]", self)
        return Err(function(self.unwrap_err()))

    def and_then(self, function: Callable[[Any], Result[U, Any]]) -> Result[U, Any]:
        """Return the result of a function of the value, which may fail.

        An error stays as it is.
        """
        if self.is_err():
            return cast("Result[U, Any]", self)
        return function(self.unwrap())

    flat_map = and_then

    def or_else(self, function: Callable[[Any], Result[Any, U]]) -> Result[Any, U]:
        """Return the result of a function of the error, which may be a value.

        A value stays as it is.
        """
        if self.is_ok():
            return cast("Result[Any, U]", self)
        return function(self.unwrap_err())

    def unwrap_or_else(self, function: Callable[[Any], Any]) -> Any:
        """Return the value, or the result of a function of the error."""
        if self.is_ok():
            return self.unwrap()
        return function(self.unwrap_err())


@final
@dataclass(frozen=True, slots=True)
class Ok(Result[T_co, Never]):
    """Result that holds a value.

    Args:
        value: Value of any type.

    Example:
        >>> from tokenlake.data_pipeline import Ok
        >>> Ok(2).map(lambda value: value * 3).unwrap()
        6
    """

    value: T_co


@final
@dataclass(frozen=True, slots=True)
class Err(Result[Never, E_co]):
    """Result that holds an error.

    Args:
        error: Error; those of Tokenlake have ``field_path``, ``expected`` and ``got``.

    Example:
        >>> from tokenlake.data_pipeline import Err
        >>> Err("no such split").unwrap_or("train")
        'train'
    """

    error: E_co


def attempt(function: Callable[[], T]) -> Result[T, TokenlakeError]:
    """Return the result of a function, or the error of Tokenlake that it raises.

    Any other error is raised.
    """
    try:
        return Ok(function())
    except TokenlakeError as error:
        return Err(error)


def is_ok(result: Result[Any, Any]) -> bool:
    """Return True if the result holds a value.

    Args:
        result: Result to test.

    Example:
        >>> from tokenlake.data_pipeline import Ok, is_ok
        >>> is_ok(Ok(4))
        True
    """
    return result.is_ok()


def is_err(result: Result[Any, Any]) -> bool:
    """Return True if the result holds an error.

    Args:
        result: Result to test.

    Example:
        >>> from tokenlake.data_pipeline import Err, is_err
        >>> is_err(Err("odd"))
        True
    """
    return result.is_err()


def unwrap(result: Result[T, Any]) -> T:
    """Return the value, or raise the error.

    Args:
        result: Result to read.

    Raises:
        BaseException: The error itself.
        TokenlakeError: The error is not an exception.

    Example:
        >>> from tokenlake.data_pipeline import Ok, unwrap
        >>> unwrap(Ok(4))
        4
    """
    return result.unwrap()


def unwrap_or(result: Result[T, Any], default: U) -> T | U:
    """Return the value, or a default for an error.

    Args:
        result: Result to read.
        default: Value that replaces an error.

    Example:
        >>> from tokenlake.data_pipeline import Err, unwrap_or
        >>> unwrap_or(Err("odd"), 0)
        0
    """
    return result.unwrap_or(default)


def map_result(result: Result[T, E], function: Callable[[T], U]) -> Result[U, E]:
    """Return the result with a function applied to its value; an error stays as it is.

    Args:
        result: Result to read.
        function: Function of the value.

    Example:
        >>> from tokenlake.data_pipeline import Ok, map_result
        >>> map_result(Ok(4), lambda value: value + 1)
        Ok(value=5)
    """
    return result.map(function)


def map_err(result: Result[T, E], function: Callable[[E], U]) -> Result[T, U]:
    """Return the result with a function applied to its error; a value stays as it is.

    Args:
        result: Result to read.
        function: Function of the error.

    Example:
        >>> from tokenlake.data_pipeline import Err, map_err
        >>> map_err(Err("odd"), str.upper)
        Err(error='ODD')
    """
    return result.map_err(function)


def flat_map(
    result: Result[T, Any], function: Callable[[T], Result[U, Any]]
) -> Result[U, Any]:
    """Return the result of a function of the value, which may fail.

    An error stays as it is.

    Args:
        result: Result to read.
        function: Function of the value that returns another result.

    Example:
        >>> from tokenlake.data_pipeline import Err, Ok, flat_map
        >>> flat_map(Ok(4), lambda value: Ok(value // 2) if value % 2 == 0 else Err("odd"))
        Ok(value=2)
    """
    return result.and_then(function)
